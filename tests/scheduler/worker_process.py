"""A worker in a process of its own: `worker_process.py SERVER FOLDER SLOTS`.

What a build does is in the commit of its source: `nap` takes a second and a
half, `sleep` a minute, `poison` kills the process, anything else is done at once.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from kgym.api.steps import BuildResult, BuildSpec, StepKind
from kgym.transport.artifact_storage import LocalStorage
from kgym.transport.bus import InProcessBus
from kgym.worker.context import StepContext
from kgym.worker.http_calls import HttpWorkerCalls
from kgym.worker.loop import Worker
from kgym_cli.platforms.process import run
from tests.scheduler.parts import BUILT


async def build(step: StepContext) -> BuildResult:
    spec = step.assignment.spec
    what = getattr(spec.source, "commit", "") if isinstance(spec, BuildSpec) else ""
    sys.stdout.write(f"{what} {step.assignment.job_id}\n")
    sys.stdout.flush()
    if what == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep({"nap": 1.5, "sleep": 60}.get(what, 0))
    return BUILT


async def main(server: str, folder: Path, slots: int) -> None:
    async with HttpWorkerCalls(server) as dispatch:
        storage = LocalStorage(folder / "storage")
        handlers = {StepKind.BUILD: build}
        work = folder / f"work-{os.getpid()}"
        await Worker(dispatch, InProcessBus(), storage, handlers, work, slots).serve()


if __name__ == "__main__":
    run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
