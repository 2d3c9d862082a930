"""Results of finished jobs, translated for a search. Pure."""

import re
from collections.abc import Sequence

from kgym.api.agent.nodes import Tried
from kgym.api.jobs import Artifact, JobView, StepView
from kgym.api.outcomes import Outcome
from kgym.api.steps import (
    CheckResult,
    Failure,
    InstanceOutcome,
    InstanceResult,
    MinimizeResult,
    ReproduceResult,
    Verdict,
)
from kgym.bugs.bug import AFTER
from kgym.bugs.conclusion import check_reason, conclusion, findings, reproduced
from kgym.bugs.known_noise import noise
from kgym_crashfixer.search.work import Checked

_REPORT = re.compile(r"report-(?P<instance>\d+)(?:-retry-(?P<retry>\d+))?\.txt")
# Compiler messages that the model sees.
_ERRORS = 20
# A patch that does not build is an answer; a failed platform is not.
_NO_KERNEL = {Outcome.DOES_NOT_COMPILE, Outcome.DOES_NOT_APPLY}
_TRIED = {Outcome.RESOLVED, Outcome.NOT_RESOLVED}


def checked(job: JobView) -> Checked | None:
    """Return the result of a check job; None if it has none."""
    result = job.steps[0].result
    if not isinstance(result, CheckResult):
        return None
    # A check without a reason gets one from its other fields.
    reasons = (check.reason or check_reason(check) for check in result.patches)
    checks = zip(result.patches, reasons, strict=True)
    return Checked(patches=[check.model_copy(update={"reason": why}) for check, why in checks])


def tried(job: JobView) -> Tried:
    """Return the result of a patch's job (`Bug.trial`), without the crash report.

    Everything but a verdict on the patch is `inconclusive`: a failure of the platform, a run that
    proves nothing, an unpatched kernel that did not crash.
    """
    came_to = conclusion(job)
    failure = next((step.failure for step in job.steps if step.failure is not None), None)
    if failure is not None and came_to.outcome in _NO_KERNEL:
        return Tried(verdict="does_not_build", reason=_words(failure), job=job.id)
    reason = came_to.reason or f"job {job.id} is {job.state}"
    run, result = job.step(AFTER), reproduced(job.step(AFTER))
    if run is None or result is None or came_to.trial is None:
        return Tried(verdict=Verdict.INCONCLUSIVE, reason=reason, job=job.id)
    is_noise = result.title is not None and noise(result.title) is not None
    verdict = result.verdict if came_to.outcome in _TRIED else Verdict.INCONCLUSIVE
    is_open = verdict is Verdict.INCONCLUSIVE and not came_to.trial.refuted
    return Tried(
        verdict=verdict,
        reason=reason,
        noise=is_noise and verdict is not Verdict.SAME_CRASH,
        findings=findings(job, run),
        obstacles=[
            f"{obstacle.reason}: {obstacle.message}"
            for obstacle in (() if is_open else came_to.trial.obstacles)
        ],
        confidence=result.confidence,
        job=job.id,
    )


def _words(failure: Failure) -> str:
    """Return why the kernel does not build, with the compiler's first messages."""
    listed = failure.details.get("diagnostics")
    lines = [failure.message]
    for item in listed[:_ERRORS] if isinstance(listed, list) else []:
        if isinstance(item, dict):
            lines.append(f"{item.get('file')}:{item.get('line')}: {item.get('message')}")
    return "\n".join(dict.fromkeys(lines))


def crashed_instance(result: ReproduceResult) -> InstanceResult | None:
    """Return the first instance with the verdict's crash."""
    crashes = [run for run in result.instances if run.outcome is InstanceOutcome.CRASH]
    return next((run for run in crashes if run.title == result.title), None)


def report_artifact(artifacts: Sequence[Artifact], instance: int) -> Artifact | None:
    """Return the crash report of an instance's last try."""
    reports = []
    for artifact in artifacts:
        match = _REPORT.fullmatch(artifact.name)
        if match is not None and int(match["instance"]) == instance:
            reports.append((int(match["retry"] or 0), artifact))
    return max(reports, key=lambda pair: pair[0])[1] if reports else None


def minimized(step: StepView | None) -> MinimizeResult | None:
    """Return the result of a minimize step, if any."""
    return step.result if step and isinstance(step.result, MinimizeResult) else None
