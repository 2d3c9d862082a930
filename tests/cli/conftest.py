"""The command line as a person or a script uses it: a process, its output, its status."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli import forked

LIMIT = 180


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of stdout as JSON."""
        return json.loads(self.out.splitlines()[-1])


Kgym = Callable[..., Answer]


@pytest.fixture(scope="session", autouse=True)
def forks() -> None:
    """Start what commands are forked from before a test changes the environment."""
    forkserver.ensure_running()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def kgym(data: Path) -> Kgym:
    """Run `kgym` on a data folder of the test's own."""

    def run(*words: object, stdin: str | bytes = "") -> Answer:
        # Where an image of a container keeps apt from storing its index, each platform that a
        # command starts would let apt make it anew, for 0.7 s of a core.
        env = {"KGYM_ARCHIVES": "none", **os.environ, "KGYM_DATA": str(data)}
        given = stdin.encode() if isinstance(stdin, str) else stdin
        status, out, err = forked.run(list(map(str, words)), env, given, LIMIT)
        return Answer(status, out.decode(), err.decode())

    return run


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a small file system on a new folder; only root may."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "kgym", folder], check=True)
    try:
        yield
    finally:
        # What a command has started may take a moment longer to end.
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def platform(data: Path) -> Iterator[Platform]:
    """The embedded platform, running."""
    with Platform(data) as running:
        yield running


@pytest.fixture
def idle(data: Path) -> Iterator[Platform]:
    """A platform that takes jobs and does no step."""
    with Platform(data, work=False) as running:
        yield running


@pytest.fixture
def build_job(fake_build: BuildSpec) -> str:
    """A job that builds the small make tree, as JSON."""
    return JobRequest(steps=[fake_build], tags=["small"]).model_dump_json()
