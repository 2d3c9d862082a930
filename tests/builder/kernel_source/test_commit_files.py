"""The tree of a commit is what the commit holds: no more, no less, no other bytes."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from kgym.api.steps import GitSource
from kgym.errors import UserError
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.kernel_source.source_limits import SourceLimits
from tests.builder.kernel_source.git_server import (
    GitServer,
    Reports,
    commit,
    git,
    git_bytes,
    held,
    marker,
    refusal,
    unpacked,
)
from tests.tables import rows

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

ATTRIBUTES = Path(__file__).with_name("odd.gitattributes").read_bytes()


def with_attributes(folder: Path) -> str:
    """Commit files that attributes leave out or change, as they would not come of a checkout."""
    (folder / "folder").mkdir()
    (folder / "folder" / "inner").write_text("inner")
    (folder / "folder" / ".gitattributes").write_text("* export-ignore\n")
    (folder / "script.auto").write_bytes(b"#!/bin/sh\n")
    (folder / "script.auto").chmod(0o755)
    (folder / "away").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("../../out")
    both = "unix\nwindows\r\n$Id$ $Id: 0123 $ $Format:%H %an$\n"
    ends = ("lf", "crlf", "auto", "old", "ident", "subst", "utf16", "filter", "hidden")
    for name in (*(f"a.{end}" for end in ends), "skipped", "Case", "case", '\u00e4 \u2028\t"b\\'):
        (folder / name).write_bytes(both.encode())
    commit(folder, "files")
    # Not as a file there: Git would go by it at once.
    attributes = git(folder, "hash-object", "-w", "--stdin", stdin=ATTRIBUTES)
    git(folder, "update-index", "--add", "--cacheinfo", f"100644,{attributes},.gitattributes")
    git(folder, "commit", "-q", "-m", "attributes")
    return git(folder, "rev-parse", "HEAD")


@pytest.mark.attack
@pytest.mark.parametrize("way", ["by the store", "by a store of old", "apart"])
async def test_attributes_leave_nothing_out_and_change_nothing(served: GitServer, way: str) -> None:
    name = with_attributes(served.root / "linux")
    kernels = served.sources()
    if way != "by the store":
        await marker(kernels, served.linux("main~2"))
        shutil.rmtree(served.store / "info")
    if way == "apart":
        for pack in served.store.glob("objects/pack/*.pack"):
            pack.write_bytes(pack.read_bytes()[:-30] + bytes(30))
    tree = (await kernels.get(served.linux(name), Reports())).tree
    wanted, there = held(served.root / "linux", name), unpacked(tree)
    assert len(wanted) > 75
    assert there == wanted


@pytest.mark.attack
async def test_attributes_without_number_cost_nothing(served: GitServer) -> None:
    folder = served.root / "linux"
    for number in range(400):
        (folder / f"{number}{'ab' * 50}").touch()
    served.commit("files")
    lines = b"*a*b*a*b*c x\n" * 300_000
    attributes = served.git("hash-object", "-w", "--stdin", stdin=lines)
    # Not by the index, whose commands go by them.
    entries = served.git("ls-tree", "main") + f"\n100644 blob {attributes}\t.gitattributes\n"
    many = served.branch(served.git("mktree", stdin=entries.encode()))
    kernels = served.sources(SourceLimits(unpack_seconds=20, seconds=60))
    assert await marker(kernels, served.linux(many)) == "three"


def nested(served: GitServer, blob: bytes, width: int, depth: int) -> str:
    """A commit with width^depth files, of which each level shares all that is below it."""
    entry = "100644 blob " + served.git("hash-object", "-w", "--stdin", stdin=blob)
    makefile = served.git("hash-object", "-w", "--stdin", stdin=b"bomb")
    for level in range(depth):
        tree = "".join(f"{entry}\tf{number}\n" for number in range(width))
        if level == depth - 1:
            tree += f"100644 blob {makefile}\tMakefile\n"
        entry = "040000 tree " + served.git("mktree", stdin=tree.encode())
    return served.branch(entry.split()[-1])


@pytest.mark.attack
@pytest.mark.parametrize(
    ("blob", "width", "depth", "words"),
    [
        (b"", 10, 10, "it has more than the 2000 files and folders that are allowed"),
        (bytes(100_000), 10, 3, "its files have more than the 33554432 bytes that are allowed"),
        (b"x", 1, 1900, "too long a path"),
    ],
    ids=["files", "bytes", "depth"],
)
async def test_a_commit_of_shared_folders_is_refused_before_anything_is_written(
    served: GitServer, blob: bytes, width: int, depth: int, words: str
) -> None:
    limits = SourceLimits(files=2000, tree=32 << 20, seconds=60)
    kernels, bomb = served.sources(limits), nested(served, blob, width, depth)
    other, most = asyncio.create_task(marker(kernels, served.linux(served.at("main")))), [0]

    async def watch() -> None:
        while True:
            written = (served.host / "cache" / "trees").glob("*/fetched/out/*")
            most.append(sum(path.stat().st_size for path in written if path.exists()))
            await asyncio.sleep(0.02)

    # Only the other job writes files of its own, which are small.
    watching, begin = asyncio.create_task(watch()), time.monotonic()
    error = await refusal(kernels, served.linux(bomb))
    watching.cancel()
    assert (error.reason, error.cause) == (
        ("source_too_large" if "allowed" in words else "source_unreadable"),
        "user",
    )
    assert words in error.message
    assert bomb in error.message
    assert max(most) < 2 << 20
    assert time.monotonic() - begin < 40
    assert await other == "three"
    assert await marker(kernels, served.linux(served.at("main^"))) == "two"


@pytest.mark.attack
async def test_names_that_git_refuses_to_write_are_refused(served: GitServer) -> None:
    kernels, blob = served.sources(), served.git("hash-object", "-w", "--stdin", stdin=b"x")
    whole = git_bytes(served.root / "linux", "cat-file", "tree", "main^{tree}")
    for name in (".git", ".GIT", "..", ".", "a/../b", "/etc", "d1", "linux/.git"):
        raw = whole + b"100644 " + name.encode() + b"\0" + bytes.fromhex(blob)
        error = await refusal(kernels, served.linux(served.branch(raw)))
        assert (error.reason, error.cause) == ("source_unreadable", "user"), error.message
        assert "with a name that Git refuses, or two of them" in error.message
    assert not list((served.host / "cache" / "trees").glob("*/tree"))
    assert await marker(kernels, served.linux("main")) == "three"


@pytest.mark.attack
@pytest.mark.parametrize(("name", "settings"), rows(__file__, "submodules.tsv"))
async def test_a_submodule_is_an_empty_folder(
    served: GitServer, tmp_path: Path, name: str, settings: str
) -> None:
    planted, root = tmp_path / "planted", served.root / "linux"
    text = settings.replace("PLANTED", str(planted)).replace("ROOT", str(root))
    text = f'[submodule "{name}"]\n\t{text}\n'
    blob = served.git("hash-object", "-w", "--stdin", stdin=text.encode())
    served.git("update-index", "--add", "--cacheinfo", f"100644,{blob},.gitmodules")
    # The commit that it names exists, and has a kernel's files.
    served.git("update-index", "--add", "--cacheinfo", f"160000,{served.at('main^')},sub")
    served.git("commit", "-q", "-m", "sub")
    for setting in ("submodule.recurse", "fetch.recurseSubmodules"):
        served.git("config", setting, "true")
    served.git("config", "submodule.sub.update", f"!touch {planted}")
    local = KernelSources(tmp_path / "cache", Origins((Path("/"),)))
    for kernels, url in ((served.sources(), f"{served.url}/linux/.git"), (local, str(root))):
        try:
            source = GitSource(url=url, commit=served.at("main"))
            tree = (await kernels.get(source, Reports())).tree
        except UserError as error:
            assert error.reason == "source_unreadable"  # noqa: PT017 - Git refuses some of them
            continue
        assert (tree / "sub").is_dir()
        assert not list((tree / "sub").iterdir())
    assert not planted.exists()
