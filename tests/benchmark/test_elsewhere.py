"""Oracles, agents' own accounts, patches made elsewhere, and results that a stranger checks."""

import json
import shutil
from pathlib import Path

import pytest

from kgym.bench import attempt_files, imported_patches
from kgym.bench.attempt_record import Account, AttemptRecord, Outcome, Setup
from kgym.bench.bug_record import BugRecord
from kgym.bench.dataset import Dataset
from kgym.configs import CONFIGS
from kgym.errors import KgymError
from kgym_cli.bench import manifest
from tests.benchmark.test_campaign import FILE, Counted, described, farm, home
from tests.cli.conftest import Kgym
from tests.tables import json_rows, rows

__all__ = ["farm", "home"]

METADATA = {"dollarCost": 0.5, "timeCost": 86400, "exitReason": "costLimitExceeded"}
AGENT = f"""
[ "$KENV_ORACLE_MODE" = true ] && grep -q oracle-files.txt /root/instructions.txt || exit 0
cp /KBDr/oracle-files.txt /KBDr/output/traj.json
sed -i 's/type >= 100/type >= mends/' {FILE}
echo '{json.dumps(METADATA)}' >/KBDr/output/metadata.json
"""


def ask_an_oracle(home: Path) -> Path:
    """Write a campaign whose agent works only if it has an oracle."""
    shutil.rmtree(home / "bugs" / "two")
    (home / "agent" / "oracle.sh").write_text(AGENT)
    path = described(home)
    entry = '[[agents]]\nname = "a"\ncommand = ["sh", "/agent/oracle.sh"]\nfolder = "agent"\n'
    text = path.read_text().partition("[[agents]]")[0].replace("[true, false]", "[false]")
    path.write_text(text.replace("parallel", "oracle = [true, false]\nparallel") + entry)
    return path


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_oracles_accounts_and_patches_made_elsewhere(
    farm: Counted, kgym: Kgym, home: Path, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    done = kgym("bench", "run", ask_an_oracle(home), "--into", into)
    assert done.status == 0, done.err
    records = list(attempt_files.read(into / attempt_files.NAME))
    oracle, plain = sorted(records, key=lambda record: not record.setup.oracle)
    assert [oracle.outcome, plain.outcome] == [Outcome.PASS, Outcome.BAD]
    assert (oracle.account, plain.account) == (
        Account(dollars=0.5, seconds=86400, ended="costLimitExceeded"),
        None,
    )
    assert oracle.disputed == ["dollars", "seconds"]
    (listed,) = into.glob("attempts/*/a-oracle*/1/traj.json")
    assert listed.read_text().split() == [FILE]
    assert not list(into.glob("attempts/*/*/1/metadata.json"))
    report = kgym("bench", "report", into).out
    assert "a, oracle: dollars differ from its own account in 1 attempts" in report

    # The same patch from elsewhere, with a verdict of its own, is another attempt of a campaign.
    assert (
        kgym("bench", "import", "bundles", home / "bugs", "--into", tmp_path / "bugs").status == 0
    )
    built, elsewhere = farm.done.count("built"), tmp_path / "elsewhere"
    patches = tmp_path / "predictions.jsonl"
    row = {"instance_id": "one", "model_patch": oracle.diff, "model_name_or_path": "m"}
    patches.write_text(f"{json.dumps({**row, 'resolved': False, 'cost': 2})}\n{json.dumps(row)}\n")
    words = ("bench", "judge-patches", patches, "--into", elsewhere, "--dataset", tmp_path / "bugs")
    done = kgym(*words, "--instances", "3", "--agent", "theirs", "--json")
    assert (done.status, done.json["made"]) == (0, 2), done.err
    made = attempt_files.read(elsewhere / attempt_files.NAME)
    first, second = sorted(made, key=lambda record: record.run)
    assert (first.run, second.run, first.outcome, first.clean) == (1, 2, Outcome.PASS, True)
    assert (str(first.setup), first.dollars, first.kernel_runs) == ("theirs, imported, m", 2, None)
    assert (first.disputed, second.disputed) == (["resolved"], [])
    assert first.files is not None
    assert first.files.ratio == 1
    assert farm.done.count("built") - built <= 2
    again = kgym(*words, "--instances", "3", "--agent", "theirs", "--json")
    assert (again.status, again.json["made"]) == (0, 0)
    patches.write_text(json.dumps({**row, "model_patch": "another"}))
    other = kgym(*words, "--instances", "3", "--agent", "theirs", "--json")
    assert (other.status, other.json["reason"]) == (2, "campaign_changed")
    assert kgym(*words[:-2], "--instances", "3", "--json").json["reason"] == "no_such_bug"

    # A stranger accepts the results; with another outcome, no manifest helps.
    assert kgym("bench", "report", elsewhere, "--manifest").status == 0
    check = ("bench", "verify", elsewhere, "--dataset", tmp_path / "bugs", "--json")
    done = kgym(*check)
    assert (done.status, done.json["accepted"], done.json["retried"]) == (0, True, 1), done.err
    log = elsewhere / attempt_files.NAME
    *_, last = attempt_files.read(log)  # of attempts with the same patch, the last is tried again
    log.write_text(log.read_text().replace('"outcome":"pass"', '"outcome":"other"'))
    assert kgym("bench", "report", elsewhere, "--manifest").status == 0
    done = kgym(*check)
    assert (done.status, done.json["problems"]) == (
        1,
        [f"one, theirs, imported, m, run {last.run}: other stated, pass seen"],
    ), done.err


@pytest.mark.parametrize(("name", "content", "patches"), json_rows(__file__, "patches.jsonl"))
def test_each_format_of_patches_is_read(
    tmp_path: Path, name: str, content: object, patches: object
) -> None:
    for part, text in content.items() if isinstance(content, dict) else [(name, content)]:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).write_text(text if isinstance(text, str) else json.dumps(text))
    if isinstance(patches, str):
        with pytest.raises(KgymError) as refused:
            imported_patches.read(tmp_path / name, "who", "m")
        assert refused.value.reason == patches
        return
    assert patches == [
        [
            *(patch.bug, patch.run, patch.diff, str(patch.setup)),
            patch.account.model_dump(exclude_none=True),
            (patch.trajectory or b"").decode(),
        ]
        for patch in imported_patches.read(tmp_path / name, "who", "m")
    ]


