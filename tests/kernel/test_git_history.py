"""Git sources over commits of real kernels: the folders of two releases, from a real server."""

import shutil
from pathlib import Path

import pytest

from kgym.api.steps import PackageSource
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.kernel_source.source_limits import SourceLimits
from tests.builder.kernel_source.git_server import LOOPBACK, GitServer, Reports, git, git_serving
from tests.conftest import DATA

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.anyio]

FOLDERS = ("kernel", "mm", "lib", "fs/ext4")
LIMITS = SourceLimits(objects_at_once=500, silence_seconds=600)


def history(repository: Path, trees: list[Path]) -> list[str]:
    """Commit parts of the trees, and the last one with a line more in some files."""
    git(repository, "init", "-q", "-b", "main")
    git(repository, "config", "uploadpack.allowFilter", "true")
    commits = []
    for tree in trees:
        for name in (*FOLDERS, "Makefile"):
            shutil.rmtree(repository / name, ignore_errors=True)
            (repository / name).parent.mkdir(exist_ok=True)
            copy = shutil.copytree if (tree / name).is_dir() else shutil.copy2
            copy(tree / name, repository / name)
        commits.append(committed(repository))
    for path in sorted((repository / "mm").glob("*.c"))[::10]:
        path.write_text(path.read_text() + "/* changed */\n")
    return [*commits, committed(repository)]


def committed(repository: Path) -> str:
    git(repository, "add", "-A", "-f")
    git(repository, "commit", "-q", "-m", "x")
    return git(repository, "rev-parse", "HEAD")


async def fetched(sources: KernelSources, served: GitServer, commit: str) -> int:
    """Fetch a commit, whose files are then those of the repository; return the bytes sent."""
    before = sum(served.sent)
    tree = (await sources.get(served.linux(commit), Reports())).tree
    git(served.root / "linux", "read-tree", commit)
    git(served.root / "linux", "--work-tree", str(tree), "diff", "--exit-code", "--stat", commit)
    return sum(served.sent) - before


async def sent(tmp_path: Path, trees: list[Path]) -> tuple[list[int], list[int]]:
    """Return the bytes for each commit of a history of these trees: in order, and each alone."""
    repository = tmp_path / "served" / "linux"
    repository.mkdir(parents=True)
    commits = history(repository, trees)
    with git_serving(tmp_path / "served") as served:
        origins = Origins((), LOOPBACK)
        shared = KernelSources(tmp_path / "shared", origins, LIMITS)
        in_order = [await fetched(shared, served, commit) for commit in commits]
        alone = [
            await fetched(KernelSources(tmp_path / commit, origins, LIMITS), served, commit)
            for commit in commits
        ]
    return in_order, alone


@pytest.mark.exhaustive
async def test_later_commits_of_real_kernels_cost_what_has_changed(tmp_path: Path) -> None:
    sources = KernelSources(DATA / "cache" / "sources")
    trees = []
    for suite, package in (("bookworm", "linux-source-6.1"), ("trixie", "linux-source-6.12")):
        source = PackageSource(names=[package], suite=suite)
        trees.append((await sources.get(source, lambda *_: None)).tree)
    in_order, alone = await sent(tmp_path, trees)
    assert in_order[0] == pytest.approx(alone[0], rel=0.05)
    assert in_order[1] < alone[1]  # two years lie between them
    assert in_order[2] < alone[2] / 20
