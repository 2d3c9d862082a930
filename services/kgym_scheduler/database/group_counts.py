"""How many jobs of each group stand where: counted anew, but for what takes long to count.

To count 500,000 jobs takes a tenth of a second and more, and whoever may read may ask all the
time. So counts of many jobs are kept for a few seconds, and renewed beside the answers: the
longer that takes, the more seldom. Beside them, only groups that are not known are counted.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import structlog
from sqlalchemy import Row, Select, func, select

from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import groups, jobs

MANY = 20_000
"""Jobs that are counted at once, of one group or of a page of them, from which on it takes long."""
KEPT_SECONDS = 10.0
"""No count that is answered is older."""
RENEWED_SECONDS = 1.0
"""A kept count that is older is counted again when it is asked for."""
_SHARE = 0.1
"""Of the time, at most so much is spent on renewing a kept count."""
_KNOWN_SECONDS = 600.0
"""For so long it is known that something takes long to count."""

Counts = Sequence[Row[Any]]
"""Of one group: a row for each `state`, `verdict` and `resolved`, with `jobs` and `updated_at`."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A count of one group."""

    counts: Counts
    begun: float
    took: float

    @property
    def age(self) -> float:
        """For how long it has been known, in seconds."""
        return time.monotonic() - self.begun

    @property
    def due(self) -> bool:
        """Whether it should be renewed."""
        return self.age > max(RENEWED_SECONDS, self.took / _SHARE)


class GroupCounts:
    """Counts the jobs of groups; `many` is for tests."""

    def __init__(self, database: Database, many: int = MANY) -> None:
        self._database = database
        self._many = many
        self._kept: dict[int, _Kept] = {}
        self._counting: dict[tuple[int, ...], asyncio.Task[Mapping[int, Counts]]] = {}
        self._turn = asyncio.Lock()
        """Of what takes long: it holds one of the connections that read."""

    async def of(self, ids: Collection[int]) -> dict[int, Counts]:
        """Return the counts of the groups with these ids; a group without a job has none."""
        kept = {one: self._kept[one] for one in sorted(ids) if one in self._kept}
        if sum(_jobs(one.counts) for one in kept.values()) < self._many:
            kept = {}
        counts = {group: one.counts for group, one in kept.items() if one.age <= KEPT_SECONDS}
        if due := tuple(group for group in counts if kept[group].due):
            self._counted(due)
        if old := tuple(group for group in kept if group not in counts):
            counts |= await asyncio.shield(self._counted(old))
        if unknown := tuple(group for group in sorted(ids) if group not in kept):
            counts |= await self._count(unknown)
        return {group: rows for group, rows in counts.items() if rows}

    async def close(self) -> None:
        """End what is being counted."""
        tasks = list(self._counting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _counted(self, ids: tuple[int, ...]) -> asyncio.Task[Mapping[int, Counts]]:
        """Count what is known to take long, once for all who ask meanwhile."""
        if (task := self._counting.get(ids)) is None:
            task = self._counting[ids] = asyncio.create_task(self._count_in_turn(ids))
            task.add_done_callback(lambda done: self._ended(ids, done))
        return task

    async def _count_in_turn(self, ids: tuple[int, ...]) -> Mapping[int, Counts]:
        async with self._turn:
            return await self._count(ids)

    async def _count(self, ids: tuple[int, ...]) -> Mapping[int, Counts]:
        async with self._database.read() as connection:
            begun = time.monotonic()
            rows = (await connection.execute(_counts(ids))).all()
        counts: dict[int, Counts] = dict.fromkeys(ids, ())
        counts |= {group: list(own) for group, own in groupby(rows, lambda row: row.group_id)}
        self._kept = {one: own for one, own in self._kept.items() if own.age < _KNOWN_SECONDS}
        if sum(map(_jobs, counts.values())) >= self._many:
            took = time.monotonic() - begun
            self._kept |= {group: _Kept(own, begun, took) for group, own in counts.items()}
        return counts

    def _ended(self, ids: tuple[int, ...], task: asyncio.Task[Mapping[int, Counts]]) -> None:
        del self._counting[ids]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("groups cannot be counted", error=str(error))


def _jobs(counts: Counts) -> int:
    return sum(row.jobs for row in counts)


def _counts(ids: Collection[int]) -> Select[Any]:
    """Return how many jobs of each group have a state, a verdict and so on; read from an index."""
    kinds = (groups.c.id, jobs.c.state, jobs.c.verdict, jobs.c.resolved)
    return (
        select(
            groups.c.id.label("group_id"),
            *kinds[1:],
            func.count().label("jobs"),
            func.max(jobs.c.updated_at).label("updated_at"),
        )
        .join(
            jobs,
            (jobs.c.submitter == groups.c.submitter) & (jobs.c.group_name == groups.c.name),
        )
        .where(groups.c.id.in_(list(ids)))
        .group_by(*kinds)
        .order_by(groups.c.id)
    )
