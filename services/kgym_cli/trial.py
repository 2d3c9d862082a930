"""A bug's trial: the job that shows the bug and tries a fix, and what came of it."""

from collections import Counter
from collections.abc import Collection
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kgym.api import trusted_tags
from kgym.api.jobs import JobFilter, JobRequest, JobView, StepView
from kgym.api.states import State
from kgym.api.steps import (
    BuildResult,
    Calibration,
    Finding,
    Patch,
    ReproduceResult,
    ReproduceSpec,
    StepKind,
    Verdict,
)
from kgym.bugs import bundle as bugs
from kgym.bugs import calibration
from kgym.bugs.bundle import Bug
from kgym.bugs.calibration import CONFIDENCES
from kgym.bugs.resolution import Resolution, is_accepted, resolution, told
from kgym.errors import UserError
from kgym.source import diff_text
from kgym_cli import compressed_files
from kgym_cli.output import Exit

if TYPE_CHECKING:
    from kgym.client import Client

_MOST_POOLED = 100
"""Calibrations of a bug that count: the newest."""
LARGEST_PATCH = 64 << 20
"""Bytes that are read of one; the model refuses those that are too large for a job."""
QUANTILES = {"min": 0.0, "median": 0.5, "p90": 0.9, "max": 1.0}


def patch_file(path: Path) -> Patch:
    """Read a unified diff from a file, in whatever encoding it is, compressed or not.

    `-` is standard input.
    """
    name = compressed_files.name(path).encode(errors="replace").decode()[:200]
    try:
        return Patch(
            name=name, diff=diff_text.decode(compressed_files.read(path, LARGEST_PATCH), str(path))
        )
    except ValidationError as error:
        raise UserError("patch_too_large", f"{path}: {error.errors()[0]['msg']}") from error


def submit(client: "Client", request: JobRequest) -> tuple[JobView, bool]:
    """Submit the job, or take up one's own same one that is not finished; say which."""
    mark = trusted_tags.request(request.steps)
    for job in client.jobs(JobFilter(tag=mark, mine=True)):
        if not job.state.final:
            return job, True
    return client.submit(request.model_copy(update={"tags": [*request.tags, mark]})), False


def known(client: "Client", bug: Bug) -> Calibration | None:
    """Return what the calibrations of this bug as it is have measured together, if any.

    Whoever submitted them: their tag is true, so it was this kernel that ran these programs.
    """
    jobs = client.jobs(JobFilter(tag=bug.calibration_tag, state=State.SUCCEEDED))
    results = [_result(job.step(bugs.BEFORE)) for job in islice(jobs, _MOST_POOLED)]
    measured = [one for one in results if one is not None]
    return calibration.pooled(measured, bug.titles) if measured else None


def calibrated(bug: Bug, job: JobView, together: Calibration | None = None) -> dict[str, Any]:
    """Return what `bug calibrate --json` prints; counts are 0 without a result.

    What a fix has to survive is computed from all calibrations `together`, if they are known.
    """
    result = _result(job.step(bugs.BEFORE))
    measured = None
    times: list[float] = []
    ended: Counter[str] = Counter()
    if result is not None:
        measured = calibration.measured(result, bug.titles)
        times = calibration.crash_times(result.instances, bug.titles)
        ended.update(str(one.outcome) for one in result.instances)
    runs, crashed = (measured.runs, measured.crashed) if measured else (ended["survived"], 0)
    counted = together or measured
    efforts = [calibration.effort(counted, one) for one in CONFIDENCES] if counted else []
    return {
        "bug": bug.name,
        "job": job.id,
        "runs": runs,
        "crashed": crashed,
        "rate": round(crashed / runs, 4) if runs else None,
        "rate_at_least": round(calibration.rate_at_least(crashed, runs), 4),
        "outcomes": dict(ended),
        "seconds_to_crash": {
            name: calibration.quantile(times, share) for name, share in QUANTILES.items()
        }
        if times
        else None,
        "accelerator": result.accelerator if result is not None else None,
        "recommended": [asdict(one) for one in efforts if one],
        "reason": _failure(job),
    }


def calibration_status(job: JobView, outcome: dict[str, Any]) -> Exit:
    """0: the bug showed; 1: it did not; 2, 3: nothing was measured."""
    if (status := failed(job)) is not None:
        return status
    if outcome["crashed"]:
        return Exit.OK
    return Exit.NEGATIVE if outcome["runs"] else Exit.INFRASTRUCTURE


