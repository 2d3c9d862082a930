"""Agents on the made-up kernel: a model that answers by the prompt alone, a platform, a store."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from kgym.api.agent.conversation import Reply
from kgym.api.agent.runs import Limits, RunRequest
from kgym.api.agent.strategy import Cycle, Forest, Strategy
from kgym.bugs.bug import Bug
from kgym.errors import UserError
from kgym_crashfixer.models.model import Call, Model
from kgym_crashfixer.platform_protocol import BEGIN, Begun, Submitted
from kgym_crashfixer.runs.agent import Agent
from kgym_crashfixer.runs.run_store import RunStore, Stored
from kgym_crashfixer.search.engine import Asked
from kgym_crashfixer.search.work import PlatformWork, Question, Result, Try
from tests.crashfixer.world import FILE, FIRST, TEXT, World, edit, limit

BUG = "watch-queue-filter"
# What the model writes where the limit is so: it does not compile, crashes, and is right.
NEXT = {"99": "word", "7": "8", "8": "16"}
ONE_TREE = Forest(trees=1, depth=3, cycle=Cycle(hypotheses=2, patches=2, rounds=1))
Guess = Callable[[str, str], str]


def guess(purpose: str, text: str) -> str:
    """Answer a prompt; the same one always alike."""
    match purpose:
        case "hypothesis":
            return f"<solution>The limit {limit(text)} is wrong.</solution>"
        case "patch":
            return edit(limit(text), NEXT[limit(text)])
        case "repair":
            return edit(limit(text), "7")
        case "reflection" | "consistency":
            return "<choice>1</choice>"
        case "review":
            return "<approved/> It is right."
        case "message":
            return "<subject>lower the limit</subject><body>It was too large.</body>"
    return "it failed"


def purpose_of(text: str) -> str:
    """Tell from a prompt what it asks for."""
    marks = {
        "repair": "It cannot be used:",
        "consistency": "patches compile:",
        "reflection": "explanations of the crash",
        "summary": "In at most five sentences",
        "hypothesis": "Explain the root cause",
    }
    return next((name for name, mark in marks.items() if mark in text), "patch")


class Guesser:
    """A model of a price that is known, or not."""

    name = "made:up"

    def __init__(self, guess: Guess = guess, price: float | None = 0.5, pause: float = 0.0) -> None:
        self.guess, self.price, self.pause = guess, price, pause
        self.asked: list[Call] = []

    async def ask(self, call: Call) -> Reply:
        self.asked.append(call)
        await asyncio.sleep(self.pause)
        text = self.guess(call.prompt.purpose, call.prompt.text)
        return Reply(
            text=text, model="up", input_tokens=100, output_tokens=10, price=self.price, seconds=1
        )

    async def close(self) -> None:
        pass


class MadePlatform:
    """Does the work by the made-up kernel; `slow` is how long a try takes."""

    def __init__(self, submitted: Submitted, *, crashes: bool = True, slow: float = 0.0) -> None:
        self._submitted, self._crashes, self._slow = submitted, crashes, slow
        self._world = World(1, [])
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.done: list[str] = []

    async def begin(self) -> Begun:
        await self._submitted(BEGIN, 1)
        if not self._crashes:
            raise UserError("does_not_reproduce", "the kernel with the bug does not crash")
        return Begun(crash=FIRST.crash, files={FILE: TEXT}, notes=["no trace: made up"], job=1)

    async def resume(self, begun: Begun) -> None:
        pass

    async def do(self, name: str, work: PlatformWork) -> Result:
        self.running.add(name)
        try:
            await self._submitted(name, 2 + len(self.done))
            await asyncio.sleep(self._slow if isinstance(work, Try) else 0)
            self.done.append(name)
            return self._world.result(Asked(name, work))
        except asyncio.CancelledError:
            self.aborted.append(name)
            raise
        finally:
            self.running.discard(name)

    def fitted(self, question: Question) -> Question:
        return question

    async def close(self) -> None:
        pass


class Made:
    """An agent and its parts, with a folder of its own."""

    def __init__(self, agent: Agent, store: RunStore, platforms: list[MadePlatform]) -> None:
        self.agent, self.store, self.platforms = agent, store, platforms


@asynccontextmanager
async def agent(
    folder: Path,
    model: Model | Callable[[], Model],
    *,
    crashes: bool = True,
    slow: float = 0.0,
    pauses: tuple[float, ...] = (),
) -> AsyncIterator[Made]:
    """An agent whose runs are in `folder/runs`, as long as the context lasts."""
    platforms: list[MadePlatform] = []

    @asynccontextmanager
    async def opened(
        run: Stored, bug: Bug, strategy: Strategy, submitted: Submitted
    ) -> AsyncIterator[MadePlatform]:
        platforms.append(MadePlatform(submitted, crashes=crashes, slow=slow))
        yield platforms[-1]

    store = RunStore(folder / "runs")
    made = Agent(store, lambda name: model() if callable(model) else model, opened, pauses=pauses)
    try:
        yield Made(made, store, platforms)
    finally:
        await made.close()


def request(strategy: str | Strategy = ONE_TREE, **limits: float) -> RunRequest:
    return RunRequest(bug=BUG, strategy=strategy, model="made:up", limits=Limits(**limits))  # type: ignore[arg-type]


def new_limit(diff: str) -> str:
    return re.findall(r"^\+#define LIMIT (\w+)", diff, re.MULTILINE)[-1]
