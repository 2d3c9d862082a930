"""Kernel sources: each is identified, then fetched and unpacked once.

A source resolves to an identity, which names its content, and a pristine tree
in the cache. What comes from outside is unpacked in the sandbox.
"""

import asyncio
import hashlib
import re
import shutil
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kgym.api.steps import GitSource, KernelSource, PackageSource, TarballSource
from kgym.errors import InfrastructureError, UserError
from kgym.host import proc
from kgym.host.folder_cache import FolderCache
from kgym.host.sandbox import prepare
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.download import TellProgress, copy, download
from kgym_builder.kernel_source.git_repositories import Repositories
from kgym_builder.kernel_source.source_limits import SourceLimits
from kgym_builder.kernel_source.unpack import unpack

BUDGET = 40 << 30
"""Bytes of trees that a host keeps, and bytes of Git repositories."""
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_APT = (Path("/var/lib/apt/lists"), Path("/var/lib/dpkg/status"))


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel source in the cache: `tree` holds the files as published."""

    identity: str
    tree: Path


class KernelSources:
    """The kernel sources of a host, under `root`: from where the operator allows, within bounds."""

    def __init__(
        self,
        root: Path,
        origins: Origins = Origins(),  # noqa: B008 - frozen
        bounds: SourceLimits = SourceLimits(),  # noqa: B008
    ) -> None:
        self._origins = origins
        self._bounds = bounds
        self._cache = FolderCache(root / "trees")
        self._repositories = Repositories(root / "repositories", origins, bounds)
        self._known: dict[tuple[tuple[str, ...], tuple[int, ...]], tuple[str, str]] = {}

    async def get(
        self, source: KernelSource, report: TellProgress, held: ExitStack | None = None
    ) -> Source:
        """Return the source, fetched and unpacked if need be; it stays until `held` is closed."""
        identity, fetch = await self._named(source, report)

        async def make(folder: Path) -> None:
            (folder / "fetched").mkdir()
            archive = await fetch(folder / "fetched")
            report("unpack", 0, None)
            await unpack(archive, prepare(folder / "tree"), self._bounds)
            shutil.rmtree(folder / "fetched", ignore_errors=True)

        folder, there = await self._cache.get(key(identity), make, held=held)
        if not there:
            await asyncio.to_thread(self._cache.trim, BUDGET)
            await asyncio.to_thread(self._repositories.trim, BUDGET)
        return Source(identity, folder / "tree")

    async def identify(self, source: KernelSource, report: TellProgress) -> str:
        """Return the source's identity, without fetching more than that takes."""
        identity, _ = await self._named(source, report)
        return identity

    async def _named(self, source: KernelSource, report: TellProgress) -> tuple[str, "_Fetch"]:
        match source:
            case PackageSource():
                return await self._package(source, report)
            case TarballSource():
                return self._tarball(source, report)
            case GitSource():
                return await self._git(source, report)

    async def _package(self, source: PackageSource, report: TellProgress) -> tuple[str, "_Fetch"]:
        name, version = await self._offered(tuple(source.names))

        async def fetch(folder: Path) -> Path:
            report("download", 0, None)
            try:
                argv = ["apt-get", "download", f"{name}={version}"]
                await proc.run(argv, timeout=self._bounds.seconds, cwd=folder)
            except proc.ProgramFailed as error:
                raise InfrastructureError("download_failed", error.message) from error
            (package,) = await asyncio.to_thread(lambda: list(folder.glob("*.deb")))
            seconds = self._bounds.unpack_seconds
            await proc.run(["dpkg-deb", "-x", package, folder], timeout=seconds)
            return next((folder / "usr" / "src").glob("linux-source-*.tar.*"))

        return f"package:{name}={version}", fetch

    async def _offered(self, names: tuple[str, ...]) -> tuple[str, str]:
        """Return the first of these packages that there is, and its version."""
        # Asking takes apt 0.5 s; what it answers rests on these files.
        stamps = tuple(path.stat().st_mtime_ns for path in _APT if path.exists())
        if (names, stamps) not in self._known:
            self._known[names, stamps] = await _policy(names)
        return self._known[names, stamps]

    def _tarball(self, source: TarballSource, report: TellProgress) -> tuple[str, "_Fetch"]:
        # Also if the tree is there already: nobody gets it from a place that is not allowed.
        path = self._origins.check(source.url)

        async def fetch(folder: Path) -> Path:
            archive, how = folder / "source.tar", (source.sha256, self._origins, self._bounds)
            if path is not None:
                await copy(path, archive, *how, report)
            else:
                await download(source.url, archive, *how, report)
            return archive

        return f"tarball:{source.sha256}", fetch

    async def _git(self, source: GitSource, report: TellProgress) -> tuple[str, "_Fetch"]:
        self._origins.check(source.url)
        commit = source.commit
        if not _COMMIT_ID.fullmatch(
            commit
        ):  # other sources are known without a question to anybody
            commit = await self._repositories.commit(source.url, commit, report)
        archive = partial(self._repositories.archive, source.url, commit, report)
        return f"git:{commit}", archive


def key(identity: str) -> str:
    """Return the name of a source's folder in the cache."""
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


_Fetch = Callable[[Path], Awaitable[Path]]
"""Fetches the source into a new folder; returns its tar archive."""


async def _policy(names: tuple[str, ...]) -> tuple[str, str]:
    for name in names:
        policy = await proc.run(["apt-cache", "policy", name], timeout=60)
        if version := _candidate(policy.text):
            return name, version
    raise UserError(
        "source_not_found",
        f"the distribution offers none of {', '.join(names)} (apt-get update refreshes its lists)",
    )


def _candidate(policy: str) -> str | None:
    for line in policy.splitlines():
        if line.strip().startswith("Candidate:"):
            version = line.split(":", 1)[1].strip()
            return None if version == "(none)" else version
    return None
