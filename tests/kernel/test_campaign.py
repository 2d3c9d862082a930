"""Agents measured on a real kernel: environment, tries, and the proof of their patches."""

import json
import shutil
from pathlib import Path

import pytest

from kgym.bench import attempt_files
from kgym.bench.attempt_record import Outcome
from kgym.bugs import bundle
from kgym.configs import CONFIGS
from tests.benchmark import hub_server
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


BUGS = ("watch-queue-filter", "fsconfig-source-fd")
CAMPAIGN = f"""
name = "features"
bugs = {json.dumps(BUGS)}
oracle = [true, false]
feedback = [false]
parallel = 2
instances = 2
time = 20

[attempt]
hours = 2

[[agents]]
name = "asker"
command = ["python3", "/agent/asker.py"]
folder = "agent"
"""
# It knows the fix, and makes it if the oracle names the file.
ASKER = """
import json, os
from pathlib import Path
from mender import change

patch = json.loads(Path("/agent/patches", os.environ["KENV_SYZBOT_BUG_ID"] + ".json").read_text())
if os.environ["KENV_ORACLE_MODE"] == "true":
    oracle = Path("/KBDr/oracle-files.txt").read_text().split()
    assert {edit["file"] for edit in patch["edits"]} <= set(oracle)
    change(patch)
account = {"dollarCost": 0.5, "timeCost": 86400, "exitReason": "done"}
Path("/KBDr/output/metadata.json").write_text(json.dumps(account))
"""


@pytest.mark.exhaustive
def test_a_campaign_with_all_features_is_pushed_pulled_and_pushed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracles, accounts, queries, patches made elsewhere, the hub, and a stranger's check."""
    shutil.copytree(CONFIGS / "demo-agents", tmp_path / "agent")
    (tmp_path / "agent" / "asker.py").write_text(ASKER)
    (tmp_path / "agent" / "patches").mkdir()
    for name in BUGS:
        fix = bundle.load(name).fix
        assert fix is not None
        (tmp_path / "agent" / "patches" / f"{name}.json").write_text(fix.model_dump_json())
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    into, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    status, summary = kgym("bench", "run", tmp_path / "campaign.toml", "--into", into)
    assert (status, summary["made"]) == (0, 4), summary
    records = list(attempt_files.read(into / attempt_files.NAME))
    helped = [record for record in records if record.setup.oracle]
    assert {record.outcome for record in helped} == {Outcome.PASS}
    assert {record.outcome for record in records if not record.setup.oracle} == {Outcome.BAD}
    assert all("seconds" in record.disputed for record in helped)

    _, answer = kgym("bench", "query", into, "--by", "oracle", "--by", "class", "--metric", "crr@1")
    shares = {
        group["values"][0]: group["figures"][0]["value"]
        for group in answer["groups"]
        if len(group["values"]) == 1
    }
    assert sorted(shares.values()) == [0, 1]

    rows = [{"instance_id": record.bug, "model_patch": record.diff} for record in helped]
    patches = tmp_path / "predictions.jsonl"
    patches.write_text("".join(f"{json.dumps({**row, 'resolved': False})}\n" for row in rows))
    words = ("bench", "judge-patches", patches, "--into", elsewhere, "--instances", "2")
    status, summary = kgym(*words)
    assert (status, summary["made"]) == (0, 2), summary
    for record in attempt_files.read(elsewhere / attempt_files.NAME):
        assert (record.outcome, record.disputed) == (Outcome.PASS, ["resolved"])

    with hub_server.serving() as hub:
        monkeypatch.setenv("KGYM_HUB", hub.url)
        monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
        for folder in (into, elsewhere):
            place, copy = f"owner/{folder.name}", tmp_path / f"pulled-{folder.name}"
            status, pushed = kgym("bench", "push", folder, place)
            assert status == 0, pushed
            assert "attempts.jsonl" in pushed["changed"]
            status, pulled = kgym("bench", "pull", place, copy)
            assert (status, pulled["commit"]) == (0, pushed["commit"]), pulled
            assert kgym("bench", "push", copy, place)[1]["changed"] == []
            status, verified = kgym("bench", "verify", copy, "--sample", 1)
            assert (status, verified["accepted"], verified["retried"]) == (0, True, 1), verified
