"""What trials cost scheduler, database and broker: 1,000 workers, 20,000 trials an hour.

The workers are real but for what they do: they wait for as long as steps took when measured, and
answer. They run in a few processes, and are left out of what is counted.

core_ms_per_trial     processor time of scheduler, PostgreSQL and RabbitMQ together
wait_p99_s            from a step that is queued to its start, while workers are free
trials_per_hour       of those submitted at the wanted rate; `lost` have not succeeded
rss_growth_mb         of the scheduler, from a third of the time to the end
database_kb_per_trial by which the database has grown
recovered_s           all workers are killed while steps run: until others have ended these

At 1,000 workers, the open files of one user must suffice: `ulimit -n 8192`.
"""

import argparse
import asyncio
import os
import random
import resource
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kgym.api.jobs import JobView
from kgym.api.steps import BuildResult, Patch, ReproduceResult, StepKind, Verdict
from kgym.bugs import bundle
from kgym.bugs.bug import TrialOptions
from kgym.client import AsyncClient
from kgym.transport.artifact_storage import LocalStorage
from kgym.transport.rabbitmq import RabbitBus
from kgym.worker.context import Handler, StepContext
from kgym.worker.http_calls import HttpWorkerCalls
from kgym.worker.loop import Worker
from kgym_cli.platforms.process import run, settle
from kgym_cli.platforms.servers import PostgreSQL, RabbitMQ
from tests.bench.dispatch import Bench, connected, process, rss_mb
from tests.figures import parser, show
from tests.results import GOOD, built, crash, ran

BUG = bundle.load("watch-queue-filter")
# Seconds of a trial's steps on two cores under TCG, as recorded on a quiet machine.
BUILD_SECONDS = (4.1, 4.9, 5.4, 6.5, 6.7)
REPRODUCE_SECONDS = (13.0, 13.5, 14.4, 14.8, 16.7)
OPTIONS = TrialOptions(instances=2, time=5)
# Steps that run when all workers are killed.
KILLED = 200
MOST = {"core_ms_per_trial": 50, "wait_p99_s": 1, "lost": 0}
WAITS = """
SELECT percentile_disc(0.99) WITHIN GROUP (
    ORDER BY extract(epoch FROM started_at - queued_at)::float8
)
FROM steps WHERE job_id > $1 AND started_at IS NOT NULL
"""
LEFT = "SELECT count(*) FROM jobs WHERE id > $1 AND state IN ('queued', 'running')"
DONE = "SELECT count(*) FROM jobs WHERE id > $1 AND state = 'succeeded'"
SIZE = "SELECT pg_database_size(current_database())"


# --- the farm -----------------------------------------------------------------------------


async def build(step: StepContext) -> BuildResult:
    """Wait for as long as a build takes."""
    with step.stage("make"):
        await asyncio.sleep(random.choice(BUILD_SECONDS))
    step.log("entry 0c72de3cc71382c64c0013860120b1512a619815: cached")
    return built(seconds=step.seconds)


async def reproduce(step: StepContext) -> ReproduceResult:
    """Wait for as long as two instances take; the unpatched kernel crashes."""
    with step.stage("reproduce"):
        await asyncio.sleep(random.choice(REPRODUCE_SECONDS))
    step.log("instance 0: survived, booted in 2.8 s, 229 runs in 5 s")
    if step.optional_input("baseline", ReproduceResult) is None:
        title = BUG.file.title
        return ran(Verdict.SAME_CRASH, title, instances=[crash(title)] * 2, seconds=step.seconds)
    return ran(evidence=GOOD, baseline=Verdict.SAME_CRASH, seconds=step.seconds)


DOES: dict[StepKind, Handler] = {StepKind.BUILD: build, StepKind.REPRODUCE: reproduce}


async def farm(server: str, bus: str, folder: Path, workers: int) -> None:
    """Run workers, each with connections of its own, until this process is stopped."""
    storage = LocalStorage(folder / "artifacts")
    settle()

    async def work(number: int) -> None:
        await asyncio.sleep(number * 0.02)  # thousands of connections at once are refused
        async with RabbitBus(bus) as opened, HttpWorkerCalls(server) as calls:
            place = folder / f"work-{os.getpid()}"
            await Worker(calls, opened, storage, DOES, place, host=f"host-{number}").serve()

    async with asyncio.TaskGroup() as group:
        for number in range(workers):
            group.create_task(work(number))


@contextmanager
def farms(bench: Bench, workers: int, processes: int) -> Iterator[list[int]]:
    """Run the workers in so many processes; yield these."""
    with ExitStack() as stack:
        log = stack.enter_context((bench.folder / "farm.log").open("ab"))
        pids = []
        for number in range(processes):
            share = len(range(number, workers, processes))
            words = [__file__, "--farm", bench.server, str(bench.folder), str(share)]
            env = {"KGYM_BUS": bench.broker.url}
            pids.append(stack.enter_context(process(words, env, log)).pid)
        yield pids


