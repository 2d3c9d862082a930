"""Kernel sources from a real Git server on loopback, and what is kept of them."""

import os
import subprocess
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from kgym.api.steps import GitSource
from kgym.errors import KgymError
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.git_mirrors import Mirrors
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.kernel_source.source_limits import SourceLimits
from tests.builder.kernel_source.git_server import GitServer

LOOPBACK = (ip_network("127.0.0.1/32"),)
# All files come at once; or in lots, for tests of what happens between two of them.
LIMITS = SourceLimits(objects_at_once=1000, silence_seconds=2, seconds=60)
LOTS = replace(LIMITS, objects_at_once=10)
FILES = 60


def git(folder: Path, *words: str, stdin: bytes = b"") -> str:
    settings = ("user.name=t", "user.email=t@localhost", "safe.directory=*", "gc.auto=0")
    command = [
        "git",
        "-C",
        str(folder),
        *(word for setting in settings for word in ("-c", setting)),
    ]
    done = subprocess.run(
        [*command, *words], check=True, timeout=60, capture_output=True, input=stdin
    )
    return done.stdout.decode().strip()


def commit(folder: Path, message: str, **files: str) -> str:
    """Commit these changes; return the commit's id."""
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


class Reports:
    """What is told of progress."""

    def __init__(self) -> None:
        self.fetched: list[float] = []

    def __call__(self, stage: str, done: float, _total: float | None) -> None:
        if stage == "fetch":
            self.fetched.append(done)


def sources(
    tmp_path: Path, limits: SourceLimits = LIMITS, mirrors: Path | None = None
) -> KernelSources:
    return KernelSources(tmp_path / "cache", Origins((), LOOPBACK, Mirrors(mirrors)), limits)


def linux(served: GitServer, name: str, repository: str = "linux") -> GitSource:
    return GitSource(url=f"{served.url}/{repository}/.git", commit=name)


def at(served: GitServer, name: str, repository: str = "linux") -> str:
    return git(served.root / repository, "rev-parse", name)


async def marker(kernels: KernelSources, source: GitSource) -> str:
    """Take the source; return what its Makefile says. All of its files are there."""
    tree = (await kernels.get(source, Reports())).tree
    assert len(list(tree.glob("d*/*.c"))) == FILES
    return (tree / "Makefile").read_text()


async def refusal(kernels: KernelSources, source: GitSource) -> KgymError:
    with pytest.raises(KgymError) as caught:
        await kernels.get(source, Reports())
    assert caught.value.message.isprintable()
    return caught.value


def store(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "repositories" / "store"


def kept(tmp_path: Path) -> int:
    """How many objects the store has."""
    counts = git(store(tmp_path), "count-objects", "-v")
    return sum(
        int(line.split()[1])
        for line in counts.splitlines()
        if line.startswith(("in-pack", "count"))
    )


def held(folder: Path, name: str) -> dict[bytes, tuple[bytes, bytes]]:
    """What a commit holds: of each path, whether it can be run or is a link, and its bytes."""
    listed = subprocess.run(
        ["git", "-C", str(folder), "ls-tree", "-r", "-z", name],
        check=True,
        timeout=60,
        capture_output=True,
    ).stdout
    contents = {}
    for line in filter(None, listed.split(b"\0")):
        about, _, path = line.partition(b"\t")
        mode, _kind, blob = about.split()
        content = subprocess.run(
            ["git", "-C", str(folder), "cat-file", "blob", blob.decode()],
            check=True,
            timeout=60,
            capture_output=True,
        ).stdout
        contents[path] = (mode, content)
    return contents


def unpacked(tree: Path) -> dict[bytes, tuple[bytes, bytes]]:
    """What a folder holds, in the same form."""
    contents = {}
    for path in tree.rglob("*"):
        name = os.fsencode(path.relative_to(tree))
        if path.is_symlink():
            contents[name] = (b"120000", os.fsencode(os.readlink(path)))
        elif path.is_file():
            mode = b"100755" if path.stat().st_mode & 0o100 else b"100644"
            contents[name] = (mode, path.read_bytes())
    return contents
