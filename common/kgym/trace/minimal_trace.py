"""Minimal traces: the calls of a whole trace that matter for a crash (CrashFixer, 5.1.3, Figure 4).

As in the paper, only the crashing thread counts. It is anchored to the stack frames in the
candidate files, and walked both ways until it repeats itself. In addition, repetitions are counted,
and alternative anchors are offered, as are the threads that freed, allocated or concurrently used
the object of the crash.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kgym.api.steps import (
    MinimalTrace,
    RelatedThread,
    TraceAlternative,
    TraceAnchor,
    TraceCall,
    TracedFunction,
    TracePart,
    TraceStack,
    TraceStatistics,
)
from kgym.crash.report import CrashReport, Frame
from kgym.trace import stack_anchor as anchors
from kgym.trace.records import Trace, in_files
from kgym.trace.stack_anchor import Anchor, Anchors
from kgym.trace.thread_part import ThreadPart, thread_part

# Maximum records of a minimal trace, as in the paper.
LIMIT = 200
# Maximum records of an alternative, or of another thread.
SIDE_LIMIT = 40
# Maximum number of concurrent threads shown.
THREADS = 3
# If the report names no thread, this many are tried, the latest ones first.
_GUESSES = 64

# mm/kasan/report.c, mm/kfence/report.c: `Freed by task 12:`, `freed by task 12 on cpu 0 at …`
_BY_TASK = re.compile(r"\b(allocated|freed) by task (\d{1,9})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Crash:
    """The stacks (innermost frame first) and PIDs in a crash report, by their role."""

    stacks: Mapping[TraceStack, Sequence[Frame]] = field(default_factory=dict)
    pids: Mapping[TraceStack, int] = field(default_factory=dict)

    @classmethod
    def of(cls, report: CrashReport) -> "Crash":
        """Take stacks and PIDs from a crash report."""
        pids = {}
        if report.pid is not None:
            pids[TraceStack.CRASH] = report.pid
        for match in _BY_TASK.finditer(report.text):
            pids.setdefault(TraceStack(match[1].lower()), int(match[2]))
        stacks = {
            TraceStack.CRASH: report.frames,
            TraceStack.ALLOCATED: report.alloc_stack,
            TraceStack.FREED: report.free_stack,
        }
        return cls(stacks, pids)


def minimize(
    trace: Trace,
    crash: Crash,
    files: Collection[str] = (),
    *,
    limit: int = LIMIT,
    past_repeats: bool = False,
) -> MinimalTrace:
    """Return the calls around the crash; `files` are the localisation candidates, empty for all.

    A trace without records of these files has no calls.
    """
    return _Minimizer(trace, crash, files).result(limit, past_repeats=past_repeats)


@dataclass(frozen=True, slots=True)
class _Thread:
    """The records of one thread in the candidate files, with their places in the trace."""

    pid: int
    places: NDArray[np.int64]
    sequence: NDArray[np.int32]


class _Minimizer:
    """The minimisation of one trace for one crash; records of other files are ignored."""

    def __init__(self, trace: Trace, crash: Crash, files: Collection[str]) -> None:
        self.trace = trace
        self.crash = crash
        relevant = np.array([in_files(function.file, files) for function in trace.functions], bool)
        self.relevant = relevant[trace.function] if len(trace) else np.zeros(0, bool)
        self.wanted = {
            stack: anchors.traced(crash.stacks.get(stack, ()), trace.functions)
            for stack in TraceStack
        }
        for wanted in self.wanted.values():
            for frame in [n for n, numbers in wanted.items() if not relevant[numbers].any()]:
                del wanted[frame]

    def result(self, limit: int, *, past_repeats: bool) -> MinimalTrace:
        thread, guessed = self._crashing()
        if thread is None:
            statistics = self._statistics(None, (), 0)
            return MinimalTrace(pid=None, anchor=TraceAnchor(), calls=[], statistics=statistics)
        stack, matches = self._anchor(thread)
        best = matches.best[0] if matches.best else Anchor((len(thread.places) - 1,), (-1,))
        main = thread_part(thread.sequence, best, limit, past_repeats=past_repeats)
        calls = self._calls(thread, main)
        alternatives = [self._alternative(thread, stack, anchor) for anchor in matches.best[1:]]
        return MinimalTrace(
            pid=thread.pid,
            task=self.trace.tasks.get(thread.pid),
            guessed=guessed,
            anchor=self._describe(stack, matches, best),
            calls=calls,
            before=main.before.value,
            after=main.after.value,
            alternatives=alternatives,
            related=self._related(thread, best, main),
            functions=self._functions(thread),
            statistics=self._statistics(thread, calls, matches.candidates),
        )

    # --- the thread and its anchor --------------------------------------------------------

    def _crashing(self) -> tuple[_Thread | None, bool]:
        """Return the crashing thread, and whether it is a guess, not named by the report."""
        pid = self.crash.pids.get(TraceStack.CRASH)
        if pid is not None and len((thread := self._thread(pid)).places):
            return thread, False
        guesses = [self._thread(suspect) for suspect in self._suspects()]
        if not guesses:
            return None, True
        return max(guesses, key=self._likeness), True

    def _suspects(self) -> list[int]:
        """Return the latest PIDs that ran a function of the crash's stack, or else the last PID."""
        wanted = self.wanted[TraceStack.CRASH]
        mine = self.relevant
        if wanted:
            numbers = np.concatenate(list(wanted.values()))
            mine = mine & np.isin(self.trace.function, numbers)
            if not mine.any():
                mine = self.relevant
        pids = self.trace.pid[mine]
        unique, last = np.unique(pids[::-1], return_index=True)
        latest = unique[np.argsort(last)]
        return [int(pid) for pid in latest[: _GUESSES if wanted else 1]]

    def _likeness(self, thread: _Thread) -> tuple[int, int]:
        matches = anchors.find(thread.sequence, self.wanted[TraceStack.CRASH])
        if not matches.best:
            return 0, int(thread.places[-1])
        return len(matches.best[0].places), int(thread.places[matches.best[0].last])

    def _thread(self, pid: int) -> _Thread:
        places = np.flatnonzero((self.trace.pid == pid) & self.relevant)
        return _Thread(pid, places, self.trace.function[places])

    def _anchor(self, thread: _Thread) -> tuple[TraceStack | None, Anchors]:
        """Return the first stack with a frame in this thread, and its anchors."""
        for stack in TraceStack:
            matches = anchors.find(thread.sequence, self.wanted[stack])
            if matches.best:
                return stack, matches
        return None, Anchors((), 0, ())

    # --- related threads ------------------------------------------------------------------

    def _related(self, thread: _Thread, best: Anchor, main: ThreadPart) -> list[RelatedThread]:
        end = int(thread.places[best.last])
        shown = {int(n) for n in thread.places[main.records()[: 10 * LIMIT]]}
        related = []
        for stack in (TraceStack.FREED, TraceStack.ALLOCATED):
            related_thread = self._who(stack, end)
            if (
                related_thread is not None
                and int(related_thread[0].places[related_thread[1].last]) not in shown
            ):
                related.append(self._relate(stack.value, *related_thread))
        named = {thread.pid, *(other.pid for other in related)}
        return [*related, *self._concurrent(named, thread, main)]

    def _who(self, stack: TraceStack, end: int) -> tuple[_Thread, Anchor] | None:
        """Return the thread of KASAN's allocation or free stack, with its anchor in it."""
        # Only records up to the crash: the thread may have run the same functions again since.
        wanted, pid = self.wanted[stack], self.crash.pids.get(stack)
        if not wanted:
            return None
        if pid is None:
            mine = np.isin(self.trace.function[: end + 1], np.concatenate(list(wanted.values())))
            pids = self.trace.pid[: end + 1][mine & self.relevant[: end + 1]]
            if not len(pids):
                return None
            pid = int(pids[-1])
        thread = self._thread(pid)
        upto = int(np.searchsorted(thread.places, end, side="right"))
        thread = _Thread(pid, thread.places[:upto], thread.sequence[:upto])
        matches = anchors.find(thread.sequence, wanted)
        return (thread, matches.best[0]) if matches.best else None

    def _concurrent(
        self, named: Collection[int], thread: _Thread, main: ThreadPart
    ) -> list[RelatedThread]:
        """Return the threads that ran a function of the stacks during the minimal trace."""
        numbers = [number for wanted in self.wanted.values() for number in wanted.values()]
        records = main.records()
        if not numbers or not len(records):
            return []
        first, last = int(thread.places[records[0]]), int(thread.places[records[-1]])
        part = slice(first, last + 1)
        mine = np.isin(self.trace.function[part], np.concatenate(numbers)) & self.relevant[part]
        pids, counts = np.unique(self.trace.pid[part][mine], return_counts=True)
        busiest = [int(pid) for pid in pids[np.argsort(-counts, kind="stable")]]
        related = []
        for pid in [pid for pid in busiest if pid not in named][:THREADS]:
            other = self._thread(pid)
            at = np.flatnonzero(np.isin(other.sequence, np.concatenate(numbers)))
            at = at[other.places[at] <= last]
            related.append(self._relate("concurrent", other, Anchor((int(at[-1]),), (-1,))))
        return related

    def _relate(self, why: str, thread: _Thread, anchor: Anchor) -> RelatedThread:
        return RelatedThread(
            why=why,
            pid=thread.pid,
            task=self.trace.tasks.get(thread.pid),
            records=len(thread.places),
            calls=self._calls(thread, thread_part(thread.sequence, anchor, SIDE_LIMIT)),
        )

    # --- output ---------------------------------------------------------------------------

    def _calls(self, thread: _Thread, what: ThreadPart) -> list[TraceCall]:
        calls = []
        for piece in what.pieces:
            run, first = piece.run, thread.places[piece.run.start]
            numbers = thread.sequence[run.start : run.start + run.length]
            calls.append(
                TraceCall(
                    pattern=[TracedFunction(**self._names(number)) for number in numbers],
                    count=run.count,
                    time=int(self.trace.time[first]),
                    cpu=int(self.trace.cpu[first]),
                    part=piece.part,
                    anchor=piece.frame is not None,
                    frame=piece.frame if piece.frame is not None and piece.frame >= 0 else None,
                    omitted=piece.omitted,
                )
            )
        return calls

    def _names(self, number: np.int32) -> dict[str, str | None]:
        function = self.trace.functions[number]
        return {"file": function.file, "name": function.name}

    def _alternative(
        self, thread: _Thread, stack: TraceStack | None, anchor: Anchor
    ) -> TraceAlternative:
        return TraceAlternative(
            frames=self._frame_names(stack, anchor.frames),
            span=anchor.last - anchor.first + 1,
            calls=self._calls(thread, thread_part(thread.sequence, anchor, SIDE_LIMIT)),
        )

    def _describe(self, stack: TraceStack | None, matches: Anchors, best: Anchor) -> TraceAnchor:
        missed = [frame for frame in matches.frames if frame not in best.frames]
        return TraceAnchor(
            stack=stack,
            frames=self._frame_names(stack, best.frames),
            missed=self._frame_names(stack, missed),
            span=best.last - best.first + 1,
        )

    def _frame_names(self, stack: TraceStack | None, places: Sequence[int]) -> list[str]:
        frames = self.crash.stacks.get(stack, ()) if stack is not None else ()
        return [frames[place].function for place in places if 0 <= place < len(frames)]

    def _functions(self, thread: _Thread) -> list[TracedFunction]:
        numbers, first = np.unique(thread.sequence, return_index=True)
        return [TracedFunction(**self._names(n)) for n in numbers[np.argsort(first)]]

    def _statistics(
        self, thread: _Thread | None, calls: Sequence[TraceCall], candidates: int
    ) -> TraceStatistics:
        return TraceStatistics(
            records=len(self.trace),
            lost=self.trace.lost,
            threads=len(np.unique(self.trace.pid)),
            candidate_records=int(self.relevant.sum()),
            thread_records=0 if thread is None else len(thread.places),
            anchors=candidates,
            minimal_records=sum(len(call.pattern) for call in calls),
            represented_records=sum(len(call.pattern) * call.count for call in calls),
            match_records=sum(len(call.pattern) for call in calls if call.part is TracePart.MATCH),
        )
