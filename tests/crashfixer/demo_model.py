"""The model of the demo's tape: answers written by hand, one of each kind that fails, then a fix.

No model was asked. `python -m tests.crashfixer.demo_model SERVER TAPE` runs the demo's search with
it on the platform of the scheduler at that URL, and writes the tape that `./run demo --agent`
replays.
"""

import asyncio
import re
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kgym.api.agent.conversation import Reply
from kgym.api.agent.runs import RunRequest, RunView
from kgym.api.agent.strategy import Strategy
from kgym.bugs.bug import Bug
from kgym.client import AsyncClient
from kgym_crashfixer.models.model import Call
from kgym_crashfixer.models.tape import Head, Recorder, begin
from kgym_crashfixer.platform import SchedulerPlatform
from kgym_crashfixer.platform_protocol import Platform, Submitted
from kgym_crashfixer.runs.agent import Agent
from kgym_crashfixer.runs.run_store import RunStore, Stored
from kgym_crashfixer.strategies import load

# By the cycle that asks and the purpose.
ANSWERS = tomllib.loads(Path(__file__).with_name("demo_answers.toml").read_text())


class Written:
    """Answers as they were written."""

    name = "written by hand"

    async def ask(self, call: Call) -> Reply:
        """Return the answer to a question of the demo's search."""
        node = call.prompt.identity.partition("\n")[0]
        answers = ANSWERS[f"{node} {call.prompt.purpose}"]["answers"]
        if call.prompt.purpose == "repair":  # which patch is to be mended tells them apart
            number = int("nr_filter_copied" in call.prompt.text)
        else:
            asked = re.findall(r"[hp](\d+)/", call.occurrence)
            number = int(asked[-1]) if asked else 0
        text = answers[min(number, len(answers) - 1)]
        return Reply(
            text=text,
            model=self.name,
            finish="stop",
            input_tokens=(len(call.prompt.system) + len(call.prompt.text)) // 4,
            output_tokens=len(text) // 4,
        )

    async def close(self) -> None:
        """Nothing is held."""


async def record(server: str, tape: Path) -> RunView:
    """Carry out the demo's run on the platform there; return it."""

    @asynccontextmanager
    async def opened(
        run: Stored, bug: Bug, strategy: Strategy, submitted: Submitted
    ) -> AsyncIterator[Platform]:
        async with AsyncClient(server) as client:
            yield SchedulerPlatform(
                client, bug, strategy, key=run.key, group=f"demo-{run.key}", submitted=submitted
            )

    with tempfile.TemporaryDirectory() as scratch:
        agent = Agent(RunStore(Path(scratch)), lambda _: Recorder(Written(), tape), opened)
        request = RunRequest(bug="watch-queue-filter", strategy="demo", model=Written.name)
        tape.unlink(missing_ok=True)  # an older one would be continued
        begin(tape, Head(bug=request.bug, strategy=load("demo")))
        run = await agent.start(request)
        await agent.wait(run)
        view = await agent.show(run)
        await agent.close()
    return view


if __name__ == "__main__":
    print(asyncio.run(record(sys.argv[1], Path(sys.argv[2]))).model_dump_json(indent=2))
