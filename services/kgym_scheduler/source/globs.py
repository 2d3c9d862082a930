"""Paths by patterns such as `fs/**/*.c`. Pure."""

import re
from typing import Any

import re2

from kgym.errors import UserError

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


class Glob:
    """A pattern of paths; raises UserError `bad_pattern`."""

    def __init__(self, glob: str) -> None:
        self._folder = re.split(r"[*?[{\\]", glob, maxsplit=1)[0] if "/" in glob else ""
        self._folder = self._folder.removeprefix("/")
        self._pattern = _compiled(glob)

    def matches(self, path: str) -> bool:
        """Tell whether it is such a path."""
        return path.startswith(self._folder) and self._pattern.fullmatch(path) is not None


def _compiled(glob: str) -> Any:
    parts: list[str] = []
    depth = at = 0
    while at < len(glob):
        rest = glob[at:]
        if match := re.match(r"\*\*/|\*\*|\[[!^]?[^]/]+\]|\\.|.", rest, re.DOTALL):
            item = match[0]
            at += len(item)
        depth += (item == "{") - (item == "}")
        parts.append(_expression(item, braces=depth > 0 or item == "}"))
    if depth:
        raise UserError("bad_pattern", f"the glob {glob!r} has braces that do not close")
    start = "" if "/" in glob else "(?:.*/)?"
    try:
        return re2.compile(f"^{start}(?:{''.join(parts).removeprefix('/')})$", _OPTIONS)
    except re2.error as error:
        raise UserError("bad_pattern", f"the glob {glob!r} cannot be read") from error


_ITEMS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_BRACES = {"{": "(?:", "}": ")", ",": "|"}


def _expression(item: str, *, braces: bool) -> str:
    if item in _ITEMS:
        return _ITEMS[item]
    if braces and item in _BRACES:
        return _BRACES[item]
    if item[0] == "[" and len(item) > 1:
        return item.replace("[!", "[^", 1)
    return re.escape(item[-1])
