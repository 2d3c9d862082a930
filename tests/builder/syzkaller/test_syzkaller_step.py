"""The `syzkaller` step, on small sources that look like syzkaller's, and build in seconds."""

import contextlib
import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kgym.api.steps import GitSource, SyzkallerResult, SyzkallerSpec, TarballSource
from kgym.errors import UserError
from kgym.host.budget import Budget
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.syzkaller.syzkaller_step import SyzkallerBuilder
from tests.conftest import NewRun
from tests.refused import refused
from tests.tables import json_rows

pytestmark = pytest.mark.anyio
go = pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go (golang-go)")
COMMIT = "1d849ab4d892af13a249f75628790b47e42b7c74"
SMALL = Path(__file__).with_name("source")
SOURCE = {str(path.relative_to(SMALL)): path.read_text() for path in SMALL.rglob("*.*")}


def packed(folder: Path, more: Mapping[str, str | None] = {}) -> TarballSource:
    """Pack the source; `more` are other files, None for those that it lacks."""
    archive = folder / "syzkaller.tar"
    with tarfile.open(archive, "w") as tar:
        for name, text in {**SOURCE, **more}.items():
            if text is not None:
                data = text.encode()
                info = tarfile.TarInfo(f"syzkaller/{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return TarballSource(url=str(archive), sha256=digest)


class Build:
    """Performs steps on a builder that may read all files."""

    def __init__(self, new_run: NewRun, folder: Path) -> None:
        self._new_run = new_run
        self._folder = folder
        self.run: StepContext

    async def __call__(
        self, source: TarballSource | GitSource, own: Path | None = None, **more: Any
    ) -> SyzkallerResult:
        spec = SyzkallerSpec(source=source, **{"commit": COMMIT, **more})
        self.run = self._new_run(spec)
        builder = SyzkallerBuilder(
            self._folder / "cache", Origins((Path("/"),)), own, Budget.of_host()
        )
        return await builder(self.run)

    async def fetched(self, name: str) -> Path:
        """Return the program that the last step left, ready to run."""
        (artifact,) = (each for each in self.run.artifacts if each.name == name)
        path = self._folder / f"{self.run.assignment.lease.hex}-{name}"
        await self.run.storage.get(artifact.key, path)
        path.chmod(0o755)
        return path


@pytest.fixture
def build(new_run: NewRun, tmp_path: Path) -> Build:
    return Build(new_run, tmp_path)


@go
@pytest.mark.thorough
async def test_a_source_becomes_both_programs_once(build: Build, tmp_path: Path) -> None:
    source = packed(tmp_path)
    result = await build(source)
    assert result.made
    assert result.source_identity == f"tarball:{source.sha256}"
    assert set(result.seconds) >= {"source", "descriptions", "execprog", "executor"}
    execprog = await build.fetched("syz-execprog")
    assert subprocess.run([execprog], capture_output=True, check=True).stdout == COMMIT.encode()
    assert result.bytes["syz-execprog"] == execprog.stat().st_size
    assert subprocess.run([await build.fetched("syz-executor")], check=False).returncode == 7

    # This small source has nothing that could change programs: only variants need it.
    assert "mutate.go" in result.lacks

    again = await build(source)
    assert (again.made, again.bytes) == (False, result.bytes)
    assert len(build.run.artifacts) == 2
    anew = await build(source, cache="fresh")
    assert anew.made


@go
@pytest.mark.thorough
@pytest.mark.parametrize(("more", "words"), json_rows(__file__, "broken_sources.jsonl"))
async def test_what_does_not_build_says_why(
    build: Build, tmp_path: Path, more: dict[str, str | None], words: str
) -> None:
    with refused("syzkaller_does_not_build", "does not build") as caught:
        await build(packed(tmp_path, more))
    assert words in caught.value.message
    assert "docker/syzkaller.sh" in caught.value.message


def hostile(name: str, place: str) -> str:
    """Return the Go source of a generator that tries to get out of its sandbox."""
    return (Path(__file__).parent / "hostile" / name).read_text().replace("PLACE", place)


@go
@pytest.mark.attack
@pytest.mark.thorough
async def test_a_generator_reaches_neither_network_nor_host(build: Build, tmp_path: Path) -> None:
    generator = hostile("network.go", str(tmp_path))
    assert (await build(packed(tmp_path, {"sys/syz-sysgen/main.go": generator}))).made
    assert not (tmp_path / "was-here").exists()


@go
@pytest.mark.attack
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["syz-execprog", "syz-executor"])
async def test_a_generator_reads_no_host_file(build: Build, tmp_path: Path, name: str) -> None:
    generator = hostile("link.go", name)
    # The Go of some versions writes through the link, and fails; linkers put a file in its place.
    with contextlib.suppress(UserError):
        await build(packed(tmp_path, {"sys/syz-sysgen/main.go": generator}))
    for artifact in build.run.artifacts:
        assert (await build.fetched(artifact.name)).read_bytes().startswith(b"\x7fELF")


GO = "package main\n\n{}\n\nfunc main() {{ print(text) }}\n"
MAIN, EXECUTOR = "tools/syz-execprog/main.go", "executor/executor.cc"


