"""What a trial and a calibration came to, from the finished job to the answer. Pure."""

from collections import Counter
from collections.abc import Collection
from typing import Self

from pydantic import Field

from kgym.api.jobs import JobView, StepView
from kgym.api.steps import (
    BuildResult,
    Calibration,
    DroppedSymbol,
    Evidence,
    Finding,
    ReproduceResult,
    Strict,
    Verdict,
)
from kgym.api.steps.compilers import SUBSTITUTION
from kgym.bugs import calibration
from kgym.bugs.bug import AFTER, BEFORE, Bug
from kgym.bugs.calibration import CONFIDENCES, Effort
from kgym.bugs.conclusion import (
    Answer,
    failed,
    failure,
    findings,
    reproduced,
    resolution_of,
)
from kgym.bugs.resolution import Obstacle, Resolution, evidence_line, is_accepted

QUANTILES = {"min": 0.0, "median": 0.5, "p90": 0.9, "max": 1.0}


class JudgedFinding(Finding):
    """A finding, and whether it was accepted."""

    accepted: bool


class SideResult(Strict):
    """What one kernel of a trial showed; without a verdict it is inconclusive, with the reason."""

    verdict: Verdict
    title: str | None = Field(None, description="of the crash that decided, where one did")
    crashed: int = Field(0, description="completed instances that crashed")
    completed: int = Field(0, description="instances that crashed or survived the whole time")
    requested: int | None = Field(None, description="instances that were asked for")
    reason: str | None = Field(description="why it is that verdict, or why there is none")
    unseen_chance: float | None = Field(
        None, description="as ReproduceResult has it: that the bug, still there, was missed"
    )
    confidence: float | None = Field(None, description="of `no_crash`, as ReproduceResult has it")
    time: float | None = Field(None, description="seconds asked of each instance")
    accelerator: str | None = Field(None, description="what ran the VMs: `kvm` or `tcg`")
    evidence: Evidence | None = None
    evidence_line: str | None = Field(None, description="the evidence in one line")
    findings: list[JudgedFinding] = []

    @classmethod
    def of(cls, job: JobView, step: StepView, accepted: Collection[str] = ()) -> Self:
        """Return what this reproduce step of the job showed."""
        result = reproduced(step)
        if result is None:
            return cls(verdict=Verdict.INCONCLUSIVE, reason=failure(job))
        all_findings = findings(job, step)
        return cls(
            verdict=result.verdict,
            title=result.title,
            crashed=result.crashed,
            completed=result.completed,
            requested=result.requested,
            reason=result.reason,
            unseen_chance=result.unseen_chance,
            confidence=result.confidence,
            time=result.time,
            accelerator=result.accelerator,
            evidence=result.evidence,
            evidence_line=_evidence_line(job, result, all_findings),
            findings=[
                JudgedFinding(**dict(finding), accepted=is_accepted(finding.reason, accepted))
                for finding in all_findings
            ],
        )


class TrialResult(Strict):
    """What became of a trial; `after` is null where no fix was tried."""

    bug: str
    job: int
    before: SideResult
    after: SideResult | None
    resolved: bool
    obstacles: list[Obstacle]
    compiler: str | None = Field(None, description="that built the kernel, in its own words")
    compiler_substitution: str = Field("", description=SUBSTITUTION)
    dropped_symbols: list[DroppedSymbol] = Field(
        [], description="symbols of the config that did not get the value asked for"
    )
    config_version: str = Field(
        "", description="the version that the config was made for, where it is not the kernel's"
    )
    built_in: list[str] = Field([], description="symbols that were `m`, and made `y`")
    modules: int = Field(0, description="modules that guests could load")
    seconds: dict[str, float] = Field(description="by step, and `total`")

    @classmethod
    def of(cls, bug: str, job: JobView, accepted: Collection[str] = ()) -> "TrialResult":
        """Return what the job came to, which `Bug.job` has made for the bug of this name.

        `accepted` are the reasons of findings that shall not stand in the way.
        """
        before, after = job.step(BEFORE), job.step(AFTER)
        if before is None:
            raise ValueError(f"job {job.id} is no trial: it has no step `{BEFORE}`")
        trial = resolution_of(job, accepted) or Resolution(False, ())
        built = next((s.result for s in job.steps if isinstance(s.result, BuildResult)), None)
        return TrialResult(
            bug=bug,
            job=job.id,
            before=SideResult.of(job, before, accepted),
            after=SideResult.of(job, after, accepted) if after else None,
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
    """How often and how soon a bug shows; counts are 0 where nothing was measured."""

    bug: str
    job: int
    runs: int = Field(description="boots that count")
    crashed: int = Field(description="how many of them showed the bug")
    rate: float | None = Field(description="their share of the runs; null without a run")
    rate_at_least: float = Field(description="Clopper and Pearson's lower limit of it, at 95 %")
    outcomes: dict[str, int] = Field(description="how many instances ended how")
    seconds_to_crash: dict[str, float] | None = Field(
        description="quantiles over the runs that showed the bug, by name; null without one"
    )
    accelerator: str | None = Field(description="what ran the VMs: `kvm` or `tcg`")
    recommended: list[Effort] = Field(
        description="what a fix has to survive, by all calibrations of the bug together"
    )
    reason: str | None = Field(description="why nothing was measured")

    @classmethod
    def of(cls, bug: Bug, job: JobView, together: Calibration | None = None) -> "CalibrationResult":
        """Return what the job measured, which `Bug.calibration` has made.

        What a fix has to survive is computed from all calibrations `together`, if they are known.
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
        """Return YES if the bug showed, NO if it did not, else whose fault it is."""
        if (fault := failed(job)) is not None:
            return fault
        if self.crashed:
            return Answer.YES
        return Answer.NO if self.runs else Answer.INFRASTRUCTURE


def _evidence_line(job: JobView, after: ReproduceResult, all_findings: list[Finding]) -> str | None:
    """Return the line on what a verdict on a patched kernel rests on; None on others."""
    before = reproduced(job.step(BEFORE))
    if after is not reproduced(job.step(AFTER)):
        return None
    evidence = before.evidence if before else None
    return evidence_line(evidence.work if evidence else None, after.evidence, all_findings)


def _seconds(job: JobView) -> dict[str, float]:
    seconds = {step.name or str(step.number): _duration(step) for step in job.steps}
    return {**seconds, "total": round(sum(seconds.values()), 1)}


def _duration(step: StepView) -> float:
    if step.started_at is None or step.finished_at is None:
        return 0.0
    return round((step.finished_at - step.started_at).total_seconds(), 1)
