"""Hosts of a test's project: real workers in threads, whose steps end when the test says so."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from kgym.api.steps import StepKind, StepResult
from kgym.errors import UserError
from kgym.transport.artifact_storage import LocalStorage
from kgym.transport.bus import InProcessBus
from kgym.worker.context import StepContext
from kgym.worker.http_calls import HttpWorkerCalls
from kgym.worker.loop import Worker


class ThreadHosts:
    """Machines: what `startup-script` starts on a real host is a thread here."""

    def __init__(self, data: Path) -> None:
        # Set: steps end.
        self.finish = threading.Event()
        # Whether hosts come up without a worker from now on.
        self.silent = False
        self._data = data
        self._threads: dict[str, threading.Thread] = {}
        self._loops: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = {}
        self._others: set[str] = set()

    @property
    def running(self) -> dict[str, int]:
        return {}

    def start(self, instance: dict[str, Any]) -> str:
        metadata = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
        name = instance["name"]
        if "kgym-server" not in metadata or self.silent:
            self._others.add(name)
            return "10.0.0.1"
        started = threading.Event()

        async def serve() -> None:
            kinds = [StepKind(kind) for kind in metadata["kgym-kinds"].split(",")]
            async with HttpWorkerCalls(metadata["kgym-server"]) as dispatch:
                worker = Worker(
                    dispatch,
                    InProcessBus(),
                    LocalStorage(self._data / "artifacts"),
                    dict.fromkeys(kinds, self._step),
                    self._data / name,
                    int(metadata["kgym-slots"]),
                    host=name,
                )
                task = asyncio.create_task(worker.serve())
                self._loops[name] = asyncio.get_running_loop(), task
                started.set()
                await asyncio.wait([task])

        self._threads[name] = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._threads[name].start()
        assert started.wait(20)
        return "10.0.0.2"

    async def _step(self, run: StepContext) -> StepResult:
        while not self.finish.is_set():
            await asyncio.sleep(0.02)
        raise UserError("patch_conflict", "the test has ended this step")

    def stop(self, name: str) -> None:
        self._others.discard(name)
        if (thread := self._threads.pop(name, None)) is not None:
            loop, task = self._loops.pop(name)
            if thread.is_alive():
                loop.call_soon_threadsafe(task.cancel)
            thread.join()

    def lives(self, name: str) -> bool:
        return name in self._others or (name in self._threads and self._threads[name].is_alive())

    def stop_all(self) -> None:
        for name in list(self._threads):
            self.stop(name)
