"""Kernel sources from hostile servers, archives and repositories, at random.

KGYM_TEST_SEED repeats a run, KGYM_FUZZ_ROUNDS changes how many sources of each kind are tried.
"""

import asyncio
import bz2
import gzip
import hashlib
import io
import lzma
import os
import random
import socket
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import pytest

from kgym.api.steps import GitSource, KernelSource, TarballSource
from kgym.errors import KgymError
from kgym.host import sandbox
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.kernel_source.source_limits import SourceLimits
from tests.builder.kernel_source.web import Answer, files, ok, serving
from tests.conftest import SEED

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = int(os.environ.get("KGYM_FUZZ_ROUNDS") or 24)
BOUNDS = SourceLimits(
    archive=4 << 20,
    tree=16 << 20,
    files=500,
    repository=8 << 20,
    unpack_memory=256 << 20,
    seconds=10,
    unpack_seconds=10,
)
_REASONS = {
    "download_failed",
    "source_checksum",
    "source_not_allowed",
    "source_not_found",
    "source_too_large",
    "source_unreadable",
}


@dataclass
class World:
    """A worker that is attacked, and what must not be touched beside it."""

    folder: Path
    inner: socket.socket
    rng: random.Random
    record: Callable[[str, object], None]
    tried: int = 0

    def __post_init__(self) -> None:
        self.outside = self.folder / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text("secret")
        here = Origins((self.folder / "allowed",), (ip_network("127.0.0.1/32"),))
        (self.folder / "allowed").mkdir()
        self.sources = KernelSources(self.folder / "cache", here, BOUNDS)

    @property
    def inner_url(self) -> str:
        """An address that the worker reaches, and no job may."""
        return f"http://127.0.0.2:{self.inner.getsockname()[1]}/"

    async def attack(self, source: KernelSource) -> str:
        """Take the source; return the reason if it is refused. Nothing else may happen."""
        if self.tried:  # the test itself counts as one
            self.record("attack", 1)
        self.tried += 1
        try:
            async with asyncio.timeout(60):
                source_entry = await self.sources.get(source, lambda *_: None)
        except KgymError as error:
            reason, message = error.reason, error.message
        else:
            reason = message = ""
            kinds = {stat.S_IFMT(path.lstat().st_mode) for path in source_entry.tree.rglob("*")}
            assert kinds <= {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}
        assert reason in {"", *_REASONS}, message
        assert len(message) < 5000
        with pytest.raises(BlockingIOError):
            self.inner.accept()
        assert [path.name for path in self.outside.iterdir()] == ["secret"]
        assert (self.outside / "secret").read_text() == "secret"
        cache = self.folder / "cache"
        assert not list((cache / "trees").glob(".*.part-*"))
        written = sum(path.lstat().st_blocks for path in cache.rglob("*")) * 512
        assert written < 64 << 20
        for folder in cache.glob("trees/[!.]*"):
            sandbox.remove(folder)
        return reason


