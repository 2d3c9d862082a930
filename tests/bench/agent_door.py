"""What `run_kernel` takes itself: `./run bench agent` prints these figures, too.

`door_overhead_s`: from the call to the answer, without the time of build and reproducer, on a
platform whose steps are answered at once. `uncompilable_s`: the whole answer for a patch that
does not compile, really compiled, on the small make tree with a warm cache.
"""

import hashlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kgym.api.steps import StepKind
from kgym.host import process_logs
from kgym_cli.platforms.embedded_platform import Platform
from tests.bundles import REGRESS, small_bundle
from tests.cli.test_check import DIFF
from tests.cli.test_sweep import BUG, Farm, diff
from tests.cli.worked import working
from tests.conftest import ROOT

_CALLS = 5


def door() -> dict[str, float]:
    """Return the medians of a few calls, in seconds."""
    process_logs.configure(level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="kgym-bench-") as name:
        folder = Path(name)
        return {
            "door_overhead_s": _overhead(folder / "worked"),
            "uncompilable_s": _uncompilable(folder / "small"),
        }


def _overhead(data: Path) -> float:
    farm = Farm()
    with Platform(data, work=False) as platform, working(platform, data, farm.answers):
        _called(platform.url, BUG, diff("mends_first"))
        return _median([_beyond(platform.url, f"mends_{number}") for number in range(_CALLS)])


def _beyond(url: str, word: str) -> float:
    took, answer = _called(url, BUG, diff(word))
    assert answer["answer"] == "crash resolved", answer
    seconds = answer["seconds"]
    return took - seconds["build_after"] - seconds["reproduce_after"]


def _uncompilable(data: Path) -> float:
    data.mkdir(parents=True)
    given = {
        kind: worker_answer
        for kind, worker_answer in Farm().answers.items()
        if kind is not StepKind.CHECK
    }
    with (
        Platform(data, work=False) as platform,
        working(platform, data, given),
        _checking(platform.url, data),
    ):
        bug = str(_bundle(data / "bundle"))
        _called(platform.url, bug, DIFF % "unknown_first")
        times = []
        for number in range(_CALLS):
            took, answer = _called(platform.url, bug, DIFF % f"unknown_{number}")
            assert answer["answer"] == "does not compile", answer
            times.append(took)
        return _median(times)


@contextmanager
def _checking(url: str, data: Path) -> Iterator[None]:
    """Let a worker check patches, as it does elsewhere."""
    argv = [sys.executable, "-m", "kgym_cli", "worker", "--server", url, "--kinds", "check"]
    env = {**os.environ, "KGYM_DATA": str(data)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as worker:
        try:
            yield
        finally:
            worker.terminate()


def _called(url: str, bug: str, patch: str) -> tuple[float, dict[str, Any]]:
    begun = time.monotonic()
    done = subprocess.run(
        [Path(sys.executable).parent / "run_kernel", "--bug", bug, "--patch", "-", "--json"],
        env={**os.environ, "KGYM_SERVER": url},
        input=patch,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    took = time.monotonic() - begun
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return took, answer


def _bundle(folder: Path) -> Path:
    """Write the bug of the small make tree."""
    folder.mkdir()
    source = folder / "linux.tar"
    argv = ["tar", "-cf", source, "-C", ROOT / "tests", "fakelinux"]
    subprocess.run(argv, check=True, timeout=60)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return small_bundle(folder, f'tarball = "linux.tar"\nsha256 = "{digest}"', REGRESS)


def _median(times: list[float]) -> float:
    return round(statistics.median(times), 2)


if __name__ == "__main__":
    print(json.dumps(door()))
