"""What can go wrong with a run, besides input that is not well formed."""

from kgym.errors import InfrastructureError, NotFound


class LostRun(InfrastructureError):
    """Another process has taken the run over."""


def no_run(run: int) -> NotFound:
    """Return the error for a run that does not exist."""
    return NotFound("run_not_found", f"there is no run {run}", run=run)
