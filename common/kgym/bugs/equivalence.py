"""Behavioural equivalence: the share of variants that do the same with the known fix. Pure."""

from typing import Self

from pydantic import Field

from kgym.api.steps import Strict, VariantRun
from kgym.bugs.calibration import rate_at_least

# Share of the variants from which on a patch counts as equivalent by execution.
THRESHOLD = 0.95
# Fewer variants cannot show that a patch is equivalent, only that it is not.
LEAST = 20
# Of both limits together, the interval's confidence is 95 %.
_ONE_SIDE = 0.975


class BehaviouralEquivalence(Strict):
    """The share of variants that do the same as with the developers' fix, and its interval."""

    value: float | None = Field(None, description="the share; null if no variant was compared")
    low: float | None = Field(None, description="Clopper and Pearson's 95 % interval")
    high: float | None = None
    compared: int = 0
    same: int = 0
    crashed: int = Field(0, description="variants that crash the patched kernel")
    equivalent: bool | None = Field(
        None,
        description=f"whether the share is at least {THRESHOLD}, and nothing crashes; null if too"
        " few ran",
    )
    missing: str = Field("", description="why variants were not compared, or not all of them")

    @classmethod
    def of(cls, variants: VariantRun | None) -> Self | None:
        """Return the equivalence of a patched kernel's variants; None if it was not asked for."""
        counted = variants.equivalence if variants is not None else None
        if counted is None:
            return None
        same, compared = counted.same, counted.compared
        low, high = interval(same, compared)
        return cls(
            value=round(same / compared, 4) if compared else None,
            low=low if compared else None,
            high=high if compared else None,
            compared=compared,
            same=same,
            crashed=len(counted.crashed),
            equivalent=False if counted.crashed else is_equivalent(same, compared),
            missing=counted.missing,
        )

    def __str__(self) -> str:
        """Return it in one line."""
        if self.value is None or self.low is None or self.high is None:
            return f"not compared with the known fix: {self.missing}"
        crashes = f", {self.crashed} crash" if self.crashed else ""
        missing = f"; {self.missing}" if self.missing else ""
        return (
            f"{self.same} of {self.compared} variants do the same as with the known fix: "
            f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%}){crashes}{missing}"
        )


def interval(same: int, compared: int) -> tuple[float, float]:
    """Return Clopper and Pearson's 95 % limits of the share."""
    low = rate_at_least(same, compared, _ONE_SIDE)
    return round(low, 4), round(1 - rate_at_least(compared - same, compared, _ONE_SIDE), 4)


def is_equivalent(same: int, compared: int) -> bool | None:
    """Return whether a patch is equivalent by execution; None if too few variants ran."""
    if compared and same / compared < THRESHOLD:
        return False
    return True if compared >= LEAST else None
