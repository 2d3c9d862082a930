"""Readings of a C file: comments and directives blanked, one branch of each `#if` chosen. Pure.

A C parser fails where both branches of an `#ifdef` open the same brace, or where an `#ifdef` stands
within a signature. Each reading follows one branch of every conditional; together, the readings
follow every branch. Omitted text becomes blanks, so offsets and line numbers stay valid.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# Readings of a file. The kernel's own files need up to 13; a hostile patch could ask for thousands.
MOST = 32

_TOKEN = re.compile(
    r"""
    (?P<comment> /\*(?:.*?\*/|.*) | //(?:\\\r?\n|[^\n])* )
  | (?P<text> "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])*'? )
  | ^[ \t]*\#[ \t]*(?P<directive>\w*)(?P<rest>(?:\\\r?\n|/\*(?:.*?\*/|.*)|[^\n\\/]|\\|/)*)
  | (?P<splice> \\\r?\n )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_SHOWN = re.compile(r"[^\n]")
_NEVER = re.compile(r"\s*(?:0|false)\s*(?:/[/*].*)?", re.DOTALL)
_IFS = {"if", "ifdef", "ifndef"}
_ELSES = {"else", "elif", "elifdef", "elifndef"}


@dataclass(slots=True)
class _Branch:
    """Text after an `#if` or `#else`: its offsets, and the conditionals nested in it.

    Branches are numbered in file order: nested branches have numbers below `last`.
    """

    start: int
    number: int
    end: int = -1
    last: int = -1
    inner: list[list["_Branch"]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class File:
    """A file with comments, strings and directives blanked, and its tree of branches.

    `whole` keeps every branch. `never` lists branches that are never compiled (`#if 0`). `start` is
    the offset of the first line that is neither a directive nor inside a conditional.
    """

    whole: str
    start: int
    top: _Branch
    never: tuple[_Branch, ...]

    def readings(self) -> Iterator[str]:
        """Yield readings until every branch has been followed, MOST at most."""
        unseen = bytearray(b"\1" * self.top.last)
        for branch in self.never:
            unseen[branch.number : branch.last] = bytes(branch.last - branch.number)
        for _ in range(MOST):
            if not any(unseen):
                return
            yield self._read(unseen)

    def _read(self, unseen: bytearray) -> str:
        """Return the next reading; prefer branches that no earlier reading followed."""
        never = {branch.number for branch in self.never}
        gone: list[tuple[int, int]] = []
        stack = [self.top]
        while stack:
            branch = stack.pop()
            unseen[branch.number] = 0
            for branches in branch.inner:
                ways = [branch for branch in branches if branch.number not in never]
                new = (branch for branch in ways if unseen.find(1, branch.number, branch.last) >= 0)
                chosen = next(new, ways[0] if ways else None)
                gone += [(branch.start, branch.end) for branch in branches if branch is not chosen]
                if chosen is not None:
                    stack.append(chosen)
        parts, at = [], 0
        for start, end in sorted(gone):
            parts += [self.whole[at:start], _blank(self.whole[start:end])]
            at = end
        return "".join([*parts, self.whole[at:]])


def read(text: str) -> File:
    """Parse a file; unterminated conditionals end with it."""
    parts: list[str] = []
    at = count = 0
    top = _Branch(0, 0)
    never: list[_Branch] = []
    way = [top]
    start, sought = 0, True
    for match in _TOKEN.finditer(text):
        parts += [text[at : match.start()], _without(match)]
        at = match.end()
        word = match["directive"]
        if word is not None and sought:
            sought = len(way) > 1 or match.start() == start
            start = match.end() + 1 if sought else start
        begins, goes_on = word in _IFS, word in _ELSES and len(way) > 1
        if (goes_on or word == "endif") and len(way) > 1:
            _end(way.pop(), match.start(), count)
        if begins or goes_on:
            count += 1
            branch = _Branch(match.end(), count)
            if begins:
                way[-1].inner.append([])
            way[-1].inner[-1].append(branch)
            way.append(branch)
            if word in {"if", "elif"} and _NEVER.fullmatch(match["rest"]):
                never.append(branch)
    for branch in way:
        _end(branch, len(text), count)
    return File("".join([*parts, text[at:]]), start, top, tuple(never))


def _end(branch: _Branch, at: int, count: int) -> None:
    branch.end, branch.last = at, count + 1


def _without(match: re.Match[str]) -> str:
    """Return the blanked token; a string keeps its quotation marks."""
    token = match[0]
    if match["text"] is None or len(token) < 2:
        return _blank(token)
    return token[0] + _blank(token[1:-1]) + token[-1]


def _blank(text: str) -> str:
    return _SHOWN.sub(" ", text)
