"""The database's clock, which all its schedulers share.

One scheduler grants a lease, and others look whether it has expired. If each used its host's
clock, one that is a minute ahead would end the leases of all live workers.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_ASK = text("SELECT clock_timestamp()")


class DatabaseClock:
    """The database's time at the last `read`, plus the monotonic time since.

    `host`: the clock to use instead, if the database has none of its own.
    """

    def __init__(self, host: Callable[[], datetime] | None) -> None:
        self._host = host
        # A time of the database, and this process's monotonic clock at the same moment.
        self._known: tuple[datetime, float] | None = None

    async def read(self, connection: AsyncConnection) -> None:
        """Ask the database; the error is at most half of the round trip."""
        if self._host is not None:
            return
        asked = time.monotonic()
        now = await connection.scalar(_ASK)
        assert isinstance(now, datetime)
        self._known = now.astimezone(UTC), (asked + time.monotonic()) / 2

    async def now(self, connection: AsyncConnection) -> datetime:
        """Return the time; the first call asks the database."""
        if self._host is not None:
            return self._host()
        if self._known is None:
            await self.read(connection)
        assert self._known is not None
        then, at = self._known
        return then + timedelta(seconds=time.monotonic() - at)
