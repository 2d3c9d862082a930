"""What the platform has done over time: the body of GET /v1/statistics."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from kgym.api.jobs import Instant
from kgym.api.steps import Count, StepKind, Strict
from kgym.errors import Cause

Outcome = Literal["succeeded", "failed", "expired", "aborted", "released"]


Piece = Literal["minute", "hour", "day"]


class StatisticsFilter(Strict):
    """Which time is wanted, in which pieces."""

    step: Piece = Field(
        "hour",
        description="the pieces: minutes of at most 6 hours, hours of at most 14 days,"
        " or days (UTC) of at most 366",
    )
    since: Instant | None = Field(
        None, description="from then on; with a time zone; as far back as there can be without it"
    )


class AttemptCount(Strict):
    """Attempts that ended in the same minute, hour or day, and in the same way."""

    at: datetime = Field(description="when the minute, hour or day began")
    kind: StepKind
    outcome: Outcome = Field(
        description="released: given back by its worker; expired: its worker was lost"
    )
    cause: Cause | None = Field(description="of a failure: whose it was, the user's or not")
    reason: str | None = Field(description="of a failure, as one word")
    cached: bool | None = Field(
        description="of a build that succeeded: whether the unpatched tree was there"
    )
    attempts: Count
    seconds: float = Field(description="that they have taken together")


class Statistics(Strict):
    """What attempts came to, in order of time; nothing for a time in which none ended."""

    since: datetime
    until: datetime = Field(description="what ended later is not counted yet: some 2 minutes")
    step: Piece
    counts: list[AttemptCount]
    cut: bool = Field(description="whether the earliest are left out, as there are too many")
