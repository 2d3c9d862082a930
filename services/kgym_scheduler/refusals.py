"""What the scheduler refuses, besides input that is not well formed.

UserError
├── NotFound    there is no such job, step or artifact
└── Conflict    the job's state does not allow it
"""

from kgym.errors import UserError


class NotFound(UserError):
    """There is no such job, step or artifact."""


class Conflict(UserError):
    """The job's state does not allow it."""


def no_job(job_id: int) -> NotFound:
    """Return the error for a job that does not exist."""
    return NotFound("job_not_found", f"there is no job {job_id}", job=job_id)


def no_step(job_id: int, number: int) -> NotFound:
    """Return the error for a step that the job does not have."""
    return NotFound("step_not_found", f"job {job_id} has no step {number}", job=job_id, step=number)
