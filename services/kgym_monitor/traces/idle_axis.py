"""A time axis with shortened pauses. Pure.

Times are sorted nanoseconds of the trace clock; places are shares of the axis, 0 to 1.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Most shortened pauses: the longest ones.
IDLE_MOST = 10
# Share of the axis of a shortened pause.
IDLE_WIDTH = 0.04
# A pause is idle if it exceeds this share of the remaining time, itself included,
IDLE_SHARE = 0.1
# and this multiple of the median distance between records.
IDLE_TIMES = 8
# Least share of the axis of a stretch between pauses.
_LEAST = 0.004
_SAMPLES = 100_000
_CHUNK = 1 << 20

Times = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the axis; `idle`: a shortened pause."""

    start: int
    end: int
    idle: bool


@dataclass(frozen=True, slots=True)
class Axis:
    """Consecutive stretches and their starts; `places` also has the axis's end."""

    stretches: tuple[Stretch, ...]
    places: tuple[float, ...]

    @classmethod
    def of(cls, times: Times, first: int, last: int) -> "Axis":
        """Return the axis from `first` to `last` for records at `times` in between."""
        last = max(last, first + 1)
        stretches = tuple(_stretches(sorted(_idle(times, first, last)), first, last))
        idle = sum(stretch.idle for stretch in stretches)
        busy = len(stretches) - idle
        left = 1 - idle * IDLE_WIDTH - busy * _LEAST
        total = sum(stretch.end - stretch.start for stretch in stretches if not stretch.idle)
        places = [0.0]
        for stretch in stretches:
            share = (stretch.end - stretch.start) / total if total else 1 / max(busy, 1)
            places.append(places[-1] + (IDLE_WIDTH if stretch.idle else _LEAST + left * share))
        return cls(stretches, tuple(place / places[-1] for place in places))

    @property
    def first(self) -> int:
        """Start time."""
        return self.stretches[0].start

    @property
    def last(self) -> int:
        """End time."""
        return self.stretches[-1].end

    def place(self, time: int) -> float:
        """Return the place of a time, clipped to the axis."""
        clipped = np.array([min(max(time, self.first), self.last)], np.uint64)
        return float(self.places_of(clipped)[0])

    def places_of(self, times: Times) -> NDArray[np.float64]:
        """Return the places of times on the axis."""
        return np.interp((times - np.uint64(self.first)).astype(np.float64), *self._knots())

    def time(self, place: float) -> int:
        """Return the time at a place."""
        moments, places = self._knots()
        after = round(float(np.interp(place, places, moments)))
        return min(
            self.first + after, self.last
        )  # a float64 cannot hold nanoseconds beyond 104 days

    def _knots(self) -> tuple[list[float], list[float]]:
        moments = [float(stretch.start - self.first) for stretch in self.stretches]
        return [*moments, float(self.last - self.first)], list(self.places)


def _idle(times: Times, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield idle pauses, longest first."""
    if not len(times):
        return
    edges = [(int(times[0]) - first, first), (last - int(times[-1]), int(times[-1]))]
    pauses = heapq.nlargest(IDLE_MOST, [*_longest(times), *edges])
    typical, busy = _typical(times), last - first
    for length, start in pauses:
        if length <= IDLE_TIMES * typical or length <= IDLE_SHARE * busy:
            return
        busy -= length
        yield start, start + length


def _longest(times: Times) -> Iterator[tuple[int, int]]:
    """Yield lengths and starts of pauses, including the IDLE_MOST longest ones."""
    for start in range(0, len(times) - 1, _CHUNK):
        part = times[start : start + _CHUNK + 1]
        lengths = np.diff(part)
        most = min(IDLE_MOST, len(lengths))
        for at in np.argpartition(lengths, len(lengths) - most)[len(lengths) - most :]:
            yield int(lengths[at]), int(part[at])


def _typical(times: Times) -> float:
    """Return the median pause, of a sample if there are many; at least 1 ns."""
    if len(times) < 2:
        return 1.0
    # The median of a sample is close enough, and sorting ten million pauses takes a second.
    step = max(1, (len(times) - 1) // _SAMPLES)
    lengths = np.sort(times[1::step] - times[:-1:step])
    return max(1.0, float(lengths[(len(lengths) - 1) // 2]))


def _stretches(idle: list[tuple[int, int]], first: int, last: int) -> Iterator[Stretch]:
    at = first
    for start, end in idle:
        if at < start or at > first:
            yield Stretch(at, start, idle=False)
        yield Stretch(start, end, idle=True)
        at = end
    if at < last or not idle:
        yield Stretch(at, last, idle=False)
