"""Kernel sources: what was checked is what is used; only what the operator allows is reached."""

import asyncio
import contextlib
import gzip
import hashlib
import io
import ipaddress
import os
import re
import shutil
import socket
import ssl
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kgym.api.steps import GitSource, KernelSource, PackageSource, TarballSource
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.kernel_source.source_limits import SourceLimits
from tests.builder.kernel_source.git_server import commit, git
from tests.builder.kernel_source.web import files, ok, redirect, serving
from tests.conftest import ANYWHERE
from tests.refused import refused

pytestmark = pytest.mark.anyio

HERE = Origins(networks=(ipaddress.ip_network("127.0.0.1/32"),))
SMALL = SourceLimits(
    archive=8 << 20,
    tree=32 << 20,
    files=2000,
    repository=8 << 20,
    unpack_memory=64 << 20,
    seconds=30,
)


def tarball(marker: str = "honest", **others: tarfile.TarInfo) -> bytes:
    """The archive of a tree that has a Makefile, with more members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("linux/Makefile")
        member.size = len(marker)
        archive.addfile(member, io.BytesIO(marker.encode()))
        for other in others.values():
            archive.addfile(other)
    return buffer.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def silent(_stage: str, _done: float, _total: float | None) -> None:
    """Report nothing."""


async def marker(sources: KernelSources, source: KernelSource) -> str:
    """What the Makefile of the source says."""
    return ((await sources.get(source, silent)).tree / "Makefile").read_text()


async def refusal(sources: KernelSources, source: KernelSource) -> KgymError:
    with pytest.raises(KgymError) as caught:
        await sources.get(source, silent)
    return caught.value


# --- packages of other suites ---------------------------------------------------------------


async def identified(sources: KernelSources, suite: str, name: str) -> str:
    """The identity of a suite's package; the test is skipped where there is no network."""
    try:
        return await sources.identify(PackageSource(names=[name], suite=suite), silent)
    except InfrastructureError as error:
        pytest.skip(f"the distribution's archive cannot be reached: {error.message}")


@pytest.mark.thorough
async def test_a_package_is_of_its_suite_and_lists_are_kept(tmp_path: Path) -> None:
    if "bookworm" not in (Path("/etc/os-release")).read_text():
        pytest.skip("what the archive's suites hold is known for Debian 12 alone")
    host = {path: path.stat().st_mtime_ns for path in Path("/var/lib/apt/lists").iterdir()}
    identity = await identified(KernelSources(tmp_path), "bullseye", "linux-source-5.10")
    assert re.fullmatch(r"package:linux-source-5\.10=5\.10\.\d+-\d+", identity)
    (kept,) = (tmp_path / "suites").glob("bullseye_*")
    made = kept.stat().st_mtime_ns
    # Another worker process takes the same lists; the host's own stay as they are.
    assert await identified(KernelSources(tmp_path), "bullseye", "linux-source-5.10") == identity
    assert kept.stat().st_mtime_ns == made
    assert host == {path: path.stat().st_mtime_ns for path in Path("/var/lib/apt/lists").iterdir()}


@pytest.mark.thorough
async def test_a_suite_that_is_gone_is_named(tmp_path: Path) -> None:
    with refused("source_not_found", r"suite no\.such\.suite is not at http"):
        await identified(KernelSources(tmp_path), "no.such.suite", "linux-source-5.10")
    assert not list((tmp_path / "suites").glob("no*"))  # nothing of it is left


# --- files of the worker --------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["copy", "unpack"])
@pytest.mark.attack
async def test_what_was_hashed_is_what_is_unpacked(tmp_path: Path, stage: str) -> None:
    path, evil = tmp_path / "linux.tar", tmp_path / "evil.tar"
    path.write_bytes(tarball("honest"))
    evil.write_bytes(tarball("poison"))

    def swap(now: str, _done: float, _total: float | None) -> None:
        if now == stage and evil.exists():
            evil.rename(path)

    sources = KernelSources(tmp_path / "cache", ANYWHERE)
    source = TarballSource(url=str(path), sha256=sha256(tarball("honest")))
    unpacked = await sources.get(source, swap)
    assert not (stage == "unpack" and evil.exists())
    assert (unpacked.tree / "Makefile").read_text() == "honest"


