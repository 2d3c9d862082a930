"""The changes of all jobs in the order of their numbers; none appears behind a reader's cursor.

Each change is a row of `events`, so nothing is written for those who read them all.
"""

# SQLite commits rows in the order of their numbers. PostgreSQL may commit a number after a higher
# one: a reader that goes on from the higher one would miss it. So numbers are reported only up to
# one below which all transactions have ended. A transaction that inserts into `events` locks the
# table before it draws a number, and unlocks it once others see its rows. So it is enough to wait
# for those that had the table locked after the highest number was read. `pg_snapshot_xmin` would
# also wait for transactions of other tables and databases; a counter of commits would make all
# transactions wait for each other.

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, bindparam, literal_column, select, text

from kgym.errors import InfrastructureError
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import events

# Maximum number of changes that are read at once.
AT_ONCE = 1000
# Maximum range of numbers that is read for them: most events are lines of logs.
WINDOW = 10_000
# How often to look whether a transaction has ended, and for how long.
SETTLE_SECONDS = 0.01
PATIENCE_SECONDS = 5.0

_SQLITE = text("SELECT coalesce(max(seq), 0) AS newest FROM sqlite_sequence WHERE name = 'events'")
# MATERIALIZED, and `newest` in the second query: the number has to be read before the locks.
_POSTGRESQL = text(
    """
WITH drawn AS MATERIALIZED (
    SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END AS newest FROM events_id_seq
)
SELECT newest, ARRAY(
    SELECT virtualtransaction FROM pg_locks
    WHERE newest IS NOT NULL AND locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
        AND relation = CAST('events' AS regclass)
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS open FROM drawn
"""
)
_BETWEEN = (
    select(*(events.c[name] for name in ("id", "job_id", "step", "kind", "at", "data")))
    .where(
        events.c.id > bindparam("after"),
        events.c.id <= bindparam("until"),
        events.c.kind.in_([literal_column("'state'"), literal_column("'tags'")]),
    )
    .order_by(events.c.id)
    .limit(bindparam("most", type_=Integer))
)


@dataclass(frozen=True, slots=True)
class End:
    """The end of the changes."""

    newest: int
    """The highest number that was ever given to an event."""
    settled: int | None
    """Up to here, no change will be added; None while that is not known."""

    @property
    def is_settled(self) -> bool:
        """Whether all changes up to the newest are committed or rolled back."""
        return self.settled is not None and self.settled >= self.newest


class ChangeLog:
    """Reads the changes of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Looks take turns: each is compared with the one before.
        self._turn = asyncio.Lock()
        self._settled: int | None = None
        # A number, and the open transactions that may have drawn lower ones.
        self._waited: tuple[int, frozenset[str]] | None = None

    async def end(self) -> End:
        """Return the current end of the changes."""
        async with self._turn, self._database.read() as connection:
            if self._database.is_sqlite:
                newest = await connection.scalar(_SQLITE) or 0
                self._settled = max(newest, self._settled or 0)
                return End(newest, self._settled)
            [row] = (await connection.execute(_POSTGRESQL)).all()
            return End(row.newest, self._settle(row.newest, frozenset(row.open)))

    async def settled_end(self) -> End:
        """Return the end of the changes, once all that have a number now are settled.

        If that takes longer than PATIENCE_SECONDS, return the current end. Raises
        InfrastructureError `changes_unsettled` if nothing is settled by then.
        """
        end = await self.end()
        newest, left = end.newest, PATIENCE_SECONDS
        while (end.settled is None or end.settled < newest) and left > 0:
            await asyncio.sleep(SETTLE_SECONDS)
            left -= SETTLE_SECONDS
            end = await self.end()
        if end.settled is None:
            message = "transactions that write changes take too long; try again"
            raise InfrastructureError("changes_unsettled", message)
        return end

    async def between(
        self, after: int, until: int, most: int = AT_ONCE
    ) -> tuple[Sequence[Any], int]:
        """Return the next changes as rows, at most `most`, and the number up to which they go.

        `until` has to be settled.
        """
        until = min(until, after + WINDOW)
        given = {"after": after, "until": until, "most": most}
        async with self._database.read() as connection:
            rows = (await connection.execute(_BETWEEN, given)).all()
        return rows, rows[-1].id if len(rows) == most else until

    def _settle(self, newest: int, open_now: frozenset[str]) -> int | None:
        """Return the settled number, by the transactions that were open at an earlier look."""
        if not open_now:
            self._settled, self._waited = newest, None
        elif self._waited is None:
            self._waited = newest, open_now
        elif not self._waited[1] & open_now:
            self._settled, self._waited = self._waited[0], (newest, open_now)
        return self._settled
