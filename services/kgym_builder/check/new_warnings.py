"""Which warnings a patch adds: those of the patched compile that were not there before. Pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher

from kgym.api.steps import Diagnostic

# Changed lines beyond which lines are not compared, only the number of equal warnings.
_LINES = 2000


class Lines:
    """Where the lines of a changed file stood before."""

    def __init__(self, before: str, after: str) -> None:
        old, new = before.split("\n"), after.split("\n")
        start = _common(old, new)
        end = _common(old[start:][::-1], new[start:][::-1])
        self._blocks = [(0, 0, start)]
        middle = old[start : len(old) - end], new[start : len(new) - end]
        if max(map(len, middle)) <= _LINES:
            matcher = SequenceMatcher(None, *middle, autojunk=False)
            blocks = matcher.get_matching_blocks()
            self._blocks += [(start + a, start + b, size) for a, b, size in blocks]
        self._blocks.append((len(old) - end, len(new) - end, end))
        self._starts = [block[1] for block in self._blocks]

    def before(self, line: int) -> int | None:
        """Return the number that a line, counted from 1, had; None if it is new."""
        old, new, size = self._blocks[bisect_right(self._starts, line - 1) - 1]
        return old + line - new if line - 1 < new + size else None


def new_warnings(
    before: Iterable[Diagnostic], after: Iterable[Diagnostic], lines: Mapping[str, Lines]
) -> list[Diagnostic]:
    """Return the warnings that `after` has and `before` has not.

    A warning of a line that stayed is the same one. Of those on lines that changed, as
    many as there were with the same words are old.
    """
    old = Counter((warning.file, warning.message, warning.line) for warning in before)
    moved = []
    for warning in after:
        line = warning.line
        if warning.file in lines and line is not None:
            line = lines[warning.file].before(line)
        place = (warning.file, warning.message, line)
        if old[place] > 0:
            old[place] -= 1
        else:
            moved.append(warning)
    left: Counter[tuple[str, str]] = Counter()
    for (file, message, _), count in old.items():
        left[file, message] += count
    new = []
    for warning in moved:
        if left[warning.file, warning.message] > 0:
            left[warning.file, warning.message] -= 1
        else:
            new.append(warning)
    return new


def _common(lines: list[str], other: list[str]) -> int:
    pairs = zip(lines, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(lines), len(other)))
