"""Kernel sources: archives from storage, cached on the scheduler's disk and kept open."""

import asyncio
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from kgym.api.jobs import JobView
from kgym.api.source import Look
from kgym.api.states import State
from kgym.api.steps import BuildResult, BuildSpec, CheckResult, CheckSpec, SourceResult, SourceSpec
from kgym.errors import Conflict, InfrastructureError
from kgym.host.folder_cache import FolderCache
from kgym.source import source_archive
from kgym.transport.artifact_storage import ArtifactMissing, Storage
from kgym_scheduler.source.archive import Archive
from kgym_scheduler.source.view import View

# Maximum bytes of archives on this scheduler's disk.
MOST = 8 << 30
# Maximum number of open archives: each takes some 50 MB.
OPEN = 4
# Maximum number of concurrent looks.
THREADS = 4
# How long a look waits for its archive from storage. Then the client has to ask again: the fetch
# goes on, and no connection has to stay open for it.
LOAD_SECONDS = 10.0

# How a forged archive shows: its tables may be anything, with values of any type.
_DAMAGED = (sqlite3.Error, zlib.error, ValueError, TypeError, LookupError, AttributeError)
# Maximum number of steps whose trees are cached.
_KNOWN = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceTree:
    """The tree of a step: the name of its source archive, and the spec that makes it."""

    name: str
    spec: SourceSpec


class Sources:
    """The archives in `storage`, cached in `folder`."""

    def __init__(self, storage: Storage, folder: Path) -> None:
        self._storage = storage
        self._cache = FolderCache(folder)
        self._open: OrderedDict[str, tuple[Archive, ExitStack]] = OrderedDict()
        self._loading: dict[str, asyncio.Task[Archive]] = {}
        self._trees: OrderedDict[tuple[int, int | None], SourceTree] = OrderedDict()
        self._room = asyncio.Semaphore(THREADS)

    async def look(
        self,
        job: Callable[[int], Awaitable[JobView]],
        job_id: int,
        look: Look,
        read: Callable[[View], T],
    ) -> T:
        """Return what `read` returns for the tree of a job's step, with patches.

        `job` returns a job. Raises Conflict `no_source`, `step_unfinished` or `source_not_made`,
        and the errors of `job` and `read`.
        """
        key = job_id, look.step
        if key not in self._trees:
            self._trees[key] = tree_of(await job(job_id), look.step)
        self._trees.move_to_end(key)
        tree = self._trees[key]
        if len(self._trees) > _KNOWN:
            self._trees.popitem(last=False)

        def looked() -> T:
            with archive.open() as reader:
                return read(View(archive, reader, [*tree.spec.patches, *look.patches]))

        try:
            archive = await self._archive(tree, job_id)
            async with self._room:
                return await asyncio.to_thread(looked)
        except _DAMAGED as error:
            message = f"the source archive of job {job_id} is damaged: {type(error).__name__}"
            raise InfrastructureError(
                "source_damaged",
                f"{message}: {error}; remove {source_archive.key_of(tree.name)} from the storage",
            ) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all archives."""
        for task in self._loading.values():
            task.cancel()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        for _, held in self._open.values():
            held.close()
        self._open.clear()

    async def _archive(self, tree: SourceTree, job_id: int) -> Archive:
        name = tree.name
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name][0]
        if name not in self._loading:
            self._loading[name] = asyncio.create_task(self._load(name))
            self._loading[name].add_done_callback(partial(self._loaded, name))
        try:
            return await asyncio.wait_for(asyncio.shield(self._loading[name]), LOAD_SECONDS)
        except TimeoutError as error:
            message = "the source is being fetched from storage; try again"
            raise InfrastructureError("source_loading", message) from error
        except ArtifactMissing as error:
            step = tree.spec.model_dump(mode="json", exclude_none=True)
            raise Conflict(
                "source_not_made",
                f"the source archive of job {job_id} does not exist yet, or was removed: submit a"
                " job with the step in `step`, wait for it, and use that job's number",
                step=step,
            ) from error

    def _loaded(self, name: str, task: asyncio.Task[Archive]) -> None:
        del self._loading[name]
        if not task.cancelled():
            task.exception()  # mark it as retrieved: perhaps no caller waits any more

    async def _load(self, name: str) -> Archive:
        async def make(folder: Path) -> None:
            path = folder / source_archive.FILE
            await self._storage.get(source_archive.key_of(name), path)

        held = ExitStack()
        try:
            folder, there = await self._cache.get(name, make, held=held)
            if not there:
                await asyncio.to_thread(self._cache.trim, MOST)
            archive = await asyncio.to_thread(Archive, folder / source_archive.FILE)
        except BaseException:
            held.close()
            raise
        self._open[name] = archive, held
        while len(self._open) > OPEN:
            _, (_, oldest) = self._open.popitem(last=False)
            oldest.close()
        return archive


def tree_of(job: JobView, number: int | None) -> SourceTree:
    """Return the tree of a step, by default of the first that has one."""
    steps = [s for s in job.steps if isinstance(s.spec, BuildSpec | CheckSpec | SourceSpec)]
    if number is not None:
        steps = [step for step in steps if step.number == number]
    if not steps:
        which = f"step {number} of job {job.id}" if number is not None else f"job {job.id}"
        message = f"{which} has no source: only source, build and check steps have one"
        raise Conflict("no_source", message)
    step = steps[0]
    if step.state is not State.SUCCEEDED:
        raise Conflict(
            "step_unfinished",
            f"step {step.number} of job {job.id} is {step.state}: its source can be read when it"
            " has succeeded",
            step=step.number,
        )
    spec, result = step.spec, step.result
    assert isinstance(spec, BuildSpec | CheckSpec | SourceSpec)
    assert isinstance(result, BuildResult | CheckResult | SourceResult)
    patches = spec.base if isinstance(spec, CheckSpec) else spec.patches
    return SourceTree(
        # Results of earlier versions have no name: their source has to be made again.
        name=result.source_tree or "none",
        spec=SourceSpec(
            source=spec.source, compiler=spec.compiler, backports=spec.backports, patches=patches
        ),
    )