# --- the measurement ----------------------------------------------------------------------


async def measured(bench: Bench, options: argparse.Namespace) -> dict[str, float]:
    """Submit trials at the wanted rate; then kill the farm while it works."""
    figures: dict[str, float] = {}
    with bench.running(0):
        async with AsyncClient(bench.server) as client:
            with farms(bench, options.workers, options.processes) as pids:
                await present(client, options.workers)
                shown = await client.wait((await client.submit(BUG.shown(OPTIONS))).id)
                figures |= await rate(bench, client, shown, options)
                jobs = await submitted(client, shown, "killed", KILLED, 0)
                await asyncio.sleep(min(BUILD_SECONDS))
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            begun = time.monotonic()
            with farms(bench, options.workers, options.processes):
                await ended(bench, jobs[0] - 1)
                figures["recovered_s"] = time.monotonic() - begun
                figures["lost"] += KILLED - await count(bench, DONE, jobs[0] - 1)
    return figures


async def rate(
    bench: Bench, client: AsyncClient, shown: JobView, options: argparse.Namespace
) -> dict[str, float]:
    """Return the figures of all trials that are submitted within the minutes."""
    number, pause = round(options.minutes / 60 * options.rate), 3600 / options.rate
    before, size = bench.cpu_seconds(), await count(bench, SIZE)
    begun = time.monotonic()
    early = await submitted(client, shown, "early", number // 3, pause)
    grown_from = rss_mb(bench.scheduler_pid)
    await submitted(client, shown, "late", number - number // 3, pause)
    growth = rss_mb(bench.scheduler_pid) - grown_from
    first = early[0] - 1
    await ended(bench, first)
    seconds = time.monotonic() - begun
    return {
        "trials": number,
        "workers": options.workers,
        "core_ms_per_trial": 1000 * (bench.cpu_seconds() - before) / number,
        "wait_p99_s": await count(bench, WAITS, first),
        "trials_per_hour": number / seconds * 3600,
        "lost": number - await count(bench, DONE, first),
        "rss_mb": rss_mb(bench.scheduler_pid),
        "rss_growth_mb": growth,
        "database_kb_per_trial": (await count(bench, SIZE) - size) / number / 1000,
    }


async def present(client: AsyncClient, workers: int) -> None:
    """Wait until all workers are known."""
    while len(await client.workers()) < workers:
        await asyncio.sleep(1)


async def submitted(
    client: AsyncClient, shown: JobView, name: str, number: int, pause: float
) -> Sequence[int]:
    """Submit different patches of the bug, one every `pause` seconds; return their jobs."""
    assert BUG.fix is not None
    first, *others = BUG.fix.edits
    begun, jobs = time.monotonic(), []
    for at in range(number):
        await asyncio.sleep(max(0.0, begun + at * pause - time.monotonic()))
        text = f"/* {name} {at} */{first.replacement}"
        edits = [first.model_copy(update={"replacement": text}), *others]
        request = BUG.trial(Patch(name=f"{name}-{at}", edits=edits), shown.id, OPTIONS)
        jobs.append((await client.submit(request)).id)
    return jobs


async def ended(bench: Bench, after: int) -> None:
    """Wait until all jobs after this one have ended."""
    while await count(bench, LEFT, after):
        await asyncio.sleep(0.5)


async def count(bench: Bench, query: str, *values: int) -> float:
    """Return the one number that a query gives."""
    connection = await connected(bench.database)
    try:
        return float(await connection.fetchval(query, *values) or 0)
    finally:
        await connection.close()


def main() -> None:
    """Measure, and print the figures."""
    words = parser(__doc__)
    words.add_argument("--minutes", type=float, default=30, help="of submitting trials")
    words.add_argument("--rate", type=float, default=20_000, help="trials an hour")
    words.add_argument("--workers", type=int, default=1000)
    words.add_argument("--processes", type=int, default=4, help="that the workers share")
    words.add_argument("--farm", nargs=3, help=argparse.SUPPRESS)
    options = words.parse_args()
    # Each worker has three connections to servers that inherit this limit.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.farm:
        server, folder, workers = options.farm
        run(farm(server, os.environ["KGYM_BUS"], Path(folder), int(workers)))
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgreSQL(Path(folder) / "postgresql") as database,
        RabbitMQ(Path(folder) / "rabbitmq") as broker,
    ):
        show(asyncio.run(measured(Bench(Path(folder), database, broker), options)), options, MOST)


if __name__ == "__main__":
    main()
