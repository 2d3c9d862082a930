"""The time, by the database's clock, for all schedulers that share it.

A lease is given by one scheduler and looked at by others. Were each to go by its host's
clock, one whose clock is a minute ahead would end the leases of all workers that live.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_ASK = text("SELECT clock_timestamp()")


class DatabaseClock:
    """The time of the database at the last `read`, and what has passed since.

    A scheduler reads it every few seconds. SQLite has no clock but the host's, as all its users.
    """

    def __init__(self, host: Callable[[], datetime] | None = None) -> None:
        self._host = host or (lambda: datetime.now(UTC))
        self._own = host is not None
        # A time of the database's, and this process's monotonic clock at the same moment.
        self._known: tuple[datetime, float] | None = None

    async def read(self, connection: AsyncConnection) -> None:
        """Set it by the database; half of what the question takes is what it can be wrong by."""
        if self._own or connection.dialect.name == "sqlite":
            return
        asked = time.monotonic()
        now = await connection.scalar(_ASK)
        if isinstance(now, datetime):
            self._known = now.astimezone(UTC), (asked + time.monotonic()) / 2

    async def now(self, connection: AsyncConnection) -> datetime:
        """Return the time; the first call asks."""
        if self._known is None:
            await self.read(connection)
        if self._known is None:
            return self._host()
        then, at = self._known
        return then + timedelta(seconds=time.monotonic() - at)
