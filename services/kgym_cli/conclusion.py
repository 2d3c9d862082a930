"""What a job came to: its verdicts in few words, and the exit status that they stand for."""

from collections.abc import Collection
from dataclasses import dataclass

from kgym.api.jobs import JobView, StepView
from kgym.api.states import State
from kgym.api.steps import (
    CheckResult,
    PatchOutcome,
    ReproduceResult,
    ReproduceSpec,
    Severity,
    StepKind,
    Verdict,
)
from kgym.bugs.resolution import is_accepted
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

    A trial is as wanted if its fix resolves the bug. Any other reproduce step was to show a
    bug, or, where it names a baseline, that a fix holds.
    """
    steps = [step for step in job.steps if step.kind is StepKind.REPRODUCE]
    verdicts = [one.result.verdict for one in steps if isinstance(one.result, ReproduceResult)]
    resolved = None
    good: list[bool] = []
    if steps and len(verdicts) == len(steps):
        found = trial.resolution_of(job, accepted)
        resolved = found.resolved if found is not None else None
        good.extend(
            [_as_wanted(job, one, accepted) for one in steps] if resolved is None else [resolved]
        )
    compiling = _compiling(job)
    if compiling is not None:
        good.append(compiling[0] == compiling[1])
    status = trial.failed(job)
    if status is None and (job.state is not State.SUCCEEDED or Verdict.INCONCLUSIVE in verdicts):
        status = Exit.INFRASTRUCTURE
    if status is None:
        status = Exit.OK if all(good) else Exit.NEGATIVE
    return Conclusion(verdicts[-1] if verdicts else None, resolved, compiling, status)


def _as_wanted(job: JobView, step: StepView, accepted: Collection[str]) -> bool:
    for one in trial.findings(job, step):
        if one.severity is Severity.BLOCKING and not is_accepted(one.reason, accepted):
            return False
    patched = isinstance(step.spec, ReproduceSpec) and step.spec.baseline is not None
    wanted = Verdict.NO_CRASH if patched else Verdict.SAME_CRASH
    return isinstance(step.result, ReproduceResult) and step.result.verdict is wanted


def _compiling(job: JobView) -> tuple[int, int] | None:
    patches = [
        patch
        for step in job.steps
        if isinstance(step.result, CheckResult)
        for patch in step.result.patches
    ]
    good = sum(patch.outcome is PatchOutcome.COMPILES for patch in patches)
    return (good, len(patches)) if patches else None
