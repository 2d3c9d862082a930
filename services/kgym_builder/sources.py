"""Kernel sources: found out which, fetched once, unpacked once.

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

import httpx

from kgym import proc
from kgym.cache import FolderCache, locked
from kgym.errors import InfrastructureError, UserError
from kgym.sandbox import Sandbox, prepare
from kgym.steps import GitSource, KernelSource, PackageSource, TarballSource

DOWNLOAD_SECONDS = 3600.0
UNPACK_SECONDS = 1200.0
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_APT = (Path("/var/lib/apt/lists"), Path("/var/lib/dpkg/status"))
_GIT = ("git", "-c", "protocol.ext.allow=never", "-c", "gc.auto=0")

Report = Callable[[str, float, float | None], None]
"""Called with a stage, bytes done, and bytes in all (None where unknown)."""


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel source in the cache: `tree` holds the files as published."""

    identity: str
    tree: Path


class Sources:
    """The kernel sources of a host, under `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cache = FolderCache(root / "trees")
        self._downloads = root / "downloads"
        self._mirrors = root / "mirrors"
        self._known: dict[tuple[tuple[str, ...], tuple[int, ...]], tuple[str, str]] = {}

    async def get(
        self, source: KernelSource, report: Report, held: ExitStack | None = None
    ) -> Source:
        """Return the source, fetched and unpacked if need be; it stays until `held` is closed."""
        identity, fetch = await self._named(source, report)

        async def make(folder: Path) -> None:
            archive = await fetch(folder)
            report("unpack", 0, None)
            await _unpack(archive, prepare(folder / "tree"))
            shutil.rmtree(folder / "fetched", ignore_errors=True)

        folder, _ = await self._cache.get(key(identity), make, held=held)
        return Source(identity, folder / "tree")

    async def identify(self, source: KernelSource, report: Report) -> str:
        """Return the source's identity, without fetching more than that takes."""
        identity, _ = await self._named(source, report)
        return identity

    async def _named(self, source: KernelSource, report: Report) -> tuple[str, "_Fetch"]:
        match source:
            case PackageSource():
                return await self._package(source, report)
            case TarballSource():
                return self._tarball(source, report)
            case GitSource():
                return await self._git(source, report)

    async def _package(self, source: PackageSource, report: Report) -> tuple[str, "_Fetch"]:
        name, version = await self._offered(tuple(source.names))

        async def fetch(folder: Path) -> Path:
            report("download", 0, None)
            fetched = folder / "fetched"
            fetched.mkdir()
            await _fetched(["apt-get", "download", f"{name}={version}"], cwd=fetched)
            (package,) = fetched.glob("*.deb")
            await proc.run(["dpkg-deb", "-x", package, fetched], timeout=UNPACK_SECONDS)
            return next((fetched / "usr" / "src").glob("linux-source-*.tar.*"))

        return f"package:{name}={version}", fetch

    async def _offered(self, names: tuple[str, ...]) -> tuple[str, str]:
        """Return the first of these packages that there is, and its version."""
        # Asking takes apt 0.5 s; what it answers rests on these files.
        stamps = tuple(path.stat().st_mtime_ns for path in _APT if path.exists())
        if (names, stamps) not in self._known:
            self._known[names, stamps] = await _policy(names)
        return self._known[names, stamps]

    def _tarball(self, source: TarballSource, report: Report) -> tuple[str, "_Fetch"]:
        async def fetch(folder: Path) -> Path:
            if not source.url.startswith(("http://", "https://")):
                path = Path(source.url.removeprefix("file://"))
                await asyncio.to_thread(_verify, path, source.sha256)
                return path
            fetched = folder / "fetched"
            fetched.mkdir()
            path = fetched / "source.tar"
            await _download(source.url, path, report)
            await asyncio.to_thread(_verify, path, source.sha256)
            return path

        return f"tarball:{source.sha256}", fetch

    async def _git(self, source: GitSource, report: Report) -> tuple[str, "_Fetch"]:
        if _COMMIT_ID.fullmatch(source.commit):  # known without asking anybody
            return f"git:{source.commit}", partial(self._git_archive, source, report)
        commit = await self._mirrored(source, report)
        exact = source.model_copy(update={"commit": commit})
        return f"git:{commit}", partial(self._git_archive, exact, report)

    async def _git_archive(self, source: GitSource, report: Report, folder: Path) -> Path:
        commit = await self._mirrored(source, report)
        fetched = folder / "fetched"
        fetched.mkdir()
        archive = fetched / "source.tar"
        git = [*_GIT, "-C", str(self._mirror(source)), "archive", "--prefix=linux/"]
        await proc.run([*git, "-o", archive, commit], timeout=UNPACK_SECONDS)
        return archive

    async def _mirrored(self, source: GitSource, report: Report) -> str:
        mirror = self._mirror(source)
        async with locked(mirror.with_suffix(".lock")):
            if not mirror.exists():
                await proc.run([*_GIT, "init", "-q", "--bare", mirror], timeout=60)
            return await _fetch_commit(mirror, source, report)

    def _mirror(self, source: GitSource) -> Path:
        return self._mirrors / (hashlib.sha256(source.url.encode()).hexdigest()[:32] + ".git")


