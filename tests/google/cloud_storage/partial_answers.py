"""Partial answers: `fields=items(name,size),nextPageToken` of a JSON document."""

import re
from typing import Any

_WORD = re.compile(r"[A-Za-z0-9_*]+|[(),/]")
Wanted = dict[str, "Wanted"]
"""Names, each with what is wanted of it; nothing there: all."""


def selected(document: Any, fields: str) -> Any:
    """Return what the fields name of a document; ValueError if they cannot be read."""
    words = _WORD.findall(fields)
    if "".join(words) != fields.replace(" ", ""):
        raise ValueError(fields)
    wanted = _read(words)
    if words:
        raise ValueError(fields)
    return _cut(document, wanted)


def _read(words: list[str]) -> Wanted:
    """Read names up to an end; what is read is taken from the words."""
    found: Wanted = {}
    while True:
        if not words or words[0] in "(),/":
            raise ValueError("a name is missing")
        at = found.setdefault(words.pop(0), {})
        while words[:1] == ["/"]:
            del words[0]
            if not words:
                raise ValueError("a name is missing")
            at = at.setdefault(words.pop(0), {})
        if words[:1] == ["("]:
            del words[0]
            at.update(_read(words))
            if words[:1] != [")"]:
                raise ValueError("a bracket is open")
            del words[0]
        if words[:1] != [","]:
            return found
        del words[0]


def _cut(document: Any, wanted: Wanted) -> Any:
    if not wanted:
        return document
    if isinstance(document, list):
        return [_cut(one, wanted) for one in document]
    if not isinstance(document, dict):
        return document
    if "*" in wanted:
        return {key: _cut(value, wanted["*"]) for key, value in document.items()}
    return {key: _cut(document[key], below) for key, below in wanted.items() if key in document}
