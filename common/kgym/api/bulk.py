"""Many jobs at once: the bodies of the REST interface."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.jobs import JobConditions, JobRequest
from kgym.api.states import State
from kgym.api.steps import Strict

# Jobs in one call.
JOBS = 1000
JobIds = list[Annotated[int, Field(ge=1, lt=1 << 63)]]


class JobRequests(Strict):
    """Jobs to run: all of them are added, or none."""

    jobs: list[JobRequest] = Field(min_length=1, max_length=JOBS)


class Submitted(Strict):
    """The jobs of a bulk submission, in its order."""

    jobs: list[int]
    created: int = Field(description="how many of them are new; an earlier call made the others")


Expected = Annotated[int, Field(ge=0, le=10_000)]


class AbortFilter(JobConditions):
    """Unfinished jobs that meet every condition given."""

    mine: bool = Field(True, description="false: those of others too, which takes the scope admin")


class AbortRequest(Strict):
    """Jobs to abort: these, or those that the filter lets through, the oldest first."""

    jobs: JobIds | None = Field(None, min_length=1, max_length=JOBS)
    filter: AbortFilter | None = None
    expected: Expected | None = Field(
        None,
        description="how many unfinished jobs the filter lets through, as you know it: if it is"
        " another number by now, nothing is done",
    )

    @model_validator(mode="after")
    def _either(self) -> "AbortRequest":
        if (self.jobs is None) == (self.filter is None):
            raise ValueError("give either `jobs` or `filter`")
        if self.jobs is not None and self.expected is not None:
            raise ValueError("`expected` is for a `filter`")
        return self


class RestartFilter(JobConditions):
    """Jobs in a final state that meet every condition given."""

    state: Literal[State.FAILED, State.ABORTED, State.SUCCEEDED]
    mine: bool = Field(True, description="false: those of others too, which takes the scope admin")


class RestartRequest(Strict):
    """Jobs to restart from their first step that has not succeeded, the newest first."""

    filter: RestartFilter
    expected: Expected | None = Field(
        None, description="how many jobs the filter lets through, as for an abort"
    )


class Restarted(Strict):
    """What a bulk restart has done."""

    restarted: list[int]
    more: bool = Field(description="whether more jobs meet the filter: call again")


class Aborted(Strict):
    """What a bulk abort has done."""

    aborted: list[int] = Field(description="jobs that this call has ended")
    finished: list[int] = Field([], description="jobs that had ended before")
    missing: list[int] = Field([], description="ids that no job has")
    more: bool = Field(False, description="whether more jobs meet the filter: call again")
