"""Toolchain images: made once, whole or absent, and never another compiler silently."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from kgym.api.steps import BuildSpec
from kgym.errors import KgymError
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_builder.toolchains.archives import Archives
from kgym_builder.toolchains.image import ABOUT, IMAGE, PREFIX
from kgym_builder.toolchains.toolchains import Toolchains
from kgym_scheduler.database.connection import upgrade
from kgym_scheduler.scheduler import Scheduler
from tests.builder.toolchains import making
from tests.builder.toolchains.archive import SmallArchive
from tests.conftest import ROOT, NewRun
from tests.refused import refused
from tests.scheduler.parts import Clock, Platform, badly, claim_of, job
from tests.tables import rows

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]
SYZBOT = "gcc (Debian 10.2.1-6) 10.2.1 20210110, GNU ld (GNU Binutils for Debian) 2.35.2"

Start = Callable[[], StepContext]


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> SmallArchive:
    return SmallArchive(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="session")
def gcc_image(archive: SmallArchive, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of hosts of which one has made the image with GCC."""
    folder = tmp_path_factory.mktemp("made")
    asyncio.run(making.make(folder, archive.line))
    return folder / "storage"


@pytest.fixture
def stored(gcc_image: Path, tmp_path: Path) -> Path:
    """The image in the storage that this test's hosts share."""
    shutil.copytree(gcc_image, tmp_path / "storage", dirs_exist_ok=True)
    (image,) = (tmp_path / "storage" / PREFIX).rglob(IMAGE)
    return image


@pytest.fixture
def start(new_run: NewRun, fake_build: BuildSpec) -> Start:
    return lambda: new_run(fake_build)


def host(folder: Path, archives: str = "none") -> Toolchains:
    return Toolchains(folder, Archives.read(archives))


def log(run: StepContext) -> str:
    return (run.folder / "step.log").read_text()


async def failure(toolchains: Toolchains, compiler: str, run: StepContext) -> KgymError:
    with pytest.raises(KgymError) as caught:
        await toolchains.get(compiler, run)
    return caught.value


async def test_an_image_is_made_once(archive: SmallArchive, start: Start, tmp_path: Path) -> None:
    first, run = host(tmp_path / "one", archive.line), start()
    made = await first.get("gcc-10", run)
    assert (made.name, made.family, made.number) == ("bullseye/gcc-10", "gcc", "10.2.1")
    assert made.variables == ("CC=gcc-10", "HOSTCC=gcc-10")
    assert "making the toolchain image bullseye-" in log(run)
    other = await first.get("gcc-9", start())
    assert (other.image, other.number) == (made.image, "9.3.0")
    second, run = host(tmp_path / "two"), start()
    fetched = await second.get("gcc-10", run)
    assert "from storage" in log(run)
    assert (fetched.identity, fetched.version) == (made.identity, made.version)
    assert await second.offered(LocalStorage(tmp_path / "storage")) == [
        *("bullseye/gcc-10", "bullseye/gcc-9")
    ]


async def test_a_half_stored_image_is_not_offered(stored: Path, tmp_path: Path) -> None:
    there = LocalStorage(tmp_path / "storage")
    second = host(tmp_path / "two")
    assert "bullseye/gcc-10" in await second.offered(there)
    (stored.parent.parent / "about.json").unlink()  # stored last
    assert await second.offered(there) == []


async def test_clang_has_its_image(archive: SmallArchive, start: Start, tmp_path: Path) -> None:
    toolchains = host(tmp_path / "one", archive.line)
    clang = await toolchains.get("bullseye/clang-13", start())
    assert clang.number == "13.0.1"
    assert {"CC=clang", "LD=ld.lld", "AR=llvm-ar", "HOSTCC=clang"} <= set(clang.variables)
    gcc = await toolchains.get("gcc-9", start())
    assert gcc.image != clang.image
    assert gcc.identity != clang.identity


async def test_syzbots_compiler_or_the_nearest(stored: Path, start: Start, tmp_path: Path) -> None:
    toolchains = host(tmp_path / "one")
    exact = await toolchains.get(SYZBOT, start())
    assert (exact.name, exact.substitution) == ("bullseye/gcc-10", "")
    run = start()
    near = await toolchains.get("gcc (GCC) 8.0.1 20180413 (experimental)", run)
    assert near.name == "bullseye/gcc-9"
    assert near.substitution == (
        "bullseye/gcc-9 (gcc-9 (Debian 9.3.0-1) 9.3.0) instead of gcc (GCC) 8.0.1 20180413"
        " (experimental): the nearest that this worker has"
    )
    assert near.substitution in log(run)
    same = await toolchains.get("gcc (GCC) 10.1.0-syz 20200507", start())
    assert same.substitution.endswith(": the same major version")


