"""A bug's trial: the job that shows the bug and tries a fix, and what came of it."""

import hashlib
from pathlib import Path
from typing import Any

from kgym.bug import Bug
from kgym.client import Client
from kgym.errors import UserError
from kgym.jobs import JobFilter, JobRequest, JobView, StepView
from kgym.states import State
from kgym.steps import Patch, ReproduceResult, Verdict
from kgym_cli.output import Exit

REQUEST_TAG = "request="
STEPS = ("build_before", "reproduce_before", "build_after", "reproduce_after")


def patch_file(path: Path) -> Patch:
    """Read a unified diff from a file."""
    try:
        return Patch(name=path.name, diff=path.read_bytes().decode())
    except OSError as error:
        raise UserError("cannot_read", f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError("binary_patch", f"{path} is no text: {error}") from error


def submit(client: Client, request: JobRequest) -> tuple[JobView, bool]:
    """Submit the job, or take up the same one that is not finished; say which."""
    mark = REQUEST_TAG + hashlib.sha256(request.model_dump_json().encode()).hexdigest()[:32]
    for job in client.jobs(JobFilter(tag=mark)):
        if not job.state.final:
            return job, True
    return client.submit(request.model_copy(update={"tags": [*request.tags, mark]})), False


def summary(bug: Bug, job: JobView) -> dict[str, Any]:
    """Return what `bug reproduce --json` prints; `after` is null without a fix."""
    before = _outcome(job, 1)
    after = _outcome(job, 3) if len(job.steps) > 3 else None
    resolved = (
        after is not None
        and before["verdict"] == Verdict.SAME_CRASH
        and after["verdict"] == Verdict.NO_CRASH
    )
    return {
        "bug": bug.name,
        "job": job.id,
        "before": before,
        "after": after,
        "resolved": resolved,
        "seconds": _seconds(job),
    }


def exit_status(job: JobView, outcome: dict[str, Any]) -> Exit:
    """0: shown, and resolved if a fix was tried; 1: a verdict says no; 2, 3: no verdict."""
    for step in job.steps:
        if step.failure is not None:
            return Exit.USER if step.failure.cause == "user" else Exit.INFRASTRUCTURE
    verdicts = [side["verdict"] for side in (outcome["before"], outcome["after"]) if side]
    if job.state is not State.SUCCEEDED or Verdict.INCONCLUSIVE in verdicts:
        return Exit.INFRASTRUCTURE
    wanted = [Verdict.SAME_CRASH, Verdict.NO_CRASH][: len(verdicts)]
    return Exit.OK if verdicts == wanted else Exit.NEGATIVE


def _outcome(job: JobView, number: int) -> dict[str, Any]:
    """Return the verdict of a reproduce step; without one it is inconclusive, with the reason."""
    result = job.steps[number].result
    if isinstance(result, ReproduceResult):
        fields = {"verdict", "title", "crashed", "completed", "requested", "reason"}
        return result.model_dump(mode="json", include=fields | {"unseen_chance", "accelerator"})
    failed = next((step for step in job.steps[: number + 1] if step.failure), None)
    if failed is not None and failed.failure is not None:
        reason = f"step {failed.number} ({failed.kind}) failed: {failed.failure.message}"
    else:
        reason = f"the job is {job.state}"
    return {
        "verdict": str(Verdict.INCONCLUSIVE),
        "title": None,
        "crashed": 0,
        "completed": 0,
        "reason": reason,
    }


def _seconds(job: JobView) -> dict[str, float]:
    seconds = {name: _duration(step) for name, step in zip(STEPS, job.steps, strict=False)}
    return {**seconds, "total": round(sum(seconds.values()), 1)}


def _duration(step: StepView) -> float:
    if step.started_at is None or step.finished_at is None:
        return 0.0
    return round((step.finished_at - step.started_at).total_seconds(), 1)
