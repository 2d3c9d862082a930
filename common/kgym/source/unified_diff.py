"""Unified diffs as people, tools, mail programs and language models write them. Pure; linear time.

Prose around a diff is skipped. If the header of a hunk counts its lines wrongly, or has no numbers,
the lines decide; if they can be read in several ways, the tree decides (`kgym.source.patching`).
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import dropwhile, islice

from kgym.errors import UserError
from kgym.source import diff_text

NOTHING = "/dev/null"
_NO_END = "\n\\ No newline at end of file\n"
_NUMBERS = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_HUNK = re.compile(r"@@(?:$|[\s.])")
# Lines of Git between `diff --git` and the first hunk.
_EXTENDED = re.compile(
    r"((?:old|new|deleted file|new file) mode|(?:copy|rename) (?:from|to)|index|"
    r"(?:dis)?similarity index) (.*)"
)
_BINARY = re.compile(r"Binary files (.*) and (.*) differ$|GIT binary patch$")
# Lines that show that a diff is not complete, and what to do.
_REFUSED = (
    (
        re.compile(r"diff --(?:cc|combined) |@@@ "),
        "a combined diff of a merge has no single old file; `git show -m --first-parent COMMIT`",
    ),
    (re.compile(r"Only in \S+: \S+$"), "this file's content is missing; use `diff -ruN`"),
)
_WORD = re.compile(r"\[-.{1,200}?-\]|\{\+.{1,200}?\+\}")
# Ends a hunk whose header does not say where it ends: other headers, signatures, scissors, fences.
_STOPS = re.compile(
    r"diff -|@@(?:$|[\s.@])|Index: |Property changes on: |Binary files |GIT binary patch$|Only in "
    r"|-- ?$|-+ ?(?:>8|8<|>%|%<)|```|~~~"
)
# A line that belongs to a hunk: even one that starts with a tab, from which the blank was cut.
_SIGNED = re.compile(r"[-+ \t\\]|\r?$")
# A line after a hunk that is hardly prose.
_CODE = re.compile(r"[-+ ]\t|[-+](?! ).*[;{}]$|[-+]#")
_START = re.compile(r"(?<=[-+])\d+(?=,|\s)")
# Heads of functions, by Git's driver `cpp`, which the kernel's .gitattributes name: no labels.
_FUNCTION = re.compile(r"(?!\w+:\s*(?:$|/))[A-Za-z_]")


@dataclass(frozen=True, slots=True)
class Hunk:
    """A hunk: its lines with signs and ends, in each possible reading, the likeliest first.

    `line` is the number of its header in the text; `old` and `new` are where its lines stand on
    both sides, from 1, or None if the header has no numbers.
    """

    line: int
    old: int | None
    new: int | None
    readings: tuple[tuple[str, ...], ...]
    header: str = ""
    recounted: bool = False

    def side(self, kinds: str, reading: int = 0) -> list[str]:
        """Return the lines of one side: "- " for the old, "+ " for the new one."""
        return [line[1:] for line in self.readings[reading] if line[0] in kinds]


@dataclass(slots=True)
class FileDiff:
    """The changes to one file; paths as in its headers."""

    line: int
    old: str
    new: str
    extended: dict[str, str] = field(default_factory=dict)
    hunks: list[Hunk] = field(default_factory=list)
    binary: bool = False
    charset: str = diff_text.BYTES
    """The encoding of its lines if the file is not UTF-8."""

    @property
    def added(self) -> bool:
        """Whether the file is new."""
        whole = (hunk.old == 0 and not hunk.side("- ") for hunk in self.hunks)
        new = self.old == NOTHING or "new file mode" in self.extended
        return new or (bool(self.hunks) and all(whole))

    @property
    def removed(self) -> bool:
        """Whether the file is deleted."""
        whole = (hunk.new == 0 and not hunk.side("+ ") for hunk in self.hunks)
        gone = self.new == NOTHING or "deleted file mode" in self.extended
        return gone or (bool(self.hunks) and all(whole))

    @property
    def paths(self) -> tuple[str, str]:
        """The old and the new path, without Git's prefixes; equal but for copies and renames."""
        for kind in ("copy", "rename"):
            if f"{kind} from" in self.extended and f"{kind} to" in self.extended:
                return self.extended[f"{kind} from"], self.extended[f"{kind} to"]
        old, new = diff_text.bare(self.old), diff_text.bare(self.new)
        return (new if self.added else old), (old if self.removed else new)

    @property
    def mode(self) -> str:
        """The file's mode after the patch, as Git writes it; empty if the diff has none."""
        index = self.extended.get("index", "").partition(" ")[2]
        modes = (self.extended.get(f"{kind} mode") for kind in ("new file", "new", "deleted file"))
        return next(filter(None, modes), index).strip()

    def text(self) -> str:
        """Return the diff as Git writes it, with true counts of lines, without hashes."""
        old, new = self.paths
        extended = [f"{key} {self.extended[key]}\n" for key in self.extended if "index" not in key]
        lines = [f"diff --git a/{old} b/{new}\n", *extended] if extended else []
        if self.hunks:
            lines.append(f"--- {NOTHING if self.added else f'a/{old}'}\n")
            lines.append(f"+++ {NOTHING if self.removed else f'b/{new}'}\n")
        for hunk in self.hunks:
            before, after = len(hunk.side("- ")), len(hunk.side("+ "))
            lines.append(f"@@ -{hunk.old or 0},{before} +{hunk.new or 0},{after} @@\n")
            for line in hunk.readings[0]:
                lines.append(line if line.endswith("\n") else f"{line}{_NO_END}")
        return "".join(lines)


