"""The sources that this scheduler can show: archives from storage, kept on its disk and open."""

import asyncio
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
from kgym.api.steps import (
    BuildResult,
    BuildSpec,
    CheckResult,
    CheckSpec,
    SourceResult,
    SourceSpec,
)
from kgym.errors import Conflict, InfrastructureError
from kgym.host.folder_cache import FolderCache
from kgym.source import source_archive
from kgym.transport.artifact_storage import ArtifactMissing, Storage
from kgym_scheduler.source.archive import Archive
from kgym_scheduler.source.view import View

# Bytes of archives on this scheduler's disk.
MOST = 8 << 30
# Archives that are open: each holds some 50 MB.
OPEN = 4
# Looks at the same time.
THREADS = 4
# How long a look waits for its archive to come from storage.
LOAD_SECONDS = 10.0

# Steps whose trees are known without a look at the database.
_KNOWN = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceTree:
    """The tree of a step: the name of its source, and what makes that, with patches on top."""

    name: str
    spec: SourceSpec


class Sources:
    """Archives in `storage`, kept below `folder`."""

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
        wanted: Look,
        what: Callable[[View], T],
    ) -> T:
        """Return what a look at the tree of a job's step, with patches, shows.

        `job` tells of a job. Raises Conflict `no_source`, `step_unfinished` or `source_not_made`,
        and what `job` and `what` do.
        """
        key = job_id, wanted.step
        if key not in self._trees:
            self._trees[key] = tree_of(await job(job_id), wanted.step)
        self._trees.move_to_end(key)
        tree = self._trees[key]
        if len(self._trees) > _KNOWN:
            self._trees.popitem(last=False)
        archive = await self._archive(tree, job_id)

        def looked() -> T:
            with archive.open() as reader:
                return what(View(archive, reader, [*tree.spec.patches, *wanted.patches]))

        async with self._room:
            return await asyncio.to_thread(looked)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of all archives."""
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
            message = "the source comes from storage just now; repeat this"
            raise InfrastructureError("source_loading", message) from error
        except ArtifactMissing as error:
            step = tree.spec.model_dump(mode="json", exclude_none=True)
            raise Conflict(
                "source_not_made",
                f"the source of job {job_id} was not made readable yet, or was removed: submit a"
                " job with the one step in `step`, wait for it, and look by that job's number",
                step=step,
            ) from error

    def _loaded(self, name: str, task: asyncio.Task[Archive]) -> None:
        del self._loading[name]
        if not task.cancelled():
            task.exception()  # those who wait are told; nobody may be left who does

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
    """Return the tree of the step that is meant: the first that has one, if none is named."""
    steps = [one for one in job.steps if isinstance(one.spec, BuildSpec | CheckSpec | SourceSpec)]
    if number is not None:
        steps = [one for one in steps if one.number == number]
    if not steps:
        which = f"step {number} of job {job.id}" if number is not None else f"job {job.id}"
        message = f"{which} has no source: only source, build and check steps have"
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
        # Results of before had no name: what is made now is under another job.
        name=result.source_tree or "none",
        spec=SourceSpec(
            source=spec.source,
            compiler=spec.compiler,
            backports=spec.backports,
            patches=patches,
        ),
    )
