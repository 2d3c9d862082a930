"""Source packages of the kernel, from the distribution's archive by apt.

A package of the host's own suite comes by the host's lists; one of another suite, by lists of its
own (`package_lists.py`). The host's lists and packages stay unchanged.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kgym.api.steps import PackageSource
from kgym.errors import InfrastructureError, UserError
from kgym.host import proc
from kgym_builder.kernel_source import package_lists
from kgym_builder.kernel_source.package_lists import ASK_SECONDS, PackageLists, Say, plain
from kgym_builder.kernel_source.source_limits import SourceLimits

_HOST = (Path("/var/lib/apt/lists"), Path("/var/lib/dpkg/status"))


@dataclass(frozen=True, slots=True)
class Offered:
    """A package that an archive offers."""

    name: str
    version: str
    apt: tuple[str, ...] = ()
    """apt's options for the suite."""

    @property
    def identity(self) -> str:
        """Identity of its content: the same version has the same files in every suite."""
        return f"package:{self.name}={self.version}"


class SourcePackages:
    """The packages of the host's distribution, and of other suites by their `lists`."""

    def __init__(self, lists: PackageLists, bounds: SourceLimits) -> None:
        self._lists = lists
        self._bounds = bounds
        self._known: dict[tuple[object, ...], Offered] = {}

    async def offered(self, source: PackageSource, say: Say) -> Offered:
        """Return the first of these packages that exists; `say` gets a line if the lists are old.

        Raises UserError `source_not_found`; InfrastructureError `download_failed`.
        """
        # apt takes 0.5 to 5 s to answer, and the answer depends on these files only.
        stamps = tuple(path.stat().st_mtime_ns for path in _HOST if path.exists())
        apt: tuple[str, ...] = ()
        if source.suite is not None:
            folder = await self._lists.get(source.suite, say)
            apt, stamps = package_lists.options(folder), (folder.stat().st_mtime_ns,)
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


async def _first(names: Sequence[str], apt: tuple[str, ...], where: str) -> Offered:
    for name in names:
        argv = ["apt-cache", *apt, "policy", name]
        policy = await proc.run(argv, timeout=ASK_SECONDS, env=plain())
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