def parse(text: str, name: str) -> list[FileDiff]:
    """Return the diffs of a text's files, in order; none if it holds no diff.

    Raises UserError `malformed_patch`, with the line.
    """
    return _Parser(text, name).files


def between(
    path: str, before: str, after: str, context: int = 3, *, functions: bool = False
) -> str:
    """Return the change of a file's text as a diff; empty if there is none.

    With `functions`, hunks name the function around them, as in Git's diffs of C.
    """
    # str.splitlines would also split at the form feeds in kernel sources.
    old, new = StringIO(before).readlines(), StringIO(after).readlines()
    whole = old
    # difflib is quadratic, so it only gets the part that differs.
    same = common_start(old, new)
    first = max(0, same - context)
    tail = max(0, common_start(old[same:][::-1], new[same:][::-1]) - context)
    old, new = old[first : len(old) - tail], new[first : len(new) - tail]
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=context)
    text = []
    for line in lines:
        if line.startswith("@@"):
            line = _START.sub(lambda number: str(int(number[0]) + first), line)  # noqa: PLW2901
            if functions and (numbers := _NUMBERS.match(line)):
                line = f"{line.rstrip()}{_function(whole[: int(numbers[1]) - 1])}\n"  # noqa: PLW2901
        text.append(line if line.endswith("\n") else f"{line}{_NO_END}")
    return "".join(text)


def _function(above: Sequence[str]) -> str:
    """Return the head of the function that the lines above a hunk begin, for its header."""
    heads = (line for line in reversed(above) if _FUNCTION.match(line))
    return "".join(f" {line[:80].rstrip()}" for line in islice(heads, 1))