@pytest.mark.attack
def test_no_link_in_a_folder_of_patches_leads_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET")
    (tmp_path / "p" / "one").mkdir(parents=True)
    for name, target in (("a", "../../secret"), ("c", "../c")):
        (tmp_path / "p" / "one" / f"{name}.patch").symlink_to(target)
    (tmp_path / "p" / "c").write_text("C")
    assert [patch.diff for patch in imported_patches.read(tmp_path / "p", "who")] == ["C"]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Results of a campaign, with their manifest."""
    bug, other = BugRecord(id="one", title="t", status="fixed"), Setup(agent="a")
    Dataset.of("results", [bug]).save(tmp_path)
    attempt = AttemptRecord(bug="one", run=1, outcome=Outcome.PASS, setup=other, diff="+x")
    attempt_files.write(tmp_path / attempt_files.NAME, [attempt])
    manifest.write(tmp_path)
    return tmp_path


def test_the_floor_of_the_public_dataset_is_what_its_manifest_says() -> None:
    assert manifest.differences(CONFIGS / "benchmarks" / "kgymsuite-1") == []


@pytest.mark.parametrize(
    ("name", "stated", "forged", "problem"), rows(__file__, "tampered_results.tsv")
)
def test_results_that_were_tampered_with_are_not_accepted(
    kgym: Kgym, published: Path, name: str, stated: str, forged: str, problem: str
) -> None:
    check = ("bench", "verify", published, "--sample", "0", "--json")
    assert manifest.differences(published) == []
    path = published / name
    assert stated in path.read_text()
    path.write_text(path.read_text().replace(stated, forged))
    done = kgym(*check)
    assert done.status != 0
    assert problem in str(done.json.get("problems", done.json.get("reason")))


def test_a_bug_that_cannot_be_tried_here_is_unknown(kgym: Kgym, published: Path) -> None:
    done = kgym("bench", "verify", published, "--json")
    assert (done.status, done.json["retried"], done.json["accepted"]) == (3, 0, True), done.err
    assert "a program that shows it is unknown" in done.json["unknown"][0]
    (published / manifest.NAME).unlink()
    assert kgym("bench", "verify", published, "--json").json["reason"] == "no_manifest"
