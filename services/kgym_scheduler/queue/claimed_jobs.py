"""Jobs as a claim has left them: what ends one of their attempts need not read them first.

They are only remembered, not held: whoever changes a job writes its row, and what is written
by a version that it no longer has fails (see `job_changes.Changes`). Then they are read.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from kgym.api.states import State
from kgym_scheduler.database.single_statements import Connection, Singles
from kgym_scheduler.queue.job_changes import Changes, JobChange, Step

REMEMBERED = 4096
"""Jobs; of more, those that were claimed last."""


class ClaimedJobs:
    """The jobs of which this scheduler has given out a step, by its lease."""

    def __init__(self) -> None:
        self._jobs: dict[UUID, JobChange] = {}

    def remember(self, claimed: Iterable[JobChange]) -> None:
        """Remember jobs that have just been written."""
        for job in claimed:
            if job.version is None:
                continue
            for step in job.steps:
                if step.lease is not None:
                    self._jobs[step.lease] = job
        while len(self._jobs) > REMEMBERED:
            del self._jobs[next(iter(self._jobs))]

    def take(
        self, connection: Connection, now: datetime, leases: Collection[UUID]
    ) -> Changes | None:
        """Return the jobs that these attempts are of, and forget them; None unless all are known.

        None also in a transaction, which locks what it reads.
        """
        taken = {lease: job for lease in leases if (job := self._jobs.pop(lease, None))}
        if len(taken) < len(set(leases)) or not isinstance(connection, Singles):
            return None
        return Changes(connection, now, [_as_written(job, now) for job in taken.values()])


def _as_written(job: JobChange, now: datetime) -> JobChange:
    return JobChange(
        now, job.id, job.submitter, job.state, list(map(_step, job.steps)), job.version
    )


def _step(step: Step) -> Step:
    # Its reports leave the job's row alone: it may have told of progress since.
    progressed = step.progressed or step.state is State.RUNNING
    return replace(step, was=(step.state, step.lease), values={}, progressed=progressed)
