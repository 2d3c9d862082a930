"""Agents measured on a real kernel: environment, tries, and the proof of their patches."""

import json
from pathlib import Path

import pytest

from kgym.bench import attempt_files
from kgym.bench.attempt_record import Outcome
from tests.conftest import DATA, kgym

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.exhaustive
def test_two_agents_are_measured_on_a_real_bug() -> None:
    status, report = kgym("demo", "--bench", "--bugs", 1)
    assert status == 0, report
    crr = {
        (row["setup"]["agent"], row["setup"]["feedback"]): row["passed"]["crr"]["value"]
        for row in report["setups"]
    }
    # Who learns from run_kernel finds the fix; without it, the first try is the last.
    assert crr == {
        ("mender", True): 1,
        ("mender", False): 0,
        ("guesser", True): 0,
        ("guesser", False): 0,
    }
    folders = [path.parent for path in (DATA / "demo-bench").glob(f"*/{attempt_files.NAME}")]
    (into,) = [
        folder for folder in folders if len((folder / "bugs.jsonl").read_text().splitlines()) == 1
    ]
    records = {
        (attempt.setup.agent, attempt.setup.feedback): attempt
        for attempt in attempt_files.read(into / attempt_files.NAME)
    }
    fixed = records["mender", True]
    assert (fixed.outcome, fixed.clean) == (Outcome.PASS, True)
    assert (fixed.crashed, fixed.completed) == (0, 2)
    assert fixed.files is not None
    assert fixed.functions is not None
    assert (fixed.files.ratio, fixed.functions.ratio, fixed.kernel_runs) == (1, 1, 2)
    assert records["mender", False].outcome is Outcome.COMPILE
    assert records["guesser", False].outcome is Outcome.BAD
    calls = sorted(Path(into, "attempts").glob("*/mender-feedback*/1/kernel_runs.jsonl"))
    answers = [json.loads(line)["answer"] for line in calls[0].read_text().splitlines()]
    assert answers == ["does not compile", "crash resolved"]
    # All is there: the same line makes nothing, and says the same.
    assert kgym("demo", "--bench", "--bugs", 1)[1]["setups"] == report["setups"]
