"""What open pages show, rendered again when it changes: once for all pages that show it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

import structlog

from kgym.errors import InfrastructureError, KgymError
from kgym_monitor.live.changes import Changes, News

GATHER_SECONDS = 0.2
"""How long changes gather before what shows them is rendered."""
AT_ONCE = 4
"""Fragments that are rendered at the same time: each is a request to the scheduler."""
SUMMARY_SECONDS = 2.0
"""How often a summary of many jobs is rendered while they change,"""
QUIET_SECONDS = 10.0
"""and while they do not: workers' heartbeats are no changes."""
SUMMARIES_PER_SECOND = 4
"""Summaries that are rendered in a second, about: people may look at lists with many filters."""
RETRY_SECONDS = 1.0
RENDER_SECONDS = 15.0
"""That one may take: connections on which nothing comes any more would hold up all the others."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Key:
    """Names a fragment; without a `job`, it is a summary of many things."""

    kind: str
    job: int | None = None
    detail: str = ""
    ages: bool = False
    """Whether it changes without its job, too, as long as it is not empty."""
    quiet_seconds: float = QUIET_SECONDS
    """How often a summary is rendered while no job changes."""


Render = Callable[[Key], Awaitable[str]]
"""Returns a server-sent event, as text; raises KgymError where the scheduler refuses."""


@dataclass(slots=True, eq=False)
class _Shown:
    """A fragment that at least one page shows."""

    key: Key
    pages: set["Page"] = field(default_factory=set)
    text: str | None = None
    """As it was last sent; None: not yet, or a page has missed it."""
    dirty: bool = False
    rendered_at: float = 0.0
    """By the monotonic clock."""

    def due(self, now: float, round_seconds: float) -> bool:
        """Return whether to render it, where a round of all summaries may take so long."""
        if self.key.job is not None:
            quiet = max(QUIET_SECONDS, round_seconds)
            old = self.key.ages and self.text != "" and now - self.rendered_at >= quiet
            return self.dirty or old
        pause = SUMMARY_SECONDS if self.dirty else self.key.quiet_seconds
        return now - self.rendered_at >= max(pause, round_seconds)


class Page:
    """An open page: what it has not been sent yet, the latest of each fragment only."""

    def __init__(self, since: int) -> None:
        self._waiting: dict[Key, str] = {}
        self._news = asyncio.Event()
        self.told = since
        """Up to which position (`Changes.position`) it was given everything."""
        self.closed = False

    def give(self, key: Key, text: str) -> None:
        """Have this sent to it, in place of what it was to be sent of the same."""
        self._waiting[key] = text
        self._news.set()

    def wake(self) -> None:
        """Let it look around."""
        self._news.set()

    async def take(self, seconds: float) -> list[str]:
        """Return what it is to be sent, at once or when there is something; empty after a time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)
        self._news.clear()
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())


class Fragments:
    """The fragments of all open pages."""

    def __init__(self, changes: Changes, render: Render) -> None:
        self._changes = changes
        self._render = render
        self._shown: dict[Key, _Shown] = {}
        self._of_job: dict[int, set[Key]] = {}
        self._news = asyncio.Event()
        self._pages: set[Page] = set()
        changes.listen(self._hear)

    @contextlib.contextmanager
    def open(self, keys: Iterable[Key], since: int) -> Iterator[Page]:
        """Tell a page of changes of what it shows, from `since` (`Changes.position`) on."""
        page = Page(since)
        self._pages.add(page)
        changed = self._changes.since(since)
        wanted = list(dict.fromkeys(keys))
        try:
            for key in wanted:
                shown = self._joined(key)
                shown.pages.add(page)
                if changed is None or key.job is None or key.job in changed:
                    shown.text, shown.dirty = None, True
            self._news.set()
            yield page
        finally:
            self._pages.discard(page)
            for key in wanted:
                self._left(key, page)

    def mark(self, job: int) -> None:
        """Have all that shows the job rendered again."""
        for key in self._of_job.get(job, ()):
            self._shown[key].dirty = True
        self._news.set()

    def close(self) -> None:
        """End the streams of all pages."""
        for page in self._pages:
            page.closed = True
            page.wake()

    async def run(self) -> None:
        """Render what changes until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), SUMMARY_SECONDS / 2)
            self._news.clear()
            position, pages, now = self._changes.position, list(self._pages), time.monotonic()
            round_seconds = len(self._summaries()) / SUMMARIES_PER_SECOND
            due = [one for one in self._shown.values() if one.due(now, round_seconds)]
            if await self._render_all(due):
                for page in pages:
                    page.told = position
            if due:
                await asyncio.sleep(GATHER_SECONDS)

    async def _render_all(self, due: list[_Shown]) -> bool:
        waiting = iter(due)

        async def work() -> bool:
            return all([await self._render_one(shown) for shown in waiting])

        return all(await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(due))))))

    async def _render_one(self, shown: _Shown) -> bool:
        """Render it and give it to its pages; False if the scheduler failed, so that it is due."""
        shown.dirty = False
        shown.rendered_at = time.monotonic()
        try:
            async with asyncio.timeout(RENDER_SECONDS):
                text = await self._render(shown.key)
        except (InfrastructureError, TimeoutError):
            shown.dirty = True
            await asyncio.sleep(RETRY_SECONDS)
            return False
        except KgymError as error:  # what it shows is there no more
            _log.info("not rendered", key=str(shown.key), reason=error.reason)
            return True
        if text != shown.text:
            shown.text = text
            for page in shown.pages:
                page.give(shown.key, text)
        return True

    def _hear(self, news: News) -> None:
        if news.job is not None:
            for key in self._of_job.get(news.job, ()):
                self._shown[key].dirty = True
        for shown in self._shown.values() if news.everything else self._summaries():
            shown.dirty = True
        if news.job is None:
            for page in self._pages:
                page.wake()
        self._news.set()

    def _summaries(self) -> list[_Shown]:
        return [shown for key, shown in self._shown.items() if key.job is None]

    def _joined(self, key: Key) -> _Shown:
        if (shown := self._shown.get(key)) is None:
            shown = self._shown[key] = _Shown(key)
            if key.job is not None:
                self._of_job.setdefault(key.job, set()).add(key)
        return shown

    def _left(self, key: Key, page: Page) -> None:
        if (shown := self._shown.get(key)) is None:
            return
        shown.pages.discard(page)
        if not shown.pages:
            del self._shown[key]
            if key.job is not None:
                self._of_job[key.job].discard(key)
                if not self._of_job[key.job]:
                    del self._of_job[key.job]


def partial(target: str, html: str) -> str:
    """Return the event by which htmx puts a fragment in place of the element of this id."""
    text = f'<hx-partial hx-target="#{target}" hx-swap="outerMorph">{html}</hx-partial>'
    return event(None, text)


def event(name: str | None, data: str) -> str:
    """Return a server-sent event."""
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return (f"event: {name}\n" if name else "") + lines + "\n"


async def sent(page: Page, changes: Changes, beat_seconds: float) -> AsyncIterator[bytes]:
    """Yield a page's events: fragments, and how the subscription is, also as a heartbeat.

    Each carries the position up to which the page was told everything.
    """
    seconds = 0.0
    while not page.closed:
        told = page.told
        parts = await page.take(seconds)
        seconds = beat_seconds
        if page.closed:
            return
        state = event("beat" if changes.connected else "stale", "")
        yield "".join([*parts, f"id: {told}\n", state]).encode()
