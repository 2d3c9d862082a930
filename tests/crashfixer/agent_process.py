"""An agent as a process that can be killed: `FOLDER MODELS start|resume`; a model over HTTP."""

import asyncio
import sys
from pathlib import Path

from kgym_crashfixer.models.provider import Provided
from tests.crashfixer.agents import agent, request


async def main(folder: str, models: str, how: str) -> None:
    model = f"openai-chat:gpt-4o@{models}"

    def opened() -> Provided:
        return Provided(model, "sk-very-secret-key", first_pause=0.01)

    async with agent(Path(folder), opened) as made:
        run = 1
        if how == "start":
            run = await made.agent.start(request())
        else:
            await made.agent.resume(run)
        print(await made.agent.wait(run))


asyncio.run(main(*sys.argv[1:]))
