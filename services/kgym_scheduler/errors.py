"""Errors of the scheduler for well-formed requests that it refuses."""

from kgym.errors import Conflict, Forbidden, NotFound


def no_job(job_id: int) -> NotFound:
    """Return the error for a job that does not exist."""
    return NotFound("job_not_found", f"there is no job {job_id}", job=job_id)


def no_group(submitter: str, name: str) -> NotFound:
    """Return the error for a group that does not exist."""
    message = f"{submitter!r} has no group {name!r}; name another submitter with `submitter`"
    return NotFound("group_missing", message, group=name, submitter=submitter)


def no_step(job_id: int, number: int) -> NotFound:
    """Return the error for a step that the job does not have."""
    return NotFound("step_not_found", f"job {job_id} has no step {number}", job=job_id, step=number)


def no_worker(worker: str) -> NotFound:
    """Return the error for a worker that does not exist."""
    return NotFound("worker_not_found", f"there is no worker {worker!r}", worker=worker)


def no_entry(name: str) -> NotFound:
    """Return the error for an entry of SuiteCache that neither storage nor a worker has."""
    return NotFound("entry_not_found", f"there is no entry {name!r}: see `kgym cache list`")


def entry_in_use(name: str, why: str) -> Conflict:
    """Return the error for an entry that cannot be dropped now."""
    return Conflict("entry_in_use", f"entry {name} is in use: {why}; try again when that has ended")


def not_your_group(submitter: str, name: str) -> Forbidden:
    """Return the error for a group that is another's."""
    return Forbidden(
        "not_your_group",
        f"group {name} is {submitter}'s: only that token, or one with the scope admin, may do this",
        group=name,
        submitter=submitter,
    )


def not_yours(job_id: int, submitter: str) -> Forbidden:
    """Return the error for a job that is another's."""
    return Forbidden(
        "not_your_job",
        f"job {job_id} is {submitter}'s: only that token, or one with the scope admin, may do this",
        job=job_id,
    )
