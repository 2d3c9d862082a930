"""The conclusion of a job: its outcome, and what decided it. Pure.

The scheduler stores it; lists, pages, agents and the command line all take it from here. The
command line only turns it into an exit status.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kgym.api.jobs import JobView, StepView
from kgym.api.outcomes import UNDER_WAY, Outcome
from kgym.api.states import State
from kgym.api.steps import (
    BuildResult,
    CheckResult,
    CheckSpec,
    Diagnostic,
    Failure,
    FileOutcome,
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
from kgym.bugs.bug import AFTER, BEFORE, BUILD_AFTER, BUILD_BEFORE, BUILD_REFERENCE, REFERENCE
from kgym.bugs.checklist import Item, checklist, line
from kgym.bugs.resolution import Resolution, placed, resolution
from kgym.bugs.trial_sides import other_compiler, other_root

# Characters of a reason: it has to fit into a row of a table.
_LONGEST_REASON = 300
# Files that are named.
_NAMED = 5
_DOES_NOT_APPLY = "patch_does_not_apply"

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


# All but those of unfinished jobs.
ANSWERS = {
    **dict.fromkeys((Outcome.RESOLVED, Outcome.REPRODUCED, Outcome.CALIBRATED), Answer.YES),
    **dict.fromkeys((Outcome.TRACED, Outcome.BUILT, Outcome.COMPILES), Answer.YES),
    **dict.fromkeys((Outcome.NOT_RESOLVED, Outcome.NOT_REPRODUCED, Outcome.NOT_BUILT), Answer.NO),
    **dict.fromkeys((Outcome.DOES_NOT_COMPILE, Outcome.DOES_NOT_APPLY), Answer.NO),
    Outcome.REFUSED: Answer.USER,
    **dict.fromkeys((Outcome.INCONCLUSIVE, Outcome.ABORTED), Answer.INFRASTRUCTURE),
}


def worst(answers: Iterable[Answer]) -> Answer:
    """Return the worst of the answers; the order is YES, NO, USER, INFRASTRUCTURE."""
    return max(answers, key=list(Answer).index, default=Answer.YES)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion of a job. A field is None if there is no such answer (yet)."""

    outcome: Outcome
    reason: str | None
    """What decided the outcome, in one line of at most 300 characters."""
    answer: Answer | None
    """The answer in one word; None until the job has ended."""
    verdict: Verdict | None
    """The verdict of its last reproduce step, which answers it; an aborted job has none."""
    title: str | None
    """The title of that verdict's crash."""
    crash: str | None = None
    """The title of the crash that the job is about: the last one of the bug, or else the last."""
    guilty_file: str | None = None
    """The source file blamed by this crash's report."""
    stack: tuple[str, ...] = ()
    """The functions on this crash's stack, innermost first."""
    trial: Resolution | None = None
    """Whether the fix resolves the bug, if a fix was tried to the end."""
    evidence: tuple[Item, ...] = ()
    """The checks of the kernel with the fix, if one was tried to the end."""


def conclusion(job: JobView, accepted: Collection[str] = ()) -> Conclusion:
    """Return the job's conclusion so far; `accepted` are reasons of findings that do not block.

    A trial resolves its bug, or not. Any other reproduce step is expected to show a bug.
    """
    steps = _runs(job)
    results = [step.result for step in steps if isinstance(step.result, ReproduceResult)]
    if job.state is State.ABORTED:  # results of some steps do not answer the job's question
        results = []
    trial = resolution_of(job, accepted) if steps and len(results) == len(steps) else None
    evidence = evidence_of(job, steps[-1]) if trial is not None else []
    if job.state.final:
        outcome, reason = _of_ended(job, results, trial, evidence)
    else:
        outcome, reason = under_way(job.state, job.steps)
    fault = failed(job) if job.state.final else None
    last, crash = results[-1] if results else None, _crash(results)
    crashed = [each for each in crash.instances if each.title == crash.title] if crash else []
    return Conclusion(
        outcome=outcome,
        reason=None if reason is None else in_one_line(reason),
        answer=fault or ANSWERS.get(outcome),
        verdict=last.verdict if last else None,
        title=last.title if last else None,
        crash=crash.title if crash else None,
        guilty_file=next((each.guilty_file for each in crashed if each.guilty_file), None),
        stack=next((tuple(each.stack) for each in crashed if each.stack), ()),
        trial=trial,
        evidence=tuple(evidence),
    )


