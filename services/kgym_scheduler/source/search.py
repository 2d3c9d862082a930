"""Searching a source: lines by a regular expression, and the uses of a name.

The index of words yields the files that may match. RE2, whose time is linear, searches them one by
one until there are enough lines or the time is up.
"""

import posixpath
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import re2

from kgym.api.source import (
    LONGEST_LINE,
    Cut,
    Definition,
    SearchLook,
    SearchResult,
    SourceLine,
    SymbolLook,
    SymbolResult,
    Use,
)
from kgym.errors import UserError
from kgym.source import source_archive, symbols
from kgym.source.symbols import Placed
from kgym_scheduler.source import literals
from kgym_scheduler.source.view import View

# Time limit of one search.
SECONDS = 2.0
# Maximum instructions of an expression: in the worst case, each byte takes that many steps.
MOST_PROGRAM = 3000
# Bytes that are searched between two checks of the time.
_PIECE = 64 << 10
_MOST_DEFINITIONS = 200
# After so many uses that are no calls, the search for calls ends.
_MOST_OTHERS = 1000

_GLOB_OPTIONS = re2.Options()
_GLOB_OPTIONS.log_errors = False
_GLOB_ITEMS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_GLOB_BRACES = {"{": "(?:", "}": ")", ",": "|"}


class _Over(Exception):
    """The time is up."""


class _Clock:
    def __init__(self, seconds: float = SECONDS) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise _Over if the time is up."""
        if time.monotonic() > self._end:
            raise _Over


class Glob:
    """A pattern of paths such as `fs/**/*.c`; raises UserError `bad_pattern`."""

    def __init__(self, glob: str) -> None:
        self._folder = re.split(r"[*?[{\\]", glob, maxsplit=1)[0] if "/" in glob else ""
        self._folder = self._folder.removeprefix("/")
        self._pattern = _compiled_glob(glob)

    def matches(self, path: str) -> bool:
        """Return whether the path matches."""
        return path.startswith(self._folder) and self._pattern.fullmatch(path) is not None


def _compiled_glob(glob: str) -> Any:
    parts: list[str] = []
    depth = at = 0
    while at < len(glob):
        rest = glob[at:]
        if match := re.match(r"\*\*/|\*\*|\[[!^]?[^]/]+\]|\\.|.", rest, re.DOTALL):
            item = match[0]
            at += len(item)
        depth += (item == "{") - (item == "}")
        parts.append(_glob_expression(item, braces=depth > 0 or item == "}"))
    if depth:
        raise UserError("bad_pattern", f"the glob {glob!r} has unclosed braces")
    start = "" if "/" in glob else "(?:.*/)?"
    try:
        return re2.compile(f"^{start}(?:{''.join(parts).removeprefix('/')})$", _GLOB_OPTIONS)
    except re2.error as error:
        raise UserError("bad_pattern", f"the glob {glob!r} cannot be read") from error


def _glob_expression(item: str, *, braces: bool) -> str:
    if item in _GLOB_ITEMS:
        return _GLOB_ITEMS[item]
    if braces and item in _GLOB_BRACES:
        return _GLOB_BRACES[item]
    if item[0] == "[" and len(item) > 1:
        return item.replace("[!", "[^", 1)
    return re.escape(item[-1])


def compiled(pattern: str, *, ignore_case: bool = False) -> Any:
    """Return the compiled expression, which matches single lines; raise UserError `bad_pattern`."""
    # RE2, not `re`: hostile expressions backtrack for ever there, and here take linear time. Bytes
    # as Latin-1, because not all sources are UTF-8.
    options = re2.Options()
    options.never_nl = True
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = not ignore_case
    try:
        expression = re2.compile(b"(?m)(?:" + pattern.encode() + b")", options)
    except (re2.error, UnicodeEncodeError) as error:
        words = error.args[0]
        words = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
        raise UserError("bad_pattern", f"{pattern!r} is no regular expression: {words}") from error
    if expression.programsize > MOST_PROGRAM:
        raise UserError("bad_pattern", "the regular expression is too large: use fewer repetitions")
    return expression


def search(view: View, look: SearchLook) -> SearchResult:
    """Return the matching lines."""
    pattern = compiled(look.pattern, ignore_case=look.ignore_case)
    glob = Glob(look.glob) if look.glob else None
    words = literals.needed(look.pattern.encode())
    matches: list[SourceLine] = []
    cut: Cut | None = None
    try:
        clock = _Clock()
        for path, text in _texts(view, words, glob, clock, ignore_case=look.ignore_case):
            for number, line in _lines(pattern, text, clock):
                if len(matches) == look.limit:
                    return SearchResult(matches=matches, cut="limit")
                matches.append(SourceLine(path=path, line=number, text=line))
    except _Over:
        cut = "time"
    return SearchResult(matches=matches, cut=cut)


def _texts(
    view: View, words: literals.Words | None, glob: Glob | None, clock: _Clock, *, ignore_case: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield the files that may match, by path."""
    candidates = None
    if words is not None:
        candidates = view.reader.candidates(view.archive, words, ignore_case=ignore_case)
    paths = view.archive.paths
    numbers: Iterable[int] = range(1, len(paths)) if candidates is None else candidates.tolist()
    unchanged = ((paths[n], n) for n in numbers if paths[n] not in view.changed)
    changed = ((path, 0) for path, text in view.changed.items() if text is not None)
    for path, number in sorted([*changed, *unchanged]):
        if glob is None or glob.matches(path):
            clock.check()
            text = view.reader.text(number) if number else view.changed[path]
            if text and len(text) <= source_archive.SEARCHED:
                yield path, text


