"""What the distributed platform costs: no-op steps through PostgreSQL and RabbitMQ, all here.

latency_p50_ms, latency_p99_ms   from the submission to the handler's start, at 50 jobs/s
single_p50_ms, single_p99_ms     the same at 20 jobs/s with four workers of one slot each
cpu_ms_per_job                   processor time of all processes together meanwhile
idle_cpu                         hundredths of a core that all processes take when nothing runs
submit_one_client_per_s          submissions of one client, one after the other, on one connection
submit_pipelined_per_s           submissions of one process with 64 under way
jobs_per_s                       submitted, run and finished, as fast as they go
followers_p99_ms                 latency_p99_ms while 300 clients follow one job that logs
rss_growth_mb                    of the scheduler meanwhile, after the first tenth
list_p95_ms                      a page of a list, filtered in every way, of 500,000 jobs more
bare_commit_ms, bare_publish_ms  one INSERT with COMMIT; one confirmed publish until consumed
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Self, cast

import asyncpg  # type: ignore[import-untyped]
import httpx

from kgym.api.jobs import JobFilter, JobRequest
from kgym.api.states import State
from kgym.api.steps import BuildResult, GitSource, StepKind
from kgym.client import AsyncClient
from kgym.transport.artifact_storage import LocalStorage
from kgym.transport.rabbitmq import RabbitBus
from kgym.worker.context import StepContext
from kgym.worker.http_calls import HttpWorkerCalls
from kgym.worker.loop import Worker
from kgym_cli.platforms.process import run, settle
from kgym_cli.platforms.servers import PostgreSQL, RabbitMQ, free_port
from kgym_scheduler.scheduler import QUIET_SECONDS
from tests.figures import parser, show
from tests.results import built
from tests.scheduler.parts import BUILD

DONE = built()
# A step that logs until it is aborted.
TALK = BUILD.model_copy(update={"source": GitSource(url="https://example.org/x", commit="talk")})
FOLLOWERS = 300
LISTED = 500_000
SINGLE_RATE = 20.0
SINGLE_WORKERS = 4
IDLE_SECONDS = 15.0
# By one client, one after the other.
SUBMITTED = 3_000
# Submissions under way at the same time.
SUBMITTERS = 64
SLOTS = 64


SEED = """
INSERT INTO jobs (state, priority, submitter, created_at, updated_at, tags)
    SELECT (ARRAY['succeeded','succeeded','failed','aborted'])[1 + i % 4], 0, 'seed',
        now() - i * interval '1 second', now(), '["t:' || i % 50 || '"]'
    FROM generate_series(1, $1::int) AS i;
"""
SEED_STEPS = """
INSERT INTO steps (job_id, number, kind, lane, rank, turn, state, attempt, tries, artifacts, spec)
    SELECT jobs.id, n, kind, (SELECT min(id) FROM lanes), 0, 0, jobs.state, 1, 1, '[]', $1
    FROM jobs, (VALUES (0, 'build'), (1, 'reproduce')) AS s(n, kind) WHERE submitter = 'seed'
"""
SEED_FACETS = """
INSERT INTO facets (job_id, facet, state, created_at)
    SELECT id, facet, state, created_at FROM jobs,
        LATERAL (VALUES ('kind:build'), ('kind:reproduce'), ('tag:t:' || id % 50)) AS f(facet)
    WHERE submitter = 'seed'
"""


# --- the worker, a process of its own -----------------------------------------------------


async def work(server: str, bus: str, folder: Path, slots: int) -> None:
    """Do nothing, and note when."""
    with (folder / f"started-{os.getpid()}").open("w") as notes:

        async def nothing(run: StepContext) -> BuildResult:
            while run.assignment.spec == TALK:
                run.log("some words that a compiler could have said about a file of the kernel")
                await asyncio.sleep(0.02)
            notes.write(f"{run.assignment.job_id} {time.monotonic_ns()}\n")
            notes.flush()
            return DONE

        async with RabbitBus(bus) as opened, HttpWorkerCalls(server) as dispatch:
            storage, place = LocalStorage(folder / "artifacts"), folder / f"work-{os.getpid()}"
            does = {StepKind.BUILD: nothing}
            settle()
            await Worker(dispatch, opened, storage, does, place, slots).serve()


# --- the user -----------------------------------------------------------------------------


class Submitter:
    """Submits jobs over one connection, and costs little: it shares the cores with the platform."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._body = JobRequest(steps=[BUILD]).model_dump_json().encode()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def submit(self) -> int:
        """Submit a job, when the scheduler lets it; return its id."""
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: {uuid.uuid4().hex}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(self._body)}\r\n\r\n"
        )
        while True:
            self._writer.write(head.encode() + self._body)
            answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
            fields = dict(line.split(": ", 1) for line in answer.splitlines()[1:-1])
            await self._reader.readexactly(int(fields["content-length"]))
            match answer.split(" ", 2)[1]:
                case "201":
                    return int(fields["location"].rpartition("/")[2])
                case "429":
                    await asyncio.sleep(int(fields["retry-after"]))
                case _:
                    raise SystemExit(answer)


