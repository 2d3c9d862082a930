"""The commits between two: of a folder, of a server, of a mirror."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from kgym.api.steps import GitSource, HistoryLook, HistorySpec
from kgym.bisection.history import parse
from kgym.errors import UserError
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.git_repositories import Repositories
from kgym_builder.kernel_source.source_limits import SourceLimits
from kgym_builder.source.history_step import HistoryLister
from tests.builder.kernel_source import git_server
from tests.conftest import ANYWHERE, NewRun
from tests.refused import refused

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Six commits after the first: two of a branch that is merged, one of another that is not."""
    folder = tmp_path / "served" / "linux"
    folder.mkdir(parents=True)
    git_server.git(folder, "init", "-q", "-b", "main")
    git_server.git(folder, "config", "uploadpack.allowFilter", "true")
    git_server.commit(folder, "zero", Makefile="0")
    git_server.git(folder, "tag", "old")
    git_server.git(folder, "checkout", "-q", "-b", "side")
    git_server.commit(folder, "side 1", side="1")
    git_server.commit(folder, "side 2: \x1b[31m\t" + "x" * 4000, side="2")
    git_server.git(folder, "checkout", "-q", "main")
    git_server.commit(folder, "one", Makefile="1")
    git_server.git(folder, "merge", "-q", "-m", "merge", "side")
    git_server.commit(folder, "two", Makefile="2")
    git_server.git(folder, "checkout", "-q", "-b", "other", "old")
    git_server.commit(folder, "elsewhere", other="1")
    git_server.git(folder, "checkout", "-q", "main")
    return folder


@pytest.fixture
def served(repository: Path) -> Iterator[git_server.GitServer]:
    with git_server.git_serving(repository.parent) as server:
        yield server


def repositories(folder: Path, origins: Origins) -> Repositories:
    return Repositories(folder / "cache" / "repositories", origins, SourceLimits())


async def listed(kernels: Repositories, url: str, since: str, last: str) -> list[str]:
    """Return the subjects of the commits between two, whose graph is as it should be."""
    ids = [await kernels.commit(url, name, git_server.Reports()) for name in (since, last)]
    history = parse(await kernels.history(url, *ids, git_server.Reports()))
    assert history.commits[-1].id == ids[1]
    return [each.subject[:6] for each in history.commits]


def words(subjects: list[str]) -> set[str]:
    return {each.split(":")[0] for each in subjects}


async def test_commits_of_a_folder(tmp_path: Path, repository: Path, new_run: NewRun) -> None:
    kernels = repositories(tmp_path, ANYWHERE)
    subjects = await listed(kernels, str(repository), "old", "main")
    assert set(subjects) == {"side 1", "side 2", "one", "merge", "two"}
    assert subjects[-2:] == ["merge", "two"]
    assert await listed(kernels, str(repository), "side", "main") == ["one", "merge", "two"]
    ends = [git_server.git(repository, "rev-parse", each) for each in ("old", "main")]
    assert len(await listed(kernels, str(repository), *ends)) == 5

    source = GitSource(url=str(repository), commit="main")
    run = new_run(HistorySpec(source=source, since="main~2"))
    result = await HistoryLister(tmp_path / "cache", ANYWHERE)(run)
    assert (result.commits, result.commit) == (4, ends[1])
    await run.storage.get(run.artifacts[0].key, tmp_path / "commits")
    history = parse((tmp_path / "commits").read_text())
    assert [each.parents for each in history.commits] == [(), (0,), (1,), (2,)]
    assert all(len(each.subject) <= 200 for each in history.commits)


@pytest.mark.parametrize("newest", [True, False])
async def test_commits_come_without_files(
    tmp_path: Path, served: git_server.GitServer, newest: bool
) -> None:
    served.newest_protocol = newest
    kernels = repositories(tmp_path, Origins((), git_server.LOOPBACK))
    url = f"{served.url}/linux/.git"
    assert len(await listed(kernels, url, "old", "main")) == 5
    ends = [git_server.git(served.root / "linux", "rev-parse", each) for each in ("side", "main~1")]
    assert await listed(kernels, url, *ends) == ["one", "merge"]
    assert not list((tmp_path / "cache" / "repositories").glob(".*.part-*"))


async def test_a_long_history_is_whole_without_warnings(tmp_path: Path, repository: Path) -> None:
    """More than is kept of other programs' output."""
    many = 70_000
    text = "".join(
        "commit refs/heads/long\ncommitter t <t@localhost> 1700000000 +0000\n"
        f"data 140\n{number:0140}\n" + ("from refs/heads/main^0\n" if number == 0 else "")
        for number in range(many)
    )
    git_server.git(repository, "fast-import", "--quiet", stdin=text.encode())
    (repository / ".git" / "objects" / "info" / "alternates").write_text("/no/where\n")
    kernels = repositories(tmp_path, ANYWHERE)
    ids = [git_server.git(repository, "rev-parse", each) for each in ("main", "long")]
    text = await kernels.history(str(repository), *ids, git_server.Reports())
    assert len(text) > 10 << 20
    history = parse(text)
    assert [len(each.parents) for each in history.commits] == [0] + [1] * (many - 1)


