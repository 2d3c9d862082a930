"""Jobs as they are submitted and shown: the bodies of the REST interface."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, model_validator

from kgym.api import trusted_tags
from kgym.api.capabilities import Capabilities
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.api.steps import (
    Count,
    Failure,
    Name,
    Number,
    Sha256,
    StepInput,
    StepKind,
    StepName,
    StepNumber,
    StepResult,
    StepSpec,
    Strict,
    Verdict,
)

# Without blanks, which separate tags in CSV.
Tag = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.:=/@+-]+$")]
Tags = Annotated[list[Tag], Field(max_length=50)]
# Also a folder's name: in SuiteCache.
EntryName = Annotated[
    str, Field(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z][0-9A-Za-z_.+-]*$")
]
BugName = Annotated[str, Field(min_length=1, max_length=96, pattern=r"^[\w.:=/@+-]+$")]
# Part of a URL's path, so without a slash, and never `.` or `..`.
GroupName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^\w[\w.:=@+-]*$")]


Submitter = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100,
        pattern=r"^\w[\w.@+-]*$",
        description="the name of a token; `local` without one",
    ),
]


class JobRequest(Strict):
    """A job to run: its steps, in order."""

    steps: list[StepSpec] = Field(min_length=1, max_length=100)
    tags: Tags = []
    priority: int = Field(0, ge=-100, le=100, description="higher is sooner")
    group: GroupName | None = Field(
        None,
        description="jobs that belong together, such as a sweep's: `/v1/groups` counts and aborts "
        "them, and has their results. Each submitter's groups are its own",
    )

    @model_validator(mode="after")
    def _references_look_back(self) -> "JobRequest":
        names = [step.name for step in self.steps if step.name is not None]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"several steps have the same name: {', '.join(sorted(twice))}")
        for number, step in enumerate(self.steps):
            for step_input in step.inputs():
                if step_input.ref.job is None:
                    self._check(number, step_input)
        return self

    @model_validator(mode="after")
    def _marks_are_true(self) -> "JobRequest":
        if wrong := trusted_tags.false(self.tags, self.steps):
            raise ValueError(f"the tags {', '.join(wrong)} do not match these steps")
        return self

    def _check(self, number: int, wanted: StepInput) -> None:
        named = wanted.ref.step
        earlier = self.steps[:number]
        match = next((step for n, step in enumerate(earlier) if named in {n, step.name}), None)
        if match is None:
            raise ValueError(f"step {number} names step {named}, which is not an earlier step")
        if match.kind != wanted.kind:
            raise ValueError(
                f"step {number} names step {named}, which is not a `{wanted.kind}` step"
            )


VmState = Literal["booting", "running", "crashed", "controls"]


class VmProgress(Strict):
    """A VM of a running step."""

    name: Name = Field(description="of the instance")
    state: VmState = Field(
        description="controls: it has survived, and faults are raised on purpose"
    )
    seconds: Number = Field(description="since it was started")
    left: Number | None = Field(
        None, description="seconds that the program has yet to run; null if it does not run"
    )
    line: Name = Field("", description="the last line of its console")


class Progress(Strict):
    """How far a running step is."""

    stage: Name = Field(description="the current stage, in one or two words")
    done: Number = Field(0, description="amount done, in `unit`s")
    total: Number | None = Field(None, description="total amount; null if unknown")
    unit: Name = Field("", description="what is counted, such as `objects`")
    vms: list[VmProgress] = Field([], max_length=100, description="those that run now")


class Artifact(Strict):
    """A stored file of a step."""

    name: str = Field(max_length=255, pattern=r"^[^/\x00-\x1f\x7f]+$")
    size: Count = Field(description="bytes")
    sha256: Sha256
    key: str = Field(max_length=1000, description="its key in the artifact storage")


# Why a queued step does not start on a platform that runs only while commands use it.
UNATTENDED = "no command waits for its job: run `kgym job wait`, or `kgym up` for all jobs"


class StepView(Strict):
    """The current state of a step."""

    number: int = Field(description="its position in the job, from 0")
    name: StepName | None = None
    kind: StepKind
    state: State
    attempt: int = Field(description="the number of its latest attempt, from 1; 0 before the first")
    worker: str | None = Field(description="the id of the worker of its latest attempt")
    progress: Progress | None
    result: StepResult | None = Field(description="its result, once it has one")
    failure: Failure | None = Field(description="why its latest attempt failed, if it did")
    waiting: str | None = Field(None, description="why no live worker can start the queued step")
    ahead: int | None = Field(
        None, description="queued steps of its kind before this queued one; left out in lists"
    )
    begins_in: float | None = Field(
        None, description="estimated seconds until it starts; null if unknown"
    )
    artifacts: list[Artifact]
    artifacts_gone_at: datetime | None = Field(
        None, description="when retention removed the files of the artifacts"
    )
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    spec: StepSpec | None = Field(None, description="left out in lists")


class PastOutcome(Strict):
    """The outcome that a job had before it was restarted."""

    at: datetime = Field(description="when the job ended")
    outcome: Outcome
    reason: str | None = None


class JobView(Strict):
    """The current state of a job."""

    id: int
    state: State
    tags: list[str]
    priority: int
    submitter: str = Field(description="the name of the token; `local` without one")
    group: str | None = Field(None, description="the submitter's group that it belongs to")
    outcome: Outcome = Field(description="with no finding accepted")
    reason: str | None = Field(
        None,
        description="what decided the outcome; of an unfinished job, the step that it is at, and"
        " why that waits",
    )
    verdict: Verdict | None = Field(
        None,
        description="of its last reproduce step; null until the job has ended, and if no such step"
        " has one",
    )
    title: str | None = Field(
        None, description="of the crash that decided the verdict; null until the job has ended"
    )
    kernel: str | None = Field(
        None,
        description="the version of the kernel of its first build or check; null until that ends",
    )
    created_at: datetime
    updated_at: datetime
    last_event: int | None = Field(
        None,
        description="number of its latest event, which as `Last-Event-ID` selects later events;"
        " null in lists, and for a job that was just submitted",
    )
    history: list[PastOutcome] = Field(
        [], description="outcomes before its restarts, oldest first; empty in lists"
    )
    steps: list[StepView]

    @property
    def sentence(self) -> str:
        """The outcome with its reason, such as `Not resolved: the kernel crashes`."""
        return self.outcome.sentence(self.reason)

    def step(self, named: StepNumber | StepName) -> StepView | None:
        """Return the step of this name or number; None if there is none."""
        return next((step for step in self.steps if named in {step.number, step.name}), None)


class JobPage(Strict):
    """One page of a list, newest first; `next` is the cursor of the page after it."""

    jobs: list[JobView]
    next: str | None


class Happened(Strict):
    """The common part of `data` of all events."""

    attempt: int = Field(description="the attempt's number, from 1; 0 before the first")


class StateEvent(Happened):
    """`data` of a `state` event: a step has changed its state."""

    state: State = Field(description="of the step")
    job_state: State = Field(description="of the job, after this event")
    worker: str | None = Field(
        None, description="the worker that runs the step; only with `running`"
    )
    failure: Failure | None = Field(None, description="why an attempt failed, if one did")
    outcome: Outcome | None = Field(None, description="the job's, with the event that ends it")
    reason: str | None = Field(None, description="what decided the outcome, with that event")


class ProgressEvent(Happened, Progress):
    """`data` of a `progress` event: an attempt's progress; only the latest is kept."""


