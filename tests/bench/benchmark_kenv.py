"""What an agent waits for in its environment, on the demo's kernel, whose entry is in the cache.

env_ready_s      from the begin of an attempt until the agent's first command runs, with the tree of
                 the bug in the cache; the median of some (published: a container build and a clone)
env_first_s      the same, of the first environment for this bug in a process
run_kernel_s     of `/KBDr/run_kernel` for a patch that compiles, what it takes beyond the time that
                 the program runs in the VM (published: 1,199 s)
"""

import asyncio
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from kgym.bugs import bundle
from kgym.bugs.bug import TrialOptions
from kgym.bugs.kernel_run import KernelRun, RunOptions, run_kernel
from kgym.client import AsyncClient
from kgym.source.source_folder import SourceFolder
from kgym_benchmark.campaign.subjects import Subject, bundled
from kgym_benchmark.kenv.door import Door, KernelCall
from kgym_benchmark.kenv.environment import Environment, Given
from kgym_benchmark.kenv.protocol import Case
from kgym_cli.bench.campaign_run import BugTrees
from kgym_cli.platforms.embedded_platform import Platform
from tests.conftest import DATA

BUG = "watch-queue-filter"
SECONDS = 10
CALLS = 3
FILE = "kernel/watch_queue.c"
_TIMED = "date +%s.%N; sed -i '{change}' {file}; date +%s.%N; /KBDr/run_kernel; date +%s.%N"


def kenv() -> dict[str, float]:
    """Return the figures, in seconds."""
    with Platform(DATA) as platform:
        return asyncio.run(_measured(platform.url, platform.owner))


async def _measured(url: str, token: str) -> dict[str, float]:
    subject = bundled(BUG, bundle.load(BUG))
    trees = BugTrees(DATA, DATA / "cache")
    try:
        async with AsyncClient(url, token) as client:
            await _run(client, subject, "")
            begun = time.time()
            with ExitStack() as held:
                tree = await trees.get(subject, held)
            first = time.time() - begun
            # What no cache knows: another number each time.
            fresh = time.time_ns()
            ready, answered = [], []
            for number in range(CALLS):
                change = f"1s/^/\\/\\* {fresh + number} \\*\\/ int more_{number};/"
                begun = time.time()
                times, answer = await _timed(client, subject, tree, change)
                assert "Crash reproduced" in answer, answer
                ready.append(times[0] - begun)
                answered.append(times[2] - times[1] - SECONDS)
    finally:
        await trees.close()
    middle = statistics.median(ready)
    return {
        "env_ready_s": round(middle, 2),
        "env_first_s": round(first + middle, 2),
        "run_kernel_s": round(statistics.median(answered), 2),
    }


async def _timed(
    client: AsyncClient, subject: Subject, tree: SourceFolder, change: str
) -> tuple[list[float], str]:
    """Return when the agent began, asked, and was answered; and all that was printed."""

    async def run(diff: str) -> KernelRun:
        return await _run(client, subject, diff)

    calls: list[KernelCall] = []
    door = Door(Case(BUG, "report", "program"), run, CALLS, calls.append)
    with tempfile.TemporaryDirectory(dir=DATA) as name:
        log = Path(name, "log.txt")
        given = Given(bug=BUG, feedback=True)
        async with Environment(Path(name, "env"), tree, door, given) as environment:
            script = _TIMED.format(change=change, file=FILE)
            ended = await environment.run(["sh", "-c", script], log)
            assert ended.error is None, ended
        output = log.read_text()
    numbers = [line for line in output.splitlines() if line.replace(".", "").isdigit()]
    return [float(line) for line in numbers], output


async def _run(client: AsyncClient, subject: Subject, diff: str) -> KernelRun:
    trial = TrialOptions(1, SECONDS)
    return await run_kernel(client, subject.bug, diff, RunOptions(trial=trial, drop_binaries=True))
