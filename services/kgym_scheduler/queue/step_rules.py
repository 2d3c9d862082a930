"""The rules by which a job's steps change state; pure."""

from datetime import datetime

from kgym.api.states import Event, State, retry_delay, sources
from kgym.api.steps import BuildResult, CheckResult, Failure, StepResult
from kgym.api.suitecache import ENTRY
from kgym.api.worker_calls import AttemptEnding
from kgym.errors import Conflict
from kgym_scheduler.database import views
from kgym_scheduler.errors import no_step
from kgym_scheduler.queue.job_change import JobChange, Step, Used

# Attempts of a step, without released ones. Infrastructure failures are retried; a step that kills
# its worker each time fails in the end, too.
MAX_ATTEMPTS = 3


def claimable(step: Step, now: datetime) -> bool:
    """Return whether a worker may claim the step now."""
    return step.state in sources(Event.CLAIM) and (step.not_before or now) <= now


def finish(change: JobChange, step: Step, ending: AttemptEnding) -> None:
    """End the attempt as the worker reports."""
    artifacts = views.ARTIFACTS.dump_json(ending.artifacts).decode()
    answered = ending.result is not None and ending.result.kind is step.kind
    step.answer = ending.result if answered else None
    result = ending.result.model_dump_json() if ending.result is not None and answered else None
    if ending.failure is not None and answered:  # it ran to its end: a retry would fail as well
        fail(change, step, "failed", ending.failure, result=result, artifacts=artifacts)
    elif ending.failure is not None:
        fail_or_retry(change, step, ending.failure, artifacts)
    elif answered:
        used = _used(ending.result)
        change.end(step, Event.SUCCEED, "succeeded", used, result=result, artifacts=artifacts)
        for following in change.steps[step.number + 1 : step.number + 2]:
            change.enqueue(following)
    else:
        failure = Failure(
            cause="infrastructure",
            reason="no_result",
            message=f"the worker sent no result of a `{step.kind}` step",
        )
        fail_or_retry(change, step, failure, artifacts)


def _used(result: StepResult | None) -> Used:
    if not isinstance(result, BuildResult | CheckResult):
        return None, None
    known = ENTRY.fullmatch(result.tree)
    return result.tree_cached if isinstance(result, BuildResult) else None, known and known[0]


def fail(change: JobChange, step: Step, outcome: str, failure: Failure, **values: object) -> None:
    """Fail the step for good, and skip all after it."""
    change.end(step, Event.FAIL, outcome, (None, None), failure=failure.model_dump_json(), **values)
    change.move(change.steps[step.number + 1 :], Event.SKIP, finished_at=change.now)


def fail_or_retry(change: JobChange, step: Step, failure: Failure, artifacts: str) -> None:
    """Fail the step if the cause is the user's or no attempt is left; else retry it later."""
    # A failure by the user's input, e.g. a patch that does not compile, is a result: it would fail
    # again.
    if failure.cause == "infrastructure" and step.tries < MAX_ATTEMPTS:
        change.requeue(
            step,
            "failed",
            delay=retry_delay(step.tries),
            failure=failure.model_dump_json(),
            artifacts=artifacts,
        )
    else:
        fail(change, step, "failed", failure, artifacts=artifacts)


def expire(change: JobChange, step: Step) -> None:
    """Retry the step at once, or fail it if no attempt is left: its worker is lost."""
    failure = Failure(
        cause="infrastructure",
        reason="lease_expired",
        message=f"attempt {step.attempt} sent no report in time; its worker is lost",
    )
    if step.tries >= MAX_ATTEMPTS:
        fail(change, step, "expired", failure)
    else:
        change.requeue(step, "expired", failure=failure.model_dump_json())


def abort(change: JobChange) -> None:
    """Abort the unfinished steps; leave an aborted job as it is."""
    if change.state is State.ABORTED:
        return
    if change.state.final:
        raise Conflict("job_finished", f"job {change.id} has {change.state} already")
    active = next(step for step in change.steps if not step.state.final)
    if active.state is State.RUNNING:
        change.end(active, Event.ABORT, "aborted")
    rest = [step for step in change.steps if not step.state.final]
    change.move(rest, Event.ABORT, finished_at=change.now)


def restart(change: JobChange, from_step: int | None) -> None:
    """Restart from a step; discard the results of it and all after it."""
    first = _first_again(change, from_step)
    change.move(
        change.steps[first:],
        Event.RESTART,
        tries=0,
        worker=None,
        failure=None,
        result=None,
        artifacts="[]",
        artifacts_gone_at=None,
        queued_at=None,
        started_at=None,
        finished_at=None,
    )
    change.enqueue(change.steps[first])


def _first_again(change: JobChange, from_step: int | None) -> int:
    """Return the number of the first step to restart."""
    if not change.state.final:
        raise Conflict(
            "job_unfinished", f"job {change.id} is {change.state}; abort it before a restart"
        )
    unsuccessful = (step.number for step in change.steps if step.state is not State.SUCCEEDED)
    latest = next(unsuccessful, None)
    if from_step is None:
        return latest or 0
    if from_step >= len(change.steps):
        raise no_step(change.id, from_step)
    if latest is not None and from_step > latest:
        raise Conflict(
            "step_before_failed",
            f"step {latest} of job {change.id} has not succeeded; restart from it",
            from_step=latest,
        )
    return from_step
