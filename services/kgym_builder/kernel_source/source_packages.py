"""Source packages of the kernel, from the distribution's own archive, by its apt.

A package of the host's own suite is taken by the host's lists. Of another suite, lists of its own
are fetched from the archive that the host's apt sources name, and are kept for a day: the host's
lists and packages stay as they are.
"""

import asyncio
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kgym.api.steps import PackageSource
from kgym.errors import InfrastructureError, UserError
from kgym.host import proc
from kgym.host.folder_cache import FolderCache
from kgym_builder.kernel_source.source_limits import SourceLimits

_HOST = (Path("/var/lib/apt/lists"), Path("/var/lib/dpkg/status"))
_LISTS_BUDGET = 400 << 20
"""Bytes of lists that are kept: those of a suite have 20 MB to 40 MB."""
_LISTS_SECONDS = 600.0
_ASK_SECONDS = 120.0
_KINDS = ("-security", "-updates", "-backports")
"""Ends of the names of suites that may lie in archives of their own."""
_KEYRINGS = Path("/usr/share/keyrings")
_GONE = "does not have a Release file"


@dataclass(frozen=True, slots=True)
class Offered:
    """A package that an archive offers."""

    name: str
    version: str
    apt: tuple[str, ...] = ()
    """apt's options for the suite."""

    @property
    def identity(self) -> str:
        """What names its content: suites that offer the same version offer the same files."""
        return f"package:{self.name}={self.version}"


class SourcePackages:
    """What the archive of the host's distribution offers; lists of suites are kept in `root`."""

    def __init__(self, root: Path, bounds: SourceLimits) -> None:
        self._lists = FolderCache(root)
        self._root = root
        self._bounds = bounds
        self._known: dict[tuple[object, ...], Offered] = {}

    async def offered(self, source: PackageSource) -> Offered:
        """Return the first of these packages that there is.

        Raises UserError `source_not_found`; InfrastructureError `download_failed`.
        """
        # Asking takes apt 0.5 s to 5 s; what it answers rests on these files.
        stamps = tuple(path.stat().st_mtime_ns for path in _HOST if path.exists())
        apt: tuple[str, ...] = ()
        if source.suite is not None:
            folder = await self._suite(source.suite)
            apt, stamps = _options(folder), (folder.stat().st_mtime_ns,)
        asked = (source.suite, *source.names, stamps)
        if asked not in self._known:
            where = f"suite {source.suite}" if source.suite else "the distribution"
            self._known[asked] = await _first(source.names, apt, where)
        return self._known[asked]

    async def fetch(self, package: Offered, folder: Path) -> Path:
        """Fetch and unpack a package into an empty folder; return the kernel's tar archive."""
        argv = ["apt-get", *package.apt, "download", f"{package.name}={package.version}"]
        try:
            await proc.run(argv, timeout=self._bounds.seconds, cwd=folder)
        except proc.ProgramFailed as error:
            raise InfrastructureError("download_failed", error.message) from error
        (deb,) = await asyncio.to_thread(lambda: list(folder.glob("*.deb")))
        seconds = self._bounds.unpack_seconds
        await proc.run(["dpkg-deb", "-x", deb, folder], timeout=seconds)
        # linux-source-5.10 also holds linux-patch-….
        return next((folder / "usr" / "src").glob("linux-source-*.tar.*"))

    async def _suite(self, suite: str) -> Path:
        """Return the folder with apt's lists of a suite: of today, or as new as can be had."""
        today = time.strftime("%Y-%m-%d", time.gmtime())

        async def make(folder: Path) -> None:
            await _update(suite, folder)

        async def nothing(folder: Path) -> None:
            raise InfrastructureError("download_failed", f"the lists of {suite} are gone")

        try:
            folder, there = await self._lists.get(f"{suite}_{today}", make)
        except InfrastructureError:
            # An archive that cannot be reached now does not stop what is compiled already.
            kept = sorted(path.name for path in self._root.glob(f"{suite}_*"))
            if not kept:
                raise
            folder, there = await self._lists.get(kept[-1], nothing)
        if not there:
            await asyncio.to_thread(self._lists.trim, _LISTS_BUDGET)
        return folder


def _options(folder: Path) -> tuple[str, ...]:
    """Return the options with which apt knows the suite of this folder, and nothing else."""
    places = {
        "Dir::Etc::sourcelist": folder / "suite.sources",
        "Dir::Etc::sourceparts": folder / "none",
        "Dir::Etc::preferences": folder / "none",
        "Dir::Etc::preferencesparts": folder / "none",
        "Dir::State": folder / "state",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        # What apt would keep for the next question would change a folder that is whole.
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
    }
    return tuple(part for name, place in places.items() for part in ("-o", f"{name}={place}"))


async def _update(suite: str, folder: Path) -> None:
    """Fetch the lists of a suite into an empty folder."""
    address, keyring = await _archive(suite)
    for name in ("none", "state", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    lines = ["Types: deb", f"URIs: {address}", f"Suites: {suite}", "Components: main"]
    signed = [f"Signed-By: {keyring}"] if keyring else []
    (folder / "suite.sources").write_text("\n".join([*lines, *signed, ""]))
    strict = ["-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Languages=none"]
    argv = ["apt-get", *_options(folder), *strict, "update"]
    done = await proc.run(argv, timeout=_LISTS_SECONDS, check=False, env=_plain())
    if done.returncode == 0:
        return
    said = " / ".join(line for line in done.text.splitlines() if line[:2] in {"E:", "W:"})
    if _GONE in said:
        raise UserError(
            "source_not_found",
            f"suite {suite} is not at {address}, the archive of this worker's distribution:"
            " it is misspelt, or was moved to an archive of old suites",
        )
    raise InfrastructureError("download_failed", f"lists of suite {suite}: {said[-1000:]}")


async def _archive(suite: str) -> tuple[str, Path | None]:
    """Return the address of the archive that has such a suite, and the keys that sign it.

    A security suite is looked for where the host's own one is, and so on.
    """
    fields = ("ORIGIN", "CODENAME", "REPO_URI")
    form = "|".join(f"$({one})" for one in fields)
    argv = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    own = (await proc.run(argv, timeout=_ASK_SECONDS, env=_plain())).text.splitlines()
    release = platform.freedesktop_os_release()
    words = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    for line in own:
        origin, _, rest = line.partition("|")
        codename, _, address = rest.partition("|")
        if origin.lower() in words and _kind(codename) == _kind(suite):
            keyring = _KEYRINGS / f"{origin.lower()}-archive-keyring.gpg"
            return address, keyring if keyring.exists() else None
    raise UserError(
        "source_not_found",
        f"suite {suite}: the worker's apt sources name no archive with suites like it",
    )


def _kind(suite: str) -> str:
    return next((end for end in _KINDS if suite.endswith(end)), "")


async def _first(names: Sequence[str], apt: tuple[str, ...], where: str) -> Offered:
    for name in names:
        argv = ["apt-cache", *apt, "policy", name]
        policy = await proc.run(argv, timeout=_ASK_SECONDS, env=_plain())
        if version := _candidate(policy.text):
            return Offered(name, version, apt)
    raise UserError(
        "source_not_found",
        f"{where} offers none of {', '.join(names)} (apt-get update refreshes the host's lists)",
    )


def _candidate(policy: str) -> str | None:
    for line in policy.splitlines():
        if line.strip().startswith("Candidate:"):
            version = line.split(":", 1)[1].strip()
            return None if version == "(none)" else version
    return None


def _plain() -> dict[str, str]:
    """Return an environment in which apt speaks English."""
    return {**proc.environment(), "LC_ALL": "C"}
