"""The worker's loop: take a message, claim its step, run the handler, report.

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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from kgym import sandbox
from kgym.bus import Bus, Delivery
from kgym.errors import InfrastructureError, KgymError
from kgym.jobs import Artifact, Progress
from kgym.states import retry_delay
from kgym.steps import Failure, StepKind, StepResult, StepSpec, Strict
from kgym.storage import Storage

LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 5.0
REPORT_SECONDS = 0.25

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


class Dispatch(Protocol):
    """The scheduler as a worker sees it. Each call is idempotent."""

    async def claim(self, step_id: int, worker: str) -> Assignment | None:
        """Lease the step to this worker; None if it is not queued any more."""
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


@dataclass(slots=True)
class StepRun:
    """One attempt as its handler sees it."""

    assignment: Assignment
    folder: Path
    storage: Storage
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

    async def keep(self, path: Path, name: str | None = None) -> None:
        """Store the file as an artifact of the step."""
        key = f"steps/{self.assignment.step_id}/{self.assignment.lease.hex}/{name or path.name}"
        self.artifacts.append(await self.storage.put(key, path))

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
    ) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{'+'.join(handlers)}"
        self._dispatch = dispatch
        self._bus = bus
        self._storage = storage
        self._handlers = handlers
        self._folder = folder
        self._slots = asyncio.Semaphore(slots)
        self._running: dict[uuid.UUID, asyncio.Task[Ending]] = {}

    async def serve(self) -> None:
        """Work until cancelled; then give back what is running and leave nothing behind."""
        sandbox.remove(self._folder)  # of a worker that was killed
        self._folder.mkdir(parents=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._obey_signals())
            for kind in self._handlers:
                group.create_task(self._consume(kind, group))

    async def _consume(self, kind: StepKind, group: asyncio.TaskGroup) -> None:
        async for delivery in self._bus.consume(kind):
            await self._slots.acquire()
            group.create_task(self._take(delivery))

    async def _take(self, delivery: Delivery) -> None:
        try:
            assignment = await self._dispatch.claim(delivery.message.step_id, self.name)
            await delivery.ack()
            if assignment is not None:
                await self._attempt(assignment)
        except InfrastructureError as error:
            # Claimed or not, the step comes again: by its lease's end, or by the sweeper.
            _log.warning("step not taken", step=delivery.message.step_id, error=str(error))
        finally:
            self._slots.release()

    async def _obey_signals(self) -> None:
        async with self._bus.signals() as signals:
            async for lease in signals:
                if task := self._running.get(lease):
                    task.cancel()

    async def _attempt(self, assignment: Assignment) -> None:
        folder = self._folder / assignment.lease.hex
        folder.mkdir()
        run = StepRun(assignment, folder, self._storage)
        work = asyncio.create_task(self._work(run))
        beat = asyncio.create_task(self._beat(run))
        self._running[assignment.lease] = work
        try:
            await asyncio.wait({work, beat}, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and not work.cancelled():
                # First the room, then the word: it may have been this folder that filled the disk.
                await asyncio.to_thread(sandbox.remove, folder)
                await self._last_word(run, work.result())
        except asyncio.CancelledError:
            await _stop(work)
            await self._dispatch.release(assignment.lease)
            raise
        finally:
            del self._running[assignment.lease]
            await _stop(work)
            await _stop(beat)
            await asyncio.to_thread(sandbox.remove, folder)

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
        with contextlib.suppress(InfrastructureError):  # a full disk must not hide the ending
            await run.keep(run.folder / "step.log")
        return Ending(result=result, failure=failure, artifacts=run.artifacts)

    async def _beat(self, run: StepRun) -> None:
        """Report until the lease is stale; a quiet step still says that it lives."""
        quiet = 0.0
        while True:
            log, progress = run.take_news()
            if log or progress or quiet >= HEARTBEAT_SECONDS:
                quiet = 0.0
                try:
                    if not await self._dispatch.report(run.assignment.lease, log, progress):
                        return
                except InfrastructureError as error:
                    _log.warning("report not delivered, trying again", error=str(error))
                    run.return_news(log, progress)
            await asyncio.sleep(REPORT_SECONDS)
            quiet += REPORT_SECONDS

    async def _last_word(self, run: StepRun, ending: Ending) -> None:
        log, _ = run.take_news()
        attempt = 0
        while True:
            try:
                if log:
                    await self._dispatch.report(run.assignment.lease, log, None)
                await self._dispatch.finish(run.assignment.lease, ending)
            except InfrastructureError as error:
                attempt += 1
                _log.warning("result not delivered, trying again", error=str(error))
                await asyncio.sleep(retry_delay(attempt))
            else:
                return


async def _stop(task: "asyncio.Task[Ending] | asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


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