async def test_two_steps_make_it_once(archive: SmallArchive, start: Start, tmp_path: Path) -> None:
    hosts = [host(tmp_path / "one", archive.line), host(tmp_path / "one", archive.line)]
    runs = [start(), start(), start()]
    toolchains = await asyncio.gather(
        *(maker.get("gcc-10", run) for maker, run in zip([*hosts, hosts[0]], runs, strict=True))
    )
    assert len({finding.image for finding in toolchains}) == 1
    assert sum("making the toolchain" in log(run) for run in runs if run.take_news()[0]) == 1


Attempts = Callable[[int], Awaitable[list[StepContext]]]
Hosts = tuple[Scheduler, Attempts]


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    """A scheduler, and attempts under its leases on as many hosts, with one storage."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'kgym.db'}"
    await upgrade(url)
    platform = Platform(url, tmp_path, Clock())
    async with platform.scheduler() as scheduler:

        async def begin(count: int) -> list[StepContext]:
            for _ in range(count):
                await scheduler.submit(job())
            claimed = (await scheduler.claim(claim_of(want=count))).assignments
            folders = [tmp_path / "attempts" / each.lease.hex for each in claimed]
            for folder in folders:
                folder.mkdir(parents=True)
            storage = platform.storage
            return [
                StepContext(assignment, folder, storage, scheduler)
                for assignment, folder in zip(claimed, folders, strict=True)
            ]

        yield scheduler, begin


async def until(run: StepContext, words: str) -> None:
    async with asyncio.timeout(60):
        while not (run.folder / "step.log").exists() or words not in log(run):
            await asyncio.sleep(0.02)


async def test_hosts_make_it_once(archive: SmallArchive, hosts: Hosts, tmp_path: Path) -> None:
    runs = await hosts[1](3)
    with contextlib.ExitStack() as held:
        for run in runs:
            held.enter_context(run.held)
        toolchains = await asyncio.gather(
            *(
                host(tmp_path / f"host{number}", archive.line).get("gcc-10", run)
                for number, run in enumerate(runs)
            )
        )
    assert len({finding.identity for finding in toolchains}) == 1
    assert len({finding.image for finding in toolchains}) == 3
    assert sum("making the toolchain image" in log(run) for run in runs) == 1
    assert sum("fetched the toolchain image" in log(run) for run in runs) == 2


async def test_a_waiting_host_goes_on(archive: SmallArchive, hosts: Hosts, tmp_path: Path) -> None:
    """A host that fails to make the image leaves it to the one that waits."""
    scheduler, begin = hosts
    first, second = await begin(2)
    with first.held, second.held:
        gone = f"bullseye=[trusted=yes] copy://{tmp_path}/nowhere"
        await failure(host(tmp_path / "one", gone), "gcc-10", first)
        waits = asyncio.create_task(host(tmp_path / "two", archive.line).get("gcc-10", second))
        await until(second, "waiting for the step that makes this toolchain image now")
        await scheduler.finish(first.assignment.lease, badly("infrastructure"))
        assert (await waits).number == "10.2.1"
        assert "making the toolchain image" in log(second)


@pytest.mark.attack
@pytest.mark.parametrize("where", ["host", "storage"])
async def test_a_damaged_image_is_never_used(
    archive: SmallArchive, stored: Path, start: Start, tmp_path: Path, where: str
) -> None:
    good, image = stored.read_bytes(), stored
    if where == "host":
        first = await host(tmp_path / "one").get("gcc-10", start())
        assert first.image is not None
        image = first.image
    image.write_bytes(good[:5000] + b"damaged" + good[5007:])
    run = start()
    again = await host(tmp_path / "one", archive.line).get("gcc-10", run)
    assert again.image is not None
    assert hashlib.sha256(again.image.read_bytes()).hexdigest() in _about(again.image)
    lines = {"host": "fetched the toolchain image", "storage": "making the toolchain image"}
    assert lines[where] in log(run)


@pytest.mark.attack
async def test_a_damaged_image_is_not_replaced(stored: Path, start: Start, tmp_path: Path) -> None:
    good = stored.read_bytes()
    stored.write_bytes(good[:5000] + b"damaged" + good[5007:])
    error = await failure(host(tmp_path / "one"), "gcc-10", start())
    assert (error.reason, error.cause) == ("no_toolchain_image", "infrastructure")
    assert "bullseye (gcc-10, gcc-9) is damaged or gone" in error.message
    assert "use another worker" in error.message
    assert not list((tmp_path / "one").rglob(IMAGE))


@pytest.mark.attack
async def test_a_doubtful_image_is_checked(stored: Path, start: Start, tmp_path: Path) -> None:
    toolchains = host(tmp_path / "one")
    first = await toolchains.get("gcc-10", start())
    assert first.image is not None
    status, good = first.image.stat(), first.image.read_bytes()
    with first.image.open("r+b") as file:  # as a disk does that forgets: nothing else changes
        file.seek(5000)
        file.write(b"damaged")
    seal = tmp_path / f"one/toolchains/.{first.image.parent.name}.seal"
    now = first.image.stat()
    seal.write_text(f"[{now.st_ino}, {now.st_size}, {now.st_mtime_ns}, {now.st_ctime_ns}]")
    os.utime(first.image, ns=(status.st_atime_ns, status.st_mtime_ns))
    first.doubt()
    again = await toolchains.get("gcc-10", start())
    assert again.image is not None
    assert again.image.read_bytes() == good


async def test_newer_packages_are_another_toolchain(
    archive: SmallArchive, stored: Path, start: Start, tmp_path: Path
) -> None:
    first = await host(tmp_path / "one").get("gcc-10", start())
    own = SmallArchive(tmp_path / "archive")
    own.publish("2")
    shutil.rmtree(tmp_path / "storage" / PREFIX)
    second = await host(tmp_path / "two", own.line).get("gcc-10", start())
    assert second.identity != first.identity


async def test_a_compiler_that_cannot_be_had_is_told_with_those_that_can(
    archive: SmallArchive, stored: Path, start: Start, tmp_path: Path
) -> None:
    toolchains = host(tmp_path / "one", archive.line)
    for compiler in ("gcc-99", "buster/gcc-8"):
        error = await failure(toolchains, compiler, start())
        assert (error.reason, error.cause) == ("no_compiler", "user")
        assert f"this builder has no {compiler}; its compilers: " in error.message
        assert "bullseye/gcc-10" in error.message
        assert "KGYM_ARCHIVES" in error.message
    error = await failure(host(tmp_path / "two"), "trixie/gcc-14", start())
    assert error.reason == "no_compiler"


async def test_a_missing_suite(archive: SmallArchive, start: Start, tmp_path: Path) -> None:
    """The error quotes apt, and nothing is left behind."""
    gone = f"bullseye=[trusted=yes] copy://{tmp_path}/nowhere"
    error = await failure(host(tmp_path / "one", gone), "gcc-10", start())
    assert (error.reason, error.cause) == ("no_toolchain_image", "infrastructure")
    assert (
        "the toolchain image of bullseye (gcc-10, gcc-9) cannot be made from"
        f" copy://{tmp_path}/nowhere: E"
    ) in error.message
    assert "KGYM_ARCHIVES=bullseye=http://… on the worker" in error.message
    assert not list((tmp_path / "one").rglob(IMAGE))
    assert not list((tmp_path / "one").rglob(".*.part-*"))
    assert (await host(tmp_path / "one", archive.line).get("gcc-10", start())).number == "10.2.1"


@pytest.mark.attack
async def test_the_password_of_an_archive_is_in_no_error(start: Start, tmp_path: Path) -> None:
    private = "bullseye=http://me:secret@127.0.0.1:9/debian"
    error = await failure(host(tmp_path / "one", private), "gcc-10", start())
    assert "cannot be made from http://127.0.0.1:9/debian: E" in error.message
    assert "secret" not in f"{error.message} {error.details}"


@pytest.mark.attack
async def test_unsigned_packages(archive: SmallArchive, start: Start, tmp_path: Path) -> None:
    unsigned = f"bullseye=copy://{archive.folder}"
    error = await failure(host(tmp_path / "one", unsigned), "gcc-10", start())
    assert error.reason == "no_toolchain_image"
    assert not list((tmp_path / "one").rglob(IMAGE))


def test_any_user_can_make_an_image(archive: SmallArchive) -> None:
    if os.geteuid() != 0:
        pytest.skip("the other tests are run as another user than root already")
    # Not in pytest's folders, which each new run of pytest closes to other users.
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        shutil.copytree(archive.folder, own / "archive")
        for folder in (own, own / "archive"):
            folder.chmod(0o755)
        shutil.chown(own, 65534, 65534)
        line = archive.line.replace(str(archive.folder), str(own / "archive"))
        argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
        done = subprocess.run(
            [*argv, "-m", "tests.builder.toolchains.making", own, line],
            env={**os.environ, "HOME": str(own), "TMPDIR": str(own), "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "bullseye/gcc-10 10.2.1"


@pytest.mark.parametrize(("text", "complaint"), rows(__file__, "no_archives.tsv"))
def test_a_setting_that_names_no_archive_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(KgymError, match="KGYM_ARCHIVES: ") as caught:
        Archives.read(text)
    assert complaint in caught.value.message


@pytest.fixture
def apt_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this a host whose apt has these sources, and no others."""

    def has(sources: str) -> None:
        folder = tmp_path / "apt"
        folder.mkdir(exist_ok=True)
        (folder / "sources.list").write_text(sources)
        lines = f'Dir::Etc::sourcelist "{folder}/sources.list";\nDir::Etc::sourceparts "/dev/null";'
        (folder / "apt.conf").write_text(lines)
        program = folder / "apt-get"
        program.write_text(
            "#!/bin/sh\n"
            '[ "$1" = indextargets ] || exec /usr/bin/apt-get "$@"\n'
            # As if their lists had been fetched: it tells of no others.
            f'exec /usr/bin/apt-get -c {folder}/apt.conf "$@" --no-release-info\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return has


DEBIAN = "deb http://archive.example/debian bookworm main\n"
UBUNTU = "deb http://archive.example/ubuntu jammy main universe\n"


async def test_a_suite_with_an_archive_is_offered(apt_of: Callable[[str], None]) -> None:
    apt_of(DEBIAN)
    assert await Archives.read(None).suites() == {"bullseye", "bookworm", "trixie"}
    assert "buster" in await Archives.read("buster=http://archive.example/debian").suites()
    assert "buster" in await Archives.read("*=http://archive.example/debian").suites()
    assert await Archives.read("none").suites() == set()


async def test_a_host_without_debians_archive_offers_nothing_that_it_could_not_make(
    archive: SmallArchive, start: Start, tmp_path: Path, apt_of: Callable[[str], None]
) -> None:
    apt_of(UBUNTU)
    storage = LocalStorage(tmp_path / "storage")
    assert await Toolchains(tmp_path / "one").offered(storage) == []
    error = await failure(Toolchains(tmp_path / "one"), "bullseye/gcc-10", start())
    assert (error.reason, error.cause) == ("no_compiler", "user")
    named = host(tmp_path / "one", archive.line)
    assert {each.partition("/")[0] for each in await named.offered(storage)} == {"bullseye"}
    assert (await named.get("bullseye/gcc-10", start())).number == "10.2.1"
    # What has been stored serves hosts that cannot make it.
    other = Toolchains(tmp_path / "two")
    assert await other.offered(storage) == ["bullseye/gcc-10", "bullseye/gcc-9"]
    assert (await other.get("bullseye/gcc-10", start())).number == "10.2.1"


async def test_a_missing_archive_is_told(apt_of: Callable[[str], None]) -> None:
    apt_of(DEBIAN)
    archives = Archives.read(None)
    assert await archives.source("trixie") == "http://archive.example/debian/"
    apt_of(UBUNTU)
    with refused("no_archive", "toolchain image of trixie cannot be made") as caught:
        await archives.source("trixie")
    assert "KGYM_ARCHIVES=trixie=http://… on the worker" in caught.value.message


async def test_what_is_known_of_an_image_names_each_package_with_its_version(stored: Path) -> None:
    assert '"coreutils_1_amd64"' in _about(stored.parent / IMAGE)


def _about(image: Path) -> str:
    paths = [image.with_name(ABOUT), image.parent.with_name(ABOUT)]
    return next(path for path in paths if path.exists()).read_text()
