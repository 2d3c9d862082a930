"""An agent service beside a test's platform: a real one, whose model a tape answers for."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kgym.api.agent.conversation import Reply
from kgym.api.agent.runs import RunState
from kgym.api.agent.strategy import Cycle, Forest
from kgym.web.scheduler_tokens import SchedulerTokens
from kgym.web.server import serve
from kgym_crashfixer.api.app import create_app
from kgym_crashfixer.models.model import Call, Model
from kgym_crashfixer.models.tape import Recorder, Replay
from tests.crashfixer.agents import Guesser, Made, agent, guess, request
from tests.crashfixer.world import edit, limit
from tests.demo.monitored import threaded
from tests.demo.showcase import HOSTILE

T = TypeVar("T")
FOREST = Forest(
    trees=3, depth=3, branching=2, stop="tree", cycle=Cycle(hypotheses=2, patches=2, rounds=1)
)


def hostile(purpose: str, text: str) -> str:
    """Answer as a model that was told to attack who reads it."""
    if purpose == "hypothesis":
        return f"<solution>{HOSTILE} The limit {limit(text)} is wrong.</solution>"
    if purpose == "patch" and limit(text) == "99":
        return edit("99", '7 /* </pre></style>"><img src=x onerror=alert(1)> */')
    return HOSTILE + guess(purpose, text)


class Paced:
    """A tape that is played as slowly as a test wants; while `held`, it says nothing."""

    name = "made:up"

    def __init__(self, tape: Model, going: threading.Event, seconds: float) -> None:
        self._tape, self._going, self._seconds = tape, going, seconds

    async def ask(self, call: Call) -> Reply:
        while not self._going.is_set():
            await asyncio.sleep(0.02)
        await asyncio.sleep(self._seconds)
        return await self._tape.ask(call)

    async def close(self) -> None:
        await self._tape.close()


@dataclass
class AgentService:
    """The service, and what a test does with it from its own thread."""

    url: str
    made: Made
    loop: asyncio.AbstractEventLoop
    going: threading.Event
    """While it is not set, models say nothing."""
    say: dict[str, Model]
    """What answers for the next runs: `model`."""

    def run(self, submitter: str = "local", strategy: Forest = FOREST, **limits: float) -> int:
        """Begin a run; return its number."""
        return self.do(self.made.agent.start(request(strategy, **limits), submitter=submitter))

    def end(self, run: int) -> RunState:
        """Return how a run has ended."""
        return self.do(self.made.agent.wait(run))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the service's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@contextmanager
def agent_service(folder: Path, scheduler: str) -> Iterator[AgentService]:
    """Serve an agent whose tokens are this scheduler's while the context lasts."""
    going = threading.Event()
    going.set()
    say: dict[str, Model] = {}

    @asynccontextmanager
    async def opened(loop: asyncio.AbstractEventLoop) -> AsyncIterator[AgentService]:
        async with (
            agent(folder, lambda: say["model"]) as made,
            SchedulerTokens(scheduler) as tokens,
            serve(create_app(made.agent, tokens)) as address,
        ):
            yield AgentService(address.url, made, loop, going, say)

    with threaded(opened) as service:
        tape = folder / "forest.tape"
        say["model"] = Recorder(Guesser(), tape)
        service.end(service.run())
        say["model"] = Paced(Replay(tape), going, 0.02)
        yield service
