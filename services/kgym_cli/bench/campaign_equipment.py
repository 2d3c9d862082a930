"""What a campaign works with on this machine: a platform, trees of kernels, and CrashFixer."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kgym.client import AsyncClient
from kgym_benchmark.campaign.crashfixer import CrashFixer
from kgym_benchmark.campaign.runner import Equipment
from kgym_benchmark.campaign.subjects import Subject
from kgym_benchmark.kenv.trees import BugTree, Published, Trees
from kgym_cli.agents.agent_choice import interruptible, request_of, service, with_agent
from kgym_cli.output import people
from kgym_cli.platforms.scheduler_choice import address
from kgym_cli.settings import settings

if TYPE_CHECKING:
    from kgym.api.agent.runs import Limits, RunRequest
    from kgym.client.agent_calls import AgentCalls

T = TypeVar("T")


class BugTrees:
    """The trees of a campaign's bugs, each made once; they stay until it ends."""

    def __init__(self, data: Path, cache: Path) -> None:
        self._data = data
        self._trees = Trees(cache / "kenv")
        self._held = ExitStack()
        self._found: dict[str, asyncio.Task[BugTree]] = {}

    async def get(self, subject: Subject, _: ExitStack) -> BugTree:
        """Return the tree of a bug."""
        if subject.name not in self._found:
            self._found[subject.name] = asyncio.create_task(self._get(subject))
        return await asyncio.shield(self._found[subject.name])

    async def close(self) -> None:
        """Let go of all."""
        for task in self._found.values():
            task.cancel()
        await asyncio.gather(*self._found.values(), return_exceptions=True)
        await asyncio.to_thread(self._held.close)

    async def _get(self, subject: Subject) -> BugTree:
        from kgym_cli.bugs.source_tree import source_of  # noqa: PLC0415 - its imports take 0.3 s

        found = await source_of(subject.bug, self._data, self._held)
        changed = {one.path: one for _, changes in found.patches for one in changes}
        source = Published(
            found.published.identity, found.published.tree, found.added, tuple(changed.values())
        )
        return await self._trees.get(source, self._held, _tell)


def with_equipment(work: Callable[[Equipment], Awaitable[T]], home: Path, *, crashfixer: bool) -> T:
    """Return what `work` comes to, given a platform and, with `crashfixer`, an agent."""
    with address(work=True) as (url, token):

        async def equipped(agent: "AgentCalls | None") -> T:
            trees = BugTrees(settings().data, settings().cache)
            try:
                async with AsyncClient(url, token) as client:
                    fixer = CrashFixer(agent, _request) if agent is not None else None
                    key = settings().environment.get
                    return await work(Equipment(client, trees.get, home, key, fixer))
            finally:
                await trees.close()

        if crashfixer:
            return with_agent(equipped, work=True)
        return interruptible(equipped(None))


def _request(name: str, strategy: str, model: str, limits: "Limits") -> "RunRequest":
    return request_of(name, strategy, model, True, (), limits, service() is None)


def _tell(words: str) -> None:
    people.print(words, style="dim", markup=False)