@pytest.mark.attack
async def test_what_is_no_history_is_refused(tmp_path: Path, repository: Path) -> None:
    kernels = repositories(tmp_path, ANYWHERE)
    absent, file = "f" * 40, git_server.git(repository, "rev-parse", "main:Makefile")
    wrong = {
        ("other", "main"): "not_an_ancestor",
        ("main", "old"): "not_an_ancestor",
        (absent, "main"): "source_not_found",
        (file, "main"): "source_not_found",
        ("old", absent): "source_not_found",
        ("old", "nowhere"): "source_not_found",
    }
    for (since, last), reason in wrong.items():
        with pytest.raises(UserError) as caught:
            await listed(kernels, str(repository), since, last)
        assert caught.value.reason == reason, caught.value.message
    os.rename(repository, repository.with_name("gone"))
    with refused("source_not_found"):
        await listed(kernels, str(repository), "f" * 40, absent)


@pytest.mark.attack
async def test_a_hostile_repository_runs_nothing(tmp_path: Path, repository: Path) -> None:
    proof = tmp_path / "proof"
    for key in ("core.pager", "core.fsmonitor", "log.showSignature", "gpg.program"):
        git_server.git(repository, "config", key, f"touch {proof}")
    kernels = repositories(tmp_path, ANYWHERE)
    assert len(await listed(kernels, str(repository), "old", "main")) == 5
    assert not proof.exists()


CODE = "int helper(void)\n{\n\treturn 1;\n}\n\nint frob(int n)\n{\n\treturn n %s 4;\n}\n"


async def test_looks_at_a_history_show_nothing_that_came_later(
    tmp_path: Path, repository: Path, served: git_server.GitServer, new_run: NewRun
) -> None:
    added, broken, fix = [
        git_server.commit(repository, f"frob: {subject}", **{"frob.c": CODE % sign})
        for subject, sign in (("add it", "<"), ("break it", "<="), ("FIX it", "!="))
    ]
    # Notes, names and drivers of the repository could tell of it as well.
    for words in (
        *(
            ("tag", "FIX", broken),
            ("branch", "FIX-2", broken),
            ("notes", "add", "-m", "FIX", broken),
            ("tag", "-am", "FIX", "FIX-3", broken),
        ),
        *(("config", "diff.leak.textconv", "echo FIX"), ("config", "log.decorate", "full")),
        *(("config", "diff.external", "echo FIX"), ("config", "diff.leak.command", "echo FIX")),
    ):
        git_server.git(repository, *words)
    (repository / ".git" / "info" / "attributes").write_text("*.c diff=leak\n")
    kernels = repositories(tmp_path, ANYWHERE)

    async def seen(kind: str, **how: object) -> str:
        look = HistoryLook.model_validate({"kind": kind, **how})
        text = await kernels.look(str(repository), broken, look, git_server.Reports())
        assert "FIX" not in text
        return text

    assert [line.split(" ", 2)[2] for line in (await seen("log", limit=2)).splitlines()] == [
        "frob: break it",
        "frob: add it",
    ]
    assert "break" not in await seen("log", words="ADD.it")
    assert len((await seen("log", path="frob.c")).splitlines()) == 2
    assert (await seen("log", path="frob.c", function="helper")).endswith(" frob: add it\n")
    assert await seen("log", words="it", path="--output=frob.c") == ""
    shown = await seen("show", commit=broken[:9])
    assert (shown.splitlines()[0], "+\treturn n <= 4;" in shown) == (f"commit {broken}", True)
    assert "return" not in await seen("show", commit=added, path="Makefile")
    tag = git_server.git(repository, "rev-parse", "FIX-3").strip()
    assert (await seen("show", commit=tag)).startswith(f"commit {broken}\n")
    blamed = (await seen("blame", path="frob.c", first=7, last=900)).splitlines()
    assert [line[:8] for line in blamed] == [added[:8], broken[:8], added[:8]]
    for wrong in (
        *({"kind": "show", "commit": fix}, {"kind": "show", "commit": fix[:8]}),
        *({"kind": "show", "commit": "0" * 40}, {"kind": "blame", "path": "absent.c"}),
    ):
        with refused("not_in_history", kind=UserError):
            await seen(**wrong)
    for wrong in ({"words": "a\0"}, {"path": "a\0"}):
        with pytest.raises(ValidationError):
            await seen("log", **wrong)
    elsewhere = repositories(tmp_path, Origins((), git_server.LOOPBACK))
    with refused("no_mirror", kind=UserError):
        url, look = f"{served.url}/linux/.git", HistoryLook(kind="log")
        await elsewhere.look(url, broken, look, git_server.Reports())
    run = new_run(
        HistorySpec(source=GitSource(url=str(repository), commit="HEAD"), look={"kind": "log"})
    )
    assert (await HistoryLister(tmp_path / "cache", ANYWHERE)(run)).commit == fix
    assert [artifact.name for artifact in run.artifacts] == ["look.txt"]
