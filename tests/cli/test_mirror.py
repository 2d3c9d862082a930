"""`kgym mirror`, with a real Git server on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builder.kernel_source.git_server import git_serving
from tests.builder.kernel_source.test_git_repositories import commit, git

pytestmark = pytest.mark.thorough


def kgym(data: Path, *words: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "kgym_cli", "mirror", *words, "--json"],
        env={**os.environ, "KGYM_DATA": str(data), "KGYM_SOURCE_NETWORKS": "127.0.0.1/32"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    return done.returncode, json.loads(done.stdout)


def test_a_repository_is_copied_and_listed(tmp_path: Path) -> None:
    folder = tmp_path / "served" / "linux"
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    head = commit(folder, "1", Makefile="one")
    with git_serving(tmp_path / "served") as served:
        url = f"{served.url}/linux/.git"
        status, listed = kgym(tmp_path, url)
        missing = kgym(tmp_path, f"{served.url}/none")
    assert (status, [mirror["url"] for mirror in listed]) == (0, [url.removesuffix("/.git")])
    assert git(Path(listed[0]["path"]), "rev-parse", "HEAD") == head
    assert listed == kgym(tmp_path)[1]
    assert (missing[0], missing[1]["reason"]) == (2, "source_not_found")
