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
GroupName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^\w[\w.:=@+-]*$")]
"""Part of a URL's path, so without a slash, and never `.` or `..`."""


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
    """How far a running step is. `total` is null if it is not known."""

    stage: Name
    done: float = 0
    total: float | None = None
    unit: Name = ""


class Artifact(Strict):
    """A file that a step left behind."""

    name: str = Field(max_length=255, pattern=r"^[^/\x00-\x1f\x7f]+$")
    size: Count = Field(description="bytes")
    sha256: Sha256
    key: str = Field(max_length=1000, description="where object storage holds it")


UNATTENDED = "no command waits for its job: `kgym job wait` goes on with it, `kgym up` with all"
"""Why a queued step does not begin on a platform that lives only while commands use it."""


class StepView(Strict):
    """A step as it stands."""

    number: int
    name: StepName | None = None
    kind: StepKind
    state: State
    attempt: int
    worker: str | None
    progress: Progress | None
    result: StepResult | None
    failure: Failure | None
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


class ProgressEvent(Happened, Progress):
    """`data` of a `progress` event: how far an attempt is; only the latest is kept."""


class LogEvent(Happened):
    """`data` of a `log` event: what an attempt has logged, whole lines."""

    text: str


EVENTS: dict[str, type[Happened]] = {
    "state": StateEvent,
    "progress": ProgressEvent,
    "log": LogEvent,
}
"""What `data` holds, by the kind of the event."""


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


DIGITS = BeforeValidator(_digits)
"""Stands last, behind the bounds: in front it would keep them out of the schema."""
"""A number in a URL or a header: without the blanks, underscores and fractions that `int` takes."""
Instant = Annotated[AwareDatetime, AfterValidator(_utc)]


class JobFilter(Strict):
    """Which jobs a list shows: those that meet every condition given, newest first."""

    state: State | None = None
    kind: StepKind | None = Field(None, description="jobs with a step of this kind")
    tag: Tag | None = None
    group: GroupName | None = Field(
        None, description="jobs of a group of this name; of the caller's own, with `mine`"
    )
    mine: bool = Field(False, description="only jobs that the caller has submitted")
    created_after: Instant | None = Field(
        None, description="submitted then or later; with a time zone"
    )
    created_before: Instant | None = Field(None, description="submitted before; with a time zone")
    cursor: str | None = Field(
        None,
        max_length=40,
        pattern=r"^[0-9]{1,17}-[0-9]{1,18}$",
        description="`next` of the page before",
    )
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = Field(50, description="jobs on a page")


class RunningStep(Strict):
    """A step that a worker runs now."""

    job: int
    step: int
    kind: StepKind
    attempt: int
    started_at: datetime


WorkerState = Literal["live", "draining", "lost"]


class WorkerView(Strict):
    """A worker that is alive, or was lost within a day."""

    id: str
    kinds: list[StepKind]
    slots: int
    capabilities: Capabilities | None = Field(
        description="null: not declared; it gets every step of its kinds"
    )
    state: WorkerState
    seen_at: datetime
    running: list[RunningStep]


class QueueView(Strict):
    """The steps of one kind that wait for a worker, or have one."""

    kind: StepKind
    queued: int
    running: int
    oldest_seconds: float | None = Field(description="how long the oldest queued step has waited")
    unmet: list[str] = Field([], description="what queued steps need and no live worker has")