def _lines(pattern: Any, text: bytes, clock: _Clock) -> Iterator[tuple[int, str]]:
    """Yield the matching lines of a text with their numbers."""
    number, counted = 1, 0
    for start, end in _pieces(text):
        clock.check()
        at, piece = start, text[start:end]
        while match := pattern.search(piece, at - start):
            begin = text.rfind(b"\n", 0, start + match.start()) + 1
            stop = text.find(b"\n", start + match.start())
            stop = len(text) if stop < 0 else stop
            number += text.count(b"\n", counted, begin)
            counted = begin
            line = text[begin : min(stop, begin + 4 * LONGEST_LINE)]
            yield number, line.decode(errors="replace")[:LONGEST_LINE]
            at = stop + 1
            if at >= end:
                break


def _pieces(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of pieces of whole lines; lines longer than a piece are split."""
    start = 0
    while start < len(text):
        end = start + _PIECE
        if end < len(text):
            end = text.rfind(b"\n", start, end) + 1 or end
        yield start, min(end, len(text))
        start = end


# --- symbols ------------------------------------------------------------------------------


def look_up(view: View, look: SymbolLook) -> SymbolResult:
    """Return the definitions and the uses of a name."""
    name = look.name.encode()
    definitions = _definitions(view, name)
    calls: list[Use] = []
    others: list[Use] = []
    cut: Cut | None = "limit" if len(definitions) > _MOST_DEFINITIONS else None
    try:
        for use in _uses(view, look.name, definitions, _Clock()):
            (calls if use.call else others).append(use)
            if len(calls) > look.limit or len(others) > _MOST_OTHERS:
                cut = "limit"
                break
    except _Over:
        cut = "time"
    uses = [*calls, *others]
    return SymbolResult(
        name=look.name,
        definitions=definitions[:_MOST_DEFINITIONS],
        uses=uses[: look.limit],
        cut="limit" if len(uses) > look.limit else cut,
    )


def _definitions(view: View, name: bytes) -> list[Definition]:
    paths = view.archive.paths
    rows = view.reader.definitions(name)[: _MOST_DEFINITIONS + 1]
    definitions = [
        _definition(paths[file], view.reader.text(file), symbol)
        for file, symbol in rows
        if paths[file] not in view.changed
    ]
    for path, text in view.changed.items():
        if text and symbols.is_c(path) and len(text) <= source_archive.SEARCHED:
            own = [symbol for symbol in symbols.symbols(text) if symbol.name == name]
            definitions += [_definition(path, text, symbol) for symbol in own]
    # Variables last: a function, macro or type of the same name is more often meant.
    definitions.sort(key=lambda d: (d.kind == "variable", d.path, d.line))
    return definitions


def _definition(path: str, text: bytes, symbol: Placed) -> Definition:
    line = text.split(b"\n", symbol.line)[symbol.line - 1].decode(errors="replace")
    place = {"path": path, "line": symbol.line, "last": symbol.last}
    return Definition.model_validate({**place, "kind": symbol.kind, "text": line})


def _uses(view: View, name: str, definitions: list[Definition], clock: _Clock) -> Iterator[Use]:
    """Yield the lines that name it, without its definitions; those near a definition first."""
    pattern, call = compiled(rf"\b{name}\b"), compiled(rf"\b{name}[ \t]*\(")
    for path, number in _near(view, name, definitions):
        clock.check()
        text = view.reader.text(number) if number else view.changed[path]
        if not text or name.encode() not in text:
            continue
        functions: list[Placed] | None = None
        heads = _heads(text, [d for d in definitions if d.path == path])
        for line, shown in _lines(pattern, text, clock):
            if line in heads or shown.lstrip().startswith(("*", "//", "/*")):
                continue
            if functions is None:
                functions = _functions(view, path, number, text)
            inside = next((f for f in functions if f.line <= line <= f.last), None)
            yield Use(
                path=path,
                line=line,
                text=shown,
                function=inside.name.decode(errors="replace") if inside else None,
                call=call.search(shown.encode()) is not None,
            )


def _heads(text: bytes, definitions: list[Definition]) -> set[int]:
    """Return the lines of these definitions; of a function, only up to its body."""
    heads = set()
    for definition in definitions:
        first, last = definition.line, definition.last
        heads.add(first)
        if definition.kind == "function":
            lines = text.split(b"\n", last)[first - 1 : last]
            body = next((at for at, line in enumerate(lines) if b"{" in line), 0)
            heads.update(range(first, first + body + 1))
    return heads


def _functions(view: View, path: str, number: int, text: bytes) -> list[Placed]:
    if number:
        return view.reader.functions(number)
    if not symbols.is_c(path):
        return []
    return [symbol for symbol in symbols.symbols(text) if symbol.kind == "function"]


def _near(view: View, name: str, definitions: list[Definition]) -> list[tuple[str, int]]:
    """Return the files that contain a name: those that define it, their folders', others."""
    paths = view.archive.paths
    numbers = view.reader.files_with([name.encode()]) if len(name) > 2 else np.empty(0, np.uint32)
    files = [(paths[n], n) for n in numbers.tolist() if paths[n] not in view.changed]
    files += [(path, 0) for path, text in view.changed.items() if text is not None]
    own = {definition.path for definition in definitions}
    folders = {posixpath.dirname(path) for path in own}

    def distance(file: tuple[str, int]) -> tuple[int, str]:
        path = file[0]
        return 0 if path in own else 1 if posixpath.dirname(path) in folders else 2, path

    return sorted(files, key=distance)
