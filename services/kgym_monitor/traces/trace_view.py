"""The page of a trace: threads with calls on one axis. Pure.

It shows the minimize step's result, or all records of the complete trace.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from kgym.api.steps import MinimalTrace
from kgym.errors import NotFound, UserError
from kgym_monitor.traces import thread_records
from kgym_monitor.traces.call_list import CallList, Lister, More, Part
from kgym_monitor.traces.call_tree import Node, tree
from kgym_monitor.traces.held_traces import HeldTrace
from kgym_monitor.traces.idle_axis import Axis
from kgym_monitor.traces.thread_records import FoundFunction, ThreadRecords, Window
from kgym_monitor.traces.trace_query import TraceQuery

# Most listed threads of a complete trace.
LANES = 16
# Resolution of drawn activity, in parts of the axis.
BINS = 160
# Nanoseconds shown before and after a search result.
_AROUND = 500_000
_RELATED = 20
_ALTERNATIVES = 10
_LEVELS = 4
# Reasons for the ends of a minimal trace.
STOPS = {
    "end": "no more records of this thread",
    "limit": "limit of the minimal trace",
    "repeat": "a pattern repeats from here on",
}
WHY = {
    "freed": "freed the object",
    "allocated": "allocated the object",
    "concurrent": "ran the same code meanwhile",
}


@dataclass(frozen=True, slots=True)
class PartQuery:
    """Unfolded part of a page: of a section (`of`), calls of a node or records of a thread."""

    of: str = "main"
    part: Part = field(default_factory=Part)
    record: int | None = None
    """First record of a thread to show."""
    end: int | None = None
    """Instead of `record`: end of the records (exclusive); -1: the last record is included."""
    after: int | None = None
    """Start of the window (inclusive), if not the page's."""
    before: int | None = None
    """End of the window (inclusive), if not the page's."""


@dataclass(frozen=True, slots=True)
class Section:
    """A thread, or another match of the stack, with its calls."""

    key: str
    pid: int
    task: str | None
    why: str
    about: str
    lane: list[tuple[float, float, int]]
    """Activity: x and width (thousandths of the axis), level 1 to 4."""
    open: bool
    calls: CallList | None = None
    part: str | None = None
    """Address of its calls, if they are not shown."""
    before: str | None = None
    after: str | None = None
    """Why the calls start and end there."""


@dataclass(frozen=True, slots=True)
class _Calls:
    """A section of the minimal trace."""

    key: str
    pid: int
    task: str | None
    why: str
    about: str
    root: Node


