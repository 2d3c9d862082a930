"""`kgym fix`, `kgym run` and `kgym agent`: processes, a platform whose results are given, a model
over HTTP."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kgym.api.steps import TarballSource
from kgym.bench import attempt_files
from kgym.bench.attempt_record import Outcome
from kgym_crashfixer.models import tape as tapes
from tests.bundles import small_bundle, tarball
from tests.cli.conftest import Kgym
from tests.crashfixer.agents import purpose_of
from tests.crashfixer.farm import Farm, farming
from tests.crashfixer.test_models import KEY, Endpoint, Handler, answer, endpoint
from tests.crashfixer.test_runner import contents

pytestmark = [pytest.mark.timeout(300), pytest.mark.thorough]
__all__ = ["endpoint"]
FILE, KEYS = "kernel/watch_queue.c", "OPENAI_API_KEY"
REPLAYING = Path(__file__).with_name("replaying.toml").read_text()
STRATEGY = Path(__file__).with_name("one_tree.toml").read_text()


def mending(handler: Handler) -> None:
    """Answer as a model that is right at once."""
    text = handler.body["messages"][-1]["content"]
    answers = {
        "hypothesis": "<solution>The filter is not counted.</solution>",
        "patch": f"<file>{FILE}</file><original>\n{line()}\n</original>"
        f"<patched>\nint mends;\n{line()}\n</patched>",
    }
    answer(answers.get(purpose_of(text), "<choice>1</choice>"))(handler)


def model_of(endpoint: Endpoint) -> str:
    return f"openai-chat:gpt-4o@http://127.0.0.1:{endpoint.server_port}/v1"


@contextmanager
def agent_service(data: Path, model: str) -> Iterator[None]:
    """Run `kgym agent`, which ends well."""
    service = subprocess.Popen(
        [sys.executable, "-m", "kgym_cli", "agent", "--agent-port", "0", "--agent-models", model],
        env={**os.environ, "KGYM_DATA": str(data)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stderr is not None
        assert any(line.startswith("agent: http://127.0.0.1:") for line in service.stderr)
        yield
    finally:
        service.terminate()
        service.communicate(timeout=60)
    assert service.returncode == 0


def line() -> str:
    path = Path(__file__).parents[1] / "fakelinux" / FILE
    return next(line for line in path.read_text().splitlines() if line.startswith("int "))


@pytest.fixture
def mine(tmp_path: Path, fake_source: TarballSource) -> Path:
    """A bundle of one's own, of the small tree."""
    (tmp_path / "small.toml").write_text(STRATEGY)
    title = "KASAN: use-after-free in watch_filter"
    return small_bundle(tmp_path / "mine", tarball(fake_source), "time = 2\n", title)


