"""The runs that open pages show: one subscription to the agent for each, however many look."""

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Iterator

import structlog

from kgym.api.agent.runs import Event, NodeView, RunView
from kgym.errors import InfrastructureError, KgymError, TooMany
from kgym_monitor.live.agent_link import AgentLink
from kgym_monitor.live.fragments import event, partial
from kgym_monitor.pages.rendering import Rendering
from kgym_monitor.pages.run_forest import Forest

MOST_FEEDS = 100
LINGER_SECONDS = 30.0
"""How long a run is followed that no page shows: one may be loading."""
GATHER_SECONDS = 0.3
"""How long events gather before pages hear of them."""
HEAD_SECONDS = 1.0
"""How often what a run took is read again while it changes."""
RETRY_SECONDS = 2.0
"""After which a feed is opened again that was lost, or has ended: the run may be resumed."""
FIRST_SECONDS = 60.0
_WHOLE = {"begin", "fix", "ended", "resumed"}
"""Events after which the run is read again whole."""

_log = structlog.get_logger()


class RunFeed:
    """A run as it stands: its forest grows by the agent's events."""

    def __init__(self, agent: AgentLink, number: int, rendering: Rendering) -> None:
        self.number = number
        self._agent, self._rendering = agent, rendering
        self.forest = Forest(
            lambda cycle: rendering.fragment("run_card.html", {"run": number, "cycle": cycle})
        )
        self.position = 0
        """The number of the last event that was heard."""
        self.begun = 0
        """The number of the last one that was over when the feed began."""
        self.connected = False
        self.watchers = 0
        self.used = time.monotonic()
        self._view: RunView | None = None
        self._head = ""
        self._closed = False
        self._doing: dict[str, tuple[str, str]] = {}
        self._read_again: str | None = None
        self._fault: KgymError | None = None
        self._ready = asyncio.Event()
        self._stale = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def view(self) -> RunView:
        """The run, as it was last read."""
        assert self._view is not None
        return self._view

    @property
    def head(self) -> str:
        """What pages show above the forest."""
        return self._head

    async def ready(self) -> None:
        """Return once the run was read; raise what the agent says instead of it."""
        try:
            await asyncio.wait_for(self._ready.wait(), FIRST_SECONDS)
        except TimeoutError as error:
            message = f"the agent did not show run {self.number} within {FIRST_SECONDS:g} s"
            raise InfrastructureError("agent_away", message) from error
        if self._fault is not None:
            raise self._fault

    async def run(self) -> None:
        """Follow the run until cancelled."""
        try:
            await self._begin()
        except KgymError as error:
            self._fault = error
            return
        finally:
            self._ready.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._read())

    async def _begin(self) -> None:
        view = self._view = await self._agent.client().show(self.number)
        self.begun = self.position = view.position
        for node in view.nodes:
            self.forest.put(node, view.position)
            # Work under way has no names here: that which is told first ends one of its kind.
            for count, work in enumerate(node.doing):
                self._doing[f"{node.name} {count}"] = node.name, work
        self.connected = True
        self._draw_head()

    async def _follow(self) -> None:
        while True:
            try:
                # Opened anew here, not by the client: pages say at once that they are stale.
                async for one in self._agent.client().follow(self.number, self.position, 1):
                    self.connected = True
                    self._hear(one)
                self.connected = True
            except KgymError as error:
                self.connected = False
                _log.warning("a run's events broke off", run=self.number, reason=error.reason)
            self._news.set()
            await asyncio.sleep(RETRY_SECONDS)

    def _hear(self, one: Event) -> None:
        self.position = one.number
        node = str(one.data.get("node", ""))
        match one.kind:
            case "node":
                view = NodeView.model_validate(one.data)
                doing = [] if view.outcome else self._waits(view.name)
                self.forest.put(view.model_copy(update={"doing": doing}), one.number)
            case "asked" | "asked_again":
                self._doing[str(one.data["name"])] = node, str(one.data["work"])
                self.forest.do(node, self._waits(node), one.number)
            case "told" | "dropped" | "lost":
                self._end(str(one.data["name"]), (node, str(one.data.get("work", ""))))
                self.forest.do(node, self._waits(node), one.number)
            case "resumed" | "ended":
                for name in {at for at, _ in self._doing.values()}:
                    self.forest.do(name, [], one.number)
                self._doing.clear()
        self._read_again = "whole" if one.kind in _WHOLE else self._read_again or "spent"
        self._stale.set()
        self._news.set()

    def _end(self, name: str, work: tuple[str, str]) -> None:
        if self._doing.pop(name, None) is None:
            unnamed = (one for one, what in self._doing.items() if what == work and " " in one)
            self._doing.pop(next(unnamed, ""), None)

    def _waits(self, node: str) -> list[str]:
        return [work for at, work in self._doing.values() if at == node]

    async def _read(self) -> None:
        """Read again what the run took, and its fixes, while they change."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            what, self._read_again = self._read_again, None
            try:
                client = self._agent.client()
                if what == "whole":
                    self._view = await client.show(self.number)
                else:
                    page = await client.page(self.number + 1, 1)
                    (summary,) = (one for one in page.runs if one.id == self.number)
                    self._view = self.view.model_copy(update=dict(summary))
                self._draw_head()
                self._news.set()
            except (KgymError, ValueError):  # `_follow` says that it is away
                self._read_again = what
                self._stale.set()
            await asyncio.sleep(HEAD_SECONDS)

    def _draw_head(self) -> None:
        shown = {"run": self.view, "outcomes": self.forest.outcomes()}
        self._head = self._rendering.fragment("run_head.html", shown)

    async def sent(self, since: int, beat_seconds: float) -> AsyncIterator[bytes]:
        """Yield a page's events from event number `since` on, until the feed is closed.

        A page that is older than this feed is told to load itself again.
        """
        if since < self.begun or since > self.position:
            yield event("reload", "").encode()
            return
        told, head = since, ""
        while not self._closed:
            self._news.clear()
            position, parts = self.position, list(self._parts(told))
            if self._head != head:
                head = self._head
                parts.append(partial("run-live", head))
            state = event("beat" if self.connected else "stale", "")
            yield "".join([*parts, f"id: {position}\n", state]).encode()
            told = position
            await self._changed(told, head, beat_seconds)

    async def _changed(self, told: int, head: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        connected = self.connected
        while self.position == told and self._head == head and self.connected == connected:
            left = end - time.monotonic()
            if self._closed or left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(left, 1.0))
            if not self._news.is_set():
                continue
            await asyncio.sleep(GATHER_SECONDS)
            self._news.clear()

    def _parts(self, told: int) -> Iterator[str]:
        new, old = self.forest.changed_since(told)
        for cycle in old:
            yield partial(f"c-{cycle.key}", self.forest.card(cycle))
        for cycle in new:
            above = self.forest.above(cycle)
            place = f"k-{above.key}" if above else "forest"
            item = self.forest.branch(cycle)
            target = f'hx-target="#{place}" hx-swap="beforeend"'
            yield event(None, f"<hx-partial {target}>{item}</hx-partial>")
        if new or old:
            yield event("cycles", json.dumps([cycle.key for cycle in [*new, *old]]))

    def close(self) -> None:
        """End the streams of all pages."""
        self._closed = True
        self._news.set()


class RunFeeds:
    """The feeds of all runs that pages show."""

    def __init__(self, agent: AgentLink, rendering: Rendering) -> None:
        self._agent, self._rendering = agent, rendering
        self._feeds: dict[int, tuple[RunFeed, asyncio.Task[None]]] = {}

    async def open(self, run: int) -> RunFeed:
        """Return the feed of a run, which lasts for a while, or as long as it is `watched`.

        Raises what the agent says: NotFound, InfrastructureError `agent_away` or `no_agent`.
        """
        self._sweep()
        if run not in self._feeds:
            if len(self._feeds) >= MOST_FEEDS:
                message = f"pages show {MOST_FEEDS} runs; close some, and try again"
                raise TooMany("too_many_runs", message, retry_after=int(LINGER_SECONDS))
            feed = RunFeed(self._agent, run, self._rendering)
            task = asyncio.create_task(feed.run())
            task.add_done_callback(functools.partial(self._ended, run, feed))
            self._feeds[run] = feed, task
        feed, _ = self._feeds[run]
        feed.used = time.monotonic()
        try:
            await feed.ready()
        except KgymError:
            self._end(run, feed)
            raise
        return feed

    @contextlib.contextmanager
    def watched(self, feed: RunFeed) -> Iterator[None]:
        """Keep a feed while the context lasts."""
        feed.watchers += 1
        try:
            yield
        finally:
            feed.watchers -= 1
            feed.used = time.monotonic()
            asyncio.get_running_loop().call_later(LINGER_SECONDS + 1, self._sweep)

    def hang_up(self) -> None:
        """End the streams of all pages."""
        for feed, _ in self._feeds.values():
            feed.close()

    async def close(self) -> None:
        """End all feeds."""
        self.hang_up()
        tasks = [task for _, task in self._feeds.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _sweep(self) -> None:
        now = time.monotonic()
        for run, (feed, _) in list(self._feeds.items()):
            if not feed.watchers and now - feed.used > LINGER_SECONDS:
                self._end(run, feed)

    def _ended(self, run: int, feed: RunFeed, task: asyncio.Task[None]) -> None:
        """Forget a feed that has ended by itself; its pages ask for another one."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a run's feed ended", run=run, exc_info=error)
        self._end(run, feed)

    def _end(self, run: int, feed: RunFeed) -> None:
        if run in self._feeds and self._feeds[run][0] is feed:
            _, task = self._feeds.pop(run)
            feed.close()
            task.cancel()