# --- the outcome, and what decided it ---------------------------------------------------------


# An outcome, and its reason.
_Decided = tuple[Outcome, str | None]


def under_way(state: State, steps: Sequence[StepView]) -> _Decided:
    """Return the outcome of an unfinished job, with the step that it is at."""
    step = next((step for step in steps if step.state is not State.SUCCEEDED), None)
    waiting = f": {step.waiting}" if step and step.waiting else ""
    return UNDER_WAY[state], f"step {step.number} ({step.kind}){waiting}" if step else None


def _of_ended(
    job: JobView,
    results: Sequence[ReproduceResult],
    trial: Resolution | None,
    evidence: Sequence[Item],
) -> _Decided:
    if job.state is State.ABORTED:
        return Outcome.ABORTED, None
    runs = _runs(job)
    for step in job.steps:
        if step.failure is not None:
            return _of_failure(step, step.failure)
    if job.state is not State.SUCCEEDED or len(results) != len(runs):
        return Outcome.INCONCLUSIVE, f"the job is {job.state}, but a result is missing"
    if trial is not None:
        return _of_trial(trial, results, _notes(job, runs[-1]), evidence)
    return _of_runs(job, results) if results else _without_runs(job)


def _of_failure(step: StepView, failure: Failure) -> _Decided:
    # If the kernel with the known fix does not build, the patch is not at fault.
    if failure.cause == "user" and step.name != BUILD_REFERENCE:
        if failure.reason == _DOES_NOT_APPLY:  # also tested by the build without the patch
            return Outcome.DOES_NOT_APPLY, failure.message
        own = step.kind is StepKind.BUILD and step.name != BUILD_BEFORE
        if own and failure.reason in NOT_BUILT:
            return Outcome.DOES_NOT_COMPILE, failure.message
    outcome = Outcome.REFUSED if failure.cause == "user" else Outcome.INCONCLUSIVE
    return outcome, _failed(step, failure)


def _of_trial(
    trial: Resolution,
    results: Sequence[ReproduceResult],
    notes: Sequence[Finding],
    evidence: Sequence[Item],
) -> _Decided:
    """Return the outcome of a trial: blocking findings of the build decide first, then a crash."""
    last = results[-1]
    if not trial.refuted:
        # "No" can only be trusted if every run came to a verdict.
        for result in results:
            if result.verdict is Verdict.INCONCLUSIVE:
                return Outcome.INCONCLUSIVE, result.reason
        # Findings of a run whose kernel crashed say less than the crash.
        if last.verdict is not Verdict.NO_CRASH:
            return Outcome.NOT_RESOLVED, last.reason
        if not trial.verdicts:
            apart = f"the verdict was {last.baseline or 'not known'}"
            before = results[0].reason if len(results) > 1 else apart
            return Outcome.NOT_REPRODUCED, f"without the patch: {before}"
    if trial.obstacles:
        return Outcome.NOT_RESOLVED, _first([obstacle.message for obstacle in trial.obstacles])
    noted = f"note: {_first([placed(note) for note in notes])}; " if notes else ""
    return Outcome.RESOLVED, f"{noted}{line(evidence)}"


def _first(messages: Sequence[str]) -> str:
    more = len(messages) - 1
    return f"{messages[0]} (and {more} more)" if more else messages[0]


def _notes(job: JobView, run: StepView) -> list[Finding]:
    """Return the findings that the outcome of a resolved trial names, accepted ones first."""
    # Style says nothing about whether a patch is a fix.
    named = [finding for finding in findings(job, run) if finding.check != "checkpatch"]
    return sorted(named, key=lambda finding: finding.severity is not Severity.BLOCKING)