@pytest.fixture
def farm(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    monkeypatch.setenv(KEYS, KEY)
    farm = Farm(traces=False)
    with farming(data, farm):
        yield farm


def test_a_fix_is_found_written_recorded_and_replayed(
    kgym: Kgym, farm: Farm, mine: Path, tmp_path: Path, data: Path, endpoint: Endpoint
) -> None:
    endpoint.script = [mending]
    model = model_of(endpoint)
    tape, out = tmp_path / "tape.jsonl", tmp_path / "kit"
    how = ("--strategy", tmp_path / "small.toml", "--files", FILE, "--out", out, "--json")
    fixed = kgym("fix", mine, "--model", model, "--record", tape, "--window", 30_000, *how)
    assert fixed.status == 0, fixed.err
    run = fixed.json["run"]
    assert (run["state"], run["fixes"], run["bug"]) == ("resolved", 1, "mine")
    assert "t0: resolved" in fixed.err
    mail, note = (
        out / "0001-watch_queue-fix-use-after-free-in-watch_filter.patch",
        out / "cover-note.md",
    )
    assert fixed.json["written"] == [str(mail), str(note)]
    patch = mail.read_text()
    assert patch == fixed.json["patch"]
    assert "Subject: [PATCH] watch_queue: fix use-after-free in watch_filter" in patch
    assert "+int mends;" in note.read_text()
    head = tapes.head(tape)
    assert head is not None
    assert head.window == 30_000
    asked = len(endpoint.asked)
    replayed = kgym("fix", mine, "--model", f"replay:{tape}", *how)
    assert (replayed.status, len(endpoint.asked)) == (0, asked), replayed.err
    stored = data / "runs" / "1" / "events.gz"
    again = kgym("fix", mine, "--model", f"replay:{stored}", *how)  # a stored run is a tape, too
    assert (again.status, len(endpoint.asked)) == (0, asked), again.err
    diffs = [run.json["run"]["ranked"][0]["diff"] for run in (fixed, replayed, again)]
    assert diffs == [diffs[0]] * 3
    listed = kgym("run", "list", "--json").json["runs"]
    assert [(run["id"], run["state"]) for run in listed] == [
        (3, "resolved"),
        (2, "resolved"),
        (1, "resolved"),
    ]
    shown, report, calls = (kgym("run", word, 1) for word in ("show", "report", "calls"))
    assert "resolved" in shown.out
    assert "## Patch" in report.out
    assert calls.out.count("\n--- ") == asked
    assert "+int mends;" in kgym("run", "patch", 1).out
    examples = [json.loads(text) for text in kgym("run", "export", 1).out.splitlines()]
    assert [talk["messages"][0]["role"] for talk in examples] == ["system"] * asked
    exported = kgym("run", "export", 1, "--form", "episodes", "--resolved").out.splitlines()
    episode = json.loads(exported[-1])
    assert (len(exported), episode["reward"]["clean"]) == (asked, True)
    assert episode["steps"][-1]["reward"] > 0.5
    for word in ("resume", "stop"):  # it has ended
        assert kgym("run", word, 1).status == 2
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {tape, mail, note, data / "runs" / "1" / "events.gz"} <= set(written)
    for path in written:
        assert KEY.encode() not in path.read_bytes(), path
    assert "is not counted" in contents(data / "runs")
    assert KEY not in contents(data / "runs")
    for answered in (fixed, replayed, shown, report, calls):
        assert KEY not in answered.out + answered.err
    assert "is not counted" in calls.out
    # A campaign's replay takes the tape's strategy and files.
    (tmp_path / "campaign.toml").write_text(REPLAYING)
    words = ("bench", "run", tmp_path / "campaign.toml", "--into", tmp_path / "into", "--json")
    measured = kgym(*words)
    assert (measured.status, measured.json["made"]) == (0, 1), measured.err
    trained = kgym("bench", "trajectories", tmp_path / "into", "--form", "sharegpt")
    messages = json.loads(trained.out)["conversations"]
    assert {part["from"] for part in messages} == {"human", "gpt"}
    (record,) = attempt_files.read(tmp_path / "into" / attempt_files.NAME)
    assert (record.outcome, record.error) == (Outcome.PASS, None)
    assert len(endpoint.asked) == asked


def test_a_scheduler_that_goes_away_during_a_run_is_waited_for(
    mine: Path, tmp_path: Path, data: Path, endpoint: Endpoint
) -> None:
    endpoint.script = [mending]
    model = model_of(endpoint)
    how = ["--strategy", tmp_path / "small.toml", "--files", FILE, "--out", tmp_path / "out"]
    farm = Farm(traces=False, hold_at="run mends")
    with farming(data, farm) as first:
        port = int(first.url.rpartition(":")[2])
        process = subprocess.Popen(
            [sys.executable, "-m", "kgym_cli", "fix", mine, "--model", model, *how, "--json"],
            env={**os.environ, "KGYM_DATA": str(data), "KGYM_SERVER": first.url} | {KEYS: KEY},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert farm.held.wait(120)
    asked = len(endpoint.asked)
    assert process.poll() is None
    with farming(data, farm, port):
        error_text, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    run = json.loads(error_text)["run"]
    assert (run["state"], run["spent"]["lost_calls"]) == ("resolved", 0)
    assert len(endpoint.asked) == asked


def test_a_bug_that_does_not_show_costs_nothing(
    kgym: Kgym, farm: Farm, mine: Path, tmp_path: Path, endpoint: Endpoint
) -> None:
    farm.shows = False
    model = model_of(endpoint)
    fixed = kgym("fix", mine, "--model", model, "--files", FILE, "--json")
    assert (fixed.status, endpoint.asked) == (1, []), fixed.err
    assert fixed.json["run"]["reason"].startswith("does_not_reproduce")


def test_an_agent_service_carries_runs_out(
    kgym: Kgym, farm: Farm, mine: Path, tmp_path: Path, data: Path, endpoint: Endpoint
) -> None:
    endpoint.script = [mending]
    model = model_of(endpoint)
    with agent_service(data, model):
        here = ("--strategy", tmp_path / "small.toml", "--files", FILE, "--no-watch", "--json")
        refused = kgym("fix", "watch-queue-filter", "--model", f"{model}x", *here)
        assert (refused.status, refused.json["reason"]) == (2, "model_not_allowed"), refused.err
        local = kgym("fix", mine, "--model", model, *here)
        assert (local.status, local.json["reason"]) == (2, "bad_bundle"), local.err
        assert kgym("run", "list", "--json").json["runs"] == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "no_model"),
        (("--model", "gpt"), "bad_model"),
        (("--model", "nobody:x"), "bad_model"),
        (("--model", "replay:/nothing"), "bad_tape"),
        (("--model", "openai:x", "--strategy", "magic"), "bad_strategy"),
        (("--model", "openai:x", "--model-key-file", "/nothing"), "bad_model_key"),
    ],
)
def test_what_cannot_be_begun_is_said(kgym: Kgym, words: tuple[str, ...], reason: str) -> None:
    refused = kgym("fix", "watch-queue-filter", *words, "--server", "http://127.0.0.1:1", "--json")
    assert (refused.status, refused.json["reason"]) == (2, reason), refused.err