# --- the measurements ---------------------------------------------------------------------


class Bench:
    """The platform under measurement."""

    def __init__(self, folder: Path, database: PostgreSQL, broker: RabbitMQ) -> None:
        self.folder = folder
        self.database = database
        self.broker = broker
        self.port = free_port()
        self.server = f"http://127.0.0.1:{self.port}"
        self.scheduler_pid = 0
        # The processes of the platform that are nobody's children but ours.
        self.pids: list[int] = []
        self.submitted = 0
        # Jobs that run beside those that are measured.
        self.endless = 0
        # The number of the last job that was there before.
        self.earlier = 0

    @contextmanager
    def running(self, workers: int, slots: int = SLOTS) -> Iterator[None]:
        """Scheduler and workers, each a process of its own."""
        with ExitStack() as stack:
            words = ["-m", "kgym_cli", "scheduler", "--port", str(self.port), "--streams", "1000"]
            env = {"KGYM_DATABASE": self.database.url, "KGYM_BUS": self.broker.url}
            env |= {"KGYM_STORAGE": str(self.folder / "artifacts")}
            log = stack.enter_context((self.folder / "log").open("wb"))
            self.scheduler_pid = stack.enter_context(process(words, env, log)).pid
            until(lambda: httpx.get(f"{self.server}/healthz", trust_env=False).is_success)
            self.pids = [self.scheduler_pid, *(s.pid or 0 for s in (self.database, self.broker))]
            for _ in range(workers):
                own = [__file__, "--worker", self.server, str(self.folder), str(slots)]
                worker = stack.enter_context(process(own, {"KGYM_BUS": self.broker.url}, log))
                self.pids.append(worker.pid)
            yield

    def cpu_seconds(self) -> float:
        """Return the processor time that the platform has taken, all its processes together."""
        return sum(cpu_seconds(pid) for pid in self.pids)

    async def idle_cpu(self) -> float:
        """Return the part of a core, in hundredths, that all processes take when nothing runs."""
        # Something has just run: the scheduler's sweeps become rare after QUIET_SECONDS.
        await asyncio.sleep(QUIET_SECONDS + 1)
        begin = self.cpu_seconds()
        await asyncio.sleep(IDLE_SECONDS)
        return 100 * (self.cpu_seconds() - begin) / IDLE_SECONDS

    async def cpu_per_job(self, seconds: float, rate: float) -> tuple[list[float], float]:
        """Submit at this rate; return the latencies, and the processor time in all."""
        begin = self.cpu_seconds()
        latencies = await self.latency(seconds, rate)
        return latencies, self.cpu_seconds() - begin

    async def submissions(self, jobs: int, clients: int) -> float:
        """Return the submissions a second of a process with so many under way; nobody works."""
        left = iter(range(jobs))

        async def submit() -> None:
            async with Submitter(self.port) as submitter:
                for _ in left:
                    await submitter.submit()

        start = time.monotonic()
        await asyncio.gather(*(submit() for _ in range(clients)))
        return jobs / (time.monotonic() - start)

    def started(self) -> dict[int, int]:
        """Return when each job was started, in nanoseconds."""
        lines = [
            line.split()
            for path in self.folder.glob("started-*")
            for line in path.read_text().splitlines()
        ]
        return {int(job): int(at) for job, at in lines}

    async def begin(self) -> None:
        """Leave out of all that is counted the jobs that are there already."""
        connection = await connected(self.database)
        self.earlier = await connection.fetchval("SELECT coalesce(max(id), 0) FROM jobs")
        self.endless = await connection.fetchval(
            "SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')"
        )
        await connection.close()

    async def finished(self) -> None:
        """Wait until all jobs have finished, each of them well."""
        connection = await connected(self.database)
        while self.endless < await connection.fetchval(
            "SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')"
        ):
            await asyncio.sleep(0.02)
        done = await connection.fetchval(
            "SELECT count(*) FROM jobs"
            " WHERE state = 'succeeded' AND submitter <> 'seed' AND id > $1",
            self.earlier,
        )
        if done != self.submitted:
            raise SystemExit(f"{done} of {self.submitted} jobs succeeded")
        await connection.close()

    async def latency(self, seconds: float, rate: float) -> list[float]:
        """Submit at this rate; return the milliseconds from submission to start, sorted."""
        begun: dict[int, int] = {}
        count = int(seconds * rate)
        times = iter(range(count))
        start = time.monotonic()

        async def submit() -> None:
            async with Submitter(self.port) as submitter:
                for number in times:
                    await asyncio.sleep(max(0, start + number / rate - time.monotonic()))
                    at = time.monotonic_ns()
                    begun[await submitter.submit()] = at

        await asyncio.gather(*(submit() for _ in range(SUBMITTERS)))
        self.submitted += count
        await self.finished()
        started = self.started()
        return sorted((started[job] - at) / 1e6 for job, at in begun.items())

    async def followed(self, client: AsyncClient, seconds: float, rate: float) -> list[float]:
        """Return what `latency` does while FOLLOWERS follow one job that logs."""
        talk = await client.submit(JobRequest(steps=[TALK]))
        heard = 0

        class Follower(asyncio.Protocol):  # one that costs little
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                head = f"GET /v1/jobs/{talk.id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
                cast(asyncio.WriteTransport, transport).write(head.encode())

            def data_received(self, data: bytes) -> None:
                nonlocal heard
                heard += len(data)

        loop = asyncio.get_running_loop()
        followers = [
            (await loop.create_connection(Follower, "127.0.0.1", self.port))[0]
            for _ in range(FOLLOWERS)
        ]
        self.endless = 1
        taken = await self.latency(seconds, rate)
        for transport in followers:
            transport.close()
        await client.abort(talk.id)
        self.endless = 0
        await self.finished()
        if heard < FOLLOWERS * 1000 * seconds:
            raise SystemExit(f"{FOLLOWERS} followers heard {heard} bytes")
        return taken

    async def throughput(self, jobs: int) -> tuple[float, float]:
        """Return jobs a second, and by how many MB the scheduler grew after the first tenth."""
        left, grown_from = jobs, 0.0

        async def submit() -> None:
            nonlocal left, grown_from
            async with Submitter(self.port) as submitter:
                while left > 0:
                    left -= 1
                    if left == jobs * 9 // 10:
                        grown_from = rss_mb(self.scheduler_pid)
                    await submitter.submit()

        start = time.monotonic()
        await asyncio.gather(*(submit() for _ in range(SUBMITTERS)))
        self.submitted += jobs
        await self.finished()
        return jobs / (time.monotonic() - start), rss_mb(self.scheduler_pid) - grown_from

    async def lists(self, client: AsyncClient, jobs: int) -> list[float]:
        """Return the milliseconds of listing, filtered in every way, sorted."""
        connection = await connected(self.database)
        await connection.execute(SEED.replace("$1::int", str(jobs)))
        await connection.execute(SEED_STEPS, BUILD.model_dump_json(), timeout=600)
        await connection.execute(SEED_FACETS, timeout=600)
        await connection.execute("VACUUM ANALYZE", timeout=600)
        middle = await connection.fetchval(
            "SELECT created_at FROM jobs ORDER BY created_at OFFSET $1 LIMIT 1", jobs // 2
        )
        await connection.close()
        wanted = [
            JobFilter(**state, **kind, **tag, **before)
            for state in (
                {},
                *({"state": wanted_state} for wanted_state in (State.FAILED, State.RUNNING)),
            )
            for kind in ({}, {"kind": StepKind.REPRODUCE})
            for tag in ({}, {"tag": "t:7"}, {"tag": "absent"})
            for before in ({}, {"created_before": middle})
        ]
        taken = []
        for query in wanted * 6:
            start = time.monotonic_ns()
            page = await client.page(query)
            if page.next:
                await client.page(query.model_copy(update={"cursor": page.next}))
                start += (time.monotonic_ns() - start) // 2
            taken.append((time.monotonic_ns() - start) / 1e6)
        return sorted(taken)

    async def bare_commit(self) -> float:
        """Return the milliseconds of one INSERT and COMMIT."""
        connection = await connected(self.database)
        await connection.execute("CREATE TABLE bare (id bigserial PRIMARY KEY, text text)")
        taken = []
        for _ in range(200):
            start = time.monotonic_ns()
            async with connection.transaction():
                await connection.execute("INSERT INTO bare (text) VALUES ($1)", "x" * 500)
            taken.append((time.monotonic_ns() - start) / 1e6)
        await connection.close()
        return statistics.median(taken)

    async def bare_publish(self) -> float:
        """Return the milliseconds from a confirmed publish until it is consumed."""
        taken = []
        async with RabbitBus(self.broker.url, "bare") as bus:
            await bus.publish(StepKind.BUILD)
            async with bus.consume([StepKind.BUILD]) as notifications:
                await (await anext(notifications)).ack()
                for _ in range(200):
                    start = time.monotonic_ns()
                    await bus.publish(StepKind.BUILD)
                    await (await anext(notifications)).ack()
                    taken.append((time.monotonic_ns() - start) / 1e6)
        return statistics.median(taken)


