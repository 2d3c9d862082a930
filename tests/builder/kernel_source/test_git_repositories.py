"""Commits of Git repositories, from a real server: alone, once, and gone on with after a break."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kgym.api.steps import GitSource
from kgym_builder.kernel_source import git_copying
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.git_mirrors import Mirrors
from kgym_builder.kernel_source.git_repositories import Repositories
from kgym_builder.kernel_source.source_limits import SourceLimits
from tests.builder.kernel_source.git_server import (
    FILES,
    LOOPBACK,
    LOTS,
    GitServer,
    Reports,
    commit,
    git,
    marker,
    refusal,
)
from tests.refused import refused

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

# --- what comes -----------------------------------------------------------------------------


async def test_one_commit_comes_without_its_history(served: GitServer) -> None:
    kernels = served.sources()
    assert await marker(kernels, served.linux(served.at("main^"))) == "two"
    # The commit, its folder, four folders in it, and files.
    assert served.kept() == 1 + 1 + 4 + FILES + 1


@pytest.mark.parametrize("leaves_out", [True, False], ids=["filter", "no filter"])
async def test_a_later_commit_costs_what_has_changed(served: GitServer, leaves_out: bool) -> None:
    served.git("config", "uploadpack.allowFilter", str(leaves_out).lower())
    kernels = served.sources()
    assert await marker(kernels, served.linux("main~2")) == "one"
    first = sum(served.sent)
    assert await marker(kernels, served.linux("main")) == "three"
    assert sum(served.sent) - first < first / 50
    served.commit("4", Makefile="four")
    second = sum(served.sent)
    assert await marker(kernels, served.linux("main")) == "four"
    assert sum(served.sent) - second < first / 50


async def test_repositories_share_what_they_have_in_common(served: GitServer) -> None:
    fork = served.root / "fork"
    shutil.copytree(served.root / "linux", fork)
    commit(fork, "other", Makefile="fork")
    kernels = served.sources()
    await marker(kernels, served.linux("main"))
    first = sum(served.sent)
    assert await marker(kernels, served.linux("main", "fork")) == "fork"
    assert sum(served.sent) - first < first / 50


async def test_progress_is_told_in_bytes(served: GitServer) -> None:
    reports = Reports()
    await served.sources(LOTS).get(served.linux(served.at("main")), reports)
    assert reports.fetched == sorted(reports.fetched)
    assert reports.fetched[-1] >= sum(served.sent)
    assert len(set(reports.fetched)) > 5


# --- which commit is meant ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "makefile"),
    [
        ("main", "three"),
        ("v1", "one"),
        ("heads/main", "three"),
        ("main~2", "one"),
        ("parent-of main", "two"),
        ("merged^2", "side"),
        pytest.param("HEAD", "three", marks=pytest.mark.exhaustive),
        pytest.param("refs/tags/v1", "one", marks=pytest.mark.exhaustive),
        pytest.param("main^", "two", marks=pytest.mark.exhaustive),
        pytest.param("main^^", "one", marks=pytest.mark.exhaustive),
        pytest.param("parent-of main^", "one", marks=pytest.mark.exhaustive),
        pytest.param("main^0", "three", marks=pytest.mark.exhaustive),
    ],
)
async def test_names_of_commits(served: GitServer, name: str, makefile: str) -> None:
    served.git("tag", "-a", "-m", "x", "v1", "main~2")
    served.git("checkout", "-q", "-b", "side", "main")
    served.commit("side", Makefile="side")
    served.git("checkout", "-q", "-b", "merged", "main")
    served.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    served.git("checkout", "-q", "main")
    assert await marker(served.sources(), served.linux(name)) == makefile


async def test_the_parent_of_a_commit_by_its_id_is_asked_for_once(served: GitServer) -> None:
    kernels, source = served.sources(), served.linux(f"{served.at('main')}~2")
    assert await marker(kernels, source) == "one"
    asked = len(served.asked)
    assert await marker(kernels, source) == "one"
    assert len(served.asked) == asked


async def test_names_of_nothing_are_refused_with_what_to_do(served: GitServer) -> None:
    served.git("tag", "a-tree", "main^{tree}")
    kernels = served.sources()
    for name, words in {
        "no-such": "a commit is named by its id of 40 digits",
        served.at("main")[:12]: "a commit is named by its id of 40 digits",
        "0" * 40: "has no commit 0000",
        "main~7": "the history of",
        "main~1001": "more than 1000 commits before main",
        served.at("main:Makefile"): "but no commit",
        served.at("main^{tree}"): "but no commit",
        "a-tree": "but no commit",
    }.items():
        error = await refusal(kernels, served.linux(name))
        assert (error.reason, words in error.message) == ("source_not_found", True), error
    assert await marker(kernels, served.linux("main")) == "three"


@pytest.mark.parametrize(
    ("name", "makefile"), [("main^", "two"), ("parent-of main^", "one"), ("{inner}^", "one")]
)
async def test_parents_from_an_old_server(served: GitServer, name: str, makefile: str) -> None:
    """Servers with version 1 of the protocol send no commit by its id."""
    served.newest_protocol = False
    inner = served.at("main^")
    kernels = served.sources()
    assert await marker(kernels, served.linux(name.format(inner=inner))) == makefile
    error = await refusal(kernels, served.linux(f"{inner}~9"))
    assert (error.reason, "does not go so far" in error.message) == ("source_not_found", True)


@pytest.mark.attack
async def test_odd_names_are_those_of_branches_and_tags_or_of_nothing(served: GitServer) -> None:
    served.git("tag", "-a", "-m", "x", "inner", "main^")
    served.git("tag", "-a", "-m", "x", "outer", "inner")
    for name in ("a..b", "main.lock", "x/../main"):
        with pytest.raises(subprocess.CalledProcessError):
            served.git("branch", name)
        error = await refusal(served.sources(), served.linux(name))
        assert (error.reason, "no branch or tag" in error.message) == ("source_not_found", True)
    id_like = served.at("main^")
    served.git("update-ref", f"refs/heads/{id_like}", "main")
    served.git("branch", "\u00e4/main", "main~2")
    kernels = served.sources()
    for name, says in {
        id_like: "two",  # what looks like an id is one
        "\u00e4/main": "one",
        "outer": "two",
        "outer^": "one",
        served.at("outer"): "two",
        served.at("inner"): "two",
        f"{served.at('outer')}^": "one",
    }.items():
        assert await marker(kernels, served.linux(name)) == says, name


@pytest.mark.attack
async def test_a_repository_with_ids_of_sha_256_is_refused_for_good(served: GitServer) -> None:
    folder = served.root / "other"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", "--object-format=sha256")
    long = commit(folder, "1", Makefile="one")
    for name in ("main", "main^", long, "1" * 40):
        error = await refusal(served.sources(), served.linux(name, "other"))
        assert error.cause == "user", error.message
        assert name == long or "by SHA-256" in error.message


async def test_a_repository_that_asks_for_a_password_is_none(served: GitServer) -> None:
    served.status = 401
    for name in ("main", "1" * 40):
        error = await refusal(served.sources(), served.linux(name))
        assert (error.reason, error.cause) == ("source_not_found", "user"), error.message
        assert "private, or does not exist" in error.message


async def test_a_commit_without_a_branch_is_fetched_while_it_exists(served: GitServer) -> None:
    left, gone = served.at("main"), served.commit("4", Makefile="four")
    served.git("reset", "-q", "--hard", "main~2")
    assert await marker(served.sources(), served.linux(left)) == "three"
    served.git("reflog", "expire", "--expire=now", "--all")
    served.git("prune", "--expire=now")
    error = await refusal(served.sources(), served.linux(gone))
    assert error.message == f"{served.url}/linux/.git has no commit {gone}, or no longer"
    shutil.rmtree(served.host / "cache" / "trees")
    # The store has what it has got.
    assert await marker(served.sources(), served.linux(left)) == "three"


async def test_a_server_of_old_gives_its_branches(served: GitServer) -> None:
    served.newest_protocol = False
    kernels = served.sources()
    inner, stray = served.at("main^"), served.commit("4", Makefile="four")
    served.git("reset", "-q", "--hard", "main^")
    assert await marker(kernels, served.linux(inner)) == "two"
    first = sum(served.sent)
    assert "no branch or tag of" in (await refusal(kernels, served.linux(stray))).message
    served.commit("5", Makefile="five")
    assert await marker(kernels, served.linux("main")) == "five"
    assert sum(served.sent) - first < first / 20


# --- breaks, lies and floods ----------------------------------------------------------------


async def test_a_fetch_that_broke_off_is_gone_on_with(served: GitServer) -> None:
    source, kernels = served.linux(served.at("main")), served.sources(LOTS)
    served.fault = lambda number, sent: sent[: len(sent) // 2] if number == 4 else sent
    error = await refusal(kernels, source)
    assert (error.reason, error.cause) == ("download_failed", "infrastructure")
    served.fault, before = None, len(served.sent)
    assert await marker(kernels, source) == "three"
    # Folders and three lots of files had come.
    assert len(served.sent) - before == (FILES + 1 - 3 * 10 + 9) // 10


@pytest.mark.attack
@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.exhaustive), 2])
async def test_a_server_that_stalls_is_given_up(served: GitServer, number: int) -> None:
    served.fault = lambda at, sent: None if at == number else sent
    async with asyncio.timeout(40):
        error = await refusal(served.sources(LOTS), served.linux(served.at("main")))
    assert (error.reason, error.cause) == ("download_failed", "infrastructure")
    assert "Operation too slow" in error.message
    assert served.url in error.message


@pytest.mark.attack
async def test_bytes_that_are_not_what_their_hash_says_are_not_taken(served: GitServer) -> None:
    def changed(number: int, sent: bytes) -> bytes:
        middle = len(sent) // 2
        return sent if number else sent[:middle] + bytes([sent[middle] ^ 1]) + sent[middle + 1 :]

    served.fault = changed
    kernels = served.sources()
    error = await refusal(kernels, served.linux(served.at("main")))
    assert error.reason == "download_failed"
    assert served.kept() == 0
    assert await marker(kernels, served.linux("main")) == "three"


@pytest.mark.attack
async def test_a_server_that_sends_other_objects_is_refused(served: GitServer) -> None:
    first: list[bytes] = []

    def repeated(number: int, sent: bytes) -> bytes:
        first.append(sent)
        return sent if number < 2 else first[1]

    served.fault = repeated
    source = served.linux(served.at("main"))
    error = await refusal(served.sources(LOTS), source)
    assert error.reason == "download_failed"
    assert error.message.startswith(f"`git fetch` of {source.url} ended with status ")
    assert "remote did not send all necessary objects" in error.message


@pytest.mark.attack
async def test_a_flood_is_cut_off_and_what_was_there_stays(served: GitServer) -> None:
    limits = SourceLimits(archive=2 << 20, objects_at_once=10, seconds=60)
    kernels, good = served.sources(limits), served.at("main")
    await marker(kernels, served.linux(good))
    objects = served.kept()
    folder = served.root / "linux"
    (folder / "flood").write_bytes(os.urandom(8 << 20))
    flood = served.commit("flood")
    error = await refusal(kernels, served.linux(flood))
    assert (error.reason, error.cause) == ("source_too_large", "user")
    assert error.message.startswith(f"{served.url}/linux/.git sends more than")
    assert sum(served.sent[-1:]) > 4 << 20
    assert objects <= served.kept() < objects + 5
    asked = len(served.asked)
    shutil.rmtree(served.host / "cache" / "trees")
    assert await marker(kernels, served.linux(good)) == "three"
    assert len(served.asked) == asked


@pytest.mark.attack
async def test_a_server_is_not_told_of_others_commits(served: GitServer) -> None:
    secret = served.root / "secret"
    shutil.copytree(served.root / "linux", secret)
    hidden = commit(secret, "hidden", Makefile="hidden")
    kernels = served.sources()
    await marker(kernels, served.linux(hidden, "secret"))
    served.asked.clear()
    await marker(kernels, served.linux("main"))
    served.commit("4", Makefile="four")
    await marker(kernels, served.linux("main"))
    assert any(b"have " in request for request in served.asked)
    assert not any(hidden.encode() in request for request in served.asked)


# --- the store ------------------------------------------------------------------------------


async def test_what_a_killed_fetch_left_is_removed(served: GitServer) -> None:
    kernels = served.sources()
    await marker(kernels, served.linux("main^"))
    (known,) = (served.store / "known").iterdir()
    left = served.store.parent / f".{known.name}.part-1"
    (left / "objects").mkdir(parents=True)
    assert await marker(kernels, served.linux("main")) == "three"
    assert not left.exists()


async def test_objects_that_were_lost_are_fetched_again(served: GitServer) -> None:
    kernels = served.sources()
    await marker(kernels, served.linux("main^"))
    for pack in list(served.store.glob("objects/pack/*"))[:8]:
        pack.unlink()
    assert await marker(kernels, served.linux("main")) == "three"


@pytest.mark.attack
async def test_a_commit_that_cannot_be_written_down_costs_others_nothing(served: GitServer) -> None:
    kernels, good = served.sources(), served.linux(served.at("main"))
    await marker(kernels, good)
    # A file whose content is a folder.
    raw = b"100644 Makefile\0" + bytes.fromhex(served.at("main:d1"))
    error = await refusal(kernels, served.linux(served.branch(raw)))
    assert error.reason in {"source_unreadable", "download_failed", "source_not_found"}
    assert served.store.exists()
    shutil.rmtree(served.host / "cache" / "trees")
    asked = len(served.asked)
    assert await marker(kernels, good) == "three"
    assert len(served.asked) == asked


async def test_the_store_goes_when_it_has_grown_beyond_its_budget(served: GitServer) -> None:
    await marker(served.sources(), served.linux("main"))
    repositories = Repositories(served.store.parent, Origins(), LOTS)
    repositories.trim(100 << 20)
    assert served.store.exists()
    repositories.trim(1000)
    assert not served.store.exists()


# --- mirrors --------------------------------------------------------------------------------


@pytest.fixture
def mirrors(tmp_path: Path, served: GitServer) -> Path:
    """A folder of mirrors: a copy of `linux`, also under an address that no job may reach."""
    folder = tmp_path / "mirrors"
    folder.mkdir()
    git(folder, "clone", "-q", "--mirror", str(served.root / "linux"), "copy.git")
    table = {f"{served.url}/linux/.git": "copy.git", "git://example.org/linux": "copy.git/"}
    (folder / "map.json").write_text(json.dumps(table))
    return folder


async def test_a_mirror_stands_for_its_url(served: GitServer, mirrors: Path) -> None:
    """Commits that it lacks come from the URL."""
    kernels = served.sources(mirrors=mirrors)
    assert await marker(kernels, served.linux(served.at("main^"))) == "two"
    assert await marker(kernels, served.linux("main")) == "three"
    other = GitSource(url="git://example.org/linux.git", commit="parent-of main^")
    assert await marker(kernels, other) == "one"
    assert not served.asked
    newer = served.commit("4", Makefile="four")
    assert await marker(kernels, served.linux(newer)) == "four"
    assert served.asked
    error = await refusal(kernels, GitSource(url=other.url, commit=newer[::-1]))
    assert error.message.startswith("the mirror of git://example.org/linux.git has no commit")


async def test_bad_mirrors_are_the_operators_fault(served: GitServer, mirrors: Path) -> None:
    for text in ("[]", '{"a": 1}', "{", "[" * 100_000):
        (mirrors / "map.json").write_text(text)
        error = await refusal(served.sources(mirrors=mirrors), served.linux("main"))
        assert (error.reason, error.cause) == ("bad_mirrors", "infrastructure")
    (mirrors / "map.json").unlink()
    assert await marker(served.sources(mirrors=mirrors), served.linux("main")) == "three"


async def test_a_copy_is_made_brought_up_to_date_and_used(served: GitServer) -> None:
    mirrors = Mirrors(served.host / "mirrors")
    origins = Origins((), LOOPBACK, mirrors)
    url = f"{served.url}/linux/.git"
    await git_copying.copy(url, origins, Reports())
    (path,) = mirrors.table().values()
    names = ("objects/pack/tmp_pack_x", "objects/1f/tmp_obj_x", "packed-refs.lock")
    left = [path / name for name in (*names, "refs/heads/main.lock", "refs/heads/gone.lock")]
    for leftover in left:
        leftover.parent.mkdir(exist_ok=True, parents=True)
        leftover.touch()
    (path / "HEAD").write_text("")
    served.git("branch", "gone", "main^")
    await git_copying.copy(url.removesuffix(".git"), origins, Reports())
    served.git("branch", "-D", "gone")
    newer = served.commit("4", Makefile="four")
    assert await git_copying.copy(f"{url}/", origins, Reports()) == path
    assert not any(leftover.exists() for leftover in left)
    assert git(path, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    served.asked.clear()
    kernels = served.sources(mirrors=mirrors.folder)
    for name in ("HEAD", "main", newer):
        assert await marker(kernels, served.linux(name)) == "four"
    assert not served.asked


async def test_a_copy_that_others_keep_is_left_alone(served: GitServer, mirrors: Path) -> None:
    (mirrors / "map.json").write_text(json.dumps({f"{served.url}/linux": "/srv/linux.git"}))
    origins = Origins((Path("/"),), LOOPBACK, Mirrors(mirrors))
    for url in (f"{served.url}/linux", str(served.host)):
        with refused("bad_option"):
            await git_copying.copy(url, origins, Reports())
    before = (mirrors / "map.json").read_text()
    with refused("source_not_found"):
        await git_copying.copy(f"{served.url}/nothing", origins, Reports())
    assert (mirrors / "map.json").read_text() == before
