"""The monitor's one subscription to the scheduler's feed of changes."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from kgym.api.changes import Change
from kgym.client import AsyncClient
from kgym.errors import KgymError

KEPT = 20_000
"""Changes that are remembered for pages that come back."""
RETRY_SECONDS = (0.25, 1.0)
"""The first pause before a lost feed is opened again, and the longest; each doubles."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class News:
    """What pages have to know of a change: which job, or that all has to be read again."""

    job: int | None
    """None: not of a job, but of a worker."""
    everything: bool = False


Listener = Callable[[News], None]


class Changes:
    """Follows the feed as long as it runs; what was missed meanwhile comes when it is back.

    `position` counts what was heard: a page that was rendered after a position has missed
    nothing but `since(position)`.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._kept: deque[News] = deque(maxlen=KEPT)
        self._listeners: list[Listener] = []
        self.position = time.time_ns() // 1000
        """It begins later than any position of a monitor that ran before this one."""
        self.connected = False
        """Whether what pages show is as it is now, as far as the feed tells."""

    def listen(self, told: Listener) -> None:
        """Call `told` for each piece of news from now on."""
        self._listeners.append(told)

    def since(self, position: int) -> set[int] | None:
        """Return the jobs that have changed since; None: too long ago, read everything again."""
        count = self.position - position
        if not 0 <= count <= len(self._kept):
            return None
        recent = [self._kept[-number] for number in range(1, count + 1)]
        if any(news.everything for news in recent):
            return None
        return {news.job for news in recent if news.job is not None}

    async def run(self) -> None:
        """Follow the feed until cancelled."""
        cursor: str | None = None
        first, longest = RETRY_SECONDS
        pause = first
        while True:
            try:
                # Opened anew here, not by the client: pages say at once that they are stale.
                async for change in self._client.changes(cursor, reconnects=0):
                    if change.kind != "worker":
                        cursor = change.cursor
                    pause = first
                    self._hear(change)
            except KgymError as error:
                if pause == first:
                    said = str(error)
                    _log.warning("the feed of changes broke off", reason=error.reason, said=said)
            if self.connected:
                self.connected = False
                self._tell(News(None))
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    def _hear(self, change: Change) -> None:
        back, self.connected = not self.connected, True
        match change.kind:
            case "begin":  # the workers may have changed meanwhile, which the feed does not tell
                self._tell(News(None, everything=back))
            case "reset":
                self._tell(News(None, everything=True))
            case _:
                self._tell(News(change.job))

    def _tell(self, news: News) -> None:
        self._kept.append(news)
        self.position += 1
        for told in self._listeners:
            told(news)