@go
@pytest.mark.attack
@pytest.mark.thorough
@pytest.mark.parametrize(
    "more",
    [
        {"sys/syz-sysgen/main.go": hostile("escape.go", "PLACE")},
        {"go.mod": "module x\n\ngo 1.14\n\nreplace x/y => PLACE\n\nrequire x/y v1.0.0\n"},
        {"go.mod": "module github.com/google/syzkaller\n\ngo 1.22\ntoolchain go1.99.9\n"},
        {"go.work": "go 1.18\n\nuse PLACE\n"},
        {"vendor/modules.txt": "# x/y v1.0.0 => PLACE\n## explicit\nx/y\n"},
        {MAIN: GO.format('import _ "embed"\n\n//go:embed PLACE/secret\nvar text string')},
        {MAIN: GO.format('import _ "embed"\n\n//go:embed ../../../secret\nvar text string')},
        {MAIN: GO.format('// #include "PLACE/secret"\nimport "C"\n\nvar text = ""')},
        {MAIN: GO.format('// #cgo LDFLAGS: -fplugin=/x.so\nimport "C"\n\nvar text = ""')},
        {MAIN: GO.format("var text string"), "tools/syz-execprog/x.s": '#include "PLACE/secret"\n'},
        {EXECUTOR: '#include "PLACE/secret"\n'},
        {EXECUTOR: 'asm(".incbin \\"PLACE/secret\\"");\nint main() {}\n'},
        {EXECUTOR: '#include "/proc/1/environ"\n'},
        {EXECUTOR: 'asm(".section .interp,\\"a\\"\\n.asciz \\"PLACE/secret\\"");\nint main() {}\n'},
    ],
    ids=lambda more: " ".join(f"{name} {text[:60]}" for name, text in more.items())[:90],
)
async def test_a_source_that_reaches_out_gets_nothing(
    build: Build, tmp_path: Path, more: dict[str, str]
) -> None:
    (tmp_path / "secret").write_text("the secret of this host")
    tmp_path.chmod(0o755)
    more = {name: text.replace("PLACE", str(tmp_path)) for name, text in more.items()}
    failed = "" if "sys/syz-sysgen/main.go" in more else "syzkaller_does_not_build"
    with refused(failed) if failed else contextlib.nullcontext() as caught:
        await build(packed(tmp_path, more))
    if caught is not None:
        assert "secret of" not in caught.value.message
    for artifact in build.run.artifacts:
        program = (await build.fetched(artifact.name)).read_bytes()
        assert program.startswith(b"\x7fELF")
        assert b"secret of this host" not in program


async def test_an_operators_own_programs_are_taken(build: Build, tmp_path: Path) -> None:
    folder = tmp_path / "own" / COMMIT
    folder.mkdir(parents=True)
    for name in ("syz-execprog", "syz-executor"):
        (folder / name).write_text(name)
    nowhere = GitSource(url="https://127.0.0.1/syzkaller", commit=COMMIT)
    result = await build(nowhere, own=tmp_path / "own", commit=None)
    assert (result.made, result.source_identity, result.commit) == (False, "worker", COMMIT)
    assert (await build.fetched("syz-executor")).read_text() == "syz-executor"
    assert "has no syz-mutate" in result.lacks
    # Also where the programs were replaced since.
    (folder / "syz-executor").write_text("another one")
    (folder / "syz-mutate").write_text("a mutator")
    result = await build(nowhere, own=tmp_path / "own", commit=None)
    assert result.lacks == ""
    assert (await build.fetched("syz-mutate")).read_text() == "a mutator"
    assert (await build.fetched("syz-executor")).read_text() == "another one"


@go
@pytest.mark.attack
@pytest.mark.thorough
async def test_the_word_of_one_job_is_believed_by_no_other(build: Build, tmp_path: Path) -> None:
    # A tarball that claims to be a commit is not what a job gets that names the commit.
    await build(packed(tmp_path))
    with refused("source_not_allowed"):
        await build(GitSource(url="https://127.0.0.1/syzkaller", commit=COMMIT), commit=None)


@pytest.mark.thorough
@go
async def test_a_commit_that_is_not_the_one_is_told(build: Build, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name, text in SOURCE.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    git = ["git", "-C", tree, "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    for commit in ("main", head):
        with refused("wrong_commit", f"is {head}, not {COMMIT}"):
            await build(GitSource(url=str(tree), commit=commit))
    with refused("source_not_found", "has no commit"):
        await build(GitSource(url=str(tree), commit=COMMIT))


@go
async def test_what_is_no_syzkaller_is_refused(build: Build, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no go\.mod on top"):
        await build(packed(tmp_path, {"go.mod": None}))


def test_a_tarball_needs_a_commit() -> None:
    with pytest.raises(ValidationError, match="give `commit`"):
        SyzkallerSpec(source=TarballSource(url="/x", sha256="0" * 64))


@pytest.mark.thorough
async def test_without_go(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error tells what to install."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in os.listdir("/usr/bin"):
        if not name.startswith("go") and stat.S_ISREG(os.stat(f"/usr/bin/{name}").st_mode):
            (folder / name).symlink_to(f"/usr/bin/{name}")
    for name in os.listdir("/usr/sbin"):
        if not (folder / name).exists():
            (folder / name).symlink_to(f"/usr/sbin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    with refused("no_go", "install golang-go"):
        await build(packed(tmp_path))
