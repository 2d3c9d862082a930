"""What a job came to: its verdicts in few words, and whether they are what was hoped for. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kgym.api.jobs import JobView, StepView
from kgym.api.states import State
from kgym.api.steps import (
    BuildResult,
    CheckResult,
    Finding,
    PatchOutcome,
    ReproduceResult,
    ReproduceSpec,
    Severity,
    StepKind,
    Verdict,
)
from kgym.bugs.bug import AFTER, BEFORE
from kgym.bugs.resolution import Resolution, is_accepted, resolution
from kgym.bugs.trial_sides import other_compiler, other_root

# Characters of a reason, which has to fit into a row of a table.
_LONGEST_REASON = 300

_UNKNOWN = Finding(
    check="detector",
    severity=Severity.BLOCKING,
    reason="build_unknown",
    message="another job built the kernel; whether it is still whole is not known here",
)


class Answer(StrEnum):
    """What a finished job answers to whoever submitted it."""

    YES = "yes"
    """The bug shows, the fix resolves it, the patches compile: whatever was asked."""
    NO = "no"
    """A verdict, a blocking finding or a compiler says otherwise."""
    USER = "user"
    """Nothing: what was submitted cannot work."""
    INFRASTRUCTURE = "infrastructure"
    """Nothing: the platform failed, the job was aborted, or there is no verdict."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a job came to. A field is None if there is no such answer yet, or never will be."""

    verdict: Verdict | None
    """The verdict of its last reproduce step; an aborted job comes to none."""
    title: str | None
    """The title of that verdict's crash."""
    resolved: bool | None
    """Whether the fix resolves the bug, if a fix was tried."""
    compiling: tuple[int, int] | None
    """How many patches compile, and how many were checked."""
    answer: Answer | None
    """The answer in one word; None until the job has ended."""
    reason: str | None
    """Why, in one line of at most 300 characters; None until there is something to tell."""
    crash: str | None = None
    """The title of the crash that the job is about: the last that is the bug's, or else any."""
    guilty_file: str | None = None
    """The source file that this crash's report blames."""

    @property
    def words(self) -> str:
        """The conclusion in few words, such as `no_crash, resolved`; empty if there is none."""
        words = [] if self.verdict is None else [str(self.verdict)]
        if self.resolved is not None:
            words.append("resolved" if self.resolved else "not resolved")
        if self.compiling is not None:
            words.append("{} of {} compile".format(*self.compiling))
        return ", ".join(words)


def conclusion(job: JobView, accepted: Collection[str] = ()) -> Conclusion:
    """Return what the job came to so far; `accepted` are reasons of findings, as in a trial.

    A trial answers yes if its fix resolves the bug. Any other reproduce step was to show a
    bug, or, where it names a baseline, that a fix holds.
    """
    steps = [step for step in job.steps if step.kind is StepKind.REPRODUCE]
    results = [step.result for step in steps if isinstance(step.result, ReproduceResult)]
    if job.state is State.ABORTED:  # what some of its steps showed is not what it was to find out
        results = []
    trial = resolution_of(job, accepted) if steps and len(results) == len(steps) else None
    good: list[bool] = []
    if trial is not None:
        good.append(trial.resolved)
    elif len(results) == len(steps):
        good.extend(_as_wanted(job, step, accepted) for step in steps)
    compiling = _compiling(job)
    if compiling is not None:
        good.append(compiling[0] == compiling[1])
    last = results[-1] if results else None
    crash = _crash(results)
    return Conclusion(
        verdict=last.verdict if last else None,
        title=last.title if last else None,
        resolved=trial.resolved if trial is not None else None,
        compiling=compiling,
        answer=_answer(job, results, good),
        reason=_reason(job, last, trial, compiling),
        crash=crash.title if crash else None,
        guilty_file=_guilty_file(crash) if crash else None,
    )


def resolution_of(job: JobView, accepted: Collection[str] = ()) -> Resolution | None:
    """Return whether the job's fix resolves its bug; None for a job that is no trial of one.

    A trial's steps are named so; or they are the job's only two that reproduce, and the second
    has a baseline; or there is but one, with its baseline in another job. Lists leave the specs
    out: there any two are taken for a trial.
    """
    runs = [step for step in job.steps if step.kind is StepKind.REPRODUCE]
    named = [step for name in (BEFORE, AFTER) for step in runs if step.name == name]
    sides = named if len(named) == 2 else runs
    if len(sides) == 1:
        return _resolution_apart(job, sides[0], accepted)
    if len(sides) != 2:
        return None
    spec = sides[1].spec
    if isinstance(spec, ReproduceSpec) and sides is runs and spec.baseline is None:
        return None
    before, after = map(reproduced, sides)
    if isinstance(spec, ReproduceSpec):
        asked = spec.evidence
    else:
        asked = before is not None and before.evidence is not None
    verdict = before.verdict if before else None
    side_findings = findings(job, sides[1], patched=True)
    reasons = {
        finding.reason for finding in side_findings
    }  # a run that names its baseline says it itself
    side_findings += [
        finding for finding in _sides_differ(job, sides) if finding.reason not in reasons
    ]
    return resolution(verdict, after, side_findings, asked=asked, accepted=accepted)


