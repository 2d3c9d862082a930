"""A store of Git objects that is damaged: never a wrong answer, and the next one is whole."""

import asyncio
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.builder.kernel_source import git_server

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

# Done to a store that has this commit.
Damage = Callable[[Path, str], None]


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def cut(pattern: str, part: float) -> Damage:
    def damage(folder: Path, _commit: str) -> None:
        for path in folder.glob(pattern):
            write(path, path.read_bytes()[: int(path.stat().st_size * part)])

    return damage


def zeros(folder: Path, _commit: str) -> None:
    """As a disk has them that lost a block."""
    for path in folder.glob("objects/pack/*.pack"):
        data = path.read_bytes()
        middle = len(data) // 2
        write(path, data[:middle] + bytes(50) + data[middle + 50 :])


def loose(folder: Path, name: str) -> Path:
    return folder / "objects" / name[:2] / name[2:]


def broken(kind: str) -> Damage:
    """An object of its own file, in which nothing can be read."""

    def damage(folder: Path, commit: str) -> None:
        path = loose(folder, unpacked(folder, f"{commit}{kind}"))
        write(path, path.read_bytes()[:-8] + bytes(8))

    return damage


def unpacked(folder: Path, name: str) -> str:
    """Have each object in a file of its own; return the id of the one that is named."""
    name = git_server.git(folder, "rev-parse", name)
    for pack in list(folder.glob("objects/pack/*.pack")):
        moved = folder.parent / pack.name
        shutil.copy(pack, moved)
        pack.with_suffix(".idx").unlink()
        pack.unlink()
        git_server.git(folder, "unpack-objects", "-q", stdin=moved.read_bytes())
        moved.unlink()
    return name


def another(folder: Path, commit: str) -> None:
    """A file that is whole, and is that of another object."""
    unpacked(folder, commit)
    write(loose(folder, commit), zlib.compress(b"blob 3\0one"))


def foreign(folder: Path, commit: str) -> None:
    """What Git would go by, and what one that was killed leaves."""
    write(folder / "objects/info/alternates", b"/no/where/objects\nrelative\n")
    write(folder / "shallow", f"{commit}\n".encode())
    for name in ("shallow.lock", "index.lock", "packed-refs.lock", "config.lock"):
        write(folder / name, b"")


def emptied(folder: Path, _commit: str) -> None:
    for name in ("HEAD", "config", "info/attributes"):
        write(folder / name, b"")
    shutil.rmtree(folder / "known")


def without_objects(folder: Path, _commit: str) -> None:
    shutil.rmtree(folder / "objects")


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, repository: Path
) -> Iterator[tuple[git_server.GitServer, Path]]:
    """A server, and a folder with a cache that has its newest commit; both stay as they are."""
    folder = tmp_path_factory.mktemp("whole")
    with git_server.git_serving(repository) as server:
        asyncio.run(git_server.marker(git_server.sources(folder), server.linux(server.at("main"))))
        shutil.rmtree(folder / "cache" / "trees")
        yield server, folder


@pytest.mark.parametrize(
    "name",
    # Another commit meets the same damage: it is tried in full with everything else.
    ["{}", pytest.param("{}^", marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(cut("objects/pack/*.pack", 0.6), id="cut packs"),
        pytest.param(cut("objects/pack/*.idx", 0.6), id="cut indexes"),
        pytest.param(cut("objects/pack/*.pack", 0), id="empty packs"),
        zeros,
        pytest.param(broken(""), id="commit"),
        pytest.param(broken("^{tree}"), id="folder"),
        pytest.param(broken(":d1"), id="folder below"),
        pytest.param(broken(":d1/f1.c"), id="file"),
        another,
        foreign,
        emptied,
        without_objects,
    ],
)
async def test_what_is_damaged_is_fetched_anew(
    tmp_path: Path, whole: tuple[git_server.GitServer, Path], damage: Damage, name: str
) -> None:
    served, folder = whole
    subprocess.run(["cp", "-a", folder / "cache", tmp_path], check=True, timeout=20)
    kernels, main = git_server.sources(tmp_path), served.at("main")
    damage(git_server.store(tmp_path), main)
    says = {"{}": "three", "{}^": "two"}[name]
    assert await git_server.marker(kernels, served.linux(name.format(main))) == says
    # No damage is left.
    shutil.rmtree(tmp_path / "cache" / "trees")
    asked = len(served.asked)
    assert await git_server.marker(kernels, served.linux(served.at(name.format("main")))) == says
    assert len(served.asked) == asked
    if name == "{}":  # what nobody has asked for since is as it was
        git_server.git(git_server.store(tmp_path), "fsck", "--no-dangling")


async def test_the_reason_is_logged_and_what_was_fetched_apart_is_kept(
    served: git_server.GitServer,
) -> None:
    kernels, main = served.sources(), served.at("main")
    await git_server.marker(kernels, served.linux(main))
    shutil.rmtree(served.host / "cache" / "trees")
    zeros(served.store, main)
    with capture_logs() as logs:
        await git_server.marker(kernels, served.linux(main))
    (warning,) = logs
    assert warning["log_level"] == "warning"
    assert "is corrupt" in warning["why"]
    assert "stored in" in warning["why"]


@pytest.mark.attack
async def test_a_warning_is_never_taken_for_an_id(served: git_server.GitServer) -> None:
    """Of a damaged folder Git only warns, while files that others lack are missing."""
    kernels, main = served.sources(), served.at("main")
    await git_server.marker(kernels, served.linux(main))
    broken(":d1")(served.store, main)
    served.asked.clear()
    newer = served.commit("4", Makefile="four")
    assert await git_server.marker(kernels, served.linux(newer)) == "four"
    wanted = [
        line.split()[-1]
        for request in served.asked
        for line in request.split(b"\n")
        if b"want " in line
    ]
    assert wanted
    assert {len(name) for name in wanted} == {40}


@pytest.mark.attack
async def test_a_store_stays_that_is_not_to_blame(served: git_server.GitServer) -> None:
    kernels, main = served.sources(), served.at("main")
    await git_server.marker(kernels, served.linux(main))
    before = served.store.stat().st_ino
    error = await git_server.refusal(kernels, served.linux(f"{main}~9"))
    assert (error.reason, "does not go so far" in error.message) == ("source_not_found", True)
    raw = b"40000 d1\0" + bytes.fromhex(served.at("main:Makefile"))
    await git_server.refusal(kernels, served.linux(served.branch(raw)))
    assert served.store.stat().st_ino == before
