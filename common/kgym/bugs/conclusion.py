"""The conclusion of a job: its verdicts in few words, and the answer to its submitter. Pure.

The scheduler, lists, agents and the command line all take it from here; the command line only
turns it into an exit status.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kgym.api.jobs import JobView, StepView
from kgym.api.states import State
from kgym.api.steps import (
    BuildResult,
    CheckResult,
    Finding,
    PatchCheck,
    PatchOutcome,
    ReproduceResult,
    ReproduceSpec,
    Severity,
    StepKind,
    Verdict,
)
from kgym.api.steps.check import NOT_BUILT
from kgym.bugs.bug import AFTER, BEFORE, BUILD_AFTER, REFERENCE
from kgym.bugs.resolution import Resolution, is_accepted, resolution
from kgym.bugs.trial_sides import other_compiler, other_root

# Characters of a reason: it has to fit into a row of a table.
_LONGEST_REASON = 300

_UNKNOWN = Finding(
    check="detector",
    severity=Severity.BLOCKING,
    reason="build_unknown",
    message="another job built the kernel; whether it is still whole is not known here",
)


class Answer(StrEnum):
    """The answer of a finished job to its submitter."""

    YES = "yes"
    """The bug shows, the fix resolves it, or the patches compile, depending on the job."""
    NO = "no"
    """A verdict, a blocking finding or a compiler contradicts that."""
    USER = "user"
    """No answer: the submitted job cannot work."""
    INFRASTRUCTURE = "infrastructure"
    """No answer: the platform failed, the job was aborted, or there is no verdict."""


_CHECKED = {
    PatchOutcome.COMPILES: Answer.YES,
    PatchOutcome.REFUSED: Answer.USER,
    PatchOutcome.OVER_LIMIT: Answer.INFRASTRUCTURE,
}


def worst(answers: Iterable[Answer]) -> Answer:
    """Return the worst of the answers; the order is YES, NO, USER, INFRASTRUCTURE."""
    return max(answers, key=list(Answer).index, default=Answer.YES)


def checked(patches: Iterable[PatchCheck]) -> Answer:
    """Return YES if all patches compile, else the worst answer."""
    return worst(_CHECKED.get(patch.outcome, Answer.NO) for patch in patches)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion of a job. A field is None if there is no such answer (yet)."""

    verdict: Verdict | None
    """The verdict of its last reproduce step, which answers it; an aborted job has none."""
    title: str | None
    """The title of that verdict's crash."""
    resolved: bool | None
    """Whether the fix resolves the bug, if a fix was tried."""
    compiling: tuple[int, int] | None
    """The number of patches that compile, and of those that were checked."""
    answer: Answer | None
    """The answer in one word; None until the job has ended."""
    reason: str | None
    """The reason, in one line of at most 300 characters; None as long as there is none."""
    crash: str | None = None
    """The title of the crash that the job is about: the last one of the bug, or else the last."""
    guilty_file: str | None = None
    """The source file blamed by this crash's report."""

    @property
    def words(self) -> str:
        """The conclusion in few words, such as `no_crash, resolved`; empty without one."""
        words = [] if self.verdict is None else [str(self.verdict)]
        if self.resolved is not None:
            words.append("resolved" if self.resolved else "not resolved")
        if self.compiling is not None:
            words.append("{} of {} compile".format(*self.compiling))
        return ", ".join(words)


def conclusion(job: JobView, accepted: Collection[str] = ()) -> Conclusion:
    """Return the job's conclusion so far; `accepted` are reasons of findings that do not block.

    A trial answers yes if its fix resolves the bug. Any other reproduce step is expected to show a
    bug or, with a baseline, to show that a fix holds.
    """
    steps = _runs(job)
    results = [step.result for step in steps if isinstance(step.result, ReproduceResult)]
    if job.state is State.ABORTED:  # results of some steps do not answer the job's question
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
        answer=_answer(job, results, good, refuted=trial is not None and trial.refuted),
        reason=_reason(job, last, trial, compiling),
        crash=crash.title if crash else None,
        guilty_file=_guilty_file(crash) if crash else None,
    )


def resolution_of(job: JobView, accepted: Collection[str] = ()) -> Resolution | None:
    """Return whether the job's fix resolves its bug; None if the job is not a trial.

    A trial has steps with a trial's names; or exactly two reproduce steps, the second with a
    baseline; or a single one whose baseline is in another job. Job lists omit the specs: there, any
    two reproduce steps are taken for a trial.
    """
    runs = _runs(job)
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
    # A run that names its baseline compares the sides itself: do not report the same reason twice.
    reasons = {finding.reason for finding in side_findings}
    side_findings += [
        finding for finding in _sides_differ(job, sides) if finding.reason not in reasons
    ]
    built = _build_findings(job, sides[1])
    return resolution(verdict, after, side_findings, asked=asked, accepted=accepted, built=built)