def _of_runs(job: JobView, results: Sequence[ReproduceResult]) -> _Decided:
    """Return the outcome of runs without a fix: each is expected to show the bug."""
    for wrong in (Verdict.INCONCLUSIVE, Verdict.NO_CRASH, Verdict.OTHER_CRASH):
        for result in results:
            if result.verdict is wrong:
                open_ = wrong is Verdict.INCONCLUSIVE
                outcome = Outcome.INCONCLUSIVE if open_ else Outcome.NOT_REPRODUCED
                return outcome, result.reason
    spec = _runs(job)[-1].spec
    measured = isinstance(spec, ReproduceSpec) and not spec.stop_at_first_crash
    shown = Outcome.CALIBRATED if measured else Outcome.REPRODUCED
    return _without_patch(job, shown), results[-1].reason


def _without_runs(job: JobView) -> _Decided:
    checks = [step for step in job.steps if isinstance(step.result, CheckResult)]
    if checks:
        patches = [patch for step in checks for patch in getattr(step.result, "patches", [])]
        asked = sum(len(step.spec.patches) for step in checks if isinstance(step.spec, CheckSpec))
        # A worker's result may be incomplete: a patch without an answer must not count as compiled.
        if len(patches) < max(asked, 1):
            return Outcome.INCONCLUSIVE, f"the check has an answer for {len(patches)} of {asked}"
        return checked(patches)
    last = job.steps[-1].result
    if isinstance(last, BuildResult):
        plural = "" if last.objects_compiled == 1 else "s"
        objects = f"{last.objects_compiled:,} object{plural} compiled"
        return Outcome.BUILT, f"Linux {last.kernel_release}, {objects}"
    return _without_patch(job, Outcome.BUILT), None


def _without_patch(job: JobView, otherwise: Outcome) -> Outcome:
    traced = any(step.kind is StepKind.MINIMIZE for step in job.steps)
    return Outcome.TRACED if traced else otherwise


# --- checks -----------------------------------------------------------------------------------


def check_outcome(outcome: PatchOutcome) -> Outcome:
    """Return the outcome of a patch by its check. A check that a limit ended says nothing."""
    over = outcome is PatchOutcome.OVER_LIMIT
    return Outcome.INCONCLUSIVE if over else Outcome(outcome)


def check_reason(check: PatchCheck) -> str:
    """Return why a patch does not compile; empty if it does."""
    errors = [diagnostic for diagnostic in check.diagnostics if diagnostic.severity == "error"]
    match check.outcome:
        case PatchOutcome.NOT_BUILT if not check.reason:
            idle = [file.path for file in check.files if file.outcome is FileOutcome.NOT_BUILT]
            return f"the config compiles nothing of {', '.join(idle[:_NAMED])}"
        case PatchOutcome.DOES_NOT_COMPILE if errors:
            return _diagnosed(errors[0])
    return check.reason


def checked(patches: Sequence[PatchCheck]) -> _Decided:
    """Return the outcome of the worst patch; COMPILES if all compile."""
    good = sum(patch.outcome is PatchOutcome.COMPILES for patch in patches)
    count = f"{good} of {len(patches)} patches compile"
    bad = max(patches, key=_badness, default=None)
    if bad is None or bad.outcome is PatchOutcome.COMPILES:
        return Outcome.COMPILES, count
    why = check_reason(bad)
    return check_outcome(bad.outcome), why if len(patches) == 1 else f"{count}; {bad.name}: {why}"


def _badness(check: PatchCheck) -> tuple[int, int]:
    answer = ANSWERS[check_outcome(check.outcome)]
    return list(Answer).index(answer), list(PatchOutcome).index(check.outcome)


def _diagnosed(diagnostic: Diagnostic) -> str:
    line = f":{diagnostic.line}" if diagnostic.line else ""
    return f"{diagnostic.file}{line}: {diagnostic.message}"


# --- trials -----------------------------------------------------------------------------------


