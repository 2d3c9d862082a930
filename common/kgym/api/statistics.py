"""Statistics of attempts over time: the body of GET /v1/statistics."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from kgym.api.jobs import Instant
from kgym.api.steps import Count, StepKind, Strict
from kgym.errors import Cause

Outcome = Literal["succeeded", "failed", "expired", "aborted", "released"]


Piece = Literal["minute", "hour", "day"]


class StatisticsFilter(Strict):
    """Selection of a period and its resolution."""

    step: Piece = Field(
        "hour",
        description="resolution: minutes for at most 6 hours, hours for at most 14 days, or days"
        " (UTC) for at most 366",
    )
    since: Instant | None = Field(
        None, description="beginning, with a time zone; by default the longest period allowed"
    )


class AttemptCount(Strict):
    """Attempts that ended in the same minute, hour or day, and in the same way."""

    at: datetime = Field(description="when the minute, hour or day began")
    kind: StepKind
    outcome: Outcome = Field(
        description="released: returned by its worker; expired: its worker was lost"
    )
    cause: Cause | None = Field(description="of a failure: the user's, or the infrastructure's")
    reason: str | None = Field(description="of a failure, as one word")
    cached: bool | None = Field(
        description="of a successful build: whether the unpatched tree was cached"
    )
    attempts: Count
    seconds: float = Field(description="total duration")


class Statistics(Strict):
    """Outcomes of attempts in order of time; times without ended attempts are left out."""

    since: datetime
    until: datetime = Field(
        description="attempts that ended later, about 2 minutes, are not counted yet"
    )
    step: Piece
    counts: list[AttemptCount]
    cut: bool = Field(description="whether the earliest are left out because there are too many")
    median_seconds: dict[StepKind, float] = Field(
        description="of the successful among the 5,000 attempts that ended last"
    )
