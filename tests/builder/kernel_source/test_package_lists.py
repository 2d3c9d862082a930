"""Lists of suites: an archive that fails is asked now and then, and older lists go on."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kgym.api.steps import PackageSource
from kgym.errors import KgymError
from kgym_builder.kernel_source.package_lists import Archive, PackageLists
from kgym_builder.kernel_source.source_limits import SourceLimits
from kgym_builder.kernel_source.source_packages import Offered, SourcePackages
from tests.builder.kernel_source.apt_archive import NAME, AptArchive
from tests.builder.kernel_source.web import Web, files, serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.thorough,
    pytest.mark.skipif(
        None in map(shutil.which, ("apt-get", "gpg")), reason="the host has no apt, or no gpg"
    ),
]
SUITE = "forky"
FAILURE = [b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n"]


class Host:
    """A host whose workers take packages from a server of the archive that can be broken."""

    def __init__(self, root: Path, archive: AptArchive, web: Web) -> None:
        self.lists = root / "suites"
        self.archive = archive
        self.web = web
        self.reports: list[str] = []
        self.broken = False

    async def offered(self) -> Offered:
        """Ask as a worker process of its own."""
        source = PackageSource(names=[NAME], suite=SUITE)
        return await self._packages().offered(source, self.reports.append)

    async def makefile(self, folder: Path) -> str:
        """Fetch the package that is offered; return what its Makefile says."""
        folder.mkdir()
        tar = await self._packages().fetch(await self.offered(), folder)
        argv = ["tar", "-xOf", str(tar), "linux/Makefile"]
        return subprocess.run(argv, check=True, timeout=60, capture_output=True).stdout.decode()

    async def refusal(self) -> KgymError:
        with pytest.raises(KgymError) as caught:
            await self.offered()
        return caught.value

    def age(self, day: str) -> None:
        """Let the newest lists be of this day."""
        newest = sorted(self.lists.glob(f"{SUITE}_*"))[-1]
        newest.rename(newest.with_name(f"{SUITE}_{day}"))

    def wait(self, seconds: float) -> None:
        """Let what failed have failed so long ago."""
        for path in self.lists.glob(".*.failed"):
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))

    def _packages(self) -> SourcePackages:
        async def here(_suite: str) -> Archive:
            return Archive(self.web.url, self.archive.keyring)

        return SourcePackages(PackageLists(self.lists, here), SourceLimits())


@asynccontextmanager
async def hosting(tmp_path: Path) -> AsyncIterator[Host]:
    archive = AptArchive(tmp_path / "archive", SUITE)
    archive.publish("1")
    there = files(archive.folder)
    async with serving(lambda path: FAILURE if host.broken else there(path)) as web:
        host = Host(tmp_path, archive, web)
        yield host


async def test_a_server_that_fails_is_asked_again_after_ten_minutes(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        host.broken = True
        errors = await asyncio.gather(*(host.refusal() for _ in range(4)))
        asked = len(host.web.asked)
        assert {(error.reason, error.cause) for error in errors} == {
            ("download_failed", "infrastructure")
        }
        first, *others = sorted((error.message for error in errors), key=len)
        assert "500" in first
        assert all(message.startswith(f"{first} (so it was ") for message in others)
        host.broken = False
        host.wait(500)
        assert (await host.refusal()).message.startswith(f"{first} (so it was 50")
        assert len(host.web.asked) == asked
        host.wait(100)
        assert (await host.offered()).version == "1"
        assert not list(host.lists.glob(".*.failed"))
        assert await host.makefile(tmp_path / "made") == "1"


async def test_another_address_is_asked_at_once(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        host.broken = True
        await host.refusal()
        host.broken = False
        host.web.url += "/"
        assert (await host.offered()).version == "1"


@pytest.mark.parametrize("how", ["broken", "away", "gone"])
async def test_older_lists_are_used_and_it_is_said(tmp_path: Path, how: str) -> None:
    async with hosting(tmp_path) as host:
        await host.offered()
        assert not host.reports
        host.age("2020-02-02")
        host.archive.publish("2")
        if how == "gone":
            host.archive.retire()
        host.broken = how == "broken"
        if how != "away":
            assert (await host.offered()).version == "1"
    if how == "away":
        assert (await host.offered()).version == "1"
    assert host.reports[0].startswith(f"suite {SUITE}: its lists of 2020-02-02 are used, as there")
    words = {"broken": "500", "away": "connect", "gone": "moved to an archive of old suites"}
    assert words[how] in host.reports[0]


async def test_lists_that_are_damaged_are_passed_over(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        await host.offered()
        host.age("2020-02-02")
        host.archive.publish("2")
        assert (await host.offered()).version == "2"
        host.age("2020-02-03")
        (host.lists / f"{SUITE}_2020-02-03" / "suite.sources").unlink()
        host.archive.retire()
        assert (await host.offered()).version == "1"
        shutil.rmtree(host.lists / f"{SUITE}_2020-02-02")
        error = await host.refusal()
    assert (error.reason, error.cause) == ("source_not_found", "user")
    assert "suite forky is not at http" in error.message
