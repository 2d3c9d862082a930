"""The reward of a patch, in parts, for models that learn from kernels. Pure."""

from collections.abc import Iterable

from pydantic import Field

from kgym.api.steps import Finding, Number, Severity, Strict, Verdict

# Weights of the parts; they add up to 1.
_COMPILES, _NO_CRASH, _VARIANTS, _CLEAN = 0.1, 0.2, 0.1, 0.6
# Confidence of a fix whose bug was not calibrated: less than that of any bug that was.
_UNMEASURED = 0.5


class Reward(Strict):
    """What a patch achieved. Each part presupposes the ones before it."""

    compiles: bool
    no_crash: bool = Field(False, description="the reproducer does not crash the kernel")
    variants: bool = Field(False, description="nor does a program close to it, as far as any ran")
    clean: bool = Field(False, description="nothing hides the crash: it counts as resolved")
    confidence: Number | None = Field(
        None, description="that the bug is gone, if it is calibrated; null: not measured"
    )

    @classmethod
    def of(
        cls,
        verdict: str | None,
        findings: Iterable[Finding],
        *,
        clean: bool,
        confidence: float | None = None,
    ) -> "Reward":
        """Return the reward of a patch that compiles, from the verdict on its kernel, if it ran."""
        no_crash = verdict == Verdict.NO_CRASH
        blocking = {each.check for each in findings if each.severity is Severity.BLOCKING}
        return cls(
            compiles=True,
            no_crash=no_crash,
            variants=no_crash and "variants" not in blocking,
            clean=clean,
            confidence=confidence if no_crash else None,
        )

    @property
    def total(self) -> float:
        """The reward as a number from 0 to 1."""
        sure = _UNMEASURED if self.confidence is None else self.confidence
        clean = _CLEAN * sure * self.clean
        parts = _COMPILES * self.compiles + _NO_CRASH * self.no_crash + _VARIANTS * self.variants
        return round(parts + clean, 4)
