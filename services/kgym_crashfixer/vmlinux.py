"""The vmlinux with a bug, on this machine: what programs say about it, each in a sandbox."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from kgym.api.jobs import JobView
from kgym.api.steps import BuildArtifact
from kgym.bugs.bug import BUILD_BEFORE
from kgym.client import AsyncClient
from kgym.configs import data_folder
from kgym.crash import symbolize
from kgym.errors import UserError
from kgym.host.folder_cache import FolderCache
from kgym.host.proc import ProgramFailed, ProgramTimedOut

# Bytes of vmlinux files that this machine keeps.
_KEPT = 4 << 30


class Vmlinux:
    """The vmlinux of the job that `shown` returns; it is fetched when it is first needed."""

    def __init__(self, client: AsyncClient, shown: Callable[[], Awaitable[JobView]]) -> None:
        self._client, self._shown = client, shown

    async def machine_code(self, function: str, offset: int) -> str:
        """Return the source lines and instructions of a place; empty if it is ambiguous."""
        return await self._asked(lambda file: symbolize.machine_code(file, function, offset))

    async def layout(self, name: str) -> str:
        """Return the members of a struct or union."""
        return await self._asked(lambda file: symbolize.layout(file, name))

    async def _asked(self, ask: Callable[[Path], Awaitable[str]]) -> str:
        """Return what a program says about the vmlinux with the bug, or why it failed."""
        with ExitStack() as held:
            vmlinux = await self._vmlinux(held)
            try:
                return await ask(vmlinux)
            except (ProgramFailed, ProgramTimedOut) as error:
                return error.message

    async def _vmlinux(self, held: ExitStack) -> Path:
        """Return the vmlinux with the bug, on this machine, until `held` is closed."""
        job = await self._shown()
        step, name = job.step(BUILD_BEFORE), BuildArtifact.VMLINUX
        files = step.artifacts if step is not None and step.artifacts_gone_at is None else []
        digest = next((file.sha256 for file in files if file.name == name), None)
        if step is None or digest is None:
            raise UserError("no_vmlinux", "the kernel's vmlinux is gone, or there was none")
        number = step.number

        async def fetch(folder: Path) -> None:
            await self._client.download(job.id, number, name, folder / name)
            # The sandbox's user is nobody.
            for path in (folder, folder / name):
                await asyncio.to_thread(path.chmod, 0o755)

        cache = FolderCache(data_folder().absolute() / "vmlinux")
        folder, there = await cache.get(digest, fetch, held=held)
        if not there:
            await asyncio.to_thread(cache.trim, _KEPT)
        return folder / name
