"""The worker's loop: hear a bell, claim steps, run their handlers, report.

The scheduler is reached through `Dispatch`; every report carries the lease of
the attempt, and a refused one ends the attempt (design, invariants 1 to 3).
"""

import asyncio
import contextlib
import errno
import os
import socket
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import Field

from kgym import logs, sandbox
from kgym.bus import Bus, Delivery
from kgym.capabilities import Capabilities
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.jobs import Artifact, Progress
from kgym.states import retry_delay
from kgym.steps import Failure, StepKind, StepResult, StepSpec, Strict
from kgym.storage import Storage

LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 1.5
"""How often a quiet attempt says that it lives, and asks whether it still may."""
REPORT_SECONDS = 0.25
BEAT_SECONDS = 5.0
"""How often a worker that takes nothing says that it lives."""
IDLE_SECONDS = 1.0
"""How often a worker with a free slot asks for steps without having heard a bell."""
DEAF_SECONDS = 0.25
"""How long a worker may be without a free slot before it leaves the bells to others."""
DELIVER_SECONDS = 5.0
"""The longest pause between two tries to deliver a result."""
RELEASE_SECONDS = 5.0
"""How long a worker that stops tries to give a step back; the lease's end does it too."""

_log = structlog.get_logger()


class Input(Strict):
    """A finished step that this one builds on."""

    result: StepResult
    artifacts: list[Artifact]

    def artifact(self, name: str) -> Artifact:
        """Return the artifact of this name; raise InfrastructureError if the step left none."""
        for artifact in self.artifacts:
            if artifact.name == name:
                return artifact
        raise InfrastructureError("artifact_missing", f"the step before left no `{name}`")


class Assignment(Strict):
    """A claimed step: what to do, under which lease."""

    step_id: int
    job_id: int
    number: int
    attempt: int
    lease: uuid.UUID
    spec: StepSpec
    inputs: dict[str, Input]


class Ending(Strict):
    """How an attempt ended: with a result, or with a failure."""

    result: StepResult | None = None
    failure: Failure | None = None
    artifacts: list[Artifact] = []


class WorkerInfo(Strict):
    """What a worker says of itself."""

    id: str = Field(min_length=1, max_length=200, pattern=r"^[\w.:+-]+$")
    kinds: list[StepKind] = Field(min_length=1)
    slots: int = Field(ge=1, le=1000)
    capabilities: Capabilities | None = Field(None, description="null: tries everything")


class Claim(Strict):
    """A worker's wish for steps; `want` 0 only says that it lives."""

    id: uuid.UUID = Field(description="the same when the claim is repeated, as its answer was lost")
    worker: WorkerInfo
    want: int = Field(ge=0, le=1000)
    again: bool = False
    woken: bool = Field(False, description="whether a bell led to it")


class Claimed(Strict):
    """What a claim got."""

    assignments: list[Assignment] = []
    more: list[StepKind] = Field([], description="kinds of which more waits that it could do")
    draining: bool = Field(False, description="whether the worker shall take no more")


class Dispatch(Protocol):
    """The scheduler as a worker sees it. Each call is idempotent.

    Raises InfrastructureError where the scheduler cannot be reached: repeat the call.
    """

    async def claim(self, claim: Claim) -> Claimed:
        """Lease at most `want` queued steps to the worker: the fairest ones that it can do."""
        ...

    async def report(self, lease: uuid.UUID, log: str, progress: Progress | None) -> bool:
        """Extend the lease and pass on what is new; False if the lease is stale."""
        ...

    async def finish(self, lease: uuid.UUID, ending: Ending) -> bool:
        """End the attempt; False if the lease is stale."""
        ...

    async def release(self, lease: uuid.UUID) -> bool:
        """Give the step back unfinished; the attempt does not count."""
        ...

    async def hold(self, lease: uuid.UUID, name: str) -> bool:
        """Let the attempt hold a name until it ends; False if another's holds it, or it is stale.

        Who holds it already holds it still.
        """
        ...

    async def leave(self, worker: str) -> None:
        """Say that the worker has ended."""
        ...


@dataclass(slots=True)
class StepRun:
    """One attempt as its handler sees it."""

    assignment: Assignment
    folder: Path
    storage: Storage
    dispatch: Dispatch | None = None
    artifacts: list[Artifact] = field(default_factory=list)
    _unsent: list[str] = field(default_factory=list)
    _progress: Progress | None = None

    def log(self, text: str) -> None:
        """Add a line to the step's log."""
        self._unsent.append(text.rstrip("\n") + "\n")
        with (self.folder / "step.log").open("a") as file:
            file.write(self._unsent[-1])

    def progress(
        self, stage: str, done: float = 0, total: float | None = None, unit: str = ""
    ) -> None:
        """Say how far the step is; the latest word counts."""
        self._progress = Progress(stage=stage, done=done, total=total, unit=unit)

    async def keep(self, path: Path, name: str | None = None, *, move: bool = False) -> None:
        """Store the file as an artifact of the step; with `move`, it may be gone afterwards."""
        key = self.key(name or path.name)
        self.artifacts.append(await self.storage.put(key, path, move=move))

    def key(self, name: str) -> str:
        """Return where an artifact of the step is stored."""
        return f"steps/{self.assignment.step_id}/{self.assignment.lease.hex}/{name}"

    async def hold(self, name: str) -> bool:
        """Hold a name until the attempt ends; False while another attempt holds it."""
        return self.dispatch is None or await self.dispatch.hold(self.assignment.lease, name)

    def take_news(self) -> tuple[str, Progress | None]:
        """Return log and progress since the last call."""
        news = "".join(self._unsent), self._progress
        self._unsent.clear()
        self._progress = None
        return news

    def return_news(self, log: str, progress: Progress | None) -> None:
        """Take back news that could not be delivered; newer progress stands."""
        self._unsent.insert(0, log)
        self._progress = self._progress or progress