@pytest.mark.attack
async def test_a_file_that_is_written_over_while_it_is_copied_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "linux.tar"
    honest = tarball("honest") + bytes(4 << 20)
    path.write_bytes(honest)

    def overwrite(stage: str, done: float, _total: float | None) -> None:
        if stage == "copy" and done <= 1 << 20:
            with path.open("r+b") as file:
                file.seek(3 << 20)
                file.write(b"poison")

    sources = KernelSources(tmp_path / "cache", ANYWHERE)
    with refused("source_checksum"):
        await sources.get(TarballSource(url=str(path), sha256=sha256(honest)), overwrite)


@pytest.mark.parametrize("kind", ["/dev/kmsg", "/dev/zero", "/proc/kmsg", "fifo", "folder"])
@pytest.mark.attack
async def test_irregular_files_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = Path(kind) if kind.startswith("/") else tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    sources = KernelSources(tmp_path / "cache", ANYWHERE)
    async with asyncio.timeout(20):
        errors = await asyncio.gather(
            *(refusal(sources, TarballSource(url=str(path), sha256=f"{n:064}")) for n in range(9))
        )
    assert {error.reason for error in errors} == {"source_not_found"}
    async with asyncio.timeout(20):
        assert await asyncio.to_thread(lambda: "a free thread") == "a free thread"


@pytest.mark.attack
async def test_a_tarball_of_any_size_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "linux.tar"
    with path.open("wb") as file:
        file.truncate(1 << 43)
    error = await refusal(
        KernelSources(tmp_path / "cache", ANYWHERE, SMALL),
        TarballSource(url=str(path), sha256="0" * 64),
    )
    assert (error.reason, error.cause) == ("source_too_large", "user")


