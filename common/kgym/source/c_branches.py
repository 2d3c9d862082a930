"""A C file as the compiler may read it: without comments and directives, branches chosen. Pure.

A parser of C fails where `#ifdef` opens the same brace twice, or stands within a
signature. Each reading follows one branch of every conditional; all readings together follow
every branch. What is left out becomes blanks, so that offsets and lines stay those of the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# Readings of a file; the kernel's own files need up to 13.
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
    """A part of the file behind `#if` or `#else`: where its text begins and ends, what is in it.

    Branches are numbered as they come: those within have the numbers up to `last`.
    """

    start: int
    number: int
    end: int = -1
    last: int = -1
    inner: list[list["_Branch"]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class File:
    """A file with its comments, strings and directives blanked, and how it can be read.

    `whole` lacks no branch. `never` are the branches that no compiler reads. `start` is where
    the first line begins that is no directive and lies in no conditional.
    """

    whole: str
    start: int
    top: _Branch
    never: tuple[_Branch, ...]

    def readings(self) -> Iterator[str]:
        """Yield readings, until every branch was followed; at most MOST."""
        unseen = bytearray(b"\1" * self.top.last)
        for branch in self.never:
            unseen[branch.number : branch.last] = bytes(branch.last - branch.number)
        for _ in range(MOST):
            if not any(unseen):
                return
            yield self._read(unseen)

    def _read(self, unseen: bytearray) -> str:
        """Return the reading that follows what was not seen before, where there is a choice."""
        never = {branch.number for branch in self.never}
        gone: list[tuple[int, int]] = []
        stack = [self.top]
        while stack:
            branch = stack.pop()
            unseen[branch.number] = 0
            for branches in branch.inner:
                ways = [one for one in branches if one.number not in never]
                new = (one for one in ways if unseen.find(1, one.number, one.last) >= 0)
                chosen = next(new, ways[0] if ways else None)
                gone += [(one.start, one.end) for one in branches if one is not chosen]
                if chosen is not None:
                    stack.append(chosen)
        parts, at = [], 0
        for start, end in sorted(gone):
            parts += [self.whole[at:start], _blank(self.whole[start:end])]
            at = end
        return "".join([*parts, self.whole[at:]])


def read(text: str) -> File:
    """Read a file; what conditionals stay open end with it."""
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
    """Return what stays of a token: of a string its quotation marks."""
    found = match[0]
    if match["text"] is None or len(found) < 2:
        return _blank(found)
    return found[0] + _blank(found[1:-1]) + found[-1]


def _blank(text: str) -> str:
    return _SHOWN.sub(" ", text)
