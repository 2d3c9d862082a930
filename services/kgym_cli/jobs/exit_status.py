"""The exit status that an answer stands for."""

from kgym.bugs.conclusion import Answer
from kgym_cli.output import Exit

_STATUSES = {
    Answer.YES: Exit.OK,
    Answer.NO: Exit.NEGATIVE,
    Answer.USER: Exit.USER,
    Answer.INFRASTRUCTURE: Exit.INFRASTRUCTURE,
}


def exit_status(answer: Answer | None) -> Exit:
    """Return the exit status; a job that has not ended has no answer yet, so it is the platform's.

    For `bug reproduce`, `job wait` and all others that wait for a job.
    """
    return Exit.INFRASTRUCTURE if answer is None else _STATUSES[answer]
