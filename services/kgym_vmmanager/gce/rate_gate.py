"""A gate that lets so many calls a second through, whoever makes them."""

import asyncio
import time


class RateGate:
    """Calls go through in the order in which they come, at least 1 / `per_second` apart."""

    def __init__(self, per_second: float) -> None:
        self._apart = 1 / per_second
        self._next = 0.0
        self.calls = 0

    async def turn(self) -> None:
        """Wait for one's turn."""
        now = time.monotonic()
        at = max(now, self._next)
        self._next = at + self._apart
        self.calls += 1
        if at > now:
            await asyncio.sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Let nobody through for so long: the service has said that it was too much."""
        self._next = max(self._next, time.monotonic() + seconds)
