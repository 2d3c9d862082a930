"""What the scheduler refuses, besides input that is not well formed.

UserError
├── Unauthorised   the caller is not known: no token, or one that is not valid
├── Forbidden      the caller's token does not allow it
├── NotFound       there is no such job, group, step or artifact
├── Conflict       the job's state, or what else the database holds, does not allow it
├── Gone           there was such an artifact, and retention has removed it
└── TooMany        the caller has asked for more than its share
"""

from kgym.errors import UserError


class Unauthorised(UserError):
    """The caller is not known: no token, or one that is not valid."""


class Forbidden(UserError):
    """The caller's token does not allow it."""


class NotFound(UserError):
    """There is no such job, group, step or artifact."""


class Conflict(UserError):
    """The job's state, or what else the database holds, does not allow it."""


class Gone(UserError):
    """There was such an artifact, and retention has removed it."""


class TooMany(UserError):
    """The caller has asked for more than its share.

    Where waiting helps, the detail `retry_after` says how long, in whole seconds.
    """


def no_job(job_id: int) -> NotFound:
    """Return the error for a job that does not exist."""
    return NotFound("job_not_found", f"there is no job {job_id}", job=job_id)


def no_group(submitter: str, name: str) -> NotFound:
    """Return the error for a group that does not exist."""
    message = f"{submitter} has no group {name!r}; `submitter` names whose it is"
    return NotFound("group_missing", message, group=name, submitter=submitter)


def no_step(job_id: int, number: int) -> NotFound:
    """Return the error for a step that the job does not have."""
    return NotFound("step_not_found", f"job {job_id} has no step {number}", job=job_id, step=number)


def no_worker(worker: str) -> NotFound:
    """Return the error for a worker that is not known."""
    return NotFound("worker_not_found", f"there is no worker {worker!r}", worker=worker)


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
