"""Searching a source: lines by a regular expression, and the uses of a name.

The index tells which files may match; these are searched one by one, by RE2, whose time is
linear, until there are enough lines or the time is over.
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
from kgym_scheduler.source import literals
from kgym_scheduler.source.archive import Row
from kgym_scheduler.source.view import View

# Of one search.
SECONDS = 2.0
# Instructions of an expression: a piece takes that many steps for each byte at the worst.
MOST_PROGRAM = 3000
# Bytes that are searched between two looks at the clock.
_PIECE = 64 << 10
_MOST_DEFINITIONS = 200
# Lines that name a symbol and call nothing, after which no calls are looked for any more.
_MOST_OTHERS = 1000

_GLOB_OPTIONS = re2.Options()
_GLOB_OPTIONS.log_errors = False
_GLOB_ITEMS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_GLOB_BRACES = {"{": "(?:", "}": ")", ",": "|"}


class _Over(Exception):
    """The time is over."""


class _Clock:
    def __init__(self, seconds: float = SECONDS) -> None:
        self._end = time.monotonic() + seconds

    def look(self) -> None:
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
        raise UserError("bad_pattern", f"the glob {glob!r} has braces that do not close")
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
    """Return the expression, for one line at a time; raise UserError `bad_pattern`."""
    options = re2.Options()
    options.never_nl = True
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = not ignore_case
    try:
        found = re2.compile(b"(?m)(?:" + pattern.encode() + b")", options)
    except (re2.error, UnicodeEncodeError) as error:
        words = error.args[0]
        words = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
        raise UserError("bad_pattern", f"{pattern!r} is no regular expression: {words}") from error
    if found.programsize > MOST_PROGRAM:
        raise UserError("bad_pattern", "the regular expression is too large: repeat less")
    return found


def search(view: View, wanted: SearchLook) -> SearchResult:
    """Return the lines that match."""
    pattern = compiled(wanted.pattern, ignore_case=wanted.ignore_case)
    glob = Glob(wanted.glob) if wanted.glob else None
    words = literals.needed(wanted.pattern.encode())
    matches: list[SourceLine] = []
    cut: Cut | None = None
    try:
        clock = _Clock()
        for path, text in _texts(view, words, glob, clock, ignore_case=wanted.ignore_case):
            for number, line in _lines(pattern, text, clock):
                if len(matches) == wanted.limit:
                    return SearchResult(matches=matches, cut="limit")
                matches.append(SourceLine(path=path, line=number, text=line))
    except _Over:
        cut = "time"
    return SearchResult(matches=matches, cut=cut)


def _texts(
    view: View, words: literals.Words | None, glob: Glob | None, clock: _Clock, *, ignore_case: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield the files that may match, by path."""
    found = None
    if words is not None:
        found = view.reader.candidates(view.archive, words, ignore_case=ignore_case)
    paths = view.archive.paths
    numbers: Iterable[int] = range(1, len(paths)) if found is None else found.tolist()
    there = ((paths[number], number) for number in numbers)
    changed = ((path, 0) for path, text in view.changed.items() if text is not None)
    for path, number in sorted([*changed, *(one for one in there if one[0] not in view.changed)]):
        if glob is None or glob.matches(path):
            clock.look()
            text = view.reader.text(number) if number else view.changed[path]
            if text and len(text) <= source_archive.SEARCHED:
                yield path, text


