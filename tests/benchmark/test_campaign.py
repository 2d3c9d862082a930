"""Campaigns: every attempt once, whoever is killed; and what they come to."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema_rs
import pytest

from kgym.api.jobs import JobFilter
from kgym.api.steps import Edit, Evidence, Patch, StepResult, Verdict
from kgym.bench import attempt_files, dataset
from kgym.bench.attempt_record import Outcome, Overlap
from kgym.client import Client
from kgym.configs import CONFIGS
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.bench.agent_door import _bundle
from tests.benchmark.model_provider import Provider
from tests.cli.conftest import Kgym
from tests.cli.test_compare_fix import Compared
from tests.cli.test_run_kernel import Told
from tests.cli.worked import working
from tests.results import ran
from tests.tables import rows

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

FILE = "kernel/watch_queue.c"
HERE = Path(__file__).parent
MEND = Edit(file=FILE, original="type >= 100", replacement="type >= mends")


class Counted(Told):
    """Counts the patched kernels that are built; while `unsure`, none has a verdict."""

    unsure = False

    def build(self, run: StepContext) -> StepResult:
        self.done.append("built")
        return super().build(run)

    def reproduce(self, run: StepContext) -> StepResult:
        kernel = run.assignment.inputs["build"].result
        if self.unsure and "mends" in getattr(kernel, "tree", ""):
            return ran(Verdict.INCONCLUSIVE, evidence=Evidence(), baseline=Verdict.SAME_CRASH)
        return super().reproduce(run)


@pytest.fixture
def farm(data: Path) -> Iterator[Counted]:
    given = Counted()
    with Platform(data, work=False) as platform, working(platform, data, given.answers):
        given.url = platform.url
        yield given


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "campaign"
    (folder / "bugs").mkdir(parents=True)
    for name in ("one", "two"):
        _bundle(folder / "bugs" / name)
    shutil.copytree(CONFIGS / "demo-agents", folder / "agent")
    (folder / "agent" / "patches").mkdir()
    for name in ("one", "two"):
        patch = folder / "agent" / "patches" / f"{name}.json"
        patch.write_text(Patch(edits=[MEND]).model_dump_json())
    return folder


def described(home: Path, attempts: int = 1, parallel: int = 2) -> Path:
    path = home / "campaign.toml"
    text = (HERE / "small_campaign.toml").read_text()
    path.write_text(text.format(attempts=attempts, parallel=parallel))
    return path


def test_a_campaign_compares_with_the_fix_and_its_agents_do_not_see_it(
    data: Path, kgym: Kgym, home: Path, tmp_path: Path
) -> None:
    shutil.rmtree(home / "bugs" / "two")
    into, farm = tmp_path / "into", Compared()
    with Platform(data, work=False) as platform, working(platform, data, farm.answers):
        words = ("--server", platform.url, "bench", "run", described(home), "--into", into)
        done = kgym(*words, "--compare-fix", "--json")
    assert done.status == 0, done.err
    records = list(attempt_files.read(into / attempt_files.NAME))
    (mended,) = [record for record in records if record.outcome is Outcome.PASS]
    assert mended.equivalence == Overlap(common=36, all=40)
    assert mended.clean is False  # another variant crashes
    # Only the verification compares, not the agent's own runs of kernels.
    assert len([spec for spec in farm.specs if spec.baseline is not None]) == 2
    assert len([spec for spec in farm.specs if spec.reference is not None]) == 1
    for path in (into / "attempts").rglob("*"):
        text = path.read_text() if path.is_file() else ""
        assert not re.search("equivalen|known fix|reference|36 of 40", text), path
    setups = kgym("bench", "report", into, "--json").json["setups"]
    shares = [setup["passed"]["behavioural_equivalence"]["value"] for setup in setups]
    assert sorted(shares) == [0, 0, 0.9]
    assert "behavioural_equivalence" in kgym("bench", "report", into).out


def test_a_campaign_is_run_reported_and_published(
    farm: Counted, kgym: Kgym, home: Path, tmp_path: Path
) -> None:
    shutil.rmtree(home / "bugs" / "two")
    # A binary file that the agent leaves in the tree keeps its patch from no kernel.
    agent = home / "agent" / "mender.py"
    left = '    change(patch)\n    (TREE / "left_over").write_bytes(bytes(200))\n'
    agent.write_text(agent.read_text().replace("    change(patch)\n", left))
    into = tmp_path / "into"
    words = ("bench", "run", described(home), "--into", into)
    planned = kgym(*words, "--dry-run", "--json").json
    assert (planned["attempts"], planned["done"], planned["hours"]) == (3, 0, None)
    done = kgym(*words, "--json")
    assert done.status == 0, done.err
    assert [done.json[name] for name in ("attempts", "done", "made", "failed")] == [3, 3, 3, 0]
    records = list(attempt_files.read(into / attempt_files.NAME))
    by_setup = {(record.setup.agent, record.setup.feedback): record for record in records}
    assert {setup: record.outcome for setup, record in by_setup.items()} == {
        ("mender", True): Outcome.PASS,
        ("mender", False): Outcome.COMPILE,
        ("guesser", False): Outcome.BAD,
    }
    assert len({record.environment for record in records} - {None}) == 3
    best = by_setup["mender", True]
    assert (best.kernel_runs, best.dollars, best.clean, best.error) == (2, 0.0, True, None)
    assert (best.files and best.files.ratio, best.functions and best.functions.ratio) == (1, 1)
    assert "+" in (best.diff or "")
    assert by_setup["mender", False].kernel_runs == 0
    # The same change is one kernel, whoever has made it.
    assert farm.done.count("built") <= 4
    (place,) = (into / "attempts" / "one").glob("mender-feedback*/1")
    assert {path.name for path in place.iterdir()} == {
        *("patch.txt", "log.txt", "ended.json", "kernel_runs.jsonl", "trajectory.atif.json")
    }
    assert "Compilation error" in (place / "log.txt").read_text()
    assert "No crash reproduced." in (place / "log.txt").read_text()

    # Once more: nothing is left to do.
    before = (farm.done.count("built"), (into / attempt_files.NAME).read_bytes())
    again = kgym(*words, "--json").json
    assert (again["made"], again["done"]) == (0, 3)
    assert (farm.done.count("built"), (into / attempt_files.NAME).read_bytes()) == before
    report = kgym("bench", "report", into, "--json")
    jsonschema_rs.validate(json.loads(kgym("bench", "report", "--json-schema").out), report.json)
    figures = {
        (row["setup"]["agent"], row["setup"]["feedback"]): row for row in report.json["setups"]
    }
    assert figures["mender", True]["passed"]["crr"]["value"] == 1
    assert figures["guesser", False]["passed"]["crr"]["value"] == 0
    assert figures["mender", True]["kernel_runs"] == 2
    assert (report.json["bugs"], report.json["runs"]) == (1, 1)
    assert "crr: " in kgym("bench", "report", into, "--compare", "1", "2").out
    assert kgym("bench", "report", into, "--compare", "1", "9").status == 2

    # Other bugs are another campaign; so is another way of proving.
    assert dataset.load(into).about.bugs == 1
    text = described(home).read_text()
    described(home).write_text(text.replace("instances = 3", "instances = 4"))
    changed = kgym(*words, "--json")
    assert (changed.status, changed.json["reason"]) == (2, "campaign_changed")


@pytest.mark.attack
def test_no_agent_gets_a_folder_that_holds_a_fix(kgym: Kgym, home: Path, tmp_path: Path) -> None:
    for folder in (".", CONFIGS / "bugs" / "watch-queue-filter"):
        path = described(home)
        path.write_text(path.read_text().replace('folder = "agent"', f'folder = "{folder}"'))
        refused = kgym("bench", "run", path, "--into", tmp_path / "into", "--json")
        assert (refused.status, refused.json["reason"]) == (2, "bad_campaign")
        assert "could read" in refused.json["detail"]


def kill_when(process: "subprocess.Popen[bytes]", seen: Callable[[], bool]) -> None:
    """Kill a campaign as soon as something is seen."""
    end = time.monotonic() + 300
    while not seen() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(20)


def test_a_killed_campaign_goes_on_and_makes_nothing_twice(
    farm: Counted, kgym: Kgym, home: Path, tmp_path: Path, data: Path
) -> None:
    shutil.rmtree(home / "bugs" / "two")
    into, path = tmp_path / "into", described(home, parallel=1)
    words = ["bench", "run", str(path), "--into", str(into), "--json"]
    log = into / attempt_files.NAME
    argv, env = [sys.executable, "-m", "kgym_cli", *words], {**os.environ, "KGYM_DATA": str(data)}

    def lines() -> int:
        return log.read_bytes().count(b"\n") if log.exists() else 0

    points: list[Callable[[], bool]] = [
        lambda: any(into.glob("attempts/*/*/*/kernel_runs.jsonl")),  # within an attempt
        lambda: lines() >= 1,
    ]
    for point in points:
        null = subprocess.DEVNULL
        with subprocess.Popen(argv, env=env, stderr=null, stdout=null) as process:
            kill_when(process, point)
    with log.open("ab") as file:
        file.write(b'{"bug": "half')
    kept = log.read_bytes().rpartition(b"\n")[0]
    done = kgym(*words)
    assert (done.status, done.json["done"]) == (0, 3), done.err
    assert log.read_bytes().startswith(kept)
    records = list(attempt_files.read(log))
    assert len({(record.bug, record.setup, record.run) for record in records}) == len(records) == 3
    # No job is there twice: each is another request.
    with Client(farm.url) as client:
        jobs = [client.job(job.id) for job in client.jobs(JobFilter())]
    specs = [
        [step.spec and step.spec.model_dump(mode="json") for step in job.steps] for job in jobs
    ]
    requests = list(map(json.dumps, specs))
    assert len(set(requests)) == len(requests)
    # Once for the agents' feedback, and once for verification, which learns the bug's variants.
    assert farm.done.count("show") == 2
    assert not list(into.glob("attempts/*/*/*/environment"))


def test_limits_end_a_campaign_in_fair_shares(
    farm: Counted, kgym: Kgym, home: Path, tmp_path: Path
) -> None:
    path = described(home)
    path.write_text(path.read_text() + "\n[limits]\nhours = 1e-9\n")
    done = kgym("bench", "run", path, "--into", tmp_path / "into", "--json")
    assert (done.status, done.json["made"], done.json["limit"]) == (1, 0, "1e-09 hours")


def test_setups_whose_attempts_failed_are_on_the_leaderboard(
    farm: Counted, kgym: Kgym, home: Path, tmp_path: Path
) -> None:
    shutil.rmtree(home / "bugs" / "two")
    path, into = described(home), tmp_path / "into"
    entry = '[[agents]]\nname = "paid"\ncommand = ["true"]\nfeedback = [false]\nmodels = ["m"]\n'
    access = '[models.m]\nendpoint = "https://localhost"\nkey_env = "NO_SUCH_KEY"\n'
    path.write_text(path.read_text().partition("[[agents]]")[0] + entry + access)
    alone = kgym("bench", "run", path, "--into", into)
    assert (alone.status, "1 failed" in alone.out) == (3, True), alone.err
    empty = kgym("bench", "report", into)
    assert (empty.status, "paid, m: 1 attempts failed: no_model_key" in empty.err) == (2, True)
    guesser = '[[agents]]\nname = "guesser"\ncommand = ["true"]\nfeedback = [false]\n'
    path.write_text(path.read_text() + guesser)
    assert kgym("bench", "run", path, "--into", into).status == 3
    report = kgym("bench", "report", into, "--json").json
    assert [figures["setup"]["agent"] for figures in report["setups"]] == ["guesser"]
    (failed,) = report["failed"]
    # Both runs tried the same attempt.
    assert (failed["setup"]["agent"], failed["attempts"]) == ("paid", 1)
    assert list(failed["reasons"].values()) == [1]
    line = "paid, m: 1 attempts failed: no_model_key"
    assert line in kgym("bench", "report", into).out
    assert kgym("bench", "publish", into, "--name", "b").status == 0
    for number, source in enumerate((into, "b")):
        assert kgym("bench", "site", source, tmp_path / f"{number}").status == 0
        assert line in (tmp_path / f"{number}" / "index.html").read_text()


def test_a_patch_without_a_verdict_is_unknown_after_three_tries(
    farm: Counted, kgym: Kgym, home: Path, tmp_path: Path
) -> None:
    shutil.rmtree(home / "bugs" / "two")
    farm.unsure = True
    path, into = described(home), tmp_path / "into"
    change = f"sed -i 's/type >= 100/type >= mends/' {FILE}"
    entry = f'[[agents]]\nname = "a"\nfeedback = [false]\ncommand = ["sh", "-c", "{change}"]\n'
    path.write_text(path.read_text().partition("[[agents]]")[0] + entry)
    words = ("bench", "run", path, "--into", into, "--json")
    done = [kgym(*words) for _ in range(3)]
    assert [(answer.status, answer.json["made"]) for answer in done] == [(3, 0), (3, 0), (0, 1)]
    (record,) = attempt_files.read(into / attempt_files.NAME)
    assert (record.outcome, record.diff is None, record.resolved) == (Outcome.UNKNOWN, False, None)
    assert (record.error or "").startswith("no verdict in 3 tries: ")
    (figures,) = (report := kgym("bench", "report", into, "--json").json)["setups"]
    assert [figures["passed"][name] for name in ("crr", "epr", "clean")] == [None] * 3
    assert (figures["resolved"], figures["outcomes"]) == (None, {"unknown": 1})
    assert (report["solves"]["union"], report["solves"]["unsolved"]) == ([], [])
    # No other attempt gets its lack of a verdict.
    farm.unsure = False
    path.write_text(path.read_text().replace('name = "a"', 'name = "b"'))
    assert kgym(*words).status == 0
    assert list(attempt_files.read(into / attempt_files.NAME))[1].outcome is Outcome.PASS


def test_an_agent_that_fails_at_once_has_made_no_attempt_until_its_third_try(
    farm: Counted, kgym: Kgym, home: Path, tmp_path: Path
) -> None:
    shutil.rmtree(home / "bugs" / "two")
    path, into = described(home), tmp_path / "into"
    command = '["sh", "-c", "echo no price for the model; exit 3"]'
    entry = f'[[agents]]\nname = "a"\nfeedback = [false]\ncommand = {command}\n'
    path.write_text(path.read_text().partition("[[agents]]")[0] + entry)
    done = [kgym("bench", "run", path, "--into", into, "--json") for _ in range(3)]
    assert [(answer.status, answer.json["made"]) for answer in done] == [(3, 0), (3, 0), (0, 1)]
    assert "agent_failed: exit status 3: no price for the model" in done[0].json["problems"][0]
    (record,) = attempt_files.read(into / attempt_files.NAME)
    assert (record.outcome, record.error) == (Outcome.BAD, "exit status 3")


@pytest.mark.parametrize(("agent", "reason"), rows(__file__, "agents_that_lack.tsv"))
def test_what_agents_name_and_is_missing_is_refused_before_anything_runs(
    kgym: Kgym, home: Path, tmp_path: Path, agent: str, reason: str
) -> None:
    path = home / "campaign.toml"
    path.write_text(f'name = "c"\nbundles = ["bugs"]\n[[agents]]\nname = "a"\n{agent}\n')
    words = ("bench", "run", path, "--into", tmp_path / "into", "--json")
    for more in ((), ("--dry-run",)):
        done = kgym(*words, *more)
        assert (done.status, done.json["reason"]) == (2, reason), done.err
    assert not (tmp_path / "into").exists()


ASKER = """
import json, urllib.request