@contextmanager
def process(
    words: list[str], env: dict[str, str], log: IO[bytes]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program of this environment."""
    path = os.pathsep.join(filter(None, sys.path))
    started = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, **env, "PYTHONPATH": path},
        stdout=log,
        stderr=log,
    )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def until(ready: Callable[[], bool], seconds: float = 60) -> None:
    """Return once it is ready; raise what it last raised if that takes so long."""
    limit = time.monotonic() + seconds
    while True:
        try:
            if ready():
                return
        except httpx.HTTPError:
            if time.monotonic() > limit:
                raise
        time.sleep(0.1)


async def connected(database: PostgreSQL) -> asyncpg.Connection:
    """Connect to the database."""
    return await asyncpg.connect(database.url.replace("+asyncpg", ""))


def rss_mb(pid: int) -> float:
    """Return the megabytes of memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and all that it has started."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # with children that ended
    return own + sum(cpu_seconds(int(child)) for child in children)


def _part(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))]


async def measure(bench: Bench, options: argparse.Namespace) -> dict[str, float]:
    """Return all figures."""
    figures = {}
    with bench.running(options.workers):
        await bench.latency(2, options.rate)  # to warm up
        latencies = await bench.latency(options.seconds, options.rate)
        figures["latency_p50_ms"] = _part(latencies, 0.5)
        figures["latency_p99_ms"] = _part(latencies, 0.99)
        async with AsyncClient(bench.server) as client:
            followed = await bench.followed(client, options.seconds, options.rate)
        figures["followers_p99_ms"] = _part(followed, 0.99)
        rate, growth = await bench.throughput(options.jobs)
        figures["jobs_per_s"], figures["rss_growth_mb"] = rate, growth
        async with AsyncClient(bench.server) as client:
            figures["list_p95_ms"] = _part(await bench.lists(client, options.listed), 0.95)
    with bench.running(SINGLE_WORKERS, 1):
        await bench.latency(2, SINGLE_RATE)  # to warm up
        figures["idle_cpu"] = await bench.idle_cpu()
        latencies, taken = await bench.cpu_per_job(options.seconds, SINGLE_RATE)
        figures["cpu_ms_per_job"] = 1000 * taken / len(latencies)
        figures["single_p50_ms"] = _part(latencies, 0.5)
        figures["single_p99_ms"] = _part(latencies, 0.99)
    with bench.running(0):
        for name, clients in (("one_client", 1), ("pipelined", SUBMITTERS)):
            figures[f"submit_{name}_per_s"] = await bench.submissions(SUBMITTED, clients)
    figures["bare_commit_ms"] = await bench.bare_commit()
    figures["bare_publish_ms"] = await bench.bare_publish()
    return figures


def main() -> None:
    """Measure, and print the figures."""
    words = parser(__doc__)
    words.add_argument("--jobs", type=int, default=100_000, help="as fast as they go")
    words.add_argument("--rate", type=float, default=50, help="jobs/s where latency is measured")
    words.add_argument("--seconds", type=float, default=20, help="of measuring latency")
    words.add_argument("--workers", type=int, default=1, help="worker processes")
    words.add_argument("--listed", type=int, default=LISTED, help="jobs in the list")
    words.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.worker:
        server, folder, slots = options.worker
        run(work(server, os.environ["KGYM_BUS"], Path(folder), int(slots)))
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgreSQL(Path(folder) / "postgresql") as database,
        RabbitMQ(Path(folder) / "rabbitmq") as broker,
    ):
        show(asyncio.run(measure(Bench(Path(folder), database, broker), options)), options)


if __name__ == "__main__":
    main()