def common_start(lines: Sequence[str], other: Sequence[str]) -> int:
    """Return how many lines both begin with."""
    pairs = zip(lines, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(lines), len(other)))


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines = text.removesuffix("\n").split("\n")
        self.files: list[FileDiff] = []
        self.at = 0
        while self.at < len(self.lines):
            line = self.lines[self.at]
            for pattern, what in _REFUSED:
                if pattern.match(line):
                    raise self._malformed(self.at, what)
            if line.startswith("diff --git ") or self._is_header(self.at):
                self._file(line)
            elif _HUNK.match(line) and (self.files or _NUMBERS.match(line)):
                self._hunk()
            else:
                self.at += 1
                if match := _BINARY.match(line):
                    # Only Git has other headers before this line.
                    begun = self.files and self.files[-1].extended and not self.files[-1].hunks
                    if match[1] and not begun:
                        self.files.append(FileDiff(self.at, match[1], match[2]))
                    for file in self.files[-1:]:
                        file.binary = True

    def _is_header(self, at: int) -> bool:
        pair = self.lines[at : at + 2]
        return len(pair) == 2 and pair[0].startswith("--- ") and pair[1].startswith("+++ ")

    def _file(self, line: str) -> None:
        self.files.append(file := FileDiff(self.at + 1, "", ""))
        if line.startswith("diff --git "):
            file.old, file.new = _git_paths(line.removeprefix("diff --git "))
            self.at += 1
            while self.at < len(self.lines) and (match := _EXTENDED.match(self.lines[self.at])):
                file.extended[match[1]] = match[2]
                self.at += 1
        if self._is_header(self.at):
            file.old, file.new = (line[4:] for line in self.lines[self.at : self.at + 2])
            self.at += 2
            # Language models leave out the header of a hunk.
            if self.at < self._stop(self.at) and self.lines[self.at][:1] in ("-", "+", " "):
                self.at -= 1
                self._hunk()

    def _hunk(self) -> None:
        head, match = self.at, _NUMBERS.match(self.lines[self.at])
        if not self.files:
            what = "it is a hunk of an unknown file; put `--- a/PATH` and `+++ b/PATH` before it"
            raise self._malformed(head, what)
        old, new = (int(match[1]), int(match[3])) if match else (None, None)
        end = self._counted(head + 1, int(match[2] or 1), int(match[4] or 1)) if match else None
        exact = end is not None and not self._goes_on(end)
        self.at = end if end is not None and exact else self._stop(head + 1)
        ways: list[Sequence[str]] = [self.lines[head + 1 : self.at]]
        if not exact:
            run = head + 1
            while run < self.at and _SIGNED.match(self.lines[run]):
                run += 1
            # Shorter only if prose follows: a dropped line would lead to a wrong verdict.
            if not any(map(_CODE.match, self.lines[run : self.at])):
                ways.insert(0, _stripped(self.lines[head + 1 : run]))
        # Empty lines at the end belong to the prose after it, unless the file has them.
        ways += [_stripped(way) for way in ways]
        readings = tuple(dict.fromkeys(tuple(_normal(way)) for way in ways))
        changing = tuple(way for way in readings if any(line[0] in "+-" for line in way))
        if not changing:
            marks = any(map(_WORD.search, self.lines[head + 1 : self.at]))
            what = "it is a word diff" if marks else "no line of this hunk begins with + or -"
            if marks or not exact:
                raise self._malformed(head, f"{what}; make it anew: `git diff --word-diff=none`")
        miscounts = match is not None and not exact
        hunk = Hunk(head + 1, old, new, changing or readings[:1], self.lines[head], miscounts)
        self.files[-1].hunks.append(hunk)

    def _counted(self, at: int, old: int, new: int) -> int | None:
        """Return where a hunk with these line counts ends; None if its lines contradict them."""
        while old > 0 or new > 0:
            if at == len(self.lines) or not _SIGNED.match(self.lines[at]):
                return None
            sign = self.lines[at][:1]
            old -= sign not in ("+", "\\")
            new -= sign not in ("-", "\\")
            at += 1
        if old < 0 or new < 0:
            return None
        return at + (at < len(self.lines) and self.lines[at].startswith("\\"))

    def _goes_on(self, at: int) -> bool:
        """Return whether lines after a counted hunk seem to belong to it."""
        rest = self.lines[at : self._stop(at)]
        return any(map(_CODE.match, rest)) or any(re.match(r"[-+ ]+\S", line) for line in rest[:1])

    def _stop(self, at: int) -> int:
        while at < len(self.lines) and not _STOPS.match(self.lines[at]) and not self._is_header(at):
            at += 1
        return at

    def _malformed(self, at: int, what: str) -> UserError:
        return UserError("malformed_patch", f"{self.name}: line {at + 1}: {what}", line=at + 1)


def _git_paths(text: str) -> tuple[str, str]:
    """Return the two paths of a `diff --git` line, which may contain blanks."""
    half = len(text) // 2
    if diff_text.bare(text[:half]) == diff_text.bare(text[half + 1 :]):
        return text[:half], text[half + 1 :]
    return text.partition(" ")[0], text.rpartition(" ")[2]


def _stripped(lines: Sequence[str]) -> Sequence[str]:
    return list(dropwhile(lambda line: not line.strip("\r"), reversed(lines)))[::-1]


def _normal(lines: Sequence[str]) -> Iterator[str]:
    """Yield a hunk's lines with signs and ends; a line without a sign is context."""
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if not line.startswith("\\"):  # `\ No newline at end of file`
            end = "" if following.startswith("\\") else "\n"
            yield (line if line[:1] in ("+", "-", " ") else f" {line}") + end