class LogEvent(Happened):
    """`data` of a `log` event: complete lines of an attempt's log."""

    text: str


# Type of `data` by kind of event.
EVENTS: dict[str, type[Happened]] = {
    "state": StateEvent,
    "progress": ProgressEvent,
    "log": LogEvent,
}


class JobEvent(Strict):
    """An event of a step."""

    id: int = Field(description="the event's number; it ascends within the job")
    job: int
    step: int | None = Field(description="the step's number, from 0")
    kind: Literal["state", "progress", "log"]
    at: datetime
    data: dict[str, Any] = Field(
        description="by `kind`: a StateEvent, a ProgressEvent or a LogEvent"
    )


def _utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("this time cannot be expressed in UTC") from None


def _digits(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch("-?[0-9]{1,19}", value):
        raise ValueError("not a whole number")
    return value


# A number in a URL or a header, without the blanks, underscores and fractions that `int` accepts.
# It must be the last annotation: before the bounds, it would keep them out of the schema.
DIGITS = BeforeValidator(_digits)
_NEXT = "`next` of the page before"
PageCursor = Annotated[
    str | None, Field(max_length=40, pattern=r"^[0-9]{1,17}-[0-9]{1,18}$", description=_NEXT)
]
NumberCursor = Annotated[
    str | None, Field(max_length=18, pattern="^[0-9]{1,18}$", description=_NEXT)
]
Instant = Annotated[AwareDatetime, AfterValidator(_utc)]


class JobConditions(Strict):
    """Conditions on jobs, all of which must hold."""

    ids: str | None = Field(
        None,
        max_length=3000,
        pattern=r"^[0-9]{1,18}(,[0-9]{1,18}){0,199}$",
        description="jobs with these numbers, separated by commas",
    )
    state: State | None = None
    kind: StepKind | None = Field(None, description="jobs with a step of this kind")
    tag: Tag | None = None
    bug: BugName | None = Field(
        None, description="jobs on this bug: those with the tag `bug=` and its name"
    )
    entry: EntryName | None = Field(
        None, description="jobs that have built or checked on this entry of SuiteCache"
    )
    group: GroupName | None = Field(
        None, description="jobs of a group of this name; of the caller's own, with `mine`"
    )
    submitter: Submitter | None = None
    mine: bool = Field(False, description="only jobs that the caller has submitted")
    outcome: Outcome | None = Field(None, description="jobs with this outcome")
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        description="jobs with this in their title, tags, group or submitter, in any case, or with"
        " this number",
    )
    created_after: Instant | None = Field(
        None, description="submitted then or later; with a time zone"
    )
    created_before: Instant | None = Field(None, description="submitted before; with a time zone")


