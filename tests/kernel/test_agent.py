"""CrashFixer on real kernels: a tape in place of a model, all else is real. Minutes each."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kgym.configs import TAPES
from tests.conftest import DATA, kgym

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.exhaustive]

BUG = "watch-queue-filter"
TAPE = f"replay:{TAPES / BUG}.jsonl"
OUTCOMES = {"crashed": 1, "rejected": 1, "resolved": 2}


def calls(run: int) -> list[dict[str, Any]]:
    """Return the questions of a run."""
    answer: Any = kgym("run", "calls", run)[1]
    return list(answer)


def test_the_demos_agent_fails_in_each_way_and_then_finds_the_fix() -> None:
    status, outcome = kgym("demo", "--agent")
    assert (status, outcome["resolved"], outcome["replayed"]) == (0, True, True), outcome["run"]
    assert outcome["cycles"]["outcomes"] == OUTCOMES
    run = outcome["run"]
    assert [node["node"] for node in run["ranked"]] == ["review"]
    assert run["ranked"][0]["confidence"] >= 0.95
    assert run["notes"] == []  # nothing kept it from a trace
    spent = run["spent"]
    assert (spent["builds"], spent["checks"], spent["dollars"]) == (4, 4, None)
    # An edit that does not apply, a patch that does not compile, are mended or given up.
    assert Counter(call["purpose"] for call in calls(run["id"]))["repair"] == 2
    nodes = {node["name"]: node for node in run["nodes"]}
    assert "KASAN" in nodes["t0"]["crash"]
    assert nodes["t0.1"]["crash"] is None  # it silences the checker, and is found out
    # A mail as maintainers want it; the package's tree has no history that blames a commit.
    header, _, body = outcome["patch"].partition("\n\n")
    assert "\nSubject: [PATCH] watch_queue: fix the limit of a filter's type\n" in header
    assert "\nCc: linux-kernel@vger.kernel.org\n" in header
    message, _, change = body.partition("\n---\n")
    assert "larger than the number of types, WATCH_TYPE__NR" in " ".join(message.split())
    assert "Fixes:" not in outcome["patch"]
    assert change.count("+\t\tif (tf[i].type >= WATCH_TYPE__NR)\n") == 2


def test_a_killed_agent_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    words = ["fix", BUG, "--model", TAPE, "--out", str(tmp_path / "kit"), "--json"]
    before = kgym("run", "list")[1]["runs"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kgym_cli", *words],
        env={**os.environ, "KGYM_DATA": str(DATA)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while True:  # until the first patch is being tried
            assert process.poll() is None, "the run ended before it could be killed"
            runs = kgym("run", "list")[1]["runs"]
            if len(runs) > len(before):
                run = runs[0]["id"]
                if kgym("run", "show", run)[1]["spent"]["checks"]:
                    break
            time.sleep(1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    status, outcome = kgym("run", "resume", run, "--out", tmp_path / "kit")
    assert (status, outcome["resolved"], outcome["cycles"]["outcomes"]) == (0, True, OUTCOMES)
    assert Path(outcome["written"][0]).read_text() == outcome["patch"]
    assert all(call["asked"] == 1 for call in calls(run))
    assert outcome["run"]["spent"]["lost_calls"] == 0
