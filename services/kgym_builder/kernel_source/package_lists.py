"""apt's lists of suites, fetched once a day from the archive that the host's apt sources name.

If an archive cannot be reached or no longer has the suite, no worker of the host asks it again for
ten minutes, so that not every job waits for the same time limit. Until it succeeds, older lists are
used: the packages that they name may be compiled already. The host's own lists stay unchanged.
"""

import asyncio
import json
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from kgym.atomic_files import replace_file
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.host import proc
from kgym.host.folder_cache import FolderCache

# Called with a line for the job's log.
Say = Callable[[str], None]
ASK_SECONDS = 120.0
# Bytes of lists to keep; those of a suite have 20 to 40 MB.
_BUDGET = 400 << 20
_FETCH_SECONDS = 600.0
# Time until a failed archive is asked again.
_AGAIN_SECONDS = 600.0
# Suffixes of suites that may be in separate archives.
_KINDS = ("-security", "-updates", "-backports")
_KEYRINGS = Path("/usr/share/keyrings")
_GONE = "does not have a Release file"


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive of packages: its address, and the keys that sign its lists."""

    address: str
    keyring: Path | None = None
    """File with the signing keys; None for those that apt trusts anyway."""

    def stanza(self, suite: str) -> str:
        """Return its entry for apt's sources."""
        lines = ["Types: deb", f"URIs: {self.address}", f"Suites: {suite}", "Components: main"]
        lines += [f"Signed-By: {self.keyring}"] if self.keyring else []
        return "\n".join([*lines, ""])


async def of_host(suite: str) -> Archive:
    """Return the archive of a suite according to the host's apt sources.

    A security suite is expected in the archive of the host's own security suite, and so on. Raises
    UserError `source_not_found`.
    """
    fields = ("ORIGIN", "CODENAME", "REPO_URI")
    form = "|".join(f"$({field})" for field in fields)
    argv = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    own = (await proc.run(argv, timeout=ASK_SECONDS, env=plain())).text.splitlines()
    release = platform.freedesktop_os_release()
    words = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    for line in own:
        origin, _, rest = line.partition("|")
        codename, _, address = rest.partition("|")
        if origin.lower() in words and _kind(codename) == _kind(suite):
            keyring = _KEYRINGS / f"{origin.lower()}-archive-keyring.gpg"
            return Archive(address, keyring if keyring.exists() else None)
    raise UserError(
        "source_not_found",
        f"suite {suite}: the worker's apt sources name no archive with suites like it",
    )


class PackageLists:
    """Package lists, kept below `root` in a folder for each suite and day."""

    def __init__(self, root: Path, archive: Callable[[str], Awaitable[Archive]] = of_host) -> None:
        """Keep lists below `root`; `archive` returns the archive of a suite."""
        self._root = root
        self._lists = FolderCache(root)
        self._archive = archive

    async def get(self, suite: str, say: Say) -> Path:
        """Return the folder with the newest lists of a suite that can be had.

        `say` gets a line if they are not of today. Raises UserError `source_not_found`,
        InfrastructureError `download_failed`.
        """
        today = time.strftime("%Y-%m-%d", time.gmtime())

        async def make(folder: Path) -> None:
            await self._fetch(suite, folder)

        try:
            folder, there = await self._lists.get(f"{suite}_{today}", make)
        except (UserError, InfrastructureError) as error:
            # Kernels that are compiled already can still be used with older lists.
            older = await self._older(suite)
            if older is None:
                raise
            day = older.name.rpartition("_")[2]
            say(
                f"suite {suite}: its lists of {day} are used, as there are no newer:"
                f" {error.message}"
            )
            return older
        if not there:
            await asyncio.to_thread(self._lists.trim, _BUDGET)
        return folder

    async def _older(self, suite: str) -> Path | None:
        """Return the newest complete lists of the suite."""

        async def none(_folder: Path) -> None:
            raise InfrastructureError("download_failed", f"the lists of {suite} are damaged")

        for path in sorted(self._root.glob(f"{suite}_*"), reverse=True):
            try:
                folder, _ = await self._lists.get(path.name, none)
            except InfrastructureError:
                continue
            return folder
        return None

    async def _fetch(self, suite: str, folder: Path) -> None:
        """Fetch the lists of a suite into an empty folder, unless that failed recently."""
        archive, failure = await self._archive(suite), _Failure(self._root / f".{suite}.failed")
        await asyncio.to_thread(failure.repeat, archive.address)
        try:
            await _update(suite, archive, folder)
        except KgymError as error:
            await asyncio.to_thread(failure.note, archive.address, error)
            raise
        failure.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last failure to fetch a suite's lists, in a file that all workers of a host read."""

    path: Path

    def repeat(self, address: str) -> None:
        """Raise the error of this address if it was recorded recently."""
        try:
            ago = time.time() - self.path.stat().st_mtime
            noted = json.loads(self.path.read_text())
            failed, for_good = noted["address"], noted["for_good"]
            reason, message = str(noted["reason"]), str(noted["message"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if failed != address or not 0 <= ago < _AGAIN_SECONDS:
            return
        message += f" (so it was {ago:.0f} s ago; it is asked again after {_AGAIN_SECONDS:.0f} s)"
        raise (UserError if for_good else InfrastructureError)(reason, message)

    def note(self, address: str, error: KgymError) -> None:
        """Record an error."""
        for_good = isinstance(error, UserError)
        noted = {"address": address, "for_good": for_good, "reason": error.reason}
        replace_file(self.path, json.dumps({**noted, "message": error.message}))


def options(folder: Path) -> tuple[str, ...]:
    """Return options that make apt use this folder's suite only."""
    places = {
        "Dir::Etc::sourcelist": folder / "suite.sources",
        "Dir::Etc::sourceparts": folder / "none",
        "Dir::Etc::preferences": folder / "none",
        "Dir::Etc::preferencesparts": folder / "none",
        "Dir::State": folder / "state",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        # No cache files: apt would write them to a complete folder, whose content must not change.
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
    }
    return tuple(part for name, place in places.items() for part in ("-o", f"{name}={place}"))


async def _update(suite: str, archive: Archive, folder: Path) -> None:
    """Fetch the lists of a suite into an empty folder."""
    for name in ("none", "state", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "suite.sources").write_text(archive.stanza(suite))
    strict = ["-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Languages=none"]
    argv = ["apt-get", *options(folder), *strict, "update"]
    done = await proc.run(argv, timeout=_FETCH_SECONDS, check=False, env=plain())
    if done.returncode == 0:
        return
    errors = " / ".join(line for line in done.text.splitlines() if line[:2] in {"E:", "W:"})
    if _GONE in errors:
        raise UserError(
            "source_not_found",
            f"suite {suite} is not at {archive.address}, the archive of this worker's distribution:"
            " it is misspelt, or was moved to an archive of old suites",
        )
    raise InfrastructureError("download_failed", f"lists of suite {suite}: {errors[-1000:]}")


def _kind(suite: str) -> str:
    return next((end for end in _KINDS if suite.endswith(end)), "")


def plain() -> dict[str, str]:
    """Return an environment in which apt speaks English."""
    return {**proc.environment(), "LC_ALL": "C"}