body = json.dumps({"model": "gpt-5", "prompt": "mend it"}).encode()
head = {"content-type": "application/json"}
asked = urllib.request.Request("http://127.0.0.1:8400/v1/chat/completions", body, head)
print(urllib.request.urlopen(asked, timeout=300).read().decode())
"""


@pytest.mark.attack
def test_attempts_side_by_side_hardly_go_beyond_their_share(
    farm: Counted, kgym: Kgym, home: Path, tmp_path: Path, provider: Provider
) -> None:
    """Four could begin before the first has told what it took: two dollars each."""
    shutil.rmtree(home / "bugs" / "two")
    (home / "agent" / "asker.py").write_text(ASKER)
    path = home / "asking.toml"
    path.write_text((HERE / "asking_campaign.toml").read_text().format(url=provider.url))
    words = ("bench", "run", path, "--into", tmp_path / "into", "--json")
    done = kgym(*words)
    assert done.status == 1, done.err
    assert (done.json["made"], done.json["limit"]) == (
        2,
        "asker, openai/gpt-5, $2: its share of $3",
    )
    records = list(attempt_files.read(tmp_path / "into" / attempt_files.NAME))
    assert [(record.dollars, record.tokens, record.error) for record in records] == [
        (2.0, 1_100_000, None)
    ] * 2
    assert len(provider.asked) == 2
    # An attempt that is made again asks nothing again: its answers are on its tape.
    log = tmp_path / "into" / attempt_files.NAME
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    (ended,) = (tmp_path / "into").glob(f"attempts/*/*/{records[1].run}/ended.json")
    ended.unlink()
    again = kgym(*words)
    assert (again.json["made"], len(provider.asked)) == (1, 2)
