"""Results of trials and calibrations, from the finished job. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Self

from pydantic import Field

from kgym.api.jobs import JobView, StepView
from kgym.api.outcomes import Outcome
from kgym.api.steps import (
    BuildResult,
    Calibration,
    DroppedSymbol,
    Evidence,
    Finding,
    KernelTestRun,
    Strict,
    VariantRun,
    Verdict,
)
from kgym.api.steps.compilers import SUBSTITUTION
from kgym.bugs import calibration, checklist
from kgym.bugs.bug import AFTER, BEFORE, Bug
from kgym.bugs.calibration import CONFIDENCES, Effort
from kgym.bugs.conclusion import (
    Answer,
    conclusion,
    evidence_of,
    failed,
    failure,
    findings,
    reproduced,
    seconds,
)
from kgym.bugs.equivalence import BehaviouralEquivalence
from kgym.bugs.resolution import Obstacle, Resolution, is_accepted

QUANTILES = {"min": 0.0, "median": 0.5, "p90": 0.9, "max": 1.0}


class JudgedFinding(Finding):
    """A finding and whether it was accepted."""

    accepted: bool


def judged(findings: Iterable[Finding], accepted: Collection[str]) -> list[JudgedFinding]:
    """Return the findings, each with whether its reason is one of `accepted`."""
    return [
        JudgedFinding(**dict(finding), accepted=is_accepted(finding.reason, accepted))
        for finding in findings
    ]


class SideResult(Strict):
    """The result of one kernel of a trial; a missing verdict is `inconclusive`, with the reason."""

    verdict: Verdict
    title: str | None = Field(None, description="of the crash that decided, if one did")
    crashed: int = Field(0, description="completed instances that crashed")
    completed: int = Field(0, description="instances that crashed or survived the whole time")
    requested: int | None = Field(None, description="instances requested")
    reason: str | None = Field(description="reason of the verdict, or why there is none")
    unseen_chance: float | None = Field(
        None, description="chance that an unfixed bug was missed, as in ReproduceResult"
    )
    confidence: float | None = Field(None, description="of `no_crash`, as in ReproduceResult")
    time: float | None = Field(None, description="seconds asked of each instance")
    accelerator: str | None = Field(None, description="what ran the VMs: `kvm` or `tcg`")
    evidence: Evidence | None = None
    variants: VariantRun | None = Field(None, description="null if none were requested")
    behavioural_equivalence: BehaviouralEquivalence | None = Field(
        None, description="with the known fix; null if it was not asked for, or the kernel crashed"
    )
    kernel_tests: KernelTestRun | None = Field(None, description="null if not requested")
    evidence_line: str | None = Field(None, description="the evidence in one line")
    findings: list[JudgedFinding] = []

    @classmethod
    def of(cls, job: JobView, step: StepView, accepted: Collection[str] = ()) -> Self:
        """Return the result of this reproduce step of the job."""
        result = reproduced(step)
        if result is None:
            return cls(verdict=Verdict.INCONCLUSIVE, reason=failure(job))
        fields = {name: value for name, value in result if name in cls.model_fields}
        fields["behavioural_equivalence"] = BehaviouralEquivalence.of(result.variants)
        fields["findings"] = judged(findings(job, step), accepted)
        line = checklist.line(evidence_of(job, step)) if step.name == AFTER else None
        return cls(**fields, evidence_line=line)


class TrialResult(Strict):
    """The result of a trial; `after` is null if no fix was tried."""

    bug: str
    job: int
    before: SideResult
    after: SideResult | None
    outcome: Outcome
    reason: str | None = Field(description="what decided the outcome, in one line")
    resolved: bool
    obstacles: list[Obstacle]
    compiler: str | None = Field(None, description="that built the kernel, in its own words")
    compiler_substitution: str = Field("", description=SUBSTITUTION)
    dropped_symbols: list[DroppedSymbol] = Field(
        [], description="config symbols that did not get the requested value"
    )
    config_version: str = Field(
        "", description="the version that the config was made for, if it is not the kernel's"
    )
    built_in: list[str] = Field([], description="symbols changed from `m` to `y`")
    modules: int = Field(0, description="number of modules available to guests")
    seconds: dict[str, float] = Field(description="by step, and `total`")

    @classmethod
    def of(cls, bug: str, job: JobView, accepted: Collection[str] = ()) -> "TrialResult":
        """Return the result of a job made by `Bug.job` for the bug of this name.

        `accepted` are reasons of findings that do not block.
        """
        before, after = job.step(BEFORE), job.step(AFTER)
        if before is None:
            raise ValueError(f"job {job.id} is not a trial: it has no step `{BEFORE}`")
        came_to = conclusion(job, accepted)
        # A trial with missing results is not resolved, and has no obstacles to name.
        trial = came_to.trial or Resolution(False, ())
        built = next((s.result for s in job.steps if isinstance(s.result, BuildResult)), None)
        return TrialResult(
            bug=bug,
            job=job.id,
            before=SideResult.of(job, before, accepted),
            after=SideResult.of(job, after, accepted) if after else None,
            outcome=came_to.outcome,
            reason=came_to.reason,
            resolved=trial.resolved,
            obstacles=list(trial.obstacles),
            compiler=built.compiler_version if built else None,
            compiler_substitution=built.compiler_substitution if built else "",
            dropped_symbols=built.dropped_symbols if built else [],
            config_version=built.config_version if built else "",
            built_in=list(built.built_in) if built else [],
            modules=built.modules if built else 0,
            seconds=_seconds(job),
        )


class CalibrationResult(Strict):
    """How often and how soon a bug shows; counts are 0 if nothing was measured."""

    bug: str
    job: int
    runs: int = Field(description="boots that count")
    crashed: int = Field(description="boots that showed the bug")
    rate: float | None = Field(description="their share of the runs; null without a run")
    rate_at_least: float = Field(description="Clopper and Pearson's lower limit of it, at 95 %")
    outcomes: dict[str, int] = Field(description="number of instances by outcome")
    seconds_to_crash: dict[str, float] | None = Field(
        description="quantiles over the runs that showed the bug, by name; null without one"
    )
    accelerator: str | None = Field(description="what ran the VMs: `kvm` or `tcg`")
    recommended: list[Effort] = Field(
        description="what a fix has to survive, from all calibrations of the bug together"
    )
    reason: str | None = Field(description="why nothing was measured")

    @classmethod
    def of(cls, bug: Bug, job: JobView, together: Calibration | None = None) -> "CalibrationResult":
        """Return the measurement of a job made by `Bug.calibration`.

        The recommended efforts are computed from `together`, all calibrations of the bug, if known.
        """
        result = reproduced(job.step(BEFORE))
        measured = None
        times: list[float] = []
        ended: Counter[str] = Counter()
        if result is not None:
            measured = calibration.measured(result, bug.titles)
            times = calibration.crash_times(result.instances, bug.titles)
            ended.update(str(instance.outcome) for instance in result.instances)
        runs, crashed = (measured.runs, measured.crashed) if measured else (ended["survived"], 0)
        counted = together or measured
        efforts = (
            [calibration.effort(counted, confidence) for confidence in CONFIDENCES]
            if counted
            else []
        )
        return CalibrationResult(
            bug=bug.name,
            job=job.id,
            runs=runs,
            crashed=crashed,
            rate=round(crashed / runs, 4) if runs else None,
            rate_at_least=round(calibration.rate_at_least(crashed, runs), 4),
            outcomes=dict(ended),
            seconds_to_crash={
                name: calibration.quantile(times, share) for name, share in QUANTILES.items()
            }
            if times
            else None,
            accelerator=result.accelerator if result is not None else None,
            recommended=[effort for effort in efforts if effort],
            reason=failure(job),
        )

    def answer(self, job: JobView) -> Answer:
        """Return YES if the bug showed, NO if it did not, else who is at fault."""
        if (fault := failed(job)) is not None:
            return fault
        if self.crashed:
            return Answer.YES
        return Answer.NO if self.runs else Answer.INFRASTRUCTURE


def _seconds(job: JobView) -> dict[str, float]:
    by_step = {step.name or str(step.number): round(seconds(step), 1) for step in job.steps}
    return {**by_step, "total": round(sum(by_step.values()), 1)}
