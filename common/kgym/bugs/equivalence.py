"""Behavioural equivalence: the share of variants that do the same with the known fix. Pure."""

from typing import Annotated, Self

from pydantic import Field

from kgym.api.steps import Count, Line, Strict, VariantRun
from kgym.bugs.calibration import rate_at_least

# Share of the variants from which on a patch counts as equivalent by execution.
THRESHOLD = 0.95
# Fewer variants cannot show that a patch is equivalent, only that it is not.
LEAST = 20
# Confidence of each limit of an interval of 95 %.
_ONE_SIDE = 0.975
Share = Annotated[float, Field(ge=0, le=1)]


class BehaviouralEquivalence(Strict):
    """The share of variants that do the same as with the developers' fix, and its interval."""

    value: Share | None = Field(None, description="the share; null if no variant was compared")
    low: Share | None = Field(None, description="Clopper and Pearson's 95 % interval")
    high: Share | None = None
    compared: Count = 0
    same: Count = 0
    crashed: Count = Field(0, description="variants that crash the patched kernel")
    dropped: Count = Field(
        0, description="variants that differ from run to run, or do not end with the fix"
    )
    equivalent: bool | None = Field(
        None,
        description=f"whether the share is at least {THRESHOLD}, of at least {LEAST} variants, and"
        " none crashes; null if too few ran",
    )
    missing: Line = Field("", description="why variants were not compared, or not all of them")

    @classmethod
    def of(cls, variants: VariantRun | None) -> Self | None:
        """Return the equivalence of a patched kernel's variants; None if it was not asked for."""
        counted = variants.equivalence if variants is not None else None
        if counted is None:
            return None
        same, compared, crashed = counted.same, counted.compared, len(counted.crashed)
        if not compared:
            return cls(dropped=counted.dropped, missing=counted.missing)
        return cls(
            value=round(same / compared, 4),
            low=round(rate_at_least(same, compared, _ONE_SIDE), 4),
            high=round(1 - rate_at_least(compared - same, compared, _ONE_SIDE), 4),
            compared=compared,
            same=same,
            crashed=crashed,
            dropped=counted.dropped,
            equivalent=is_equivalent(same, compared) if not crashed else False,
            missing=counted.missing,
        )

    def __str__(self) -> str:
        """Return it in one line."""
        if self.value is None or self.low is None or self.high is None:
            return f"not compared with the known fix: {self.missing or 'no variant ran'}"
        more = f", {self.crashed} crash" if self.crashed else ""
        more += f"; {self.dropped} others have no steady result" if self.dropped else ""
        more += f"; {self.missing}" if self.missing else ""
        return (
            f"{self.same} of {self.compared} variants do the same as with the known fix: "
            f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%}){more}"
        )


def is_equivalent(same: int, compared: int) -> bool | None:
    """Return whether a patch is equivalent by execution; None if too few variants ran."""
    if compared and same / compared < THRESHOLD:
        return False
    return True if compared >= LEAST else None