def _runs(job: JobView) -> list[StepView]:
    """Return the reproduce steps that answer the job's question."""
    # The kernel with the known fix only says what a tried fix is compared with.
    runs = (step for step in job.steps if step.kind is StepKind.REPRODUCE)
    return [step for step in runs if step.name != REFERENCE]


def _sides_differ(job: JobView, sides: Sequence[StepView]) -> Iterator[Finding]:
    """Yield blocking findings if the two sides of a trial differ by more than the patch."""
    builds = [_build(job, side) for side in sides]
    yield from other_compiler([build.compiler_version for build in builds if build is not None])
    before, after = map(reproduced, sides)
    if before is not None and after is not None:
        yield from other_root(before.root, after.root)


def _resolution_apart(job: JobView, step: StepView, accepted: Collection[str]) -> Resolution | None:
    """Return the resolution of a patched run whose baseline is in another job."""
    after = reproduced(step)
    if after is None or after.baseline is None or not _is_patched(step):
        return None
    spec = step.spec
    asked = spec.evidence if isinstance(spec, ReproduceSpec) else after.evidence is not None
    own, built = findings(job, step), _build_findings(job, step)
    return resolution(after.baseline, after, own, asked=asked, accepted=accepted, built=built)


def failed(job: JobView) -> Answer | None:
    """Return who is at fault for a failed step; None if none has failed."""
    for step in job.steps:
        if step.failure is not None:
            # The kernel was built without the patch before: the patch breaks it.
            broken = step.name == BUILD_AFTER and step.failure.reason in NOT_BUILT
            fault = Answer.NO if broken else Answer.USER
            return fault if step.failure.cause == "user" else Answer.INFRASTRUCTURE
    return None


def failure(job: JobView) -> str | None:
    """Return why the job has not succeeded; None if it has."""
    for step in job.steps:
        if step.failure is not None:
            return f"step {step.number} ({step.kind}) failed: {step.failure.message}"
    return None if job.state is State.SUCCEEDED else f"the job is {job.state}"


def in_one_line(reason: str) -> str:
    """Return a reason in one line, cut to what fits into a row."""
    line = " ".join(reason.split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"


def seconds(step: StepView) -> float:
    """Return the duration of a step; 0 if it has not ended."""
    if step.started_at is None or step.finished_at is None:
        return 0.0
    return (step.finished_at - step.started_at).total_seconds()


def reproduced(step: StepView | None) -> ReproduceResult | None:
    """Return the result of a reproduce step, if it has one."""
    return step.result if step and isinstance(step.result, ReproduceResult) else None


def findings(job: JobView, step: StepView, *, patched: bool | None = None) -> list[Finding]:
    """Return the findings of a reproduce step and of the build of its kernel.

    A patched kernel that was built by another job adds the blocking `build_unknown`: the findings
    of that build are not known here. If `patched` is None, it is taken from the step's baseline.
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
    """Return the result of the kernel's build, if it belongs to this job."""
    if isinstance(step.spec, ReproduceSpec):
        if step.spec.build.job is not None:
            return None
        built = job.step(step.spec.build.step)
    else:  # job lists omit the specs: assume the kernel that was built right before
        built = job.step(step.number - 1)
    return built.result if built and isinstance(built.result, BuildResult) else None


def _build_findings(job: JobView, step: StepView) -> list[Finding]:
    built = _build(job, step)
    return built.findings if built else []


def _answer(
    job: JobView, results: list[ReproduceResult], good: list[bool], *, refuted: bool
) -> Answer | None:
    if not job.state.final:
        return None
    if (answer := failed(job)) is not None:
        return answer
    # A user can only trust "no" if every run came to a verdict, or if none could change it.
    open_ = not refuted and any(result.verdict is Verdict.INCONCLUSIVE for result in results)
    if open_ or job.state is not State.SUCCEEDED:
        return Answer.INFRASTRUCTURE
    return Answer.YES if all(good) else Answer.NO


def _reason(
    job: JobView,
    last: ReproduceResult | None,
    trial: Resolution | None,
    compiling: tuple[int, int] | None,
) -> str | None:
    """Return what decided: a failure, the obstacles, a verdict, or the compiler's count."""
    reason: str | None = None
    if job.state.final and (why := failure(job)) is not None:
        reason = why
    elif trial is not None and (in_the_way := trial.deciding(last.title if last else None)):
        reason = "; ".join(f"{obstacle.reason}: {obstacle.message}" for obstacle in in_the_way)
    elif last is not None:
        reason = last.reason
    elif compiling is not None:
        reason = "{} of {} patches compile".format(*compiling)
    return None if reason is None else in_one_line(reason)


def _crash(results: list[ReproduceResult]) -> ReproduceResult | None:
    """Return the last result with the bug's own crash, or else with any crash."""
    crashed = [result for result in results if result.title is not None]
    # Without the fix, the crash is the bug's own; with it, another one may follow.
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
    """Return whether a step with a baseline tries a fix, rather than another kernel (bisection)."""
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
