"""Records of complete traces: by thread, by function, and counts over time. Pure.

A trace may have millions of records, so they are processed in chunks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kgym.api.steps import TraceCall, TracedFunction, TracePart
from kgym.trace.records import Trace
from kgym.trace.repetition import Run, walk
from kgym_monitor.traces.held_traces import HeldTrace
from kgym_monitor.traces.idle_axis import Axis

# Most shown records of a thread; a repeated pattern counts once.
CALLS = 100
# Most functions in a search result.
FUNCTIONS = 30
_CHUNK = 1 << 20

Window = tuple[int, int]
# Frames of the crash's stack, by entry time and name.
Frames = Mapping[tuple[int, str], int]


@dataclass(frozen=True, slots=True)
class ThreadRecords:
    """Calls of a thread, for its records from `first` to before `end`, of `total`."""

    calls: list[TraceCall]
    first: int
    end: int
    total: int


@dataclass(frozen=True, slots=True)
class FoundFunction:
    """A search result: a function, its number of entries, and time and thread of the first one."""

    name: str
    file: str | None
    count: int
    time: int
    pid: int


def part(trace: Trace, window: Window) -> slice:
    """Return the slice of the records in a window, including its ends."""
    first, last = (np.uint64(max(0, time)) for time in window)
    start = int(np.searchsorted(trace.time, first, side="left"))
    return slice(start, max(start, int(np.searchsorted(trace.time, last, side="right"))))


def thread_records(
    trace: Trace,
    pid: int,
    window: Window,
    *,
    first: int | None = None,
    end: int | None = None,
    around: int | None = None,
    frames: Frames,
) -> ThreadRecords:
    """Return calls of a thread in a window.

    They start at record `first` of the window, or end before record `end` (-1: with the last), or
    start at the time `around`.
    """
    within = part(trace, window)
    places = np.flatnonzero(trace.pid[within] == pid) + within.start
    if end is not None:
        stop = len(places) if end < 0 else min(end, len(places))
        runs = _before(trace.function[places[:stop]])
    else:
        if around is not None:
            first = int(np.searchsorted(trace.time[places], np.uint64(around)))
        start = min(first or 0, len(places))
        runs = [
            replace(run, start=run.start + start)
            for run in walk(trace.function[places[start:]], CALLS, past_repeats=True).runs
        ]
        stop = runs[-1].stop if runs else start
    calls = [_call(trace, places, run, frames) for run in runs]
    begin = runs[0].start if runs else stop
    return ThreadRecords(calls, begin, stop, len(places))


def _before(sequence: NDArray[np.int32]) -> list[Run]:
    back = walk(sequence[::-1], CALLS, past_repeats=True)
    return [replace(run, start=len(sequence) - run.stop) for run in reversed(back.runs)]


def _call(trace: Trace, places: NDArray[np.int64], run: Run, frames: Frames) -> TraceCall:
    first = places[run.start]
    numbers = trace.function[places[run.start : run.start + run.length]].tolist()
    named = [trace.functions[number] for number in numbers]
    time = int(trace.time[first])
    frame = frames.get((time, named[0].name)) if run.length * run.count == 1 else None
    return TraceCall(
        pattern=[TracedFunction(file=function.file, name=function.name) for function in named],
        count=run.count,
        time=min(time, (1 << 63) - 1),
        cpu=max(0, int(trace.cpu[first])),
        part=TracePart.FORWARD if frame is None else TracePart.MATCH,
        anchor=frame is not None,
        frame=frame,
    )


def counts(held: HeldTrace, window: Window, *, most: int, also: Sequence[int]) -> dict[int, int]:
    """Count records by thread in a window: threads in `also`, then the busiest."""
    counts = np.zeros(len(held.pids), np.int64)
    for piece in _pieces(part(held.trace, window)):
        threads = np.searchsorted(held.pids, held.trace.pid[piece])
        counts += np.bincount(threads, minlength=len(counts))
    known = dict.fromkeys(also, 0)
    for pid in also:
        at = int(np.searchsorted(held.pids, pid))
        if at < len(held.pids) and held.pids[at] == pid:
            known[pid] = int(counts[at])
    order = np.argsort(-counts, kind="stable")[: most + len(also)]
    busiest = {int(held.pids[n]): int(counts[n]) for n in order if counts[n]}
    return dict(
        [*known.items(), *(item for item in busiest.items() if item[0] not in known)][:most]
    )


def activity(trace: Trace, axis: Axis, pids: Sequence[int], bins: int) -> NDArray[np.int64]:
    """Count records by thread in `bins` equal parts of the axis."""
    order = np.argsort(np.array(pids, np.int64), kind="stable")
    ranked = np.array(pids, np.int32)[order]
    counts = np.zeros(len(pids) * bins, np.int64)
    for piece in _pieces(part(trace, (axis.first, axis.last))) if len(pids) else ():
        own = trace.pid[piece]
        at = np.minimum(np.searchsorted(ranked, own), len(ranked) - 1)
        mine = ranked[at] == own
        places = axis.places_of(trace.time[piece][mine])
        bin_ = np.minimum((places * bins).astype(np.int64), bins - 1)
        counts += np.bincount(order[at[mine]] * bins + bin_, minlength=len(counts))
    return counts.reshape(len(pids), bins)


def find(trace: Trace, words: str, window: Window) -> list[FoundFunction]:
    """Return functions whose names contain the text, most frequent first."""
    wanted = words.casefold()
    numbers = [
        n for n, function in enumerate(trace.functions) if wanted in function.name.casefold()
    ]
    counts = np.zeros(len(trace.functions), np.int64)
    first = np.full(len(trace.functions), -1, np.int64)
    listed = np.zeros(len(trace.functions), bool)
    listed[numbers] = True
    # In chunks of a million: intermediate arrays stay below 10 MB.
    for piece in _pieces(part(trace, window)) if numbers else ():
        at = np.flatnonzero(listed[trace.function[piece]])
        seen, places, many = np.unique(
            trace.function[piece][at], return_index=True, return_counts=True
        )
        counts[seen] += many
        new = first[seen] < 0
        first[seen[new]] = at[places[new]] + piece.start
    most = sorted((n for n in numbers if counts[n]), key=lambda n: -int(counts[n]))[:FUNCTIONS]
    return [
        FoundFunction(
            name=trace.functions[n].name,
            file=trace.functions[n].file,
            count=int(counts[n]),
            time=int(trace.time[first[n]]),
            pid=int(trace.pid[first[n]]),
        )
        for n in most
    ]


def _pieces(within: slice) -> Iterator[slice]:
    for start in range(within.start, within.stop, _CHUNK):
        yield slice(start, min(start + _CHUNK, within.stop))
