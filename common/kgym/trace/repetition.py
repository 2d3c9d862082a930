"""Walks along a sequence until it repeats itself."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

# Maximum records of a pattern: a longer one cannot occur twice within the usual limit.
LONGEST = 100


class Stop(StrEnum):
    """Why a walk ended."""

    END = "end"
    """There are no more records of the thread."""
    LIMIT = "limit"
    REPEAT = "repeat"
    """From here on a pattern repeats."""


@dataclass(frozen=True, slots=True)
class Run:
    """`length` records from index `start`, repeated `count` times in a row."""

    start: int
    length: int = 1
    count: int = 1

    @property
    def stop(self) -> int:
        """The index after the last repetition."""
        return self.start + self.length * self.count


@dataclass(frozen=True, slots=True)
class Walk:
    """The runs in the order of the walk, and why it ended."""

    runs: tuple[Run, ...]
    stop: Stop

    @property
    def size(self) -> int:
        """The number of records, counting each pattern once."""
        return sum(run.length for run in self.runs)

    @property
    def covered(self) -> int:
        """The number of records, counting all repetitions."""
        return self.runs[-1].stop if self.runs else 0


def walk(sequence: NDArray[np.int32], limit: int, *, past_repeats: bool) -> Walk:
    """Walk from the start until `limit` records, or until a pattern repeats (Figure 4).

    A pattern repeats when the last n records equal the n before them; the shortest such n counts.
    It becomes one run with its count; with `past_repeats`, the walk continues after it. Time is
    linear in the covered records.
    """
    runs: list[Run] = []
    size = place = fresh = 0
    while place < len(sequence) and size < limit:
        runs.append(Run(place))
        size += 1
        place += 1
        length = _repeated(sequence, fresh, place)
        if length:
            start = place - 2 * length
            run = Run(start, length, _count(sequence, start, length))
            del runs[-2 * length :]
            runs.append(run)
            size -= length
            place = fresh = run.stop
            if not past_repeats:
                return Walk(tuple(runs), Stop.REPEAT)
    return Walk(tuple(runs), Stop.END if place >= len(sequence) else Stop.LIMIT)


def _repeated(sequence: NDArray[np.int32], fresh: int, place: int) -> int:
    """Return the length of the shortest pattern that occurs twice before `place`; 0 for none."""
    longest = min(LONGEST, (place - fresh) // 2)
    tail = sequence[place - 2 * longest : place]
    # A repetition can only end at an earlier occurrence of the last record.
    for back in np.flatnonzero(tail[longest - 1 : -1][::-1] == tail[-1:]):
        length = int(back) + 1
        if (tail[-length:] == tail[-2 * length : -length]).all():
            return length
    return 0


def _count(sequence: NDArray[np.int32], start: int, length: int) -> int:
    """Return the number of consecutive repetitions of the pattern from `start`."""
    # Blocks double in size: few comparisons for short repetitions, few steps for long ones.
    same, step = 0, 1024
    while True:
        at = start + same
        ahead = sequence[at + length : at + length + step]
        differ = np.flatnonzero(ahead != sequence[at : at + len(ahead)])
        if len(differ):
            return (same + int(differ[0])) // length + 1
        same += len(ahead)
        if len(ahead) < step:
            return same // length + 1
        step = min(step * 2, 1 << 20)
