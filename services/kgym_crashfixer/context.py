"""Context: files cut by function to a model's window, nearest to the crash first. Pure.

Only whole functions, and the code between them, are omitted; a comment marks each gap. The cut is
for the prompt alone: edits apply to whole files.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

from kgym.crash import report as reports
from kgym.source import unified_diff
from kgym.source.edited_functions import places

# Tokenizers take 3.0 to 3.6 bytes of C per token; 3 errs on the safe side.
_BYTES_OF_A_TOKEN = 3
# Tokens of the comment that marks a gap.
_MARK_TOKENS = 60
# Characters of function names in that comment.
_MARK_NAMES = 90
# Lines of a piece: longer functions are split.
_LONGEST_PIECE = 120
# Characters of a file that is parsed.
_LONGEST_FILE = 4 << 20
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TRACED = re.compile(r"([A-Za-z_][\w.]*)\(\)", re.ASCII)
# Prefixes of a system call's name in stacks.
_ENTRY = re.compile(r"^__(?:x64|ia32|arm64|se|do)_(?=(?:compat_)?sys_)")
_DEFINED = re.compile(
    r"^(?:#\s*define\s+(\w+)|(?:static |const )*(?:struct|enum|union)\s+(\w+))", re.MULTILINE
)
_FAR = 1_000_000


def tokens(text: str) -> int:
    """Estimate the number of tokens of a text; err on the high side."""
    return -(-len(text.encode()) // _BYTES_OF_A_TOKEN)


def functions_named_in(values: Mapping[str, object]) -> list[str]:
    """Return the functions that the model named, as `name()`, in a question's values."""
    words = (values.get("explanation"), values.get("hypothesis"))
    return _TRACED.findall("\n".join(text for text in words if isinstance(text, str)))


@dataclass(frozen=True, slots=True)
class Near:
    """The code near a crash: functions, the nearest first, and lines by file, from 0."""

    functions: Sequence[str] = ()
    lines: Mapping[str, Collection[int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, report: str, trace: str | None = None, changed: str = "", names: Sequence[str] = ()
    ) -> "Near":
        """Build it from a crash report, the calls before the crash, and the changes so far.

        `names` are further relevant functions and types.
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
    """Files as a prompt shows them, and a sentence for each file with gaps."""

    files: dict[str, str]
    left_out: tuple[str, ...]


def cut(files: Mapping[str, str], near: Near, most: int, *, only: bool = False) -> Cut:
    """Cut the files to `most` tokens; they stay whole if they fit.

    With `only`, keep nothing but the functions, lines and types in `near`, unless the files contain
    none of them. If `most` does not even suffice for the comments, return these alone.
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
    # Lines that need no comment: the files' ends, and borders of kept pieces.
    last = {piece.path: piece.end for piece in pieces}
    ends = {(path, 0) for path in files} | set(last.items())
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


@dataclass(frozen=True, slots=True)
class _Piece:
    """Lines of a file that are kept or omitted together."""

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
    """Split a file into pieces, in order."""
    lines = StringIO(text).readlines()  # as the parser counts them: not split at form feeds
    made: list[_Piece] = []
    at = 0
    functions = places(text) if len(text) <= _LONGEST_FILE else ()
    for function in functions:
        if function.begin < at:  # nested, or in an #if branch that begins inside another function
            continue
        begin = _above(lines, at, function.begin)
        made += _chunks(path, lines, at, begin, None)
        made += _chunks(path, lines, begin, function.end, function.name)
        at = function.end
    made += _chunks(path, lines, at, len(lines), None)
    return tuple(made)


def _above(lines: Sequence[str], first: int, begin: int) -> int:
    """Return the first line of the comment and attributes above a function."""
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
    """Sort the pieces by relevance for understanding the crash."""
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
        # Crash lines, functions of the stacks, what these use, their callers, a file's head, the
        # rest.
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
    """Return whether a piece between functions defines a used name."""
    return any((first or second) in used for first, second in _DEFINED.findall(piece.text))


def _is_named(piece: _Piece, near: Near) -> bool:
    """Return whether `near` names something in a piece."""
    names = near.functions
    return _holds(piece, near) or (
        piece.function in names if piece.function is not None else _defines(piece, names)
    )


def _joined(own: Sequence[_Piece], kept: Collection[tuple[str, int]]) -> str:
    """Join the kept pieces, with a comment for each gap."""
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
    """Return the lines, from 0, that a diff's hunks cover in the changed files."""
    changed: dict[str, set[int]] = {}
    for file in unified_diff.parse(diff, "the changes"):
        for hunk in file.hunks:
            begin = max(0, (hunk.new or 0) - 1)
            rows = range(begin, begin + len(hunk.side("+ ")))
            changed.setdefault(file.paths[1], set()).update(rows)
    return changed