def _sides_differ(job: JobView, sides: Sequence[StepView]) -> Iterator[Finding]:
    """Yield what blocks as both sides of a trial have more than the patch between them."""
    builds = [_build(job, side) for side in sides]
    yield from other_compiler([build.compiler_version for build in builds if build is not None])
    before, after = map(reproduced, sides)
    if before is not None and after is not None:
        yield from other_root(before.root, after.root)


def _resolution_apart(job: JobView, step: StepView, accepted: Collection[str]) -> Resolution | None:
    """Return what a patched run comes to whose bug was shown by another job."""
    after = reproduced(step)
    if after is None or after.baseline is None or not _is_patched(step):
        return None
    spec = step.spec
    asked = spec.evidence if isinstance(spec, ReproduceSpec) else after.evidence is not None
    side_findings = findings(job, step)
    return resolution(after.baseline, after, side_findings, asked=asked, accepted=accepted)


def failed(job: JobView) -> Answer | None:
    """Return whose fault it is that a step has failed; None if none has."""
    for step in job.steps:
        if step.failure is not None:
            return Answer.USER if step.failure.cause == "user" else Answer.INFRASTRUCTURE
    return None


def failure(job: JobView) -> str | None:
    """Return why the job has not succeeded; None if it has."""
    for step in job.steps:
        if step.failure is not None:
            return f"step {step.number} ({step.kind}) failed: {step.failure.message}"
    return None if job.state is State.SUCCEEDED else f"the job is {job.state}"


def reproduced(step: StepView | None) -> ReproduceResult | None:
    """Return the result of a reproduce step, if it has one."""
    return step.result if step and isinstance(step.result, ReproduceResult) else None


def findings(job: JobView, step: StepView, *, patched: bool | None = None) -> list[Finding]:
    """Return what was found about the kernel that a reproduce step ran, and by it.

    A patched kernel whose build is not of this job adds `build_unknown`, which blocks: what
    that build found cannot be told from here. `patched` is taken from the step's baseline
    if it is None.
    """
    result = reproduced(step)
    if patched is None:
        asked = isinstance(step.spec, ReproduceSpec) and step.spec.baseline is not None
        patched = asked or (result is not None and result.baseline is not None)
    built = _build(job, step)
    all_findings = [*(built.findings if built else [])]
    if patched and not built:
        all_findings.append(_UNKNOWN)
    return [*all_findings, *(result.findings if result else [])]


def _build(job: JobView, step: StepView) -> BuildResult | None:
    """Return what the kernel's build came to, if it is of this job."""
    if isinstance(step.spec, ReproduceSpec):
        if step.spec.build.job is not None:
            return None
        built = job.step(step.spec.build.step)
    else:  # a list leaves the specs out; then it is the kernel that was built right before
        built = job.step(step.number - 1)
    return built.result if built and isinstance(built.result, BuildResult) else None


def _answer(job: JobView, results: list[ReproduceResult], good: list[bool]) -> Answer | None:
    if not job.state.final:
        return None
    if (answer := failed(job)) is not None:
        return answer
    open_ = any(result.verdict is Verdict.INCONCLUSIVE for result in results)
    if open_ or job.state is not State.SUCCEEDED:
        return Answer.INFRASTRUCTURE
    return Answer.YES if all(good) else Answer.NO


def _reason(
    job: JobView,
    last: ReproduceResult | None,
    trial: Resolution | None,
    compiling: tuple[int, int] | None,
) -> str | None:
    """Return what decided: a failure, what stands in the way, a verdict, or a compiler."""
    reason: str | None = None
    if job.state.final and (why := failure(job)) is not None:
        reason = why
    elif trial is not None and trial.verdicts and trial.obstacles:
        reason = "; ".join(f"{obstacle.reason}: {obstacle.message}" for obstacle in trial.obstacles)
    elif last is not None:
        reason = last.reason
    elif compiling is not None:
        reason = "{} of {} patches compile".format(*compiling)
    if reason is None:
        return None
    line = " ".join(reason.split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"


def _crash(results: list[ReproduceResult]) -> ReproduceResult | None:
    """Return the result that shows what the bug is: of a trial, the one without the fix."""
    crashed = [result for result in results if result.title is not None]
    same = [result for result in crashed if result.verdict is Verdict.SAME_CRASH]
    return next(reversed(same or crashed), None)


def _guilty_file(shown: ReproduceResult) -> str | None:
    files = (instance.guilty_file for instance in shown.instances if instance.title == shown.title)
    return next((file for file in files if file), None)


def _as_wanted(job: JobView, step: StepView, accepted: Collection[str]) -> bool:
    for finding in findings(job, step):
        if finding.severity is Severity.BLOCKING and not is_accepted(finding.reason, accepted):
            return False
    based = isinstance(step.spec, ReproduceSpec) and step.spec.baseline is not None
    wanted = Verdict.NO_CRASH if based and _is_patched(step) else Verdict.SAME_CRASH
    return isinstance(step.result, ReproduceResult) and step.result.verdict is wanted


def _is_patched(step: StepView) -> bool:
    """Tell whether a step with a baseline tries a fix; a bisection tries other kernels so."""
    return step.name != BEFORE


def _compiling(job: JobView) -> tuple[int, int] | None:
    patches = [
        patch
        for step in job.steps
        if isinstance(step.result, CheckResult)
        for patch in step.result.patches
    ]
    good = sum(patch.outcome is PatchOutcome.COMPILES for patch in patches)
    return (good, len(patches)) if patches else None
