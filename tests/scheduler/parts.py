"""What the scheduler's tests are made of: requests, results, a clock, workers, a bad connection."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from kgym.api.capabilities import Capabilities
from kgym.api.jobs import JobEvent, JobRequest
from kgym.api.steps import (
    BuildSpec,
    Failure,
    GitSource,
    KernelConfig,
    Reproducer,
    ReproduceSpec,
    StepKind,
    StepRef,
    StepResult,
    StepSpec,
    Verdict,
)
from kgym.api.worker_calls import Assignment, AttemptEnding, Claim, Claimed, WorkerInfo
from kgym.transport.artifact_storage import LocalStorage, Storage
from kgym.transport.bus import InProcessBus
from kgym.web.server import serve
from kgym.worker.context import Handler
from kgym.worker.loop import Worker
from kgym_scheduler.api.app import create_app
from kgym_scheduler.api.caller_limits import CallerLimits
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.queue.known_workers import Host
from kgym_scheduler.scheduler import Scheduler
from tests.conftest import NEARBY
from tests.results import built, ran

BUILD = BuildSpec(
    source=GitSource(url="https://example.org/linux.git", commit="v6.1"),
    config=KernelConfig(base="tinyconfig"),
)
BUILT = built(tree_cached=False, seconds={"make": 1.5})
REPRODUCED = ran(Verdict.NO_CRASH, reason="all instances ran to the end")
WELL = AttemptEnding(result=BUILT)


def reproduce(
    step: int | str = 0, job: int | None = None, baseline: StepRef | None = None
) -> StepSpec:
    """A reproduce step on the build at this place."""
    return ReproduceSpec(
        build=StepRef(job=job, step=step),
        reproducer=Reproducer(text="int main(void) { return 0; }"),
        baseline=baseline,
    )


def job(*steps: StepSpec, tags: tuple[str, ...] = ()) -> JobRequest:
    """A job of these steps, or of one build."""
    return JobRequest(steps=list(steps or (BUILD,)), tags=list(tags))


def badly(cause: str) -> AttemptEnding:
    """An attempt that failed."""
    failure = {"cause": cause, "reason": "broke", "message": "it broke", "details": {"n": 1}}
    return AttemptEnding(failure=Failure.model_validate(failure))


def claim_of(
    name: str = "worker",
    want: int = 1,
    kinds: Sequence[StepKind] = (StepKind.BUILD, StepKind.REPRODUCE),
    capabilities: Capabilities | None = None,
) -> Claim:
    """A worker's wish for steps."""
    info = WorkerInfo(id=name, kinds=list(kinds), slots=max(1, want), capabilities=capabilities)
    return Claim(id=uuid.uuid4(), worker=info, want=want)


async def take(of: JobStore | Scheduler, name: str = "worker") -> Assignment:
    """Claim the only step there is for one slot."""
    claimed = await of.claim(claim_of(name, kinds=list(StepKind)))
    answer = claimed if isinstance(claimed, Claimed) else claimed[0]
    [assignment] = answer.assignments
    return assignment


async def end(of: JobStore | Scheduler, *endings: AttemptEnding | StepResult) -> None:
    """Claim a step and end it, for each of these endings and results, or once well."""
    for end in endings or (WELL,):
        ending = end if isinstance(end, AttemptEnding) else AttemptEnding(result=end)
        assert await of.finish((await take(of)).lease, ending)


async def events_of(scheduler: Scheduler, job_id: int, last: int = 0) -> AsyncGenerator[JobEvent]:
    """Follow a job's events one by one."""
    async for batch in scheduler.follow(job_id, last):
        for streamed in batch:
            yield streamed.event


@contextlib.asynccontextmanager
async def served(
    scheduler: Scheduler, limits: CallerLimits | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the scheduler, without a token, and patient: the machine may be busy."""
    async with (
        serve(create_app(scheduler, limits)) as address,
        httpx.AsyncClient(base_url=address.url, **NEARBY) as client,
    ):
        yield client


class Clock:
    """The time, which can be put forward, and stopped."""

    def __init__(self) -> None:
        self._ahead = timedelta()
        self._stopped: datetime | None = None

    def __call__(self) -> datetime:
        return (self._stopped or datetime.now(UTC)) + self._ahead

    def stop(self) -> None:
        """Let time pass by `advance` only: a busy machine may take seconds for a transaction."""
        self._stopped = datetime.now(UTC)

    def advance(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)


class Platform:
    """Scheduler and workers in this process, on the database and the folder of one test."""

    def __init__(self, url: str, folder: Path, clock: Clock) -> None:
        self.clock = clock
        self.url = url
        self.bus = InProcessBus()
        self.storage: Storage = LocalStorage(folder / "storage")
        self._folder = folder / "work"

    def store(self, lease_seconds: float = 60, host: Host | None = None) -> JobStore:
        return JobStore(self.url, lease_seconds, self.clock, host=host)

    def scheduler(self, *, alone: bool = False) -> Scheduler:
        return Scheduler(self.store(), self.bus, self.storage, alone=alone)

    @contextlib.asynccontextmanager
    async def worker(
        self, scheduler: Scheduler, handlers: Mapping[StepKind, Handler], slots: int = 1
    ) -> AsyncIterator[None]:
        worker = Worker(scheduler, self.bus, self.storage, handlers, self._folder, slots)
        task = asyncio.create_task(worker.serve())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Line:
    """A TCP connection to a server that breaks down: `cuts` times, after so many bytes."""

    def __init__(self, url: str, *, cuts: int, after: int) -> None:
        self._port = int(url.rpartition(":")[2])
        self._cuts = cuts
        self._after = after
        self.connections = 0

    @contextlib.asynccontextmanager
    async def laid(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        up = asyncio.create_task(self._pump(reader, back))
        down = asyncio.create_task(self._pump(there, writer, cut=True))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            for end in (writer, back):
                end.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, cut: bool = False
    ) -> None:
        passed = 0
        while data := await source.read(1 << 16):
            passed += len(data)
            sink.write(data)
            await sink.drain()
            if cut and self._cuts and passed > self._after:
                self._cuts -= 1
                return
