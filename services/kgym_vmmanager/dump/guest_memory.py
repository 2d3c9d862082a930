"""Saving the memory of an instance that crashed or hung: several methods, one interface."""

import asyncio
import contextlib
import errno
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kgym.api.steps import DumpFailure, DumpMethod, InstanceDump
from kgym.errors import KgymError
from kgym_vmmanager.guest.console import Console
from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh
from kgym_vmmanager.vm.provider import Vm

# Attempts at a dump, if a failure may be temporary.
ATTEMPTS = 3
# Bytes that stay free on the disk beside a dump that does not compress at all.
SPARE_BYTES = 192 << 20
# Bytes of a dump besides the memory: headers, notes, page tables of the format.
_MARGIN = 64 << 20


class DumpFailed(Exception):
    """No dump could be taken; with `again`, another attempt may succeed."""

    def __init__(self, failure: DumpFailure, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.again = again


@dataclass(frozen=True, slots=True)
class Scene:
    """A guest whose instance has ended; `memory` in MiB, `boot` is the boot's limit in seconds."""

    vm: Vm
    console: Console
    panicked: bool
    memory: int
    boot: float
    connect: Callable[[float], AbstractAsyncContextManager[Ssh]]
    """Connects to the guest's SSH server within so many seconds."""

    @property
    def seconds(self) -> float:
        """Limit of one attempt: a boot, a minute, and a second for each 10 MiB of memory."""
        # The capture kernel boots first; emulated guests compress and send about 10 MiB/s.
        return self.boot + 60 + self.memory / 10


class Method(Protocol):
    """One way of taking dumps."""

    @property
    def name(self) -> DumpMethod:
        """Its name in specs (`ReproduceSpec.dump`)."""

    @property
    def failure(self) -> DumpFailure:
        """The failure that is reported after a timeout, or if this host lacks a tool."""

    @property
    def words(self) -> str:
        """Words that it adds to the kernel's command line."""

    async def arm(self, ssh: Ssh) -> None:
        """Prepare the guest before anything runs in it; raises DumpFailed or ConnectionLost."""

    async def take(self, scene: Scene, stem: Path) -> Path:
        """Write the dump to the file `stem` plus an ending; return its path.

        Raises DumpFailed, KgymError or OSError.
        """


class Dump:
    """The dump of one instance, from the guest's boot to the file."""

    def __init__(self, method: Method, stem: Path) -> None:
        self._stem = stem
        self._method = method
        self._failed: Path | DumpFailed | None = None

    async def arm(self, ssh: Ssh) -> None:
        """Prepare the guest; a failure is kept for the result."""
        # The verdict stands without a dump, so no failure of a dump ever ends an instance.
        try:
            await self._method.arm(ssh)
        except DumpFailed as error:
            self._failed = error
        except ConnectionLost as error:
            self._failed = DumpFailed(DumpFailure.SSH, f"before the reproducer: {error}")

    async def take(self, scene: Scene) -> InstanceDump:
        """Save the memory in at most ATTEMPTS; without a dump, the answer names the failure."""
        begin, attempts, taken = time.monotonic(), 0, self._failed
        while taken is None or (
            isinstance(taken, DumpFailed) and taken.again and attempts < ATTEMPTS
        ):
            attempts += 1
            taken = await self._attempt(scene)
        facts: dict[str, Any] = {"method": self._method.name, "attempts": attempts}
        if isinstance(taken, DumpFailed):
            facts |= {"failure": taken.failure, "message": taken.message[:1000]}
            self._clear()
        else:
            facts |= {"artifact": taken.name, "size": taken.stat().st_size}
        return InstanceDump(**facts, seconds=round(time.monotonic() - begin, 2))

    async def _attempt(self, scene: Scene) -> Path | DumpFailed:
        self._clear()
        try:
            _check_disk(self._stem.parent, scene.memory)
            async with asyncio.timeout(scene.seconds):
                return await self._method.take(scene, self._stem)
        except DumpFailed as error:
            return error
        except TimeoutError:
            message = f"not done after {scene.seconds:g} s"
            return DumpFailed(self._method.failure, message, again=True)
        except KgymError as error:
            return DumpFailed(self._method.failure, error.message)
        except OSError as error:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
            return DumpFailed(DumpFailure.DISK, f"cannot write the dump: {error}", again=not full)

    def _clear(self) -> None:
        """Remove the files of a failed attempt."""
        for path in self._stem.parent.glob(f"{self._stem.name}.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def dump_bytes(memory: int) -> int:
    """Return the largest size in bytes of a dump of `memory` MiB: it may not compress at all."""
    return (memory << 20) + _MARGIN


def _check_disk(folder: Path, memory: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < dump_bytes(memory) + SPARE_BYTES:
        message = f"{free >> 20} MiB are free for a dump of up to {memory} MiB; free some space"
        raise DumpFailed(DumpFailure.DISK, message)
