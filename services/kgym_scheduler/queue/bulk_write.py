"""Many rows of many tables written at once, on SQLite and on PostgreSQL.

PostgreSQL takes all that a `BulkWrite` writes as one statement (`bulk_statement.py`).
SQLite, which has no round trips, takes the rows one by one.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Table, and_, bindparam, delete, insert, or_, text, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym_scheduler.database.connection import TELL, change_raced
from kgym_scheduler.database.single_statements import Connection, Singles, the_row
from kgym_scheduler.database.tables import PROGRESS, events, jobs, steps
from kgym_scheduler.queue import fair_queue
from kgym_scheduler.queue.bulk_statement import Guard, Row, Wholesale, keyed

NOTIFY_BELOW = 32
"""Steps that wait in a lane from which on nobody is notified of a further one.

Its workers are busy then, and ask by themselves when they have finished
something. It is more than one, because a claim can empty the lane at the same moment.
"""
_WAITING = (
    "(SELECT count(*) FROM (SELECT 1 FROM steps WHERE state = 'queued' AND lane = :{}"  # noqa: S608
    f" LIMIT {NOTIFY_BELOW}) AS waiting)"
)
_FORGET = (
    "DELETE FROM events USING unnest(CAST(:jobs AS bigint[]), CAST(:numbers AS smallint[]))"
    " AS gone(job, step) WHERE kind = 'progress' AND events.job_id = gone.job"
    " AND events.step = gone.step"
)
_parsed = lru_cache(1000)(text)
"""`text`, which looks for parameters in the statement, once for each statement."""


class BulkWrite:
    """What a transaction writes, in the end, all at once.

    On PostgreSQL no part sees what another writes, so no two may change one row.
    """

    def __init__(self, connection: Connection, guard: Guard | None = None) -> None:
        self._connection = connection
        self._guard = guard
        self._jobs: Sequence[Row] = ()
        self._added_once: list[tuple[Table, Sequence[Row]]] = []
        self._added: list[tuple[Table, Sequence[Row]]] = []
        self._changed: list[tuple[Table, Sequence[tuple[Row, Row]]]] = []
        self._claimed: list[Row] = []
        self._turns = Counter[fair_queue.Queue]()
        self._quiet: Sequence[tuple[int, int]] = ()
        self._told: Sequence[int] = ()
        self.waiting: dict[int, int] = {}
        """Steps in the lanes that are to be counted, up to RING, before anything is written."""
        self.job_ids: Sequence[int] = ()
        """Of the new jobs, in order, once they are written."""
        self._steps: Sequence[Row] = ()
        self.step_ids: Sequence[int] = ()
        """Of the steps that were added with their job, in order, once they are written."""
        self.version: int | None = None
        """What the rows that were written have as `xmin`, where PostgreSQL was to tell it."""
        self._versioned = False

    def add_jobs(self, rows: Sequence[Row], steps: Sequence[Row] = ()) -> None:
        """Insert jobs. A row of another table is of the first of them if its `new_job` is 1.

        With `steps`, those of the only one, their ids are told, and a row of another table is of
        the first of them if its `new_step` is 0. Not on SQLite.
        """
        self._jobs, self._steps = rows, steps

    def add(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows that have the same columns."""
        if rows:
            self._added.append((table, rows))

    def add_once(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows, each unless one of its key is there; sorted, as others wait for them."""
        if rows:
            self._added_once.append((table, rows))

    def change(self, table: Table, rows: Sequence[tuple[Row, Row]]) -> None:
        """Set the second part of each pair where the first holds; all have the same columns.

        Of steps each pair has to change one.
        """
        if rows:
            self._changed.append((table, rows))

    def turn(self, queue: fair_queue.Queue) -> dict[str, object]:
        """Return the queue's next turn, as columns of a step that is to be written."""
        self._turns[queue] += 1
        return {"queue": queue, "turn": self._turns[queue]}

    def claim_turns(self, latest: Mapping[tuple[str, int], int]) -> None:
        """Note the highest turns that were claimed, by kind and rank."""
        self._claimed = list(fair_queue.claimed(latest))

    def forget_progress(self, places: Sequence[tuple[int, int]]) -> None:
        """Delete the progress events that there are of steps, each given by job and number."""
        self._quiet = places

    def tell(self, job_ids: Sequence[int]) -> None:
        """Let those who `Database.listen` know of these jobs, once all is committed."""
        self._told = job_ids

    def tell_version(self) -> None:
        """Learn the version of what is written."""
        self._versioned = True

    def count_waiting(self, lanes: Collection[int]) -> None:
        """Count the steps that wait in these lanes."""
        self.waiting = dict.fromkeys(sorted(lanes), 0)

    async def run(self) -> None:
        """Write all, or nothing.

        Raises InfrastructureError `change_raced` where the guard does not hold, or a step that is
        to be changed is not as it was: another has changed it.
        """
        if isinstance(self._connection, Singles) or self._connection.dialect.name != "sqlite":
            await self._run_at_once(self._connection)
        else:
            await self._run_one_by_one(self._connection)

    async def _run_at_once(self, connection: Connection) -> None:
        sql, values = self._whole().statement()
        row = list(await the_row(connection, sql, values))
        if not row[0]:
            raise change_raced()
        self.job_ids = row[1] or ()
        self.step_ids = row[2] or ()
        self.waiting = dict(zip(self.waiting, row[3:], strict=False))
        if self._versioned:
            self.version = row[-1]

    def _whole(self) -> Wholesale:
        whole = Wholesale(self._guard)
        whole.give_turns(self._turns)
        if self._jobs:
            whole.insert_jobs(self._jobs, self._steps)
        for table, pairs in self._changed:
            whole.update(table, pairs)
        for table, rows in self._added_once:
            whole.insert(table, rows, once=True)
        for table, rows in self._added:
            whole.insert(table, rows)
        for claimed in self._claimed:
            whole.part(fair_queue.CLAIM, claimed)
        if self._quiet:
            job_ids, numbers = zip(*self._quiet, strict=True)
            whole.part(_FORGET, {"jobs": job_ids, "numbers": numbers})
        for lane in self.waiting:
            whole.ask(_WAITING.format("lane"), {"lane": lane})
        if self._told:
            told = " ".join(map(str, self._told))
            whole.ask(TELL, {"told": told})
        if self._versioned:
            whole.ask("CAST(pg_current_xact_id() AS xid)", {})
        return whole

    async def _run_one_by_one(self, connection: AsyncConnection) -> None:
        for lane in self.waiting:
            count = _parsed("SELECT " + _WAITING.format("lane"))
            self.waiting[lane] = await connection.scalar(count, {"lane": lane}) or 0
        before: dict[fair_queue.Queue | None, int] = {None: 0}
        for queue, by in self._turns.items():
            last = (
                await connection.scalar(_parsed(fair_queue.GIVE), fair_queue.named(queue, by)) or 0
            )
            before[queue] = last - by
        if self._jobs:
            numbered = insert(jobs).returning(jobs.c.id, sort_by_parameter_order=True)
            self.job_ids = (await connection.scalars(numbered, list(self._jobs))).all()

        if self._quiet:
            e = events.c
            places = [and_(e.job_id == job_id, e.step == number) for job_id, number in self._quiet]
            await connection.execute(delete(events).where(PROGRESS, or_(*places)))
        for table, pairs in self._changed:
            rows = [{**keyed(where), **_settled(new, before)} for where, new in pairs]
            where, new = pairs[0][0], _settled(pairs[0][1], before)
            change = (
                update(table)
                .where(*(table.c[n].is_not_distinct_from(bindparam(f"_{n}")) for n in where))
                .values({name: bindparam(name) for name in new})
            )
            done = await connection.execute(change, rows)
            if table is steps and done.rowcount != len(pairs):
                raise change_raced()
        for table, added in self._added_once:
            unless = sqlite.insert(table).on_conflict_do_nothing()
            await connection.execute(unless, list(added))
        for table, added in self._added:
            rows = [_settled(row, before, self.job_ids) for row in added]
            await connection.execute(insert(table), rows)
        for claimed in self._claimed:
            await connection.execute(_parsed(fair_queue.CLAIM), claimed)


def _settled(
    row: Row, turns_before: Mapping[fair_queue.Queue | None, int], job_ids: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the row with what was not known when it was planned."""
    new = dict(row)
    if "queue" in new:
        new["turn"] += turns_before[new.pop("queue")]
    if "new_job" in new:
        new["job_id"] = job_ids[new.pop("new_job") - 1]
    return new
