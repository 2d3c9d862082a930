"""What several test folders share: real parts, small inputs."""

import asyncio
import gc
import hashlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from pydantic import BaseModel

from kgym.api.steps import BuildSpec, KernelConfig, StepSpec, TarballSource
from kgym.api.worker_calls import Assignment, Input
from kgym.bugs import bundle
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import FOLDERS, Origins
from kgym_builder.kernel_source.kernel_sources import KernelSources

ROOT = Path(__file__).resolve().parents[1]
pytest_plugins = ["tests.attacks", "tests.servers", "tests.side_by_side"]
# Where the slow tests keep compiled kernels, so that the next run finds them.
DATA = ROOT / ".kgym"
# Workers of tests take kernel sources from any folder; from networks, where a test says so.
ANYWHERE = Origins(folders=(Path("/"),))
os.environ.setdefault(FOLDERS, "/")  # those that are processes of their own, too
# A shell lets what it starts in the background ignore Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What every random choice of a test follows from. `./run test` takes it from the commit.
SEED = int(os.environ.setdefault("KGYM_TEST_SEED", str(random.SystemRandom().randrange(1 << 32))))


T = TypeVar("T")


def chosen(cases: Iterable[T], count: int) -> list[T]:
    """Return the cases that this commit tries of many that take minutes each."""
    listed = list(cases)
    return random.Random(SEED).sample(listed, min(count, len(listed)))


def turns(cases: Iterable[object], count: int, ids: Iterable[str] | None = None) -> list[object]:
    """Return all cases as parameters; this commit tries `count` of them, `--all` the others too."""
    listed = list(cases)
    names = list(ids) if ids else [None] * len(listed)
    tried = chosen(range(len(listed)), count)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if number in tried else pytest.mark.exhaustive,
            id=names[number],
        )
        for number, case in enumerate(listed)
    ]


# For httpx's clients of servers on this machine: patient, and without certificates, which take
# 30 ms to load.
NEARBY: Any = {"timeout": 60, "trust_env": False, "verify": False}
# A busy machine makes no example wrong.
settings.register_profile(
    "untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")
# Whether the packages are installed that a bucket of Google Cloud Storage takes.
BUCKETS = importlib.util.find_spec("google_crc32c") is not None
collect_ignore = [
    path
    for path in (
        "cli/test_bucket.py",
        "scheduler/api/test_direct_downloads.py",
        "transport/test_gcs_storage.py",
    )
    if not BUCKETS
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests without collecting garbage, and keep them out of later collections.

    There is no garbage yet, and looking for it takes a third of the processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header() -> list[str]:
    """Print the seed, and which files are left out."""
    header = [f"KGYM_TEST_SEED={SEED}"]
    if collect_ignore:
        left_out = ", ".join(collect_ignore)
        header.append(f"left out, as ./run has yet to install kgymsuite[gcp]: {left_out}")
    return header


def kgym(*words: object, stdin: BaseModel | None = None) -> tuple[int, dict[str, Any]]:
    """Run a command on the checkout's own data folder; return its status and its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "kgym_cli", *map(str, words), "--json"],
        env={**os.environ, "KGYM_DATA": str(DATA)},
        input=stdin.model_dump_json() if stdin else "",
        stdout=subprocess.PIPE,
        check=False,
        text=True,
        timeout=3600,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def fetched(job: dict[str, Any], step: int, name: str, folder: Path) -> Path:
    """Return a copy, in this folder, of what a step of a job on that data folder left."""
    (key,) = [file["key"] for file in job["steps"][step]["artifacts"] if file["name"] == name]
    path = folder / name
    asyncio.run(LocalStorage(DATA / "artifacts").get(key, path))
    return path


# Fixtures that start commands, unpack a kernel, compile the small make tree, or fill a platform for
# the monitor.
_TAKES_SECONDS = {"fake_source", "guarded", "kernel_source", "kgym", "site", "sweep", "traces"}
# Of the thorough tests in these folders, which start whole platforms, each commit runs another
# third, and `--all` the whole. Attacks, and what decides on verdicts, leases and sandboxes, are in
# every run.
_BY_TURNS = {"benchmark", "cli", "hosts", "monitor"}
# Of the exhaustive tests on real kernels, which together take hours, each commit runs another third
# with `--all`. Who names a test or its folder runs it.
_EXHAUSTIVE_BY_TURNS = {"honesty", "kernel"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave slower tests out of the fast ones, and some to other commits; slow files come first."""
    for item in items:
        if _TAKES_SECONDS & {*getattr(item, "fixturenames", ())}:
            item.add_marker("thorough")
        if "kernel_source" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(600))  # the first on a machine downloads it
        marks = {mark.name for mark in item.iter_markers()}
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        another_commits_turn = (zlib.crc32(item.nodeid.encode()) + SEED) % 3 != 0
        if folder in _BY_TURNS and "thorough" in marks and not marks & {"attack", "slow"}:
            if another_commits_turn:
                item.add_marker("exhaustive")
        elif folder in _EXHAUSTIVE_BY_TURNS and "exhaustive" in marks and another_commits_turn:
            item.add_marker("another_commit")
    # Each file is run by one process: a slow one at the end would leave the others without work.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def kernel_source() -> Path:
    """The kernel source of the shipped bugs, as published."""
    sources = KernelSources(DATA / "cache" / "sources")
    source = bundle.load("watch-queue-filter").build.source
    return asyncio.run(sources.get(source, lambda *_: None)).tree


@pytest.fixture(scope="session")
def fake_source(tmp_path_factory: pytest.TempPathFactory) -> TarballSource:
    """The small make tree, as the tarball of a kernel source."""
    path = tmp_path_factory.mktemp("source") / "linux.tar"
    subprocess.run(["tar", "-cf", path, "-C", ROOT / "tests", "fakelinux"], check=True, timeout=20)
    return TarballSource(url=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def fake_build(fake_source: TarballSource) -> BuildSpec:
    """A build of the small make tree."""
    config = KernelConfig(base="allnoconfig", fragments=["CONFIG_BASE=y\n"])
    return BuildSpec(source=fake_source, config=config)


NewRun = Callable[..., StepContext]


def attempt(folder: Path, spec: StepSpec, inputs: dict[str, Input] | None = None) -> StepContext:
    """Return an attempt at a step, with its work and the storage in `folder`."""
    lease = uuid.uuid4()
    work = folder / "work" / lease.hex
    work.mkdir(parents=True)
    assignment = Assignment(
        step_id=1, job_id=1, number=0, attempt=1, lease=lease, spec=spec, inputs=inputs or {}
    )
    return StepContext(assignment, work, LocalStorage(folder / "storage"))


@pytest.fixture
def new_run(tmp_path: Path) -> Iterator[NewRun]:
    """Make an attempt at a step, as a worker hands it to a handler; it ends with the test."""
    held = ExitStack()

    def make(spec: StepSpec, inputs: dict[str, Input] | None = None) -> StepContext:
        run = attempt(tmp_path, spec, inputs)
        held.callback(run.held.close)
        return run

    with held:
        yield make
