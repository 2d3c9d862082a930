"""Many jobs at once: the bodies of the REST interface."""

from typing import Annotated

from pydantic import Field, model_validator

from kgym.api.jobs import Instant, JobRequest, Tag
from kgym.api.steps import StepKind, Strict

JOBS = 1000
"""Jobs in one call."""
JobIds = list[Annotated[int, Field(ge=1, lt=1 << 63)]]


class JobRequests(Strict):
    """Jobs to run: all of them are added, or none."""

    jobs: list[JobRequest] = Field(min_length=1, max_length=JOBS)


class Submitted(Strict):
    """The jobs of a bulk submission, in its order."""

    jobs: list[int]
    created: int = Field(description="how many of them are new; an earlier call made the others")


class AbortFilter(Strict):
    """Unfinished jobs that meet every condition given."""

    kind: StepKind | None = Field(None, description="jobs with a step of this kind")
    tag: Tag | None = None
    mine: bool = Field(True, description="false: those of others too, which takes the scope admin")
    created_after: Instant | None = Field(
        None, description="submitted then or later; with a time zone"
    )
    created_before: Instant | None = Field(None, description="submitted before; with a time zone")


class AbortRequest(Strict):
    """Jobs to abort: these, or those that the filter lets through, the oldest first."""

    jobs: JobIds | None = Field(None, min_length=1, max_length=JOBS)
    filter: AbortFilter | None = None

    @model_validator(mode="after")
    def _either(self) -> "AbortRequest":
        if (self.jobs is None) == (self.filter is None):
            raise ValueError("give either `jobs` or `filter`")
        return self


class Aborted(Strict):
    """What a bulk abort has done."""

    aborted: list[int] = Field(description="jobs that this call has ended")
    finished: list[int] = Field([], description="jobs that had ended before")
    missing: list[int] = Field([], description="ids that no job has")
    more: bool = Field(False, description="whether more jobs meet the filter: call again")
