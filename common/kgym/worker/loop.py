"""The worker's loop: receive a notice, claim steps, start their attempts."""

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path

import structlog

from kgym import tasks
from kgym.api.capabilities import Capabilities
from kgym.api.steps import StepKind
from kgym.api.worker_calls import BEAT_SECONDS, Assignment, Claim, Claimed, WorkerCalls, WorkerInfo
from kgym.errors import InfrastructureError, KgymError
from kgym.host import process_logs
from kgym.transport.artifact_storage import Storage
from kgym.transport.bus import Bus, Delivery
from kgym.worker.attempt import RELEASE_SECONDS, attempt
from kgym.worker.context import Handler, StepContext
from kgym.worker.held_entries import HeldEntries, KeepsEntries
from kgym.worker.work_folder import own_folder

# Interval of claims by a worker with a free slot that receives no notices.
IDLE_SECONDS = 1.0
# Interval of detecting the host's capabilities: that may take a request to a bucket.
LOOK_SECONDS = 300.0
# Time without a free slot after which a worker leaves notices to others.
BUSY_SECONDS = 0.25

# Detects a host's capabilities.
Look = Callable[[], Awaitable[Capabilities]]

_log = structlog.get_logger()


class Worker:
    """Runs steps of some kinds, at most `slots` at a time, with work files under `folder`.

    Workers may share `folder`: each creates its own in it. `entries` are the SuiteCache entries
    on the host's disk, which are reported with claims. The worker's name begins with `host`.
    Capabilities are detected again every `look_seconds`: an operator may install a compiler,
    another worker may store a toolchain image.
    """

    def __init__(
        self,
        dispatch: WorkerCalls,
        bus: Bus,
        storage: Storage,
        handlers: Mapping[StepKind, Handler],
        folder: Path,
        slots: int = 1,
        capabilities: Capabilities | None = None,
        entries: KeepsEntries | None = None,
        host: str | None = None,
        look: Look | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        name = f"{host or socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self.info = WorkerInfo(
            id=name, kinds=list(handlers), slots=slots, capabilities=capabilities
        )
        self._look = look
        self._look_seconds = look_seconds
        self._entries = HeldEntries(entries) if entries is not None else None
        self._dispatch = dispatch
        self._bus = bus
        self._storage = storage
        self._handlers = handlers
        self._shared = folder
        # The worker's own folder, below the shared one, while it serves.
        self._folder = folder
        self._running: dict[uuid.UUID, asyncio.Task[None]] = {}
        self._draining = False
        # Set by a notice, and by a slot that becomes free.
        self._wake = asyncio.Event()
        self._notifications: list[Delivery] = []
        # Set while a slot is free; set when none has been free for BUSY_SECONDS.
        self._has_room, self._is_busy = asyncio.Event(), asyncio.Event()
        self._busy_timer: asyncio.TimerHandle | None = None
        # Whether steps remained queued after the last claim.
        self._more_waits = False

    async def serve(self) -> None:
        """Work until cancelled or drained; then release running steps and remove all files."""
        async with own_folder(self._shared) as self._folder:
            try:
                async with asyncio.TaskGroup() as group:
                    helpers = [
                        group.create_task(self._obey_signals()),
                        group.create_task(self._receive_notifications()),
                        group.create_task(self._dispatch.stay(self.info.id)),
                        group.create_task(self._look_again()),
                    ]
                    await self._take_steps()
                    for helper in helpers:
                        helper.cancel()
            finally:
                await self._stop()

    def drain(self) -> None:
        """Claim no more steps; `serve` returns when the running ones have finished."""
        self._draining = True
        self._count_slots()
        self._wake.set()

    @property
    def _free(self) -> int:
        return 0 if self._draining else max(0, self.info.slots - len(self._running))

    def _count_slots(self) -> None:
        """Update the events that depend on free slots."""
        if self._free:
            self._has_room.set()
            self._is_busy.clear()
            if self._busy_timer is not None:
                self._busy_timer.cancel()
                self._busy_timer = None
        elif self._busy_timer is None:
            self._has_room.clear()
            loop = asyncio.get_running_loop()
            self._busy_timer = loop.call_later(BUSY_SECONDS, self._is_busy.set)

    async def _take_steps(self) -> None:
        claim: Claim | None = None
        while not self._draining or self._running:
            self._wake.clear()
            notifications, self._notifications = self._notifications, []
            claim = claim or await self._new_claim(woken=bool(notifications))
            try:
                claimed = await self._dispatch.claim(claim)
            except InfrastructureError as error:
                # Steps may have been claimed: the claim is repeated under its ID, and its
                # notices stay unacknowledged.
                _log.warning("claim failed, trying again", error=str(error))
                self._notifications = notifications + self._notifications
                claim = claim.model_copy(update={"again": True})
                await asyncio.sleep(IDLE_SECONDS)
                continue
            self._begin(claimed)
            if self._entries is not None and claim.entries is not None:
                self._entries.delivered(claim.entries)
            if self._entries is not None and claimed.dropped:
                await self._entries.drop(claimed.dropped)
            claim = None
            # Only after the claim: a worker that dies in between leaves the notice to another.
            for notification in notifications:
                with contextlib.suppress(InfrastructureError):  # then it is delivered again
                    await notification.ack()
            if not (claimed.assignments and claimed.more and self._free):
                await self._wait()

    async def _new_claim(self, *, woken: bool) -> Claim:
        held = await self._entries.news() if self._entries is not None else None
        return Claim(id=uuid.uuid4(), worker=self.info, want=self._free, woken=woken, entries=held)

    def _begin(self, claimed: Claimed) -> None:
        self._draining |= claimed.draining
        self._more_waits = bool(claimed.more)
        for step in claimed.assignments:
            with process_logs.attempt(job=step.job_id, step=step.number, attempt=step.attempt):
                task = asyncio.create_task(self._attempt(step))
            self._running[step.lease] = task
            task.add_done_callback(partial(self._ended, step.lease))
        self._count_slots()

    def _ended(self, lease: uuid.UUID, task: "asyncio.Task[None]") -> None:
        del self._running[lease]
        self._count_slots()
        if not task.cancelled() and (error := task.exception()):
            _log.error("attempt lost", lease=str(lease), error=repr(error))
        # Otherwise nothing was queued at the last claim, and any step since then has its notice.
        waits = self._more_waits or self._notifications
        if waits or self._draining or not self._bus.notifies:
            self._wake.set()

    async def _wait(self) -> None:
        """Wait for a reason to claim; claim without one before the scheduler deems this lost."""
        with contextlib.suppress(TimeoutError):
            polls = self._free and not self._bus.notifies
            async with asyncio.timeout(IDLE_SECONDS if polls else BEAT_SECONDS):
                await self._wake.wait()

    async def _receive_notifications(self) -> None:
        """Consume notices while there is a free slot."""
        self._count_slots()
        while True:
            await self._has_room.wait()
            try:
                async with self._bus.consume(self.info.kinds) as deliveries:
                    hearing = asyncio.create_task(self._collect(deliveries))
                    busy = asyncio.create_task(self._is_busy.wait())
                    try:
                        await asyncio.wait({hearing, busy}, return_when=asyncio.FIRST_COMPLETED)
                        if hearing.done():
                            hearing.result()
                    finally:
                        await tasks.end([hearing, busy])
                        self._notifications.clear()  # the bus delivers them to other workers
            except InfrastructureError as error:
                _log.warning("cannot receive notices", error=str(error))
                await asyncio.sleep(IDLE_SECONDS)

    async def _collect(self, deliveries: AsyncIterator[Delivery]) -> None:
        async for delivery in deliveries:
            self._notifications.append(delivery)
            if self._free:
                self._wake.set()

    async def _look_again(self) -> None:
        """Detect the host's capabilities again and again; report changes with a claim."""
        while self._look is not None:
            await asyncio.sleep(self._look_seconds)
            try:
                capabilities = await self._look()
            except (KgymError, OSError) as error:  # the storage may answer the next time
                _log.warning("cannot detect this host's capabilities", error=str(error))
                continue
            if capabilities != self.info.capabilities:
                self.info = self.info.model_copy(update={"capabilities": capabilities})
                self._wake.set()

    async def _obey_signals(self) -> None:
        while True:
            try:
                async with self._bus.signals() as signals:
                    async for lease in signals:
                        if task := self._running.get(lease):
                            task.cancel()
            except InfrastructureError as error:  # reports of an aborted attempt fail as well
                _log.warning("cannot receive signals", error=str(error))
            await asyncio.sleep(IDLE_SECONDS)

    async def _stop(self) -> None:
        """Release all running steps."""
        await tasks.end(self._running.values())
        with contextlib.suppress(InfrastructureError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._dispatch.leave(self.info.id)

    def _attempt(self, step: Assignment) -> Coroutine[None, None, None]:
        run = StepContext(step, self._folder / step.lease.hex, self._storage, self._dispatch)
        return attempt(run, self._handlers[step.spec.kind], self._dispatch)