def resolution_of(job: JobView, accepted: Collection[str] = ()) -> Resolution | None:
    """Return whether the job's fix resolves its bug; None if the job is not a trial.

    A trial has steps with a trial's names; or exactly two reproduce steps, the second with a
    baseline; or a single one whose baseline is in another job. Job lists omit the specs: there, any
    two reproduce steps are taken for a trial.
    """
    sides = _sides(job)
    if len(sides) not in {1, 2}:
        return None
    after, spec, names = reproduced(sides[-1]), sides[-1].spec, [side.name for side in sides]
    based = isinstance(spec, ReproduceSpec) and spec.baseline is not None
    if len(sides) == 1:
        shown, verdict = after, after.baseline if after else None
        # A run with this name tries another kernel, without a fix (bisection).
        is_trial = after is not None and names != [BEFORE] and (based or verdict is not None)
    else:
        shown = reproduced(sides[0])
        verdict = shown.verdict if shown else None
        is_trial = based or names == [BEFORE, AFTER] or not isinstance(spec, ReproduceSpec)
    if not is_trial:
        return None
    has_evidence = shown is not None and shown.evidence is not None
    asked = spec.evidence if isinstance(spec, ReproduceSpec) else has_evidence
    own, built = _trial_findings(job, sides), _build_findings(job, sides[-1])
    return resolution(verdict, after, own, asked=asked, accepted=accepted, built=built)


def _sides(job: JobView) -> list[StepView]:
    """Return the run without the fix and the one with it; all runs if none have these names."""
    runs = _runs(job)
    named = [step for name in (BEFORE, AFTER) for step in runs if step.name == name]
    return named if len(named) == 2 else runs


def _runs(job: JobView) -> list[StepView]:
    """Return the reproduce steps that answer the job's question."""
    # The run with the known fix is only a reference for the tried fix.
    runs = (step for step in job.steps if step.kind is StepKind.REPRODUCE)
    return [step for step in runs if step.name != REFERENCE]


def _trial_findings(job: JobView, sides: Sequence[StepView]) -> list[Finding]:
    """Return the findings of the kernel with the fix; the last run, and the one before if known."""
    own = findings(job, sides[-1], patched=True)
    # A run that names its baseline compares the sides itself: do not report the same reason twice.
    reasons = {finding.reason for finding in own}
    others = _sides_differ(job, sides) if len(sides) == 2 else ()
    return [*own, *(finding for finding in others if finding.reason not in reasons)]


def _sides_differ(job: JobView, sides: Sequence[StepView]) -> Iterator[Finding]:
    """Yield blocking findings if the two sides of a trial differ by more than the patch."""
    builds = [_build(job, side) for side in sides]
    yield from other_compiler([build.compiler_version for build in builds if build is not None])
    before, after = map(reproduced, sides)
    if before is not None and after is not None:
        yield from other_root(before.root, after.root)


def evidence_of(job: JobView, run: StepView) -> list[Item]:
    """Return the checks of a kernel with a fix; none if the run has no result."""
    after, before = reproduced(run), reproduced(job.step(BEFORE))
    if after is None:
        return []
    work = before.evidence.work if before is not None and before.evidence else None
    sides = _sides(job)
    return checklist(work, after, _trial_findings(job, sides if sides[-1] is run else [run]))


# --- parts of jobs ----------------------------------------------------------------------------


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
            return _failed(step, step.failure)
    return None if job.state is State.SUCCEEDED else f"the job is {job.state}"


def _failed(step: StepView, failure: Failure) -> str:
    return f"step {step.number} ({step.kind}) failed: {failure.message}"


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


def _crash(results: Sequence[ReproduceResult]) -> ReproduceResult | None:
    """Return the last result with the bug's own crash, or else with any crash."""
    crashed = [result for result in results if result.title is not None]
    # Without the fix, the crash is the bug's own; with it, another one may follow.
    same = [result for result in crashed if result.verdict is Verdict.SAME_CRASH]
    return next(reversed(same or crashed), None)
