"""A Git server with a small kernel."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builder.kernel_source.git_server import GitServer, git_serving
from tests.builder.kernel_source.git_sources import FILES, commit, git


@pytest.fixture
def served(tmp_path: Path) -> Iterator[GitServer]:
    """A server with `linux`, of which three commits of many files are on `main`."""
    root = tmp_path / "served"
    folder = root / "linux"
    folder.mkdir(parents=True)
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
    with git_serving(root) as server:
        yield server
