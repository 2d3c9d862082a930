"""Saving the memory of an instance that crashed or hung: several methods, one interface.

A dump never decides anything: whatever goes wrong with it is told in its result.
"""

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

# So often a dump is tried, where another attempt may go better.
ATTEMPTS = 3
# What is left on the disk, beside a dump that does not compress at all.
SPARE_BYTES = 192 << 20
# What a dump has besides the memory.
_MARGIN = 64 << 20


class DumpFailed(Exception):
    """There is no dump; `again` says whether another attempt may go better."""

    def __init__(self, failure: DumpFailure, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.again = again


@dataclass(frozen=True, slots=True)
class Scene:
    """A guest when its instance has ended; `memory` in MiB, `boot` the limit in seconds."""

    vm: Vm
    console: Console
    panicked: bool
    memory: int
    boot: float
    connect: Callable[[float], AbstractAsyncContextManager[Ssh]]
    """Connects to the guest's SSH server, for so many seconds at most."""

    @property
    def seconds(self) -> float:
        """How long one attempt may take: a boot, a minute, and 10 MiB of the memory a second."""
        return self.boot + 60 + self.memory / 10


class Method(Protocol):
    """One way of taking dumps."""

    @property
    def name(self) -> DumpMethod:
        """What specs call it (`ReproduceSpec.dump`)."""

    @property
    def failure(self) -> DumpFailure:
        """What it is called when it takes too long, or misses something on this host."""

    @property
    def words(self) -> str:
        """What it adds to the kernel's command line."""

    async def arm(self, ssh: Ssh) -> None:
        """Make the guest ready before anything runs in it; raises DumpFailed or ConnectionLost."""

    async def take(self, scene: Scene, stem: Path) -> Path:
        """Write the dump to a file, named `stem` with an ending, and return it.

        Raises DumpFailed, KgymError or OSError.
        """


class Dump:
    """The dump of one instance, from the guest's boot to the file."""

    def __init__(self, method: Method, stem: Path) -> None:
        self._stem = stem
        self._method = method
        self._failed: Path | DumpFailed | None = None

    async def arm(self, ssh: Ssh) -> None:
        """Make the guest ready; a failure is kept for the result."""
        try:
            await self._method.arm(ssh)
        except DumpFailed as error:
            self._failed = error
        except ConnectionLost as error:
            self._failed = DumpFailed(DumpFailure.SSH, f"before the reproducer: {error}")

    async def take(self, scene: Scene) -> InstanceDump:
        """Save the memory, in ATTEMPTS at most; the answer says why there is no dump."""
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
        """Remove what a failed attempt has left."""
        for path in self._stem.parent.glob(f"{self._stem.name}.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def dump_bytes(memory: int) -> int:
    """Return how large a dump of so many MiB may become: it may not compress at all."""
    return (memory << 20) + _MARGIN


def _check_disk(folder: Path, memory: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < dump_bytes(memory) + SPARE_BYTES:
        message = f"{free >> 20} MiB are free for a dump of up to {memory} MiB; free some space"
        raise DumpFailed(DumpFailure.DISK, message)
