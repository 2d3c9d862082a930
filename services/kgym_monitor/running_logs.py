"""Logs of running attempts, buffered on disk: all readers of a log share one download."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from typing import IO

from kgym.client import AsyncClient
from kgym.errors import TooMany

# Most age of a shown log.
FRESH_SECONDS = 1.0
# How long a log without readers is kept.
LINGER_SECONDS = 30.0
# Most logs at a time.
LOGS = 200
# Most bytes of a log on disk.
LOG_BYTES = 512 << 20
IN_MEMORY = 1 << 20
CHUNK = 256 << 10

# Job id, step number, attempt number.
Attempt = tuple[int, int, int]


class _Log:
    """A log so far, and the last event of the job that it contains."""

    def __init__(self) -> None:
        # Most logs are short: they never touch the disk.
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
        self._reading = asyncio.Lock()
        self._last_event = 0
        # Monotonic time at which the scheduler last had no more of it.
        self._complete_at = float("-inf")
        self.size = 0
        self.readers = 0
        self.used_at = time.monotonic()

    def part(self, start: int) -> bytes:
        """Return the next bytes after `start`, at most CHUNK."""
        self._file.seek(start)
        return self._file.read(CHUNK)

    async def has_more(self, client: AsyncClient, attempt: Attempt, start: int) -> bool:
        """Download more; return whether there are bytes after `start`."""
        async with self._reading:
            if self.size > start:  # downloaded by another reader meanwhile
                return True
            if time.monotonic() - self._complete_at < FRESH_SECONDS or self.size >= LOG_BYTES:
                return False
            text, last = await client.log_after(*attempt, after=self._last_event)
            content = text.encode()[: LOG_BYTES - self.size]
            self._file.seek(0, 2)
            self._file.write(content)
            self.size += len(content)
            if last == self._last_event:
                self._complete_at = time.monotonic()
            self._last_event = last
            return self.size > start

    def close(self) -> None:
        """Delete the log."""
        self._file.close()


class RunningLogs:
    """Logs of running attempts, by attempt."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._logs: dict[Attempt, _Log] = {}

    async def read(self, attempt: Attempt, start: int) -> AsyncIterator[bytes]:
        """Yield the attempt's log so far, from byte `start` on."""
        log = self._log(attempt)
        log.readers += 1
        try:
            while log.size > start or await log.has_more(self._client, attempt, start):
                part = log.part(start)
                start += len(part)
                yield part
        finally:
            log.readers -= 1
            log.used_at = time.monotonic()

    def close(self) -> None:
        """Delete all logs."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _log(self, attempt: Attempt) -> _Log:
        idle_since = time.monotonic() - LINGER_SECONDS
        for key, log in list(self._logs.items()):
            if key != attempt and not log.readers and log.used_at < idle_since:
                self._logs.pop(key).close()
        if attempt not in self._logs:
            if len(self._logs) >= LOGS:
                message = f"{LOGS} running logs are open: close some and try again"
                raise TooMany("too_many_logs", message, retry_after=int(LINGER_SECONDS))
            self._logs[attempt] = _Log()
        return self._logs[attempt]
