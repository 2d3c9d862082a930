"""The embedded platform: scheduler, workers and REST interface in one process.

It runs in a thread, so that commands use it through REST like one on another host.
SQLite, a local folder and an in-process bus replace PostgreSQL, GCS and RabbitMQ.
"""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kgym.api.capabilities import Capabilities
from kgym.api.steps import StepKind, StepResult
from kgym.errors import InfrastructureError
from kgym.host.detection import detect
from kgym.transport.artifact_storage import LocalStorage, Storage
from kgym.transport.bus import InProcessBus
from kgym.web.server import serve
from kgym.worker.context import Handler, StepContext
from kgym.worker.loop import Worker
from kgym.worker.work_folder import remove_left
from kgym_cli.platforms import running_platform
from kgym_cli.platforms.step_registry import (
    Equipment,
    entries,
    equipment,
    handlers,
    near_rules,
    of_provider,
    origins,
    workers_of_one_host,
)
from kgym_cli.settings import settings
from kgym_scheduler.api.app import create_app
from kgym_scheduler.database.connection import upgrade
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.queue.attended_jobs import Attendance
from kgym_scheduler.retention.upkeep import Upkeep
from kgym_scheduler.scheduler import Scheduler
from kgym_scheduler.source.sources import Sources

if TYPE_CHECKING:
    from kgym_vmmanager.vm.provider import Provider

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class Platform:
    """Context manager: the embedded platform on a data folder.

    `port` 0 means any free port; `url` has it. Without `work`, jobs are accepted and shown, but no
    step runs before `work()`. With `stays=False`, it serves commands and only runs jobs that one of
    them follows (`Attendance`). `syzkaller` holds the binaries for `syz` programs. `cache`,
    `storage` and `provider` of VMs default to the data folder and this host.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        work: bool = True,
        stays: bool = True,
        syzkaller: Path | None = None,
        cache: Path | None = None,
        storage: Storage | None = None,
        provider: "Provider | None" = None,
    ) -> None:
        self.url = ""
        self._syzkaller = syzkaller
        self._cache = cache or data / "cache"
        self._storage = storage
        self._provider = provider
        self._data = data
        self._port = port
        self._stays = stays
        self._owner = secrets.token_urlsafe(32)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._working = asyncio.Event()
        if work:
            self._working.set()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kgym-platform", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            self.stop()
            raise InfrastructureError("platform_slow", f"no start in {START_SECONDS:g} s")
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.stop()
        if error is not None and self._error is not None:
            # The cause is why the platform ended, not that it no longer answers.
            raise InfrastructureError(
                "platform_ended", f"the platform failed: {_first(self._error)!r}"
            ) from self._error

    @property
    def owner(self) -> str:
        """Token with all permissions."""
        return self._owner

    def work(self) -> None:
        """Start running steps."""
        if self._loop is not None and not self._working.is_set():
            self._loop.call_soon_threadsafe(self._working.set)

    @property
    def lives(self) -> bool:
        """Whether it is running; an error may end it."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the platform ends; raise its error if it has one."""
        while self.lives:
            self._thread.join(1.0)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Requeue running steps, kill all VMs and builds, and wait for that."""
        if self._loop is not None and self._main is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - re-raised by the waiting thread
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        with await asyncio.to_thread(running_platform.take, self._data, stays=self._stays) as lock:
            bus = InProcessBus()
            storage = self._storage or LocalStorage(self._data / "artifacts")
            url = f"sqlite+aiosqlite:///{self._data / 'kgym.db'}"
            # Migrated under the data folder's lock: no other process has the database open.
            await upgrade(url)
            cache, provider = self._cache, self._provider
            has = equipment(settings(), cache, self._syzkaller, provider)

            async def host() -> Capabilities:
                offered = await has.toolchains.offered(storage)
                capabilities = await asyncio.to_thread(detect, None, self._syzkaller, offered)
                return of_provider(capabilities, provider)

            folder = self._data / "work" / "workers"  # each worker has a subfolder
            attendance = None if self._stays else Attendance()
            store = JobStore(url, attendance=attendance, host=host)
            tokens = Tokens(store.database)
            # Before it listens: handlers' imports take seconds, during which it would not answer.
            shapes = [
                (shape.slots, _handlers(shape.kinds, has, tokens), entries(shape.kinds, has))
                for shape in workers_of_one_host()
            ]
            async with (
                _closing(provider),
                Scheduler(store, bus, storage, alone=True) as scheduler,
                _upkeep(scheduler, storage).kept_up() as upkeep,
                Sources(storage, cache / "source") as sources,
                serve(
                    create_app(scheduler, owner=self._owner, upkeep=upkeep, sources=sources),
                    port=self._port,
                ) as listening,
            ):
                self.url = listening.url
                running_platform.announce(
                    lock, running_platform.Running(self.url, self._stays, owner=self._owner)
                )
                self._started.set()
                # A command that only reads starts the platform, too; it must not start builds.
                await self._working.wait()
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.to_thread(remove_left, folder.parent))
                    for slots, does, look in shapes:
                        worker = Worker(scheduler, bus, storage, does, folder, slots, None, look)
                        group.create_task(worker.serve())
                    group.create_task(asyncio.Event().wait())


@contextlib.asynccontextmanager
async def _closing(provider: "Provider | None") -> AsyncIterator[None]:
    """Close the provider last: only then all VMs are released."""
    try:
        yield
    finally:
        if provider is not None:
            await provider.close()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _upkeep(scheduler: Scheduler, storage: Storage) -> Upkeep:
    chosen = settings()
    budget, days = chosen.disk_budget, chosen.artifact_days
    return Upkeep(scheduler.store.database, storage, budget=budget, days=days)


def _handlers(
    kinds: Collection[StepKind], has: Equipment, tokens: Tokens
) -> dict[StepKind, Handler]:
    """Return handlers that decide by a step's submitter, when it runs, what it may use.

    The user of this machine may name any of its files as a source. Owners of tokens may not, even
    if the first token was made after this platform started.
    """
    chosen = settings()
    files = origins(chosen, (Path("/"),))
    local = handlers(kinds, has.permitting(files, near_rules(chosen, alone=False)))
    alone = handlers(kinds, has.permitting(files, near_rules(chosen, alone=True)))
    others = handlers(kinds, has)

    def handler(kind: StepKind) -> Handler:
        async def perform(run: StepContext) -> StepResult:
            if not run.assignment.local:
                return await others[kind](run)
            # Entries of the sources of others are no base for the user's own kernels either.
            return await (local if await tokens.needed() else alone)[kind](run)

        return perform

    return {kind: handler(kind) for kind in kinds}
