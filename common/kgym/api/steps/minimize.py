"""The `minimize` step: reduce a crash's trace to the calls that matter for it."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from kgym.api.steps.base import (
    Count,
    Line,
    Name,
    Seconds,
    Step,
    StepInput,
    StepKind,
    StepRef,
    Strict,
    TreePath,
)


class MinimizeArtifact(StrEnum):
    """Names of a minimize step's artifacts, as far as they could be read."""

    TRACE = "trace.npz"
    """The whole trace, as `kgym.trace.trace_files` loads it."""
    MINIMAL = "minimal.json"
    """A `MinimalTrace`."""
    DMESG = "dmesg.txt"
    STACK = "stack.txt"
    """The crashed task's stack, with locals."""
    LOCKS = "locks.txt"


class MinimizeSpec(Step):
    """Reduce a crashed instance's trace to the calls that matter for its crash report."""

    kind: Literal[StepKind.MINIMIZE] = StepKind.MINIMIZE
    reproduce: StepRef = Field(description="the step that left dumps, or traces, and crash reports")
    build: StepRef = Field(description="the step whose `vmlinux` crashed")
    instance: int | None = Field(
        None, ge=0, lt=1 << 31, description="null: the first with both a crash report and a dump"
    )
    files: list[TreePath] = Field(
        [],
        max_length=1000,
        description="files to search (localisation candidates); empty: all traced files",
    )
    limit: int = Field(200, ge=1, le=10_000, description="records of the minimal trace")
    past_repeats: bool = Field(
        False, description="continue after a repeating pattern instead of stopping there"
    )

    def inputs(self) -> list[StepInput]:
        """Return the build and the run."""
        return [
            StepInput("build", self.build, StepKind.BUILD),
            StepInput("reproduce", self.reproduce, StepKind.REPRODUCE),
        ]


class TracedFunction(Strict):
    """An executed function; `file` is null if the tracer does not know it."""

    file: Name | None
    name: Name


class TracePart(StrEnum):
    """Position of a call: within the matched stack, before it or after it."""

    BACKWARD = "backward"
    MATCH = "match"
    FORWARD = "forward"


class TraceStack(StrEnum):
    """The stacks of a crash report."""

    CRASH = "crash"
    ALLOCATED = "allocated"
    FREED = "freed"


class TraceCall(Strict):
    """A call, or a sequence of calls that occurs `count` times in a row."""

    pattern: list[TracedFunction] = Field(max_length=100_000)
    count: Count = 1
    time: Count = Field(description="of the first call, in nanoseconds of the trace clock")
    cpu: Count
    part: TracePart
    anchor: bool = Field(False, description="whether the trace was cut around it")
    frame: Count | None = Field(
        None, description="frame of the stack that it is; 0 is the innermost"
    )
    omitted: Count = Field(0, description="records of the thread that are left out right before it")


class TraceAnchor(Strict):
    """The stack that was found in the trace, innermost frame first.

    `missed` are frames in candidate files that were not found in order. Without a stack, the anchor
    is the thread's last record.
    """

    stack: TraceStack | None = None
    frames: list[Name] = Field([], max_length=10_000)
    missed: list[Name] = Field([], max_length=10_000)
    span: Count = Field(0, description="records from the outermost to the innermost frame")


class TraceAlternative(Strict):
    """Another place where the thread reached the same stack; most likely first."""

    frames: list[Name] = Field(max_length=10_000)
    span: Count
    calls: list[TraceCall] = Field(max_length=100_000)


class RelatedThread(Strict):
    """Calls of a thread that freed or allocated the object, or ran the same code meanwhile."""

    why: Literal["freed", "allocated", "concurrent"]
    pid: Count
    task: Name | None
    records: Count
    calls: list[TraceCall] = Field(max_length=100_000)


class TraceStatistics(Strict):
    """Sizes of the full and the minimal trace; a record is one entry of a function."""

    records: Count
    lost: Count = Field(description="records that the kernel has overwritten")
    threads: Count
    candidate_records: Count = Field(description="records in candidate files")
    thread_records: Count = Field(description="records of the crashing thread in candidate files")
    anchors: Count = Field(description="places where the stack was reached")
    minimal_records: Count = Field(description="records of a repeated pattern count once")
    represented_records: Count = Field(description="repetitions included")
    match_records: Count = Field(description="of the minimal records, those of the matched stack")


StopReason = Literal["end", "limit", "repeat"]


class MinimalTrace(Strict):
    """The calls that matter for a crash, in order; `pid` is null without any record."""

    pid: Count | None
    task: Name | None = None
    guessed: bool = Field(False, description="whether the report does not name the thread")
    anchor: TraceAnchor
    calls: list[TraceCall] = Field(max_length=100_000)
    before: StopReason = Field("end", description="why the walk backward ended")
    after: StopReason = Field("end", description="why the walk forward ended")
    alternatives: list[TraceAlternative] = Field([], max_length=10_000)
    related: list[RelatedThread] = Field([], max_length=10_000)
    functions: list[TracedFunction] = Field(
        [],
        max_length=1_000_000,
        description="all functions of candidate files that the thread ran, in order of first call",
    )
    statistics: TraceStatistics


class DumpPart(Strict):
    """A part read from a dump, or the error."""

    name: Name
    error: Line | None = None


class MinimizeResult(Strict):
    """The minimal trace, and other parts of the dump."""

    kind: Literal[StepKind.MINIMIZE] = StepKind.MINIMIZE
    instance: Count
    title: Line
    trace: MinimalTrace
    parts: list[DumpPart] = Field(
        max_length=1000, description="each is an artifact of its name, unless it failed"
    )
    seconds: Seconds
