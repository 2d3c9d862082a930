"""Jobs as they are submitted and shown: the bodies of the REST interface."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, model_validator

from kgym.api import trusted_tags
from kgym.api.capabilities import Capabilities
from kgym.api.states import State
from kgym.api.steps import (
    Count,
    Failure,
    Name,
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

Tag = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.:=/@+-]+$")]
Tags = Annotated[list[Tag], Field(max_length=50)]
# As the folders of SuiteCache's entries are named.
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
            for one in step.inputs():
                if one.ref.job is None:
                    self._check(number, one)
        return self

    @model_validator(mode="after")
    def _marks_are_true(self) -> "JobRequest":
        if wrong := trusted_tags.false(self.tags, self.steps):
            raise ValueError(f"the tags {', '.join(wrong)} are not true of these steps")
        return self

    def _check(self, number: int, wanted: StepInput) -> None:
        named = wanted.ref.step
        earlier = self.steps[:number]
        found = next((one for n, one in enumerate(earlier) if named in {n, one.name}), None)
        if found is None:
            raise ValueError(f"step {number} names step {named}, which is not an earlier one")
        if found.kind != wanted.kind:
            raise ValueError(
                f"step {number} names step {named}, which is not a `{wanted.kind}` step"
            )


class Progress(Strict):
    """How far a running step is."""

    stage: Name = Field(description="what it does now, in a word or two")
    done: float = Field(0, description="how much of it, in `unit`s")
    total: float | None = Field(None, description="how much there is; null if that is not known")
    unit: Name = Field("", description="what is counted, such as `objects`")


class Artifact(Strict):
    """A file that a step left behind, as it is stored."""

    name: str = Field(max_length=255, pattern=r"^[^/\x00-\x1f\x7f]+$")
    size: Count = Field(description="bytes")
    sha256: Sha256
    key: str = Field(max_length=1000, description="where object storage holds it")


# Why a queued step does not begin on a platform that lives only while commands use it.
UNATTENDED = "no command waits for its job: `kgym job wait` goes on with it, `kgym up` with all"


class StepView(Strict):
    """A step as it stands."""

    number: int = Field(description="its place in the job, from 0")
    name: StepName | None = None
    kind: StepKind
    state: State
    attempt: int = Field(description="the number of its latest attempt, from 1; 0 before the first")
    worker: str | None = Field(description="the id of the worker of its latest attempt")
    progress: Progress | None
    result: StepResult | None = Field(description="what it came to, once it has")
    failure: Failure | None = Field(description="why its latest attempt failed, if it did")
    waiting: str | None = Field(None, description="why no live worker can begin the queued step")
    ahead: int | None = Field(
        None, description="queued steps of its kind before this queued one; left out in lists"
    )
    begins_in: float | None = Field(
        None, description="seconds, about, until it begins; null where nothing tells"
    )
    artifacts: list[Artifact]
    artifacts_gone_at: datetime | None = Field(
        None, description="when retention removed the files of the artifacts"
    )
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    spec: StepSpec | None = Field(None, description="left out in lists")


class JobView(Strict):
    """A job as it stands."""

    id: int
    state: State
    tags: list[str]
    priority: int
    submitter: str = Field(description="the name of the token; `local` without one")
    group: str | None = Field(None, description="the group of the submitter that it belongs to")
    verdict: Verdict | None = Field(
        None,
        description="of its last reproduce step; null until the job has ended, and where no such "
        "step came to one",
    )
    resolved: bool | None = Field(
        None,
        description="whether its fix resolves the bug that it shows, no finding being accepted; "
        "null until the job has ended, and for one that is no trial of a fix",
    )
    title: str | None = Field(
        None, description="of the crash that decided the verdict; null until the job has ended"
    )
    reason: str | None = Field(
        None, description="why the verdict is what it is, or why there is none; as `title`"
    )
    kernel: str | None = Field(
        None,
        description="the version of the kernel of its first build or check; null until that ends",
    )
    created_at: datetime
    updated_at: datetime
    last_event: int | None = Field(
        None,
        description="the number of its latest event: as `Last-Event-ID`, only later events follow; "
        "null in lists, and for a job that was just submitted",
    )
    steps: list[StepView]

    def step(self, named: StepNumber | StepName) -> StepView | None:
        """Return the step of this name or number, if there is one."""
        return next((one for one in self.steps if named in {one.number, one.name}), None)


class JobPage(Strict):
    """One page of a list, newest first; `next` is the cursor of the page after it."""

    jobs: list[JobView]
    next: str | None


class Happened(Strict):
    """What `data` of every event has."""

    attempt: int = Field(description="the attempt's number, from 1; 0 before the first")


class StateEvent(Happened):
    """`data` of a `state` event: a step has changed its state."""

    state: State = Field(description="of the step")
    job_state: State = Field(description="of the job, after this event")
    worker: str | None = Field(None, description="the worker that runs it; only with `running`")
    failure: Failure | None = Field(None, description="why an attempt failed, if one did")
    verdict: Verdict | None = Field(None, description="the job's, with the event that ends it")
    resolved: bool | None = Field(None, description="the job's, with the event that ends it")


class ProgressEvent(Happened, Progress):
    """`data` of a `progress` event: how far an attempt is; only the latest is kept."""


class LogEvent(Happened):
    """`data` of a `log` event: what an attempt has logged, whole lines."""

    text: str


# What `data` holds, by the kind of the event.
EVENTS: dict[str, type[Happened]] = {
    "state": StateEvent,
    "progress": ProgressEvent,
    "log": LogEvent,
}


class JobEvent(Strict):
    """Something that happened to a step of a job."""

    id: int = Field(description="the event's number; it ascends within the job")
    job: int
    step: int | None = Field(description="the step's number, from 0")
    kind: Literal["state", "progress", "log"]
    at: datetime
    data: dict[str, Any] = Field(
        description="as its `kind` says: a StateEvent, a ProgressEvent or a LogEvent"
    )


def _utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("not a time that there is in UTC") from None


def _digits(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch("-?[0-9]{1,19}", value):
        raise ValueError("not a whole number")
    return value


# A number in a URL or a header: without the blanks, underscores and fractions that `int` takes.
#
# It stands last, behind the bounds: in front it would keep them out of the schema.
DIGITS = BeforeValidator(_digits)
Instant = Annotated[AwareDatetime, AfterValidator(_utc)]


class JobConditions(Strict):
    """Which jobs are meant: those that meet every condition given."""

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
    verdict: Verdict | None = Field(None, description="jobs that have come to this verdict")
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        description="jobs with this in their title, tags, group or submitter, in any case, or as"
        " their number",
    )
    created_after: Instant | None = Field(
        None, description="submitted then or later; with a time zone"
    )
    created_before: Instant | None = Field(None, description="submitted before; with a time zone")


class JobFilter(JobConditions):
    """Which jobs a list shows, newest first.

    Of several conditions, one is looked up, and the others are tested on up to 4,000 jobs, `text`
    on up to 2,000: a page may have fewer jobs than its limit, or none, though `next` leads to more.
    """

    cursor: str | None = Field(
        None,
        max_length=40,
        pattern=r"^[0-9]{1,17}-[0-9]{1,18}$",
        description="`next` of the page before",
    )
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = Field(50, description="jobs on a page")
    brief: bool = Field(
        False, description="leave out results and artifacts of steps, which are most of a list"
    )


class JobCount(Strict):
    """How many jobs meet some conditions."""

    jobs: int = Field(description="at least; exact unless there are more")
    more: bool = Field(
        description="whether there may be more: only 10,000 jobs are looked at; with `text`, 2,000"
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
    """Who sends a request, as the scheduler knows it by its token."""

    name: str = Field(description="of the token; `local` without one")
    scopes: list[str] = Field(description="some of `read`, `submit`, `admin` and `worker`")


class WorkerView(Strict):
    """A worker that is alive, or was lost within a day."""

    id: str
    kinds: list[StepKind] = Field(description="of the steps that it does")
    slots: int = Field(description="how many steps it does at the same time, at most")
    capabilities: Capabilities | None = Field(
        description="null: not declared; it gets every step of its kinds"
    )
    state: WorkerState
    seen_at: datetime = Field(description="when it was heard of last")
    running: list[RunningStep]


class QueueView(Strict):
    """The steps of one kind that wait for a worker, or have one."""

    kind: StepKind
    queued: int = Field(description="how many steps wait for a worker")
    running: int = Field(description="how many steps a worker runs")
    oldest_seconds: float | None = Field(description="how long the oldest queued step has waited")
    unmet: list[str] = Field([], description="what queued steps need and no live worker has")
