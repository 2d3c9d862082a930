"""The `syzkaller` step: find or build the programs of one commit."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgym.api.steps import (
    GUEST_PROGRAMS,
    GitSource,
    SyzkallerArtifact,
    SyzkallerResult,
    SyzkallerSpec,
    TarballSource,
)
from kgym.errors import UserError
from kgym.host import sandbox
from kgym.host.budget import Budget, Use
from kgym.host.detection import syzkallers
from kgym.worker import memo
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.download import report_bytes
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.syzkaller import programs
from kgym_builder.syzkaller.programs import Compilers

_FULL_ID = re.compile(r"[0-9a-f]{40}")
_PROOF = ("go.mod", "syzkaller that Go's modules build")
# MiB of memory for a build: Go compiles two packages at a time.
_MIB = 4096
_POLL_SECONDS = 1.0


class SyzkallerBuilder:
    """Builds syzkaller's programs; sources are kept in the folder `cache`.

    `own` holds programs that the worker's operator provides (`kgym.host.detection.syzkallers`);
    their commits are trusted. Sources come from public addresses and from `origins`. Builds are
    shared by the source's identity (a commit's id, or a SHA-256), which fixes its content. So no
    submitter can pass forged programs to another one.
    """

    def __init__(self, cache: Path, origins: Origins, own: Path | None, budget: Budget) -> None:
        self._sources = KernelSources(cache / "syzkaller", origins, proof=_PROOF)
        self._own = own
        self._budget = budget

    async def __call__(self, run: StepContext) -> SyzkallerResult:
        """Perform a syzkaller step.

        Raises UserError `syzkaller_does_not_build`, `wrong_commit`, `no_go`, and what sources
        raise.
        """
        spec = run.spec(SyzkallerSpec)
        if spec.cache == "use" and (result := await self._operators(spec, run)):
            return result
        with run.stage("source"):
            identity = await self._sources.identify(spec.source, report_bytes(run), run.log)
        commit = _commit(spec, identity)
        # The key has no compilers: any build does the same, and some builders have no compiler.
        name = memo.key("syzkaller", programs.LAYOUT, identity, commit)
        result = await memo.recall(run, name, SyzkallerResult) if spec.cache == "use" else None
        while result is None and not await run.hold(f"syzkaller/{identity}/{commit}"):
            run.progress("waiting for the step that builds it")
            await asyncio.sleep(_POLL_SECONDS)
            result = await memo.recall(run, name, SyzkallerResult)
        if result is not None:
            run.log(f"syzkaller {commit}: built before from {identity}")
            return result.model_copy(update={"made": False, "seconds": run.seconds})
        result = await self._built(spec, commit, run)
        await memo.remember(run, name, result, run.artifacts)
        return result

    async def _operators(self, spec: SyzkallerSpec, run: StepContext) -> SyzkallerResult | None:
        """Return the operator's programs of the commit, if its full id is given."""
        commit = spec.commit or _full_id(spec.source)
        folder = syzkallers(self._own).get(commit or "")
        if folder is None or commit is None:
            return None
        files = {name: folder / name for name in GUEST_PROGRAMS}
        mutator = SyzkallerArtifact.MUTATOR
        lacks = "" if (folder / mutator).is_file() else f"{folder} has no {mutator}"
        files |= {} if lacks else {mutator: folder / mutator}
        stamps = [(stat.st_size, stat.st_mtime_ns) for stat in map(Path.stat, files.values())]
        name = memo.key("syzkaller-own", str(folder), stamps)
        run.log(f"syzkaller {commit}: the worker has it in {folder}")
        if result := await memo.recall(run, name, SyzkallerResult):
            return result.model_copy(update={"seconds": run.seconds})
        result = await _kept(
            files, run, commit=commit, source_identity="worker", made=False, lacks=lacks
        )
        await memo.remember(run, name, result, run.artifacts)
        return result

    async def _built(self, spec: SyzkallerSpec, commit: str, run: StepContext) -> SyzkallerResult:
        compilers = await Compilers.here()
        run.log(f"building syzkaller {commit} with {compilers.go}, {compilers.compiler}")
        with run.stage("source"):
            source = await self._sources.get(spec.source, report_bytes(run), run.held)
        folder = run.folder / "syzkaller"
        async with self._budget.share(Use.BUILD, 0, _MIB):
            build = await programs.build(source.tree, commit, folder, run)
        with run.stage("store"):
            result = await _kept(
                build.files,
                run,
                commit=commit,
                source_identity=source.identity,
                made=True,
                go=compilers.go,
                compiler=compilers.compiler,
                lacks=build.lacks,
            )
            await asyncio.to_thread(sandbox.remove, folder)
        return result


async def _kept(
    files: Mapping[SyzkallerArtifact, Path], run: StepContext, **fields: Any
) -> SyzkallerResult:
    """Keep the programs; return the step's result with these fields."""
    for name, path in files.items():
        await run.keep(path, name)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    return SyzkallerResult(bytes=sizes, seconds=run.seconds, **fields)


def _commit(spec: SyzkallerSpec, identity: str) -> str:
    """Return the source's commit; raise UserError `wrong_commit` if another was asked for."""
    if not isinstance(spec.source, GitSource):
        assert spec.commit is not None  # the model asks for it
        return spec.commit
    commit = identity.removeprefix("git:")
    if spec.commit not in {None, commit}:
        message = f"{spec.source.commit} of {spec.source.url} is {commit}, not {spec.commit}"
        raise UserError("wrong_commit", message)
    return commit


def _full_id(source: GitSource | TarballSource) -> str | None:
    if isinstance(source, GitSource) and _FULL_ID.fullmatch(source.commit):
        return source.commit
    return None
