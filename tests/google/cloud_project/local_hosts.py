"""Hosts of an emulated project: programs of this machine, each in a folder of its own.

A host of a pool runs its startup script, as on the cloud. One that is for the scheduler runs that:
on the cloud, the playbook sets it up. That programs share this machine, its user and its network is
what is not as on the cloud.
"""

import contextlib
import itertools
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kgym_cli.platforms.servers import Program


class LocalHosts:
    """The hosts, while the context lasts; `url` is the project's server, set before the first."""

    def __init__(self, folder: Path, scheduler: Sequence[str]) -> None:
        """Keep hosts in this folder; `scheduler` is how the scheduler is run."""
        self.url = ""
        self._folder = folder
        self._scheduler = list(scheduler)
        self._removed = itertools.count()
        self._programs: dict[str, Program] = {}
        # A program dies with the thread that started it: this one lasts.
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for name in list(self._programs):
            self.stop(name)
        self._thread.shutdown()

    @property
    def running(self) -> dict[str, int]:
        """The processes of hosts that are on, by the host's name."""
        return {name: host.pid for name, host in self._programs.items() if host.pid is not None}

    def start(self, instance: dict[str, Any]) -> str:
        """Start a host; return its address."""
        name, folder = instance["name"], self._folder / instance["name"]
        folder.mkdir(parents=True)
        metadata = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
        if "startup-script" in metadata:
            script = folder / "startup-script"
            script.write_text(metadata["startup-script"])
            words = ["sh", str(script)]
        else:
            words = [*self._scheduler, "--storage", metadata["kgym-storage"]]
        program = Program(name, words, folder / "log")
        program.env = {
            "GCE_METADATA_HOST": f"{self.url.removeprefix('http://')}/metadata/{name}",
            "KGYM_DATA": str(folder / "data"),
            "SECRET_MANAGER_EMULATOR_HOST": self.url,
            "STORAGE_EMULATOR_HOST": self.url,
        }
        self._thread.submit(program.spawn).result()
        self._programs[name] = program
        return "127.0.0.1"

    def stop(self, name: str) -> None:
        """Kill all that runs on a host, and forget its disk."""
        if (program := self._programs.pop(name, None)) is not None:
            program.kill()
        with contextlib.suppress(FileNotFoundError):
            disk = (self._folder / name).rename(self._folder / f".removed-{next(self._removed)}")
            # Tens of thousands of files take longer than a request may. What is left when this
            # process ends is removed with the project's folder.
            threading.Thread(target=shutil.rmtree, args=(disk, True), daemon=True).start()

    def lives(self, name: str) -> bool:
        """Return whether the host is on."""
        program = self._programs.get(name)
        return program is not None and program.pid is not None
