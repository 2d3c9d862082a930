"""Anchors: places in a thread's records that match a stack trace, from the innermost frame on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kgym.crash.report.crash_report import Frame
from kgym.trace.records import Function, canonical

ALTERNATIVES = 5


@dataclass(frozen=True, slots=True)
class Anchor:
    """Places of the matched frames, the innermost frame (the last place) first."""

    places: tuple[int, ...]
    frames: tuple[int, ...]
    """The index of each frame in the stack; 0 is the innermost."""

    @property
    def first(self) -> int:
        """Place of the outermost frame."""
        return self.places[-1]

    @property
    def last(self) -> int:
        """Place of the innermost frame."""
        return self.places[0]


@dataclass(frozen=True, slots=True)
class Anchors:
    """The best anchors first, without overlaps.

    `candidates` is their number without the limit ALTERNATIVES. `frames` are the frames in traced
    functions, matched or not.
    """

    best: tuple[Anchor, ...]
    candidates: int
    frames: tuple[int, ...]


def traced(frames: Sequence[Frame], functions: Sequence[Function]) -> dict[int, NDArray[np.int32]]:
    """Return the function numbers of each frame in a traced function.

    Frames marked as uncertain by the unwinder are left out.
    """
    by_name: dict[str, list[int]] = {}
    for number, function in enumerate(functions):
        by_name.setdefault(canonical(function.name), []).append(number)
    positions = {}
    for place, frame in enumerate(frames):
        numbers = [
            number
            for number in by_name.get(canonical(frame.function), ())
            if _same_file(frame.file, functions[number].file)
        ]
        if numbers and not frame.uncertain:
            positions[place] = np.array(numbers, np.int32)
    return positions


def find(sequence: NDArray[np.int32], wanted: dict[int, NDArray[np.int32]]) -> Anchors:
    """Match frames (index in the stack, innermost first, to function numbers) in a thread.

    Start at each record of the innermost frame that the thread executed at all. Match the other
    frames backward in order, each at its last occurrence before the previous match; skip a frame
    without one (Figure 4). The best anchor has the most frames; of several, it is the last one.
    Since a later start matches at least as much as an earlier one, that is the paper's anchor. The
    others are further places where the same stack was reached.
    """
    places = {frame: np.flatnonzero(np.isin(sequence, ids)) for frame, ids in wanted.items()}
    frames = [frame for frame in wanted if len(places[frame])]
    if not frames:
        return Anchors((), 0, tuple(wanted))
    last = places[frames[0]]
    current, count = last, np.ones(len(last), np.int32)
    for frame in frames[1:]:
        before = np.searchsorted(places[frame], current) - 1
        is_inside = before >= 0
        current = np.where(is_inside, places[frame][np.maximum(before, 0)], current)
        count += is_inside
    # Candidates that reach back to the same outermost place: the last one is the closest match.
    distinct = _last_of_each(current)
    last, current, count = last[distinct], current[distinct], count[distinct]
    best: list[Anchor] = []
    free = np.ones(len(last), bool)
    while len(best) < ALTERNATIVES and free.any():
        most = np.flatnonzero(free & (count == count[free].max()))[-1]
        best.append(_trace_back(int(last[most]), frames, places))
        # Alternatives must not overlap, or they would show the same calls again.
        free &= (last < current[most]) | (current > last[most])
        free[most] = False
    return Anchors(tuple(best), len(last), tuple(wanted))


def _last_of_each(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the last index of each value in a non-decreasing array."""
    return np.flatnonzero(np.append(starts[1:] != starts[:-1], True))


def _trace_back(last: int, frames: list[int], places: dict[int, NDArray[np.int64]]) -> Anchor:
    at, matched = [last], [frames[0]]
    for frame in frames[1:]:
        before = int(np.searchsorted(places[frame], at[-1])) - 1
        if before >= 0:
            at.append(int(places[frame][before]))
            matched.append(frame)
    return Anchor(tuple(at), tuple(matched))


def _same_file(frame: str | None, function: str | None) -> bool:
    if frame is None or function is None:
        return True
    frame, function = frame.removeprefix("./"), function.removeprefix("./")
    return frame == function or frame.endswith(f"/{function}") or function.endswith(f"/{frame}")