def summary(bug: Bug, job: JobView, accepted: Collection[str] = ()) -> dict[str, Any]:
    """Return what `bug reproduce --json` prints; `after` is null without a fix.

    `accepted` are the reasons of findings that shall not stand in the way.
    """
    sides = {name: step for name in (bugs.BEFORE, bugs.AFTER) if (step := job.step(name))}
    outcomes = {name: _outcome(job, step, accepted) for name, step in sides.items()}
    found = resolution_of(job, accepted) or Resolution(False, ())
    return {
        "bug": bug.name,
        "job": job.id,
        "before": outcomes[bugs.BEFORE],
        "after": outcomes.get(bugs.AFTER),
        "resolved": found.resolved,
        "obstacles": [asdict(one) for one in found.obstacles],
        "seconds": _seconds(job),
    }


def resolution_of(job: JobView, accepted: Collection[str] = ()) -> Resolution | None:
    """Return whether the job's fix resolves its bug; None for a job that is no trial of one.

    A trial's steps are named so; or they are the job's only two that reproduce, and the second
    has a baseline. Lists leave the specs out: there any two are taken for a trial.
    """
    runs = [step for step in job.steps if step.kind is StepKind.REPRODUCE]
    named = [step for name in (bugs.BEFORE, bugs.AFTER) for step in runs if step.name == name]
    sides = named if len(named) == 2 else runs
    if len(sides) != 2:
        return None
    spec = sides[1].spec
    if isinstance(spec, ReproduceSpec) and sides is runs and spec.baseline is None:
        return None
    before, after = map(_result, sides)
    if isinstance(spec, ReproduceSpec):
        asked = spec.evidence
    else:
        asked = before is not None and before.evidence is not None
    return resolution(before, after, findings(job, sides[1]), asked=asked, accepted=accepted)


def failed(job: JobView) -> Exit | None:
    """Return the status that tells whose fault a failed step is; None if none has failed."""
    for step in job.steps:
        if step.failure is not None:
            return Exit.USER if step.failure.cause == "user" else Exit.INFRASTRUCTURE
    return None


def _failure(job: JobView) -> str | None:
    """Return why the job has not succeeded."""
    for step in job.steps:
        if step.failure is not None:
            return f"step {step.number} ({step.kind}) failed: {step.failure.message}"
    return None if job.state is State.SUCCEEDED else f"the job is {job.state}"


def _result(step: StepView | None) -> ReproduceResult | None:
    return step.result if step and isinstance(step.result, ReproduceResult) else None


def _outcome(job: JobView, step: StepView, accepted: Collection[str]) -> dict[str, Any]:
    """Return the verdict of a reproduce step; without one it is inconclusive, with the reason."""
    result = step.result
    if isinstance(result, ReproduceResult):
        fields = {"verdict", "title", "crashed", "completed", "requested", "reason"}
        fields |= {"unseen_chance", "confidence", "time", "accelerator", "evidence"}
        found = findings(job, step)
        return {
            **result.model_dump(mode="json", include=fields),
            "told": _told(job, result, found),
            "findings": [
                {**one.model_dump(mode="json"), "accepted": is_accepted(one.reason, accepted)}
                for one in found
            ],
        }
    return {
        "verdict": str(Verdict.INCONCLUSIVE),
        "title": None,
        "crashed": 0,
        "completed": 0,
        "reason": _failure(job),
    }


def findings(job: JobView, step: StepView) -> list[Finding]:
    """Return what was found about the kernel that a reproduce step ran, and by it."""
    # A list leaves the specs out; then it is the kernel that was built right before.
    kernel = step.spec.build.step if isinstance(step.spec, ReproduceSpec) else step.number - 1
    built = job.step(kernel)
    result = built.result if built else None
    found = [*(result.findings if isinstance(result, BuildResult) else [])]
    return [*found, *(step.result.findings if isinstance(step.result, ReproduceResult) else [])]


def _told(job: JobView, after: ReproduceResult, found: list[Finding]) -> str | None:
    """Return the line on what a verdict on a patched kernel rests on; None on others."""
    before = _result(job.step(bugs.BEFORE))
    if after is not _result(job.step(bugs.AFTER)):
        return None
    evidence = before.evidence if before else None
    return told(evidence.work if evidence else None, after.evidence, found)


def _seconds(job: JobView) -> dict[str, float]:
    seconds = {step.name or str(step.number): _duration(step) for step in job.steps}
    return {**seconds, "total": round(sum(seconds.values()), 1)}


def _duration(step: StepView) -> float:
    if step.started_at is None or step.finished_at is None:
        return 0.0
    return round((step.finished_at - step.started_at).total_seconds(), 1)