def key(identity: str) -> str:
    """Return the name of a source's folder in the cache."""
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


_Fetch = Callable[[Path], Awaitable[Path]]


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


async def _fetched(argv: list[str | Path], cwd: Path | None = None) -> None:
    try:
        await proc.run(argv, timeout=DOWNLOAD_SECONDS, cwd=cwd)
    except proc.ProgramFailed as error:
        raise InfrastructureError("download_failed", error.message) from error


async def _download(url: str, path: Path, report: Report) -> None:
    done = 0
    try:
        async with (
            httpx.AsyncClient(follow_redirects=True, timeout=60) as client,
            client.stream("GET", url) as response,
        ):
            response.raise_for_status()
            total = response.headers.get("content-length")
            with path.open("wb") as file:
                async for chunk in response.aiter_bytes():
                    file.write(chunk)
                    done += len(chunk)
                    report("download", done, float(total) if total else None)
    except httpx.HTTPStatusError as error:
        raise UserError("source_not_found", f"{url}: {error}") from error
    except httpx.HTTPError as error:
        raise InfrastructureError("download_failed", f"{url}: {error}") from error


def _verify(path: Path, sha256: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError("source_not_found", f"cannot read the tarball: {error}") from error
    if found != sha256:
        raise UserError("source_checksum", f"the tarball has SHA-256 {found}, not {sha256}")


async def _fetch_commit(mirror: Path, source: GitSource, report: Report) -> str:
    """Return the full commit id; fetch only if the mirror lacks the commit, or a name may move."""
    full_id = _COMMIT_ID.fullmatch(source.commit) is not None
    if full_id and await _commit(mirror, source.commit):
        return source.commit
    if not source.url.startswith(("https://", "http://", "git://", "ssh://", "file://", "/")):
        raise UserError("source_not_found", f"not a Git URL that is supported: {source.url}")
    report("fetch", 0, None)
    git = [*_GIT, "-C", str(mirror), "fetch", "-q", "--no-tags", source.url]
    if full_id:
        # A server that allows it sends just this commit's history.
        await proc.run([*git, source.commit], timeout=DOWNLOAD_SECONDS, check=False)
    if not (full_id and await _commit(mirror, source.commit)):
        await _fetched([*git, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"])
    commit = await _commit(mirror, source.commit)
    if commit is None:
        raise UserError("source_not_found", f"{source.url} has no commit {source.commit}")
    return commit


async def _commit(mirror: Path, name: str) -> str | None:
    argv = [*_GIT, "-C", str(mirror), "rev-parse", "-q", "--verify", f"{name}^{{commit}}"]
    found = await proc.run(argv, timeout=60, check=False)
    return found.text.strip() if found.returncode == 0 else None


# By way of stdin the archive may lie where the sandbox's user cannot go; there tar
# does not find out the compression itself.
_COMPRESSIONS = {
    b"\xfd7zXZ": "--xz",
    b"\x1f\x8b": "--gzip",
    b"\x28\xb5\x2f\xfd": "--zstd",
    b"BZh": "--bzip2",
}


async def _unpack(archive: Path, tree: Path) -> None:
    with await asyncio.to_thread(archive.open, "rb") as file:
        start = file.read(8)
    flags = [flag for magic, flag in _COMPRESSIONS.items() if start.startswith(magic)]
    argv = ["tar", "-x", *flags, "-C", "/tree", "--strip-components=1", "--no-same-owner"]
    try:
        await Sandbox(writable={"/tree": tree}).run(argv, stdin=archive, timeout=UNPACK_SECONDS)
    except proc.ProgramFailed as error:
        if "No space left" in error.message:
            raise InfrastructureError("disk_full", f"cannot unpack: {error.message}") from error
        raise UserError("source_unreadable", f"cannot unpack {archive.name}: {error}") from error
    if not (tree / "Makefile").is_file():
        raise UserError("source_unreadable", f"{archive.name} holds no kernel: no Makefile on top")
