"""What a job came to: its verdicts in few words, and the exit status that they stand for."""

from collections.abc import Collection
from dataclasses import dataclass

from kgym.jobs import JobView, StepView
from kgym.states import State
from kgym.steps import (
    CheckResult,
    PatchOutcome,
    ReproduceResult,
    ReproduceSpec,
    Severity,
    StepKind,
    Verdict,
)
from kgym_cli import trial
from kgym_cli.output import Exit


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a job came to; None where it has come to none, or never will."""

    verdict: Verdict | None
    """Of its last reproduce step."""
    resolved: bool | None
    """Whether the fix resolves the bug, where one was tried on it."""
    compiling: tuple[int, int] | None
    """How many of how many patches compile, where they were checked."""
    status: Exit

    @property
    def words(self) -> str:
        """It in few words, such as `no_crash, resolved`; empty where there is nothing to say."""
        words = [] if self.verdict is None else [str(self.verdict)]
        if self.resolved is not None:
            words.append("resolved" if self.resolved else "not resolved")
        if self.compiling is not None:
            words.append("{} of {} compile".format(*self.compiling))
        return ", ".join(words)


def conclusion(job: JobView, accepted: Collection[str] = ()) -> Conclusion:
    """Return what the job came to so far; `accepted` are reasons of findings, as in a trial.

    Two reproduce steps are a trial: with the bug, and with the fix. One alone was to show
    the bug, or, where it names a baseline, that a fix holds.
    """
    steps = [step for step in job.steps if step.kind is StepKind.REPRODUCE]
    verdicts = [one.result.verdict for one in steps if isinstance(one.result, ReproduceResult)]
    resolved = None
    good = []
    if len(steps) > 1 and len(verdicts) == len(steps):
        resolved = trial.resolution_of(job, accepted).resolved
        good.append(resolved)
    elif len(steps) == len(verdicts) == 1:
        good.append(_as_wanted(steps[0], verdicts[0]))
    compiling = _compiling(job)
    if compiling is not None:
        good.append(compiling[0] == compiling[1])
    status = trial.failed(job)
    if status is None and (job.state is not State.SUCCEEDED or Verdict.INCONCLUSIVE in verdicts):
        status = Exit.INFRASTRUCTURE
    if status is None:
        status = Exit.OK if all(good) else Exit.NEGATIVE
    return Conclusion(verdicts[-1] if verdicts else None, resolved, compiling, status)


def _as_wanted(step: StepView, verdict: Verdict) -> bool:
    patched = isinstance(step.spec, ReproduceSpec) and step.spec.baseline is not None
    findings = step.result.findings if isinstance(step.result, ReproduceResult) else []
    if any(one.severity is Severity.BLOCKING for one in findings):
        return False
    return verdict is (Verdict.NO_CRASH if patched else Verdict.SAME_CRASH)


def _compiling(job: JobView) -> tuple[int, int] | None:
    patches = [
        patch
        for step in job.steps
        if isinstance(step.result, CheckResult)
        for patch in step.result.patches
    ]
    good = sum(patch.outcome is PatchOutcome.COMPILES for patch in patches)
    return (good, len(patches)) if patches else None