class TraceView:
    """View of one trace."""

    def __init__(
        self, minimal: MinimalTrace, query: TraceQuery, base: str, *, has_records: bool
    ) -> None:
        """`base`: path of the page; `has_records`: whether the complete trace exists."""
        self.minimal = minimal
        self.query = query
        self.base = base
        self.has_records = has_records
        anchors = [call for call in minimal.calls if call.anchor] or minimal.calls
        self.zero = anchors[-1].time if anchors else 0
        self.stack_begins = anchors[0].time if anchors else 0
        self._frames = {
            (call.time, call.pattern[0].name): call.frame
            for call in minimal.calls
            if call.frame is not None and call.pattern
        }

    def shown(self, held: HeldTrace | None) -> dict[str, Any]:
        """Return the contents of the page; `held`: the complete trace, if requested."""
        whole = self._extent(held)
        axis = self._axis(held)
        listers = {} if held else self._listers(axis)
        sections = (
            self._threads(axis, held)
            if held
            else [self._section(self._parts[key], lister) for key, lister in listers.items()]
        )
        window = axis.first, axis.last
        words = self.query.function
        zooms = self.query.zooms(axis, whole)
        return {
            "minimal": self.minimal,
            "query": self.query,
            "base": self.base,
            "zero": self.zero,
            "axis": axis,
            "ticks": [(25 * n, axis.time(n / 4) - self.zero) for n in range(4)],
            "zooms": {name: zoom and zoom.address(self.base) for name, zoom in zooms.items()},
            "sections": sections,
            "hits": None if held or not words else sum(lister.hits for lister in listers.values()),
            "functions": self._matches(held, words, window) if held and words else None,
            "around": partial(self._around, whole=whole),
            "has_records": self.has_records,
            "records": len(held.trace) if held else self.minimal.statistics.records,
            "more_threads": max(0, len(held.pids) - LANES) if held else 0,
            "other": replace(self.query, whole=not self.query.whole).address(self.base),
        }

    def unfolded(self, asked: PartQuery, held: HeldTrace | None) -> CallList:
        """Return a part of the page; raise NotFound `no_such_part`."""
        axis = self._axis(held if self.query.whole else None)
        kind, _, number = asked.of.partition("-")
        if kind == "thread":
            if held is None or not number.isdecimal() or len(number) > 10:
                raise NotFound("no_such_part", "there are no records of such a thread")
            return self._thread(int(number), axis, held, asked)
        lister = self._listers(axis).get(asked.of)
        try:
            if lister is None:
                raise KeyError(asked.of)
            calls = lister.list(asked.part)
        except KeyError as error:
            raise NotFound("no_such_part", "the trace has no such part") from error
        return self._with_ends(calls, asked.of) if not asked.part.node else calls

    # --- the minimal trace --------------------------------------------------------------------

    @cached_property
    def _parts(self) -> dict[str, _Calls]:
        return {part.key: part for part in self._minimal_parts()}

    def _minimal_parts(self) -> Iterator[_Calls]:
        minimal, pid = self.minimal, self.minimal.pid
        if pid is None:
            return
        numbers = minimal.statistics
        about = f"{numbers.minimal_records:,} of its {numbers.thread_records:,} records"
        why = "probably crashed" if minimal.guessed else "crashed"
        yield _Calls("main", pid, minimal.task, why, about, tree(minimal.calls))
        for n, thread in enumerate(minimal.related[:_RELATED]):
            about = f"{len(thread.calls):,} calls of its {thread.records:,} records"
            root = tree(thread.calls)
            yield _Calls(f"related-{n}", thread.pid, thread.task, WHY[thread.why], about, root)
        for n, place in enumerate(minimal.alternatives[:_ALTERNATIVES]):
            frames = " ← ".join(place.frames[:5]) + (" ← …" if len(place.frames) > 5 else "")
            root = tree(place.calls)
            yield _Calls(f"alternative-{n}", pid, minimal.task, "the stack again", frames, root)

    @cached_property
    def _times(self) -> "np.ndarray[Any, np.dtype[np.uint64]]":
        times = [node.time for part in self._parts.values() for node in part.root.walk()]
        return np.sort(np.array(times, np.uint64))

    def _listers(self, axis: Axis) -> dict[str, Lister]:
        return {key: self._lister(part, axis) for key, part in self._parts.items()}

    def _lister(self, part: _Calls, axis: Axis) -> Lister:
        def gap(node: Node) -> str | None:
            if not self.has_records or node.until is None:
                return None
            window = {"after": node.time + 1, "before": max(0, node.until - 1)}
            return self._address(f"thread-{part.pid}", record=0, **window)

        return Lister(
            part.root, axis, self.query.function, partial(self._part_address, part.key), gap=gap
        )

    def _section(self, calls: _Calls, lister: Lister) -> Section:
        main = calls.key == "main"
        times = [node.time for node in calls.root.walk()]
        axis = lister.axis
        inside = [time for time in times if axis.first <= time <= axis.last]
        places = axis.places_of(np.sort(np.array(inside, np.uint64)))
        counts = np.bincount(np.minimum((places * BINS).astype(int), BINS - 1), minlength=BINS)
        open_ = main or lister.hits > 0 or self.query.thread == calls.pid
        return Section(
            key=calls.key,
            pid=calls.pid,
            task=calls.task,
            why=calls.why,
            about=calls.about,
            lane=_lane(counts),
            open=open_,
            calls=self._with_ends(lister.list(Part()), calls.key) if open_ else None,
            part=None if open_ else self._part_address(calls.key, Part()),
            before=STOPS[self.minimal.before] if main else None,
            after=STOPS[self.minimal.after] if main else None,
        )

    def _with_ends(self, calls: CallList, key: str) -> CallList:
        """Link the ends of the crashed thread's list to the complete trace, if it was cut."""
        own = self.minimal.calls
        if key != "main" or not self.has_records or not own or not calls.rows:
            return calls
        of = f"thread-{self.minimal.pid}"
        earlier, later = calls.earlier, calls.later
        at_start = calls.rows[0].node is self._parts[key].root.children[0]
        at_end = calls.rows[-1].node is self._parts[key].root.children[-1]
        if earlier is None and at_start and self.minimal.before != "end":
            earlier = More(None, self._address(of, after=0, before=max(0, own[0].time - 1), end=-1))
        if later is None and at_end and self.minimal.after != "end":
            later = More(None, self._address(of, after=own[-1].time + 1, before=_LAST, record=0))
        return CallList(calls.rows, earlier, later)

    # --- all records --------------------------------------------------------------------------

    def _threads(self, axis: Axis, held: HeldTrace) -> list[Section]:
        window = axis.first, axis.last
        named = {part.pid: part.why for part in reversed(self._parts.values())}
        also = [*reversed(named), *([self.query.thread] if self.query.thread is not None else ())]
        counts = thread_records.counts(held, window, most=LANES, also=list(dict.fromkeys(also)))
        pids = list(counts)
        lanes = thread_records.activity(held.trace, axis, pids, BINS)
        chosen = self.minimal.pid if self.query.thread is None else self.query.thread
        sections = []
        for pid, lane in zip(pids, lanes, strict=True):
            asked = PartQuery(f"thread-{pid}", record=0)
            if pid == self.minimal.pid and window[0] <= self.stack_begins <= window[1]:
                asked = replace(asked, record=None)
            sections.append(
                Section(
                    key=asked.of,
                    pid=pid,
                    task=held.trace.tasks.get(pid),
                    why=named.get(pid, ""),
                    about=f"{counts[pid]:,} records",
                    lane=_lane(lane),
                    open=pid == chosen,
                    calls=self._thread(pid, axis, held, asked) if pid == chosen else None,
                    part=None if pid == chosen else self._address(asked.of, record=asked.record),
                )
            )
        return sections

    def _thread(self, pid: int, axis: Axis, held: HeldTrace, asked: PartQuery) -> CallList:
        first = axis.first if asked.after is None else asked.after
        last = axis.last if asked.before is None else asked.before
        beginning = asked.record is None and asked.end is None
        records = thread_records.thread_records(
            held.trace,
            pid,
            (first, last),
            first=asked.record,
            end=asked.end,
            around=self.stack_begins if beginning else None,
            frames=self._frames if pid == self.minimal.pid else {},
        )
        return self._records(records, axis, asked)

    def _records(self, records: ThreadRecords, axis: Axis, asked: PartQuery) -> CallList:
        more = {"after": asked.after, "before": asked.before}
        root = tree(records.calls)
        here = partial(self._address, asked.of)
        lister = Lister(
            root,
            axis,
            self.query.function,
            lambda _: here(**more),
            gap=lambda _: None,
            within=False,
        )
        calls = lister.list(Part())
        earlier = later = None
        if records.first and asked.record in (None, 0):
            earlier = More(records.first, here(end=records.first, **more))
        if records.end < records.total and asked.end is None:
            later = More(records.total - records.end, here(record=records.end, **more))
        return CallList(calls.rows, earlier, later)

    def _around(self, function: FoundFunction, whole: Window) -> str:
        """Return the address of a function's first call, with its thread unfolded."""
        query = self.query.at(function.time - _AROUND, function.time + _AROUND, whole)
        return replace(query, thread=function.pid).address(self.base)

    @staticmethod
    def _matches(held: HeldTrace, words: str, window: Window) -> Any:
        return thread_records.find(held.trace, words, window)

    # --- both ---------------------------------------------------------------------------------

    def _extent(self, held: HeldTrace | None) -> Window:
        times: Any = held.trace.time if held else self._times
        if not len(times):
            return 0, 1
        return int(times[0]), max(int(times[-1]), int(times[0]) + 1)

    def _axis(self, held: HeldTrace | None) -> Axis:
        start, end = self.query.window(*self._extent(held))
        if end <= start:
            raise UserError("bad_window", "the window ends before it starts: show the whole trace")
        if held is not None:
            return Axis.of(
                held.trace.time[thread_records.part(held.trace, (start, end))], start, end
            )
        inside = (self._times >= np.uint64(start)) & (self._times <= np.uint64(end))
        return Axis.of(self._times[inside], start, end)

    def _part_address(self, key: str, part: Part) -> str:
        more = {"node": part.node or None, "first": part.first, "end": part.end}
        return self._address(key, **more, back="yes" if part.back else None)

    def _address(self, of: str, **more: object) -> str:
        values = {"of": of, **more}
        return self.query.address(f"{self.base}/part", **values)


_LAST = (1 << 63) - 1


def _lane(counts: "np.ndarray[Any, Any]") -> list[tuple[float, float, int]]:
    """Return counts as rectangles, with equal neighbours merged."""
    # On a logarithmic scale: a single record stays visible beside thousands.
    most = max(1, int(counts.max(initial=0)))
    share = np.log1p(counts) / np.log1p(most)
    levels = np.where(counts > 0, np.clip(np.ceil(share * _LEVELS), 1, _LEVELS), 0).astype(int)
    width = 1000 / len(counts)
    rectangles: list[tuple[float, float, int]] = []
    start = 0
    for at in range(1, len(levels) + 1):
        if at == len(levels) or levels[at] != levels[start]:
            if levels[start]:
                rectangles.append(
                    (round(start * width, 2), round((at - start) * width, 2), levels[start])
                )
            start = at
    return rectangles
