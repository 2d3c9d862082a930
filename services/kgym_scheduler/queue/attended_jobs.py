"""Which jobs run on a platform that lives only while commands use it.

First those that somebody follows, then those that were submitted or restarted since it began.
What was left behind, by commands before it or by one that was interrupted, waits until somebody
asks for it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """Jobs whose steps may begin: some first; then these, and all with higher numbers."""

    first: frozenset[int]
    then: frozenset[int]
    after: int
    """The number that those have to exceed."""
    never: frozenset[int]
    """Those that may not, though they are among the latter."""

    def __contains__(self, job_id: int) -> bool:
        """Return whether the job's steps may begin."""
        asked = job_id in self.then or job_id > self.after
        return job_id in self.first or (asked and job_id not in self.never)


class Attendance:
    """Who is there for which job."""

    def __init__(self) -> None:
        self._newest = 0
        self._asked = set[int]()
        self._followers = Counter[int]()
        self._left = set[int]()

    def begin(self, newest: int) -> None:
        """Note the number of the newest job that was there before."""
        self._newest = newest

    def ask(self, job_ids: Iterable[int]) -> None:
        """Note that somebody has asked for these jobs just now."""
        self._asked.update(job_id for job_id in job_ids if job_id <= self._newest)

    @contextmanager
    def followed(self, job_id: int) -> Iterator[None]:
        """Note that somebody follows the job; one who is gone before its end has left it alone."""
        self._followers[job_id] += 1
        self._left.discard(job_id)
        try:
            yield
        except BaseException:
            if self._followers[job_id] == 1:
                self._left.add(job_id)
            raise
        finally:
            self._followers[job_id] -= 1
            if not self._followers[job_id]:
                del self._followers[job_id]

    @property
    def wanted(self) -> Wanted:
        """The jobs whose steps may begin."""
        first, then = frozenset(self._followers), frozenset(self._asked)
        return Wanted(first, then, self._newest, self.in_the_way)

    @property
    def in_the_way(self) -> frozenset[int]:
        """The jobs that were left alone, while somebody waits for others."""
        return frozenset(self._left) if self._followers else frozenset()