def _lines(pattern: Any, text: bytes, clock: _Clock) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text that match, with their numbers."""
    number, counted = 1, 0
    for start, end in _pieces(text):
        clock.look()
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
    """Yield the ends of pieces: whole lines, but of lines that are longer than a piece."""
    start = 0
    while start < len(text):
        end = start + _PIECE
        if end < len(text):
            end = text.rfind(b"\n", start, end) + 1 or end
        yield start, min(end, len(text))
        start = end


# --- symbols ------------------------------------------------------------------------------


def look_up(view: View, wanted: SymbolLook) -> SymbolResult:
    """Return where a name is defined, and where it is used."""
    name = wanted.name.encode()
    definitions = _definitions(view, name)
    calls: list[Use] = []
    others: list[Use] = []
    cut: Cut | None = "limit" if len(definitions) > _MOST_DEFINITIONS else None
    try:
        for use in _uses(view, wanted.name, definitions, _Clock()):
            (calls if use.call else others).append(use)
            if len(calls) > wanted.limit or len(others) > _MOST_OTHERS:
                cut = "limit"
                break
    except _Over:
        cut = "time"
    uses = [*calls, *others]
    return SymbolResult(
        name=wanted.name,
        definitions=definitions[:_MOST_DEFINITIONS],
        uses=uses[: wanted.limit],
        cut="limit" if len(uses) > wanted.limit else cut,
    )


def _definitions(view: View, name: bytes) -> list[Definition]:
    paths = view.archive.paths
    rows = view.reader.definitions(name)[: _MOST_DEFINITIONS + 1]
    found = [
        _definition(paths[one.file], view.reader.text(one.file), one)
        for one in rows
        if paths[one.file] not in view.changed
    ]
    for path, text in view.changed.items():
        if text and symbols.is_c(path) and len(text) <= source_archive.SEARCHED:
            for one in symbols.symbols(text):
                if one.name == name:
                    found.append(
                        _definition(path, text, Row(name, 0, one.line, one.last, one.kind))
                    )
    found.sort(key=lambda one: (one.kind == "variable", one.path, one.line))
    return found


def _definition(path: str, text: bytes, row: Row) -> Definition:
    line = text.split(b"\n", row.line)[row.line - 1].decode(errors="replace")
    return Definition.model_validate(
        {"path": path, "line": row.line, "last": row.last, "kind": row.kind, "text": line}
    )


def _uses(view: View, name: str, definitions: list[Definition], clock: _Clock) -> Iterator[Use]:
    """Yield the lines that name it, but for those that define it; near files first."""
    pattern, call = compiled(rf"\b{name}\b"), compiled(rf"\b{name}[ \t]*\(")
    for path, number in _near(view, name, definitions):
        clock.look()
        text = view.reader.text(number) if number else view.changed[path]
        if not text or name.encode() not in text:
            continue
        functions: list[Row] | None = None
        heads = _heads(text, [one for one in definitions if one.path == path])
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
    """Return the lines on which these are defined: of a function, up to its body."""
    heads = set()
    for one in definitions:
        heads.add(one.line)
        if one.kind == "function":
            lines = text.split(b"\n", one.last)[one.line - 1 : one.last]
            body = next((at for at, line in enumerate(lines) if b"{" in line), 0)
            heads.update(range(one.line, one.line + body + 1))
    return heads


def _functions(view: View, path: str, number: int, text: bytes) -> list[Row]:
    if number:
        return view.reader.functions(number)
    if not symbols.is_c(path):
        return []
    return [
        Row(one.name, 0, one.line, one.last, one.kind)
        for one in symbols.symbols(text)
        if one.kind == "function"
    ]


def _near(view: View, name: str, definitions: list[Definition]) -> list[tuple[str, int]]:
    """Return the files that hold a name: its own first, then those in its folder, then others."""
    paths = view.archive.paths
    found = view.reader.files_with([name.encode()]) if len(name) > 2 else np.empty(0, np.uint32)
    there = [(paths[n], n) for n in found.tolist() if paths[n] not in view.changed]
    there += [(path, 0) for path, text in view.changed.items() if text is not None]
    own = {one.path for one in definitions}
    folders = {posixpath.dirname(path) for path in own}

    def far(one: tuple[str, int]) -> tuple[int, str]:
        path = one[0]
        return 0 if path in own else 1 if posixpath.dirname(path) in folders else 2, path

    return sorted(there, key=far)