@pytest.fixture
def world(
    tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterable[World]:
    with socket.create_server(("127.0.0.2", 0)) as inner:
        inner.setblocking(False)
        yield World(tmp_path, inner, random.Random(f"{SEED} {request.node.name}"), record_property)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Change some bytes, or leave some out, or repeat some."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 3, 20))):
        at = rng.randrange(len(changed) + 1)
        how = rng.randrange(4)
        if how == 0:
            changed[at : at + 1] = rng.randbytes(1)
        elif how == 1:
            del changed[at : at + rng.choice((1, 10, 1000))]
        elif how == 2:
            changed[at:at] = changed[: rng.choice((1, 100))]
        else:
            changed[at : at + 8] = rng.choice((b"\xff" * 8, bytes(8), b"99999999"))
    return bytes(changed)


# --- archives -------------------------------------------------------------------------------

_KINDS = (
    *(tarfile.REGTYPE, tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE),
    *(tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"Z"),
)


def archive(rng: random.Random, outside: Path) -> bytes:
    names = [
        *("linux/a", "linux/a/b", "linux/Makefile", "linux", "", "linux/../../x", f"{outside}/x"),
        *("../" * 20 + str(outside)[1:] + "/x", "linux/\udcff\n", "linux/" + "x" * 300),
        *("linux/" + "/".join(["y" * 100] * 45), "linux/.fingerprint", "linux//a", "./linux/b"),
    ]
    targets = [str(outside), "/", "..", "a", "linux/a", "/etc/passwd", "x" * 5000, "/proc/self"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=rng.choice((1, 2))) as made:
        if rng.random() < 0.9:
            makefile = tarfile.TarInfo("linux/Makefile")
            made.addfile(makefile)
        for _ in range(rng.choice((1, 5, 600) if rng.random() < 0.1 else (1, 3, 8))):
            member = tarfile.TarInfo(rng.choice(names) + rng.choice(("", "", "/c")))
            member.type = rng.choice(_KINDS)
            member.linkname = rng.choice(targets)
            member.mode = rng.choice((0, 0o644, 0o7777, 0o111))
            member.mtime = rng.choice((0, 1 << 33, 10.5))
            content = bytes(rng.choice((0, 10, 20_000)))
            if member.type == tarfile.REGTYPE:
                member.size = len(content)
            if rng.random() < 0.1:
                member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.realsize": "9" * 12}
            made.addfile(member, io.BytesIO(content) if member.size else None)
    pack = rng.choice((bytes, gzip.compress, bz2.compress, lzma.compress))
    return damaged(rng, pack(buffer.getvalue()))


async def test_no_archive_does_more_than_be_refused(world: World) -> None:
    for number in range(ROUNDS):
        path = world.folder / "allowed" / f"{number}.tar"
        path.write_bytes(archive(world.rng, world.outside) or b"x")
        await world.attack(TarballSource(url=str(path), sha256=sha256(path.read_bytes())))
    path.write_bytes(honest())
    source = TarballSource(url=str(path), sha256=sha256(honest()))
    assert await world.attack(source) == ""


def honest() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        made.addfile(tarfile.TarInfo("linux/Makefile"))
    return buffer.getvalue()


# --- servers --------------------------------------------------------------------------------


def answer(rng: random.Random, body: bytes, inner: str) -> Iterable[bytes]:
    places = [
        *(inner, inner.replace("http:", ""), inner.replace("//", "//user@"), "file:///etc/passwd"),
        *("/again", "", "http://", "gopher://x/", "http://[::1]/", "\x00\x1b[2J", "x" * 3000),
    ]
    lines = [
        *(f"Content-Length: {length}" for length in (len(body), 0, 3, 1 << 62, "-1", "9" * 5000)),
        *("Content-Encoding: gzip", "Transfer-Encoding: chunked", "Connection: close"),
        *(f"Location: {place}" for place in places),
        *("X: " + "x" * 200_000, "broken", "\x00: \x00", "Content-Length: 1, 2", "A: \r\n b"),
    ]
    status = rng.choice((200, 200, 200, 206, 302, 301, 100, 404, 503, 999, "x"))
    head = [f"HTTP/1.1 {status} OK", *rng.choices(lines, k=rng.randrange(4))]
    if status in {301, 302}:
        head.append(f"Location: {rng.choice(places)}")
    yield ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")
    how = rng.randrange(5)
    if how == 0:
        while True:
            yield bytes(1 << 16)
    elif how == 1:
        yield body[: rng.randrange(len(body))]
    elif how == 2:
        yield rng.choice((b"ffffffffffff\r\n", b"-1\r\n", b"5;" + b"x" * 200_000)) + body
    elif how == 3:
        yield damaged(rng, body)
    else:
        yield body


async def test_no_server_leads_a_download_astray(world: World) -> None:
    body = honest()
    source = TarballSource(url="", sha256=sha256(body))
    async with serving(lambda _: answer(world.rng, body, world.inner_url)) as web:
        for number in range(3 * ROUNDS):
            web.sent = 0
            await world.attack(source.model_copy(update={"url": f"{web.url}/{number}"}))
    async with serving(lambda _: ok(body)) as web:
        assert await world.attack(source.model_copy(update={"url": web.url})) == ""


# --- repositories ---------------------------------------------------------------------------


def repository(folder: Path) -> Path:
    folder.mkdir()
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    (folder / "Makefile").write_text("honest")
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-q", "-m", "x"],
        ["update-server-info"],
    ):
        subprocess.run([*git, *words], check=True, timeout=60, capture_output=True)
    return folder / ".git"


def spoil(rng: random.Random, git: Path, world: World) -> None:
    """Damage some files of a repository, and plant others."""
    head = (git / "info" / "refs").read_text().split("\t")[0]
    present = [path for path in git.rglob("*") if path.is_file() and "hooks" not in path.parts]
    for path in rng.sample(present, rng.choice((0, 1, 2))):
        path.chmod(0o644)
        path.write_bytes(damaged(rng, path.read_bytes()))
    refs = ("refs/heads/../../x", "refs/heads/x.lock", "refs/heads/-x", "HEAD", "refs/replace/x")
    planted = {
        "objects/info/http-alternates": world.inner_url + "\n",
        "objects/info/alternates": f"{world.outside}\n{world.inner_url}\n",
        "info/refs": "".join(f"{head}\t{ref}\n" for ref in (*refs, "refs/heads/main")),
        "config": f"[uploadpack]\npackObjectsHook = touch {world.outside}/hook; false\n",
        "HEAD": rng.choice(("ref: ../../etc/passwd\n", "x" * 5000, "")),
        "objects/info/packs": "P pack-../../x.pack\n",
        "info/grafts": f"{head}\n",
    }
    for name in rng.sample(sorted(planted), rng.choice((0, 1, 3))):
        (git / name).parent.mkdir(exist_ok=True)
        (git / name).write_text(planted[name])


def astray(rng: random.Random, honest: Answer, inner: str) -> Answer:
    """Answer one request in ten as a server that leads astray does."""

    def lines(path: str) -> Iterable[bytes]:
        if rng.random() < 0.1:
            return answer(rng, b"x" * 100, inner)
        return honest(path)

    return lines


async def test_no_repository_does_more_than_be_refused(world: World) -> None:
    for number in range(ROUNDS // 2):
        git = repository(world.folder / "allowed" / f"git-{number}")
        spoil(world.rng, git, world)
        name = world.rng.choice(("main", "main", "HEAD", "v1", "0" * 40, "a..b", "x"))
        async with serving(astray(world.rng, files(git), world.inner_url)) as web:
            for url in (f"{web.url}/", str(git)):
                await world.attack(GitSource(url=url, commit=name))
    git = repository(world.folder / "allowed" / "honest")
    async with serving(files(git)) as web:
        for url in (f"{web.url}/", str(git)):
            assert await world.attack(GitSource(url=url, commit="main")) == ""