async def test_copying_ends_when_the_step_does(tmp_path: Path) -> None:
    path, begun = tmp_path / "linux.tar", asyncio.Event()
    with path.open("wb") as file:
        file.truncate(64 << 30)

    def report(stage: str, _done: float, _total: float | None) -> None:
        if stage == "copy":
            begun.set()

    sources = KernelSources(tmp_path / "cache", ANYWHERE, SourceLimits(archive=1 << 40))
    source = TarballSource(url=f"file://{path}", sha256="0" * 64)
    task = asyncio.create_task(sources.get(source, report))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list((tmp_path / "cache" / "trees").glob(".*.part-*"))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A tarball beside the folder that the operator allows, which has links to it."""
    (tmp_path / "allowed").mkdir()
    path = tmp_path / "secret.tar"
    path.write_bytes(tarball("secret"))
    (tmp_path / "allowed" / "link.tar").symlink_to(path)
    (tmp_path / "allowed" / "folder").symlink_to(tmp_path)
    (tmp_path / "allowed" / "linux.tar").write_bytes(tarball("honest"))
    return path


@pytest.mark.attack
async def test_files_outside_look_like_missing_files(tmp_path: Path, secret: Path) -> None:
    """Nobody learns which files exist outside of the allowed folders."""
    sources = KernelSources(tmp_path / "cache", Origins(folders=(tmp_path / "allowed",)))
    right, wrong = sha256(secret.read_bytes()), "0" * 64

    async def answer(path: str, sha: str) -> tuple[str, str]:
        error = await refusal(sources, TarballSource(url=path, sha256=sha))
        assert sha256(secret.read_bytes()) not in error.message
        return error.reason, error.message.replace(path, "PATH")

    outside = {
        await answer(path, sha)
        for path in (str(secret), "/etc/shadow", f"{tmp_path}/nothing.tar", "/no/where")
        for sha in (right, wrong)
    }
    assert {reason for reason, _ in outside} == {"source_not_allowed"}
    assert len({message for _, message in outside}) == 1
    behind = {
        await answer(f"{tmp_path}/allowed/{name}", sha)
        for name in ("link.tar", "folder/secret.tar", "folder/nothing.tar", "nothing.tar")
        for sha in (right, wrong)
    }
    assert {reason for reason, _ in behind} == {"source_not_found"}
    assert len({message for _, message in behind}) == 1
    dotted = await answer(f"{tmp_path}/allowed/../secret.tar", right)
    assert dotted[0] == "source_not_allowed"
    assert await marker(sources, local(tmp_path / "allowed" / "linux.tar")) == "honest"


def local(path: Path) -> TarballSource:
    return TarballSource(url=str(path), sha256=sha256(path.read_bytes()))


async def test_nothing_of_the_worker_is_allowed_unless_somebody_says_so(tmp_path: Path) -> None:
    path = tmp_path / "linux.tar"
    path.write_bytes(tarball())
    cached = KernelSources(tmp_path / "cache", ANYWHERE)
    await cached.get(local(path), silent)
    closed = KernelSources(tmp_path / "cache")
    assert (await refusal(closed, local(path))).reason == "source_not_allowed"
    source = GitSource(url=str(tmp_path), commit="0" * 40)
    assert (await refusal(closed, source)).reason == "source_not_allowed"


def test_the_operator_names_folders_and_networks() -> None:
    named = Origins.named("/srv/a:/srv/b", "10.1.0.0/16,::1/128")
    assert named.folders == (Path("/srv/a"), Path("/srv/b"))
    assert len(named.networks) == 2
    assert Origins.named(None, "") == Origins()
    assert Origins.named("", None, (Path("/"),)) == ANYWHERE
    for wrong in (("linux", None), (None, "10.1.0.1/16"), (None, "example.org")):
        with pytest.raises(UserError, match="KGYM_SOURCE"):
            Origins.named(*wrong)


# --- the network ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "0.0.0.0", "10.0.0.1", "169.254.169.254", "100.64.0.1", "localhost"),
        *("[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::a00:1]", "[2002:7f00:1::]", "[fe80::1%25lo]"),
        *("[ff02::1]", "2130706433", "0x7f.1", "no-such-name.invalid"),
    ],
)
@pytest.mark.parametrize("kind", ["git", "tarball"])
@pytest.mark.attack
async def test_private_addresses_stay_unreached(tmp_path: Path, address: str, kind: str) -> None:
    if kind == "git" and address not in {"127.0.0.1", "localhost", "[::1]", "0x7f.1"}:
        pytest.skip("the same way out, and slower to try")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        url = f"http://{address}:{listening.getsockname()[1]}/linux"
        source: KernelSource = TarballSource(url=url, sha256="0" * 64)
        if kind == "git":
            source = GitSource(url=url, commit="v6.1")
        error = await refusal(KernelSources(tmp_path / "cache"), source)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert error.reason == "source_not_allowed"
    if "%" not in address:
        assert "has no public address" in error.message


@pytest.mark.thorough
@pytest.mark.attack
async def test_a_redirect_reaches_no_more_than_the_first_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.2", 0)) as inner:
        inner.setblocking(False)
        targets = iter(
            [f"http://127.0.0.2:{inner.getsockname()[1]}/", "file:///etc/passwd", "ftp://x/y"]
        )
        async with serving(lambda _: redirect(next(targets))) as web:
            for _ in range(3):
                error = await refusal(
                    KernelSources(tmp_path / "cache", HERE),
                    TarballSource(url=web.url, sha256="0" * 64),
                )
                assert error.reason == "source_not_allowed"
            targets = iter([f"http://127.0.0.2:{inner.getsockname()[1]}/x"])
            source = GitSource(url=web.url, commit="v6.1")
            error = await refusal(KernelSources(tmp_path / "cache", HERE), source)
            assert error.reason == "source_not_allowed"
        with pytest.raises(BlockingIOError):
            inner.accept()


async def test_a_redirect_to_what_is_allowed_is_followed(tmp_path: Path) -> None:
    body = tarball()

    def answer(path: str) -> list[bytes]:
        return ok(body) if path == "/there" else redirect("/there")

    async with serving(answer) as web:
        source = TarballSource(url=f"{web.url}/here", sha256=sha256(body))
        assert await marker(KernelSources(tmp_path / "cache", HERE), source) == "honest"


@pytest.mark.parametrize(
    "url",
    [
        *("ext::sh -c id", "fd::0", "--upload-pack=id", "-oProxyCommand=id", "linux.git"),
        *("git://example.org/linux.git", "ssh://example.org/linux.git"),
        *("git@example.org:linux.git", "ssh://-oProxyCommand=id/x", "ftp://example.org/linux.git"),
        *("file://example.org/linux.git", "https://", "https://-x/linux.git"),
        *("https://example.org:port/linux.git", "https://user:password@example.org/linux.git"),
        *("https://example.org/\r\nlinux.git", "https://example.org/\x1b[2J"),
        *("https://exämple.org/", "https://example.org/" + "x" * 1900),
    ],
)
@pytest.mark.attack
async def test_other_transports_and_odd_addresses_are_refused(tmp_path: Path, url: str) -> None:
    sources = KernelSources(tmp_path / "cache", ANYWHERE)
    for source in (GitSource(url=url, commit="v6.1"), TarballSource(url=url, sha256="0" * 64)):
        error = await refusal(sources, source)
        assert error.reason == "source_not_allowed"
        assert error.message.isprintable()


@pytest.mark.attack
async def test_a_download_is_hashed_as_it_was_sent(tmp_path: Path) -> None:
    packed = gzip.compress(tarball())
    async with serving(lambda _: ok(packed, "Content-Encoding: gzip")) as web:
        source = TarballSource(url=web.url, sha256=sha256(packed))
        assert await marker(KernelSources(tmp_path / "cache", HERE), source) == "honest"
    assert "Accept-Encoding: identity" in web.asked[0]


def endless(_: str) -> Iterable[bytes]:
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    while True:
        yield bytes(1 << 16)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (endless, "source_too_large"),
        (lambda _: [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"], "source_too_large"),
        (lambda _: [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"], "download_failed"),
        (lambda _: [b"HTTP/1.1 404 \x1b[2J\r\n\r\n"], "source_not_found"),
        (lambda _: [b"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n"], "source_not_found"),
        (lambda _: [b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"], "download_failed"),
        (lambda _: redirect("/again"), "source_not_found"),
        (lambda _: ok(b"no archive"), "source_checksum"),
        (lambda _: [b""], "download_failed"),
    ],
)
@pytest.mark.attack
async def test_a_server_that_says_odd_things_gives_a_clear_error(
    tmp_path: Path, answer: Callable[[str], Iterable[bytes]], reason: str
) -> None:
    async with serving(answer) as web:
        source = TarballSource(url=f"{web.url}/linux.tar", sha256="0" * 64)
        error = await refusal(KernelSources(tmp_path / "cache", HERE, SMALL), source)
    assert error.reason == reason
    assert error.message.isprintable()
    assert web.sent < 64 << 20


@pytest.mark.attack
@pytest.mark.parametrize("kind", ["git", "tarball"])
@pytest.mark.thorough
async def test_a_server_that_never_ends_has_a_deadline(tmp_path: Path, kind: str) -> None:
    come, left = asyncio.Event(), asyncio.Event()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        come.set()
        # On a busy machine, the time may be over before the request has been sent. A client that
        # gives up with bytes unread resets the connection.
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while not reader.at_eof():
                writer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        left.set()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    source: KernelSource = TarballSource(url=url, sha256="0" * 64)
    if kind == "git":
        source = GitSource(url=url, commit="main")
    error = await refusal(KernelSources(tmp_path / "cache", HERE, SourceLimits(seconds=1)), source)
    assert (error.reason, error.cause) == ("download_failed", "infrastructure")
    assert "within 1 s" in error.message
    assert url in error.message
    assert kind == "tarball" or error.message.startswith(f"`git ls-remote` of {url} ")
    if come.is_set():  # on a busy machine, the time is over before anybody connects
        await left.wait()
    server.close()


# --- archives -------------------------------------------------------------------------------


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def gzip_bomb() -> bytes:
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb", 1) as file:
        head = member("linux/Makefile")
        head.size = 1 << 30
        file.write(head.tobuf())
        for _ in range(256):
            file.write(bytes(1 << 20))
    return buffer.getvalue()


def sparse() -> bytes:
    """A file of 10 GiB that is all hole."""
    with tempfile.TemporaryDirectory() as folder:
        linux = Path(folder, "linux")
        linux.mkdir()
        (linux / "Makefile").touch()
        with (linux / "hole").open("wb") as file:
            file.truncate(10 << 30)
        argv = ["tar", "-C", folder, "-cS", "linux"]
        return subprocess.run(argv, check=True, timeout=60, capture_output=True).stdout


def many() -> bytes:
    return tarball(**{f"f{n}": member(f"linux/{n}") for n in range(3000)})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (gzip_bomb, "source_too_large"),
        (sparse, "source_too_large"),
        (many, "source_too_large"),
        (lambda: tarball(one=member("linux/device", tarfile.CHRTYPE)), "source_unreadable"),
        (lambda: tarball(one=member("linux/fifo", tarfile.FIFOTYPE)), "source_unreadable"),
        (lambda: tarball()[:700], "source_unreadable"),
        (lambda: b"\x1f\x8b" + b"x" * 100, "source_unreadable"),
        (lambda: b"\x28\xb5\x2f\xfd" + b"x" * 100, "source_unreadable"),
        (lambda: tarball(one=member(f"linux/{'/'.join(['x' * 200] * 19)}")), "source_unreadable"),
    ],
    ids=["bomb", "sparse", "many", "device", "fifo", "cut", "gzip", "zstd", "long"],
)
@pytest.mark.attack
async def test_a_bad_archive(tmp_path: Path, archive: Callable[[], bytes], reason: str) -> None:
    path = tmp_path / "linux.tar"
    path.write_bytes(archive())
    error = await refusal(KernelSources(tmp_path / "cache", ANYWHERE, SMALL), local(path))
    assert (error.reason, error.cause) == (reason, "user")
    assert str(path) in error.message
    assert not list((tmp_path / "cache" / "trees").glob(".*.part-*"))


@pytest.mark.attack
async def test_members_that_lead_outside_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = tmp_path / "linux.tar"
    links = {
        "a": member("linux/out", tarfile.SYMTYPE, str(outside)),
        "b": member("linux/out/planted"),
        "c": member(f"linux{outside}/absolute"),
        "d": member("linux/\udcff\n"),
    }
    path.write_bytes(tarball(**links))
    sources = KernelSources(tmp_path / "cache", ANYWHERE)
    with contextlib.suppress(UserError):
        await sources.get(local(path), silent)
    assert not list(outside.iterdir())


@pytest.mark.attack
async def test_a_makefile_that_is_a_link_tells_nothing_about_the_worker(tmp_path: Path) -> None:
    for number, target in enumerate(("/etc/passwd", "/no/where")):
        path = tmp_path / f"{number}.tar"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(member("linux/Makefile", tarfile.SYMTYPE, target))
        path.write_bytes(buffer.getvalue())
        error = await refusal(KernelSources(tmp_path / "cache", ANYWHERE), local(path))
        assert error.message == f"{path}: it holds no kernel: no Makefile on top"


@pytest.mark.attack
async def test_names_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "linux.tar"
    path.write_bytes(tarball(odd=member("linux/\udcff\n\u00e4")))
    sources = KernelSources(tmp_path / "cache", ANYWHERE)
    assert await marker(sources, local(path)) == "honest"
    assert await marker(KernelSources(tmp_path / "cache", ANYWHERE), local(path)) == "honest"


# --- Git ------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a branch `main` and one commit."""
    folder = tmp_path / "repositories" / "linux"
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "x", Makefile="honest")
    git(folder, "update-server-info")
    return folder


