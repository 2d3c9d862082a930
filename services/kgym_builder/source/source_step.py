"""The `source` step: archive a kernel's source as builds see it, once for all jobs."""

import asyncio
import hashlib
from collections.abc import Sequence

from kgym.api.steps import SourceResult, SourceSpec
from kgym.host import separate_process
from kgym.host.budget import JOB_MIB, Use
from kgym.source import source_archive
from kgym.source.patching import Change
from kgym.transport.artifact_storage import ArtifactMissing
from kgym.worker import memo
from kgym.worker.context import StepContext
from kgym_builder.patches import patched_files
from kgym_builder.source.archive_writer import Written, write
from kgym_builder.suitecache.source_trees import SourceTree
from kgym_builder.suitecache.suitecache import SuiteCache

# Time to write an archive; a kernel's takes 60 to 90 s of one core.
SECONDS = 1800.0
# Bytes of address space; a kernel's archive needs about 1 GiB.
MEMORY = 6 << 30

_POLL_SECONDS = 1.0


class SourceReader:
    """Archives the sources of a SuiteCache, so that they can be read over REST."""

    def __init__(self, suite: SuiteCache) -> None:
        self._suite = suite

    async def __call__(self, run: StepContext) -> SourceResult:
        """Perform a source step."""
        spec = run.spec(SourceSpec)
        with run.stage("source"):
            published = await self._suite.published(spec, run)
            # Even if the archive exists: the step also shows that the patches apply.
            await patched_files.changes(published.tree, spec.patches, run.log)
        name = source_archive.name_of(published.source.identity, published.backports)
        changes = _digest(published.changes)
        written = await _stored(run, name, changes)
        while written is None and not await run.hold(f"source/{name}"):
            run.progress("waiting for the step that makes it")
            await asyncio.sleep(_POLL_SECONDS)
            written = await _stored(run, name, changes)
        made = written is None
        written = written or await self._made(published, name, changes, run)
        return SourceResult(
            source_identity=published.source.identity,
            backports=published.backports,
            source_tree=name,
            made=made,
            files=written.files,
            bytes=written.bytes,
            seconds=run.seconds,
        )

    async def _made(
        self, published: SourceTree, name: str, changes: str, run: StepContext
    ) -> Written:
        path = run.folder / source_archive.FILE
        with run.stage("index"):
            async with self._suite.budget.share(Use.CHECK, 1, 2 * JOB_MIB):
                written = await separate_process.within(
                    SECONDS, MEMORY, write, published.source.tree, published.changes, changes, path
                )
        with run.stage("store"):
            await run.storage.put(source_archive.key_of(name), path, move=True)
            await memo.remember(run, _memo(name, changes), written)
        return written


async def _stored(run: StepContext, name: str, changes: str) -> Written | None:
    """Return the archive's size if it is stored; its memo shows retention that it is in use."""
    written = await memo.recall(run, _memo(name, changes), Written)
    if written is None:
        return None
    try:
        async for _ in run.storage.read(source_archive.key_of(name), 0, 1):
            pass
    except ArtifactMissing:
        return None
    await memo.remember(run, _memo(name, changes), written)
    return written


def _memo(name: str, changes: str) -> str:
    return memo.key("source", name, changes)


def _digest(changes: Sequence[Change]) -> str:
    """Return a hash of the changes: equal names of backports may have different texts."""
    digest = hashlib.sha256()
    for change in changes:
        digest.update(repr((change.path, change.content)).encode())
    return digest.hexdigest()