# The work of a request is bounded, whatever its filter: a page must come within milliseconds.
class JobFilter(JobConditions):
    """Selection of a list of jobs, newest first.

    Of several conditions, one uses an index, and the others are tested on up to 4,000 jobs, `text`
    on up to 2,000: a page may have fewer jobs than its limit, or none, though `next` leads to more.
    """

    cursor: PageCursor = None
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = Field(50, description="jobs on a page")
    brief: bool = Field(
        False, description="leave out results and artifacts of steps, which are most of a list"
    )


class JobCount(Strict):
    """The number of jobs that meet some conditions."""

    jobs: int = Field(description="exact if `more` is false, else a minimum")
    more: bool = Field(
        description="whether there may be more: only 10,000 jobs are tested; with `text`, 2,000"
    )


class RunningStep(Strict):
    """A step that a worker runs now."""

    job: int
    step: int = Field(description="the step's number, from 0")
    kind: StepKind
    attempt: int = Field(description="the attempt's number, from 1")
    started_at: datetime


WorkerState = Literal["live", "draining", "lost"]


class CallerView(Strict):
    """The sender of a request, identified by its token."""

    name: str = Field(description="of the token; `local` without one")
    scopes: list[str] = Field(description="some of `read`, `submit`, `admin` and `worker`")


class WorkerView(Strict):
    """A worker that is alive, or was lost within a day."""

    id: str
    kinds: list[StepKind] = Field(description="kinds of steps that it runs")
    slots: int = Field(description="maximum number of steps that it runs at the same time")
    capabilities: Capabilities | None = Field(
        description="null: not declared; it gets every step of its kinds"
    )
    state: WorkerState
    seen_at: datetime = Field(description="time of its last call")
    running: list[RunningStep]


class QueueView(Strict):
    """The queued and running steps of one kind."""

    kind: StepKind
    queued: int = Field(description="number of queued steps")
    running: int = Field(description="number of running steps")
    oldest_seconds: float | None = Field(description="how long the oldest queued step has waited")
    unmet: list[str] = Field([], description="needs of queued steps that no live worker meets")
