"""An agent service whose model is the shipped tape, and whose kernels' verdicts are given."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kgym.api.agent.conversation import Reply
from kgym.api.agent.nodes import Crash, Tried
from kgym.api.agent.runs import Limits, RunRequest, RunState
from kgym.api.agent.strategy import Strategy
from kgym.api.steps import Patch, PatchCheck, PatchOutcome, Verdict
from kgym.bugs.bug import Bug
from kgym.configs import TAPES
from kgym.web.scheduler_tokens import SchedulerTokens
from kgym.web.server import serve
from kgym_crashfixer.api.app import create_app
from kgym_crashfixer.models import tape
from kgym_crashfixer.models.model import Call, ModelError
from kgym_crashfixer.platform_protocol import BEGIN, Begun, Submitted
from kgym_crashfixer.runs.agent import Agent
from kgym_crashfixer.runs.run_store import RunStore, Stored
from kgym_crashfixer.search.work import (
    Check,
    Checked,
    PlatformWork,
    Question,
    Result,
    Try,
    Unanswered,
)
from tests.demo.monitored import threaded
from tests.demo.showcase import BUG, CONSOLE, SOURCES

T = TypeVar("T")
TAPE = TAPES / f"{BUG.name}.jsonl"
FILE = "kernel/watch_queue.c"
# The file as the tape's patches find it.
SOURCE = SOURCES.joinpath("watch_queue.c").read_text()
CRASH = Crash(title=BUG.file.title, report=CONSOLE[CONSOLE.index("BUG: ") :])
# A name that one of the tape's patches makes up.
UNKNOWN = "nr_filter_copied"


class Tape:
    """Answers as the tape does, by the name of the work: the prompts have another source."""

    name = f"replay:{TAPE.name}"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        lines = TAPE.read_text().splitlines()[1:]
        recorded = [tape.Recorded.model_validate_json(line) for line in lines]
        self._replies = {line.occurrence: line.reply for line in recorded}

    async def ask(self, call: Call) -> Reply:
        """Return the answer; raises ModelError `not_on_tape`."""
        await asyncio.sleep(self._seconds)
        if (reply := self._replies.get(call.occurrence)) is None:
            raise ModelError("not_on_tape", f"{call.occurrence} is not on the tape", fatal=True)
        return reply.model_copy(update={"price": _dollars(reply), "seconds": 4.0})

    async def close(self) -> None:
        """Nothing is held."""


def _dollars(reply: Reply) -> float:
    """Return what a model of today would have taken."""
    return (3 * reply.input_tokens + 15 * reply.output_tokens) / 1e6


class GivenKernels:
    """Does a run's work by what its patches say."""

    def __init__(self, submitted: Submitted) -> None:
        self._submitted = submitted

    async def begin(self) -> Begun:
        """Say that the bug shows."""
        await self._submitted(BEGIN, 1)
        return Begun(crash=CRASH, files={FILE: SOURCE}, notes=["the kernels are made up"], job=1)

    async def resume(self, begun: Begun) -> None:
        """Nothing is needed."""

    async def do(self, name: str, work: PlatformWork) -> Result:
        """Check or try a patch."""
        match work:
            case Check():
                return Checked(patches=[_checked(patch) for patch in work.patches])
            case Try():
                await asyncio.sleep(0.1)
                return _tried(work.diff)
        return Unanswered(reason="there is no source to look at")

    def fitted(self, question: Question) -> Question:
        """Return it as it is: the file is short."""
        return question

    async def close(self) -> None:
        """Nothing is held."""


def _checked(patch: Patch) -> PatchCheck:
    broken = UNKNOWN in (patch.diff or "")
    return PatchCheck(
        name=patch.name,
        outcome=PatchOutcome.DOES_NOT_COMPILE if broken else PatchOutcome.COMPILES,
        reason=f"{FILE}:381:47: error: '{UNKNOWN}' undeclared" if broken else "",
        seconds=0.9,
    )


def _tried(diff: str) -> Tried:
    if "+__no_sanitize_address" in diff:
        return Tried(verdict=Verdict.NO_CRASH, obstacles=["control_silent"], confidence=0.95)
    if diff.count("+\t\tif (tf[i].type >= WATCH_TYPE__NR)") == 2:
        return Tried(verdict=Verdict.NO_CRASH, confidence=0.952)
    return Tried(verdict=Verdict.SAME_CRASH, crash=CRASH)


@dataclass
class DemoAgent:
    """The service, and what is done with it from other threads."""

    url: str
    _agent: Agent
    _loop: asyncio.AbstractEventLoop

    def begin_run(self) -> int:
        """Begin a run of the tape's strategy; return its number."""
        head = tape.head(TAPE)
        assert head is not None
        request = RunRequest(bug=BUG.name, strategy=head.strategy, model=Tape.name, limits=Limits())
        return self._do(self._agent.start(request))

    def end(self, run: int) -> RunState:
        """Return how a run has ended, when it has."""
        return self._do(self._agent.wait(run))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


@contextmanager
def demo_agent(folder: Path, scheduler: str, seconds: float = 0.02) -> Iterator[DemoAgent]:
    """Serve it while the context lasts; its tokens are this scheduler's.

    `seconds` is how long the tape takes for an answer.
    """

    @asynccontextmanager
    async def opened(loop: asyncio.AbstractEventLoop) -> AsyncIterator[DemoAgent]:
        async with (
            _opened(folder, seconds) as agent,
            SchedulerTokens(scheduler) as tokens,
            serve(create_app(agent, tokens)) as listening,
        ):
            yield DemoAgent(listening.url, agent, loop)

    with threaded(opened) as agent:
        yield agent


@asynccontextmanager
async def _opened(folder: Path, seconds: float) -> AsyncIterator[Agent]:
    @asynccontextmanager
    async def given(
        run: Stored, bug: Bug, strategy: Strategy, submitted: Submitted
    ) -> AsyncIterator[GivenKernels]:
        yield GivenKernels(submitted)

    agent = Agent(RunStore(folder / "runs"), lambda _: Tape(seconds), given)
    try:
        yield agent
    finally:
        await agent.close()
