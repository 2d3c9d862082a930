"""Kernel sources: each is identified, then fetched and unpacked once.

A source resolves to an identity, which names its content, and to an unchanged tree in the cache.
Archives are unpacked in the sandbox, as they may be hostile.
"""

import asyncio
import hashlib
import shutil
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kgym.api.steps import GitSource, KernelSource, PackageSource, TarballSource
from kgym.errors import UserError
from kgym.host.folder_cache import FolderCache
from kgym.host.sandbox import prepare
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.download import TellProgress, fetch
from kgym_builder.kernel_source.git_repositories import Repositories
from kgym_builder.kernel_source.package_lists import PackageLists, Say
from kgym_builder.kernel_source.source_limits import SourceLimits
from kgym_builder.kernel_source.source_packages import SourcePackages
from kgym_builder.kernel_source.unpack import KERNEL, unpack

# Bytes of trees that a host keeps, and bytes of Git repositories.
BUDGET = 40 << 30
_GIT = "git:"
# Raise it when commits give other trees than before; those of version 1 obeyed Git attributes.
_GIT_LAYOUT = 2


def _silent(_line: str) -> None:
    """Ignore the line."""


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel source in the cache: `tree` holds the files as published."""

    identity: str
    tree: Path


class KernelSources:
    """The kernel sources of a host, under `root`, from allowed origins and within bounds.

    With another `proof` (see `unpack.KERNEL`), these are sources of another program.
    """

    def __init__(
        self,
        root: Path,
        origins: Origins = Origins(),  # noqa: B008 - frozen
        bounds: SourceLimits = SourceLimits(),  # noqa: B008
        proof: tuple[str, str] = KERNEL,
    ) -> None:
        self._origins = origins
        self._bounds = bounds
        self._proof = proof
        self._cache = FolderCache(root / "trees")
        self._repositories = Repositories(root / "repositories", origins, bounds)
        self._packages = SourcePackages(PackageLists(root / "suites"), bounds)

    async def get(
        self,
        source: KernelSource,
        report: TellProgress,
        held: ExitStack | None = None,
        say: Say = _silent,
    ) -> Source:
        """Return the source, fetched and unpacked if need be; it is kept until `held` is closed.

        `say` gets remarks for the submitter.
        """
        identity, fetch = await self._named(source, report, say)

        async def make(folder: Path) -> None:
            (folder / "fetched").mkdir()
            archive = await fetch(folder / "fetched")
            report("unpack", 0, None)
            try:
                await unpack(archive, prepare(folder / "tree"), self._bounds, self._proof)
            except UserError as error:
                raise UserError(error.reason, f"{_words(source)}: {error.message}") from error
            # The archive is as large as the tree, and never used again.
            shutil.rmtree(folder / "fetched", ignore_errors=True)

        folder, there = await self._cache.get(key(identity), make, held=held)
        if not there:
            await asyncio.to_thread(self._cache.trim, BUDGET)
            await asyncio.to_thread(self._repositories.trim, BUDGET)
        return Source(identity, folder / "tree")

    async def identify(self, source: KernelSource, report: TellProgress, say: Say = _silent) -> str:
        """Return the source's identity, without fetching its files; `say` is as in `get`."""
        identity, _ = await self._named(source, report, say)
        return identity

    async def _named(
        self, source: KernelSource, report: TellProgress, say: Say
    ) -> tuple[str, "_Fetch"]:
        match source:
            case PackageSource():
                package = await self._packages.offered(source, say)

                async def fetch_package(folder: Path) -> Path:
                    report("download", 0, None)
                    return await self._packages.fetch(package, folder)

                return package.identity, fetch_package
            case TarballSource():
                # Checked even if the cache has the tree: a job must not use a place that is not
                # allowed.
                self._origins.check(source.url)

                async def fetch_tarball(folder: Path) -> Path:
                    archive, how = folder / "source.tar", (self._origins, self._bounds, report)
                    await fetch(source.url, archive, source.sha256, *how)
                    return archive

                return f"tarball:{source.sha256}", fetch_tarball
            case GitSource():
                commit = await self._repositories.commit(source.url, source.commit, report)
                archive = partial(self._repositories.archive, source.url, commit, report)
                return f"{_GIT}{commit}", archive


def _words(source: KernelSource) -> str:
    """Return the source's description for errors."""
    match source:
        case PackageSource():
            return " or ".join(source.names)
        case TarballSource():
            return source.url
        case GitSource():
            return f"{source.commit} of {source.url}"


def key(identity: str) -> str:
    """Return the name of a source's folder in the cache."""
    if identity.startswith(_GIT):
        identity = f"{identity} {_GIT_LAYOUT}"
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


# Fetches the source into a new folder; returns its tar archive.
_Fetch = Callable[[Path], Awaitable[Path]]
