"""A Git server with a small kernel."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builder.kernel_source.git_server import FILES, GitServer, commit, git, git_serving


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `linux`, of which three commits of many files are on `main`."""
    folder = tmp_path_factory.mktemp("served") / "linux"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "uploadpack.allowFilter", "true")
    rng = random.Random(1)
    for number in range(FILES):
        path = folder / f"d{number % 4}" / f"f{number}.c"
        path.parent.mkdir(exist_ok=True)
        path.write_text(rng.randbytes(4000).hex())
    commit(folder, "1", Makefile="one")
    commit(folder, "2", Makefile="two")
    commit(folder, "3", Makefile="three")
    return folder.parent


@pytest.fixture
def served(tmp_path: Path, repository: Path) -> Iterator[GitServer]:
    """A server of a copy of that, which the test may change."""
    root = tmp_path / "served"
    subprocess.run(["cp", "-a", repository, root], check=True, timeout=20)
    with git_serving(root) as server:
        yield server
