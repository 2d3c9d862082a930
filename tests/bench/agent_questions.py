"""The agent's questions: `./run bench agent` prints these figures, too.

`first_question_s`: from the start of a run to its first question, on a bug that was shown before,
with the kernels of the data folder: the first run, which may have to compile, does not count.
`prompt_tokens`: of all questions of a strategy's first debug cycle or conversation, up to its first
kernel, on made-up files of 240 KB. `localised_share`: the share of real reports whose fixed file is
among the first five candidates; null without the reports beside the checkout.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kgym.api.agent.conversation import Reply
from kgym.api.agent.nodes import Crash
from kgym.api.agent.runs import RunRequest
from kgym.api.agent.strategy import Strategy
from kgym.bugs import bundle
from kgym.bugs.bug import Bug
from kgym.client import AsyncClient
from kgym_cli.platforms.embedded_platform import Platform
from kgym_crashfixer import strategies
from kgym_crashfixer.context import tokens
from kgym_crashfixer.models.model import Call
from kgym_crashfixer.platform import SchedulerPlatform
from kgym_crashfixer.platform_protocol import Submitted
from kgym_crashfixer.runs.agent import Agent
from kgym_crashfixer.runs.questions import call_of
from kgym_crashfixer.runs.run_store import RunStore, Stored
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.cycle import State
from kgym_crashfixer.search.search import Search
from kgym_crashfixer.search.work import Question, Try
from tests.conftest import DATA
from tests.crashfixer.test_localisation import LOGS, first_five, own_reports, published_reports
from tests.crashfixer.world import World

BUG = "watch-queue-filter"
STRATEGIES = (
    *("forest", "best-first", "tool", "rgym-simple", "rgym-exploration"),
    *("table2-01-baseline", "table2-10-consistency"),
)


class Silent:
    """A model that never answers."""

    name = "made:up"

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ask(self, call: Call) -> Reply:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError(call)

    async def close(self) -> None:
        pass


def first_question() -> float:
    """Return the seconds to the first question of a second run on a bug."""
    with Platform(DATA) as platform:
        asyncio.run(_until_asked(platform.url))
        return round(asyncio.run(_until_asked(platform.url)), 2)


async def _until_asked(url: str) -> float:
    model = Silent()

    @asynccontextmanager
    async def opened(
        run: Stored, bug: Bug, strategy: Strategy, submitted: Submitted
    ) -> AsyncIterator[SchedulerPlatform]:
        async with AsyncClient(url) as client:
            group = f"bench-{run.key[:8]}"
            yield SchedulerPlatform(
                client, bug, strategy, key=run.key, group=group, submitted=submitted
            )

    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(RunStore(Path(folder)), lambda _: model, opened)
        try:
            begun = time.monotonic()
            run = await agent.start(RunRequest(bug=BUG, model=model.name))
            ended = asyncio.create_task(agent.wait(run))
            asked = asyncio.create_task(model.asked.wait())
            await asyncio.wait([ended, asked], return_when=asyncio.FIRST_COMPLETED)
            seconds = time.monotonic() - begun
            if not model.asked.is_set():
                raise SystemExit(f"no question was asked: {(await agent.show(run)).reason}")
            await agent.stop(run)
            await ended
        finally:
            await agent.close()
    return seconds


def prompt_tokens(files: Mapping[str, str], crash: Crash) -> dict[str, int]:
    """Return the tokens of a cycle's questions, by strategy."""
    return {name: asyncio.run(_tokens(name, files, crash)) for name in STRATEGIES}


async def _nobody(name: str, job: int) -> None:
    pass


async def _tokens(name: str, files: Mapping[str, str], crash: Crash) -> int:
    strategy, world = strategies.load(name), World(1, ["7"])
    # It only cuts files to the window, and asks no scheduler.
    client, bug = AsyncClient("http://127.0.0.1:9"), bundle.load(BUG)
    platform = SchedulerPlatform(client, bug, strategy, key="k", group="g", submitted=_nobody)
    search = Search(strategy, State(Code(dict(files)), crash))
    asked, total = search.ask(), 0
    first = asked[0].work.node
    while asked:
        each = asked.pop(0)
        if isinstance(each.work, Try):
            break
        if isinstance(each.work, Question) and each.work.node == first:
            call = call_of(each.work, platform)
            turns = json.dumps([turn.model_dump(mode="json") for turn in call.turns])
            total += sum(map(tokens, (call.prompt.system, call.prompt.text, turns)))
        search.tell(each.name, world.result(each))
        asked += search.ask()
    return total


def localised_share() -> dict[str, float] | None:
    """Return the share of reports whose fixed file is among the first five, by collection."""
    if not LOGS.is_dir():
        return None
    collections = {"published": published_reports(), "ported_and_shipped": own_reports()}
    shares = {}
    for name, reports in collections.items():
        located = sum(bool(first_five(text) & files) for text, files in reports)
        shares[name] = round(located / len(reports), 3)
    return shares


def questions(files: Mapping[str, str], crash: Crash) -> dict[str, Any]:
    """Return all figures of questions."""
    return {
        "first_question_s": first_question(),
        "prompt_tokens": prompt_tokens(files, crash),
        "localised_share": localised_share(),
    }
