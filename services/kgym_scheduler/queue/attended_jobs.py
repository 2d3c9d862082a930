"""Which jobs run on a platform that lives only while commands use it.

First those that somebody follows, then those that were submitted or restarted since it started.
Jobs that earlier or interrupted commands abandoned stay queued until somebody follows or restarts
them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """The jobs that may run: `first`, then `then` and all with numbers above `after`."""

    first: frozenset[int]
    then: frozenset[int]
    after: int
    never: frozenset[int]
    """Abandoned jobs: excluded from `then` and `after`."""

    def __contains__(self, job_id: int) -> bool:
        """Return whether the job may run."""
        # Numbers ascend, so all jobs submitted since the start are above `after`.
        asked = job_id in self.then or job_id > self.after
        return job_id in self.first or (asked and job_id not in self.never)


class Attendance:
    """Knows which jobs somebody follows, asked for, or abandoned."""

    def __init__(self) -> None:
        self._newest = 0
        self._asked = set[int]()
        self._followers = Counter[int]()
        self._abandoned = set[int]()

    def begin(self, newest: int) -> None:
        """Set the number of the newest job from before the platform started."""
        self._newest = newest

    def ask(self, job_ids: Iterable[int]) -> None:
        """Record that somebody has asked for these jobs."""
        self._asked.update(job_id for job_id in job_ids if job_id <= self._newest)

    @contextmanager
    def followed(self, job_id: int) -> Iterator[None]:
        """Record a follower while the context lasts; if an error ends it, the job is abandoned."""
        self._followers[job_id] += 1
        self._abandoned.discard(job_id)
        try:
            yield
        except BaseException:
            if self._followers[job_id] == 1:
                self._abandoned.add(job_id)
            raise
        finally:
            self._followers[job_id] -= 1
            if not self._followers[job_id]:
                del self._followers[job_id]

    @property
    def wanted(self) -> Wanted:
        """The jobs that may run."""
        first, then = frozenset(self._followers), frozenset(self._asked)
        return Wanted(first, then, self._newest, self.in_the_way)

    @property
    def in_the_way(self) -> frozenset[int]:
        """The abandoned jobs, while somebody waits for others: their steps are given back."""
        return frozenset(self._abandoned) if self._followers else frozenset()
