"""Many jobs at once: the bodies of the REST interface."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.jobs import JobConditions, JobRequest
from kgym.api.states import State
from kgym.api.steps import Strict

# Jobs in one call. The call is one transaction, and other submissions wait until it ends.
JOBS = 1000
JobIds = list[Annotated[int, Field(ge=1, lt=1 << 63)]]


class JobRequests(Strict):
    """Jobs to run: either all are submitted, or none."""

    jobs: list[JobRequest] = Field(min_length=1, max_length=JOBS)


class Submitted(Strict):
    """The jobs of a bulk submission, in the order of the request."""

    jobs: list[int]
    created: int = Field(
        description="number of new jobs; the others were submitted by an earlier call"
    )


# Without it, a filter could abort jobs that were submitted after the user counted them.
Expected = Annotated[int, Field(ge=0, le=10_000)]


class AbortFilter(JobConditions):
    """Unfinished jobs that meet every condition given."""

    mine: bool = Field(True, description="false: also jobs of others, which needs the scope admin")


class AbortRequest(Strict):
    """Jobs to abort: a list, or all that match the filter, the oldest first."""

    jobs: JobIds | None = Field(None, min_length=1, max_length=JOBS)
    filter: AbortFilter | None = None
    expected: Expected | None = Field(
        None,
        description="the number of unfinished jobs that you expect to match the filter: if another"
        " number matches, nothing is done",
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
    mine: bool = Field(True, description="false: also jobs of others, which needs the scope admin")


class RestartRequest(Strict):
    """Jobs to restart from their first step that has not succeeded, the newest first."""

    filter: RestartFilter
    expected: Expected | None = Field(
        None, description="expected number of matching jobs, as for an abort"
    )


class Restarted(Strict):
    """The outcome of a bulk restart."""

    restarted: list[int]
    more: bool = Field(description="whether more jobs match the filter: repeat the call")


class Aborted(Strict):
    """The outcome of a bulk abort."""

    aborted: list[int] = Field(description="jobs that this call has aborted")
    finished: list[int] = Field([], description="jobs that had ended before")
    missing: list[int] = Field([], description="ids that no job has")
    more: bool = Field(False, description="whether more jobs match the filter: repeat the call")
