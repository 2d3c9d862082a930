"""Context: files cut by function to what fits a model's window, nearest to the crash first. Pure.

Text is never changed, only left out: whole functions, and what stands between them. Where
something is left out, a comment says what. Tokens are estimated, on the safe side.
"""

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kgym.crash import report as reports
from kgym.source.edited_functions import places

# Tokenizers make a token of 3.0 to 3.6 bytes of C.
_BYTES_OF_A_TOKEN = 3
# Of the comment in place of what is left out.
_MARK_TOKENS = 60
# Characters of the names in it.
_MARK_NAMES = 90
# Lines; longer functions are cut between lines.
_LONGEST_PIECE = 120
# Bytes; what is longer is not looked into.
_LONGEST_FILE = 4 << 20
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TRACED = re.compile(r"([A-Za-z_][\w.]*)\(\)", re.ASCII)
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")
# What is before a system call's name in stacks.
_ENTRY = re.compile(r"^__(?:x64|ia32|arm64|se|do)_(?=(?:compat_)?sys_)")
_DEFINED = re.compile(
    r"^(?:#\s*define\s+(\w+)|(?:static |const )*(?:struct|enum|union)\s+(\w+))", re.MULTILINE
)
_FAR = 1_000_000


def tokens(text: str) -> int:
    """Return about how many tokens a text has, rather too many than too few."""
    return -(-len(text.encode()) // _BYTES_OF_A_TOKEN)


@dataclass(frozen=True, slots=True)
class Near:
    """What the crash is about: functions, the nearest first, and lines by file, from 0."""

    functions: Sequence[str] = ()
    lines: Mapping[str, Collection[int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, report: str, trace: str | None = None, changed: str = "", names: Sequence[str] = ()
    ) -> "Near":
        """Take it from a crash report, the calls before the crash, and the changes made so far.

        `names` are further functions and types that matter.
        """
        crash = reports.parse(report.encode())
        lines: dict[str, set[int]] = {path: set(rows) for path, rows in _changed(changed).items()}
        near: list[str] = []
        if crash is not None:
            for frame in (*crash.frames, *crash.alloc_stack, *crash.free_stack):
                near.append(frame.function)
                if frame.file and frame.line:
                    lines.setdefault(frame.file, set()).add(frame.line - 1)
        near += names
        near += reversed(_TRACED.findall(trace or ""))
        plain = (_ENTRY.sub("", name.partition(".")[0]) for name in near)
        return cls(tuple(dict.fromkeys(plain)), lines)


@dataclass(frozen=True, slots=True)
class Cut:
    """Files as a prompt shows them, and what was left out of each, in words."""

    files: dict[str, str]
    left_out: tuple[str, ...]


def cut(files: Mapping[str, str], near: Near, most: int, *, only: bool = False) -> Cut:
    """Return the files cut to `most` tokens, all of them where they fit.

    With `only`, nothing is kept but what `near` names: functions, lines and types. Where the files
    have none of it, they are cut as otherwise.

    What the first part of a file says is worth less than a function of the stack, more than one
    that nothing points at. A budget that holds not even the comments gets these alone.
    """
    pieces: list[_Piece] = []
    if only:
        pieces = [piece for path, text in files.items() for piece in _pieces(path, text)]
    named = [piece for piece in pieces if _is_named(piece, near)]
    if not named and sum(map(tokens, files.values())) <= most:
        return Cut(dict(files), ())
    pieces = pieces or [piece for path, text in files.items() for piece in _pieces(path, text)]
    left = most - _MARK_TOKENS * len(files)
    kept: set[tuple[str, int]] = set()
    # The lines before and behind which no comment is needed: the files' ends, and kept pieces.
    ends = {(path, 0) for path in files} | {(piece.path, piece.end) for piece in _last(pieces)}
    for piece in _by_nearness(files, named or pieces, near):
        begin, end = (piece.path, piece.begin), (piece.path, piece.end)
        cost = piece.tokens + _MARK_TOKENS * (1 - (begin in ends) - (end in ends))
        if cost <= left:
            kept.add(begin)
            ends |= {begin, end}
            left -= cost
    shown, summaries = {}, []
    for path, text in files.items():
        own = [piece for piece in pieces if piece.path == path]
        gone = [piece for piece in own if (path, piece.begin) not in kept]
        shown[path] = _joined(own, kept) if gone else text
        if gone:
            summaries.append(_summary(path, gone, own))
    return Cut(shown, tuple(summaries))


def _last(pieces: Sequence["_Piece"]) -> Iterable["_Piece"]:
    """Return the last piece of each file."""
    return {piece.path: piece for piece in pieces}.values()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Lines of a file that are kept or left out together."""

    path: str
    begin: int
    end: int
    text: str
    function: str | None = None

    @property
    def tokens(self) -> int:
        return tokens(self.text)


@functools.lru_cache(maxsize=256)
def _pieces(path: str, text: str) -> tuple[_Piece, ...]:
    """Return the file in pieces, in order; together they are the whole file."""
    lines = _LINE.findall(text)  # as the parser counts them; Python takes form feeds for line ends
    made: list[_Piece] = []
    at = 0
    functions = places(text) if len(text) <= _LONGEST_FILE else []
    for function in functions:
        if function.begin < at:  # nested, or a branch of an #if that begins in another
            continue
        begin = _above(lines, at, function.begin)
        made += _chunks(path, lines, at, begin, None)
        made += _chunks(path, lines, begin, function.end, function.name)
        at = function.end
    made += _chunks(path, lines, at, len(lines), None)
    return tuple(made)


def _above(lines: Sequence[str], first: int, begin: int) -> int:
    """Return where the comment and the attributes above a function begin."""
    while begin > first and lines[begin - 1].strip():
        begin -= 1
    return begin


def _chunks(
    path: str, lines: Sequence[str], begin: int, end: int, function: str | None
) -> Iterator[_Piece]:
    while begin < end:
        stop = end
        if end - begin > _LONGEST_PIECE:
            blank = [
                at + 1
                for at in range(begin + _LONGEST_PIECE // 2, begin + _LONGEST_PIECE)
                if not lines[at].strip()
            ]
            stop = blank[-1] if blank else begin + _LONGEST_PIECE
        yield _Piece(path, begin, stop, "".join(lines[begin:stop]), function)
        begin = stop


def _by_nearness(files: Mapping[str, str], pieces: Sequence[_Piece], near: Near) -> list[_Piece]:
    """Return the pieces, those first without which the crash cannot be understood."""
    rank = {name: number for number, name in enumerate(near.functions)}
    centres = [piece for piece in pieces if piece.function in rank or _holds(piece, near)]
    used = {word for piece in centres for word in _WORD.findall(piece.text)}
    named = {piece.function for piece in centres if piece.function}
    order = {path: number for number, path in enumerate(files)}
    at: dict[str, list[int]] = {}
    for piece in centres:
        at.setdefault(piece.path, []).append(piece.begin)

    def nearness(piece: _Piece) -> tuple[int, int, int, int]:
        distance = min((abs(piece.begin - line) for line in at.get(piece.path, [])), default=_FAR)
        if _holds(piece, near):
            step, closer = 0, rank.get(piece.function or "", _FAR)
        elif piece.function in rank:
            step, closer = 1, rank[piece.function]
        elif piece.function in used or (piece.function is None and _defines(piece, used)):
            step, closer = 2, 0
        elif piece.function and named & set(_WORD.findall(piece.text)):
            step, closer = 3, 0
        elif piece.begin == 0:
            step, closer = 4, 0
        else:
            step, closer = 5, 0
        return step, closer, distance, order[piece.path]

    return sorted(pieces, key=nearness)


def _holds(piece: _Piece, near: Near) -> bool:
    return any(piece.begin <= line < piece.end for line in near.lines.get(piece.path, ()))


def _defines(piece: _Piece, used: Collection[str]) -> bool:
    """Tell whether a piece between functions defines something that is used nearby."""
    return any((first or second) in used for first, second in _DEFINED.findall(piece.text))


def _is_named(piece: _Piece, near: Near) -> bool:
    """Tell whether something of a piece is what the crash is about."""
    names = near.functions
    return _holds(piece, near) or (
        piece.function in names if piece.function is not None else _defines(piece, names)
    )


def _joined(own: Sequence[_Piece], kept: Collection[tuple[str, int]]) -> str:
    """Return the text of the kept pieces, with a comment in place of each gap."""
    parts: list[str] = []
    gap: list[_Piece] = []
    for piece in own:
        if (piece.path, piece.begin) in kept:
            parts += [_mark(gap), piece.text] if gap else [piece.text]
            gap = []
        else:
            gap.append(piece)
    if gap:
        if parts and not parts[-1].endswith("\n"):
            parts.append("\n")
        parts.append(_mark(gap))
    return "".join(parts)


def _mark(gap: Sequence[_Piece]) -> str:
    first, last = gap[0].begin + 1, gap[-1].end
    names = ", ".join(f"{name}()" for name in dict.fromkeys(p.function for p in gap) if name)
    if len(names) > _MARK_NAMES:
        names = f"{names[:_MARK_NAMES].rpartition(',')[0]} ..."
    return f"/* [lines {first} to {last} are left out here{': ' if names else ''}{names}] */\n"


def _summary(path: str, gone: Sequence[_Piece], own: Sequence[_Piece]) -> str:
    names = {piece.function for piece in gone if piece.function}
    lines = sum(piece.end - piece.begin for piece in gone)
    return f"{path}: {lines} of {own[-1].end} lines left out, {len(names)} functions among them"


def _changed(diff: str) -> dict[str, set[int]]:
    """Return the lines, from 0, that a unified diff has changed, by file, as they are after it."""
    changed: dict[str, set[int]] = {}
    path = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line[4:].split("\t")[0].removeprefix("b/")
        elif match := _HUNK.match(line):
            begin, count = int(match[1]) - 1, int(match[2] or 1)
            changed.setdefault(path, set()).update(range(max(0, begin), min(begin + count, _FAR)))
    return changed