Handler = Callable[[StepRun], Awaitable[StepResult]]


class Worker:
    """Runs steps of some kinds, at most `slots` at a time, with work files under `folder`."""

    def __init__(
        self,
        dispatch: Dispatch,
        bus: Bus,
        storage: Storage,
        handlers: Mapping[StepKind, Handler],
        folder: Path,
        slots: int = 1,
        capabilities: Capabilities | None = None,
    ) -> None:
        name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self.info = WorkerInfo(
            id=name, kinds=list(handlers), slots=slots, capabilities=capabilities
        )
        self._dispatch = dispatch
        self._bus = bus
        self._storage = storage
        self._handlers = handlers
        self._folder = folder
        self._running: dict[uuid.UUID, asyncio.Task[None]] = {}
        self._draining = False
        self._news = asyncio.Event()
        """A bell, or a slot that has become free."""
        self._bells: list[Delivery] = []
        self._limited = False
        """Whether the last claim got all that there was room for."""

    async def serve(self) -> None:
        """Work until cancelled or drained; give back what is running and leave nothing behind."""
        await asyncio.to_thread(sandbox.remove, self._folder)  # of a worker that was killed
        self._folder.mkdir(parents=True)
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(self._obey_signals()),
                    group.create_task(self._hear_bells()),
                ]
                await self._take_steps()
                for helper in helpers:
                    helper.cancel()
        finally:
            await self._stop()

    def drain(self) -> None:
        """Take no more; `serve` returns when what runs has finished."""
        self._draining = True
        self._news.set()

    @property
    def _free(self) -> int:
        return 0 if self._draining else self.info.slots - len(self._running)

    async def _take_steps(self) -> None:
        claim: Claim | None = None
        while not self._draining or self._running:
            self._news.clear()
            bells, self._bells = self._bells, []
            claim = claim or Claim(
                id=uuid.uuid4(), worker=self.info, want=self._free, woken=bool(bells)
            )
            try:
                claimed = await self._dispatch.claim(claim)
            except InfrastructureError as error:
                # Claimed or not: the claim is repeated, and the bell rung again.
                _log.warning("no steps taken, trying again", error=str(error))
                self._bells = bells + self._bells
                claim = claim.model_copy(update={"again": True})
                await asyncio.sleep(IDLE_SECONDS)
                continue
            self._begin(claim.want, claimed)
            claim = None
            for bell in bells:
                with contextlib.suppress(InfrastructureError):  # then it rings once more
                    await bell.ack()
            if not (claimed.assignments and claimed.more and self._free):
                await self._wait()

    def _begin(self, want: int, claimed: Claimed) -> None:
        self._draining |= claimed.draining
        self._limited = len(claimed.assignments) == want
        for one in claimed.assignments:
            with logs.attempt(job=one.job_id, step=one.number, attempt=one.attempt):
                task = asyncio.create_task(self._attempt(one))
            self._running[one.lease] = task
            task.add_done_callback(partial(self._ended, one.lease))

    def _ended(self, lease: uuid.UUID, task: "asyncio.Task[None]") -> None:
        del self._running[lease]
        if not task.cancelled() and (error := task.exception()):
            _log.error("attempt lost", lease=str(lease), error=repr(error))
        if self._limited or self._draining:
            self._news.set()

    async def _wait(self) -> None:
        """Wait for news, but no longer than the scheduler may wait for a word of this worker."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS if self._free else BEAT_SECONDS):
                await self._news.wait()

    async def _hear_bells(self) -> None:
        """Listen while there is a free slot."""
        while True:
            if not self._free:
                await asyncio.sleep(DEAF_SECONDS)
                continue
            try:
                async with self._bus.consume(self.info.kinds) as deliveries:
                    hearing = asyncio.create_task(self._collect(deliveries))
                    try:
                        await self._until_full(hearing)
                    finally:
                        hearing.cancel()
                        await asyncio.gather(hearing, return_exceptions=True)
                        self._bells.clear()  # they are delivered again, to others
            except InfrastructureError as error:
                _log.warning("no bells are heard", error=str(error))
                await asyncio.sleep(IDLE_SECONDS)

    async def _until_full(self, hearing: "asyncio.Task[None]") -> None:
        full = 0
        while full < 2 and not hearing.done():
            await asyncio.sleep(DEAF_SECONDS)
            full = 0 if self._free else full + 1
        if hearing.done():
            hearing.result()

    async def _collect(self, deliveries: AsyncIterator[Delivery]) -> None:
        async for delivery in deliveries:
            self._bells.append(delivery)
            if self._free:
                self._news.set()

    async def _obey_signals(self) -> None:
        while True:
            try:
                async with self._bus.signals() as signals:
                    async for lease in signals:
                        if task := self._running.get(lease):
                            task.cancel()
            except InfrastructureError as error:  # heartbeats learn of it too
                _log.warning("no signals are heard", error=str(error))
            await asyncio.sleep(IDLE_SECONDS)

    async def _stop(self) -> None:
        """Give everything back."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        with contextlib.suppress(InfrastructureError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._dispatch.leave(self.info.id)
        await asyncio.to_thread(sandbox.remove, self._folder)

    async def _attempt(self, assignment: Assignment) -> None:
        folder = self._folder / assignment.lease.hex
        run = StepRun(assignment, folder, self._storage, self._dispatch)
        run.folder.mkdir()
        _log.info("attempt begins", kind=assignment.spec.kind)
        work = asyncio.create_task(self._work(run))
        beat = asyncio.create_task(self._beat(run))
        try:
            await asyncio.wait({work, beat}, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and not work.cancelled():
                # First the room, then the word: it may have been this folder that filled the disk.
                await _remove(run.folder)
                await self._last_word(run, work.result())
        except asyncio.CancelledError:
            # Aborted, or this worker stops: the scheduler listens only if the lease still holds.
            await _stop(work, beat)
            with contextlib.suppress(KgymError, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    if work.cancelled():
                        await self._dispatch.release(assignment.lease)
                    else:
                        await self._dispatch.finish(assignment.lease, work.result())
            raise
        finally:
            await _stop(work, beat)
            await _remove(run.folder)

    async def _work(self, run: StepRun) -> Ending:
        spec = run.assignment.spec
        result, failure = None, None
        try:
            result = await self._handlers[spec.kind](run)
        except Exception as error:  # noqa: BLE001 - whatever it is, the step has to end with it
            failure = _failure(error)
            if failure.reason == "internal_error":
                run.log(traceback.format_exc())
            run.log(f"failed: {failure.message}")
        if (run.folder / "step.log").exists():
            with contextlib.suppress(InfrastructureError):  # a full disk must not hide the ending
                await run.keep(run.folder / "step.log")
        return Ending(result=result, failure=failure, artifacts=run.artifacts)

    async def _beat(self, run: StepRun) -> None:
        """Report until the lease is stale; a quiet step still says that it lives."""
        quiet = 0.0
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            quiet += REPORT_SECONDS
            log, progress = run.take_news()
            if log or progress or quiet >= HEARTBEAT_SECONDS:
                quiet = 0.0
                try:
                    if not await self._dispatch.report(run.assignment.lease, log, progress):
                        return
                except InfrastructureError as error:
                    _log.warning("report not delivered, trying again", error=str(error))
                    run.return_news(log, progress)
                except UserError as error:  # this report will never be taken, the next may
                    _log.warning("report refused", error=str(error))

    async def _last_word(self, run: StepRun, ending: Ending) -> None:
        """Deliver the result, however long the scheduler is away."""
        attempt = 0
        while True:
            log, progress = run.take_news()
            try:
                if log:
                    await self._dispatch.report(run.assignment.lease, log, None)
                log = ""
                taken = await self._dispatch.finish(run.assignment.lease, ending)
                failure = ending.failure and ending.failure.reason
                _log.info("attempt ended", failure=failure, taken=taken)
            except InfrastructureError as error:
                attempt += 1
                run.return_news(log, progress)
                _log.warning("result not delivered, trying again", error=str(error))
                await asyncio.sleep(min(DELIVER_SECONDS, retry_delay(attempt)))
            except UserError as error:  # it will never be taken as it is
                ending = Ending(failure=_refused(error))
            else:
                return


async def _remove(folder: Path) -> None:
    """Remove an attempt's folder; a program is started for it only where something is in it."""
    try:
        folder.rmdir()  # noqa: ASYNC240 - a moment; a thread would take longer to wake
    except FileNotFoundError:
        return
    except OSError:
        await asyncio.to_thread(sandbox.remove, folder)


async def _stop(*tasks: "asyncio.Task[Ending] | asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _refused(error: UserError) -> Failure:
    return Failure(
        cause="infrastructure",
        reason="result_refused",
        message=f"the scheduler refused the result: {error.message}",
    )


def _failure(error: Exception) -> Failure:
    if isinstance(error, KgymError):
        return Failure(
            cause=error.cause, reason=error.reason, message=error.message, details=error.details
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure(
            cause="infrastructure",
            reason="disk_full",
            message=f"the disk is full: {error}; free some space, then restart the job",
        )
    return Failure(cause="infrastructure", reason="internal_error", message=repr(error))