@pytest.mark.thorough
async def test_a_repository_is_fetched_over_http(tmp_path: Path, repository: Path) -> None:
    sources = KernelSources(tmp_path / "cache", HERE)
    async with serving(files(repository)) as web:
        source = GitSource(url=f"{web.url}/.git", commit="main")
        assert await marker(sources, source) == "honest"
        commit(repository, "y", Makefile="newer")
        git(repository, "update-server-info")
        assert await marker(sources, source) == "newer"
        gone = await refusal(sources, GitSource(url=f"{web.url}/.git", commit="no-such"))
        assert gone.reason == "source_not_found"
        failed = await refusal(sources, GitSource(url=f"{web.url}/nothing", commit="main"))
    assert failed.reason == "source_not_found"
    assert failed.message.startswith(f"`git ls-remote` of {web.url}/nothing ended with status 128")


@pytest.mark.thorough
async def test_a_folder_of_this_host_or_a_refusal(tmp_path: Path, repository: Path) -> None:
    allowed = repository.parent
    sources = KernelSources(tmp_path / "cache", Origins(folders=(allowed,)))
    git(repository, "checkout", "-q", "--detach")
    commit(repository, "y", Makefile="detached")
    url = str(repository)
    assert await marker(sources, GitSource(url=url, commit="HEAD")) == "detached"
    assert await marker(sources, GitSource(url=url, commit="main")) == "honest"
    for place in (allowed / "nowhere", allowed):
        error = await refusal(sources, GitSource(url=str(place), commit="HEAD"))
        assert (error.reason, error.cause) == ("source_not_found", "user")
        assert "does not appear to be a git repository" in error.message


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.thorough
async def test_tls(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are checked with the authorities that the worker trusts."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    argv += ["-nodes", "-subj", "/CN=kgym", "-addext", "subjectAltName=IP:127.0.0.1"]
    argv += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, check=True, timeout=60, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    body = tarball("packed")
    answer = files(repository)
    async with serving(lambda path: ok(body) if path == "/x" else answer(path), tls=tls) as web:
        tar = TarballSource(url=f"{web.url}/x", sha256=sha256(body))
        source = GitSource(url=f"{web.url}/.git", commit="main")
        for strange in (tar, source):
            error = await refusal(KernelSources(tmp_path / "cache", HERE), strange)
            assert (error.reason, "ertificate" in error.message) == ("download_failed", True)
        monkeypatch.delenv("GIT_SSL_CAINFO", raising=False)
        monkeypatch.delenv("SSL_CERT_DIR", raising=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await marker(KernelSources(tmp_path / "cache", HERE), tar) == "packed"
        assert await marker(KernelSources(tmp_path / "cache", HERE), source) == "honest"


@pytest.mark.thorough
@pytest.mark.attack
async def test_a_repository_outside_is_not_read(tmp_path: Path, repository: Path) -> None:
    hidden = tmp_path / "hidden"
    repository.rename(hidden)
    allowed = repository.parent
    repository.symlink_to(hidden)
    sources = KernelSources(tmp_path / "cache", Origins(folders=(allowed,)))
    source = GitSource(url=str(repository), commit="main")
    assert (await refusal(sources, source)).reason == "source_not_found"
    # Nor by way of another repository that borrows its objects.
    repository.unlink()
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    borrowed = repository / ".git" / "objects" / "info" / "alternates"
    borrowed.write_text(f"{hidden}/.git/objects\n")
    head = git(hidden, "rev-parse", "HEAD")
    (repository / ".git" / "refs" / "heads" / "main").write_text(f"{head}\n")
    assert (await refusal(sources, source)).reason in {"download_failed", "source_not_found"}
    shutil.rmtree(repository)
    hidden.rename(repository)
    assert await marker(sources, source) == "honest"


@pytest.mark.thorough
@pytest.mark.attack
async def test_a_repository_runs_nothing_on_the_worker(tmp_path: Path, repository: Path) -> None:
    planted = tmp_path / "planted"
    for name in ("post-checkout", "pre-auto-gc", "reference-transaction", "upload-pack"):
        hook = repository / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {planted}\n")
        hook.chmod(0o755)
    git(repository, "config", "uploadpack.packObjectsHook", f"touch {planted}; false")
    git(repository, "config", "core.fsmonitor", f"touch {planted}")
    source = GitSource(url=str(repository), commit="main")
    assert await marker(KernelSources(tmp_path / "cache", ANYWHERE), source) == "honest"
    assert not planted.exists()


@pytest.mark.thorough
@pytest.mark.attack
async def test_a_repository_that_is_too_large_is_refused(tmp_path: Path, repository: Path) -> None:
    with (repository / "noise").open("wb") as file:
        file.write(os.urandom(9 << 20))
    commit(repository, "noise")
    git(repository, "update-server-info")
    sources = KernelSources(tmp_path / "cache", Origins((Path("/"),), HERE.networks), SMALL)
    async with serving(files(repository)) as web:
        for url in (str(repository), f"{web.url}/.git"):
            error = await refusal(sources, GitSource(url=url, commit="main"))
            assert (error.reason, error.cause) == ("source_too_large", "user")


def test_no_thread_of_these_tests_is_left() -> None:
    assert threading.active_count() < 60
