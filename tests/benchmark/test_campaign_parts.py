"""The pure parts of campaigns: order, estimates, equal patches, trajectories, tasks, tokens."""

import difflib
import json
import re
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.outcomes import Outcome as Ran
from kgym.api.steps import Patch, ReproduceResult, Verdict
from kgym.bench import atif, attempt_files, harbor
from kgym.bench.attempt_record import AttemptRecord, FailedAttempt, Outcome, Overlap, Setup
from kgym.bench.bug_record import BugRecord, Crash, DeveloperPatch, FoundText
from kgym.bench.campaign import AgentEntry, Campaign, Prices, estimate, missing, plan
from kgym.bench.dataset import Dataset
from kgym.bench.harbor import HarborOptions
from kgym.bench.patch_overlap import changed_parts
from kgym.bench.report import report
from kgym.bugs import bundle
from kgym.bugs.kernel_run import KernelRun
from kgym.errors import InfrastructureError, UserError
from kgym.host import separate_process
from kgym_benchmark.campaign import adapters, subjects, verification
from kgym_benchmark.campaign.attempt import pointed
from kgym_benchmark.campaign.runner import place
from kgym_benchmark.campaign.token_use import Used, used
from kgym_benchmark.campaign.verification import identity, judged, text_identity
from tests.refused import refused
from tests.results import ran
from tests.tables import json_rows

AGENTS = [{"name": "a", "command": ["a"]}, {"name": "b", "command": ["b"], "models": ["x", "y"]}]
SOURCE = [f"line {number}" for number in range(30)]


def campaign(**more: Any) -> Campaign:
    return Campaign.model_validate({"name": "c", "agents": AGENTS, "attempts": 2, **more})


def record(setup: Setup, bug: str = "one", run: int = 1, **more: Any) -> AttemptRecord:
    given_ = {"bug": bug, "setup": setup, "run": run, "outcome": Outcome.PASS, **more}
    return AttemptRecord.model_validate(given_)


@pytest.mark.thorough
@given(st.integers(1, 4), st.integers(1, 5), st.lists(st.booleans(), min_size=1, max_size=2))
def test_the_order_is_fair_wherever_it_ends(attempts: int, bugs: int, feedback: list[bool]) -> None:
    chosen = campaign(attempts=attempts, feedback=feedback)
    planned = plan(chosen, [f"bug-{number}" for number in range(bugs)])
    setups = list(chosen.setups())
    assert len(planned) == attempts * bugs * len(setups)
    assert len({(p.bug, p.setup, p.run) for p in planned}) == len(planned)
    for end in range(1, len(planned) + 1):
        counts = Counter(p.setup for p in planned[:end])
        tried = [counts[setup] for setup, _ in setups]
        assert max(tried) - min(tried) <= 1


def test_estimates_rest_on_the_same_setup_and_say_on_how_many() -> None:
    chosen = campaign(feedback=[True])
    planned = plan(chosen, ["one", "two"])
    first = planned[0].setup
    done = [record(first, seconds=100, dollars=0.5), record(first, "two", seconds=300)]
    open_ = missing(planned, done)
    assert len(open_) == len(planned) - 2
    estimated = estimate(chosen, open_, done, 2)
    by_setup = {row.setup: row for row in estimated.setups}
    assert by_setup[first].rests_on == 2
    assert (by_setup[first].seconds, by_setup[first].dollars) == (400, 1.0)
    assert (estimated.hours, estimated.dollars) == (None, None)  # nothing is known of the others
    known = [record(setup, seconds=36, dollars=1) for setup, _ in chosen.setups()]
    assert estimate(chosen, planned, known, 0).hours == pytest.approx(12 * 36 / 2 / 3600)


def diff(old: list[str], new: list[str], context: int, path: str = "a.c") -> str:

    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=context, lineterm="")
    return "".join(f"{line}\n" for line in lines)


edits = st.dictionaries(st.integers(0, 29), st.sampled_from(["", "x", "y\nz"]), min_size=1)


TREE = dict.fromkeys(("a.c", "b.c"), "".join(f"{line}\n" for line in SOURCE).encode())


@pytest.mark.thorough
@given(edits, edits, st.integers(1, 5), st.integers(1, 5))
def test_patches_are_the_same_if_they_make_the_same(
    mine: dict[int, str], other: dict[int, str], context: int, more: int
) -> None:
    def changed(edit: dict[int, str]) -> list[str]:
        lines = [edit.get(number, line) for number, line in enumerate(SOURCE)]
        return "\n".join(lines).split("\n")

    first, second = diff(SOURCE, changed(mine), context), diff(SOURCE, changed(other), more)
    assert identity(first, TREE) == identity(f"words before\n{first}", TREE)
    assert identity(first, TREE) == identity(diff(SOURCE, changed(mine), more), TREE)
    assert (identity(first, TREE) == identity(second, TREE)) == (changed(mine) == changed(other))
    assert identity(first, TREE) != identity(diff(SOURCE, changed(mine), context, "b.c"), TREE)


def test_a_misplaced_path_means_the_file_that_has_the_lines() -> None:
    tree = {"kernel/a.c": TREE["a.c"]}
    there, misplaced = (diff(SOURCE, ["x"], 3, path) for path in ("kernel/a.c", "linux/kernel/a.c"))
    assert identity(there, tree) == identity(misplaced, tree) != identity(misplaced, {})
    assert changed_parts(misplaced, tree).files == {"kernel/a.c"}


def test_binary_files_that_an_agent_left_in_the_tree_are_no_change() -> None:
    text = diff(SOURCE, ["x"], 3)
    binary = "diff --git a/x b/x\nnew file mode 100644\nBinary files /dev/null and b/x differ\n"
    assert identity(binary + text + binary, TREE) == identity(text, TREE)
    assert changed_parts(binary + text, TREE) == changed_parts(text, TREE)


def test_the_order_of_files_does_not_count_and_what_does_not_apply_is_its_text() -> None:
    a, b = (diff(SOURCE, ["x"], 3, path) for path in ("a.c", "b.c"))
    assert identity(a + b, TREE) == identity(b + a, TREE) != identity(a, TREE)
    assert identity("no diff", TREE) != identity("no diff at all", TREE)
    # The same lines, in a place where they are not: that is another patch, which does not apply.
    elsewhere = a.replace(" line", " other").replace("-line 7", "-line 70")
    assert identity(elsewhere, TREE) not in {identity(a, TREE), identity(f"{elsewhere}\n", TREE)}


@pytest.mark.thorough
@given(st.lists(st.builds(lambda n: {"n": n}, st.integers())), st.binary(max_size=20))
def test_half_a_line_is_removed_and_nothing_else(lines: list[dict[str, int]], half: bytes) -> None:

    half = half.replace(b"\n", b"")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "attempts.jsonl")
        whole = b"".join(json.dumps(entry).encode() + b"\n" for entry in lines)
        path.write_bytes(whole + half)
        attempt_files.mend(path)
        assert path.read_bytes() == whole


AGENT = atif.Agent(name="a", version="1")


@pytest.mark.parametrize(("form", "data", "steps"), json_rows(__file__, "trajectories.jsonl"))
def test_trajectories_become_atif(form: str, data: Any, steps: int) -> None:
    text = json.dumps(data).encode()
    parsed = atif.trajectory(form, text, log=b"", agent=AGENT, session="s", dollars=0.5)
    assert [step.step_id for step in parsed.steps] == list(range(1, steps + 1))
    calls = [call for step in parsed.steps for call in step.tool_calls or []]
    assert [call.arguments["command"] for call in calls] == ["ls"]
    seen = [
        result.content
        for step in parsed.steps
        if step.observation
        for result in step.observation.results
    ]
    assert seen == ["Makefile"]
    assert parsed.final_metrics.total_cost_usd == 0.5
    assert json.loads(parsed.model_dump_json())["schema_version"] == "ATIF-v1.4"


@pytest.mark.attack
@given(st.sampled_from(["mini-swe-agent", "swe-agent", "openhands", ""]), st.binary())
def test_whatever_an_agent_wrote_there_is_a_trajectory(form: str, data: bytes) -> None:
    parsed = atif.trajectory(form, data, log=b"printed\xff", agent=AGENT, session="s", dollars=None)
    assert parsed.steps[0].observation is not None
    assert parsed.steps[0].observation.results[0].content.startswith("printed")


@pytest.mark.attack
def test_half_a_character_and_a_million_of_values_are_no_trouble() -> None:
    text = b'{"messages": [{"role": "assistant", "content": "a\\ud800b"}]}'
    form = "mini-swe-agent"
    parsed = atif.trajectory(form, text, log=b"", agent=AGENT, session="s", dollars=None)
    assert json.loads(parsed.model_dump_json())["steps"][0]["message"] == "a?b"
    begun = time.process_time()
    assert atif.parse_json(b"[" + b"[]," * (20 << 20) + b"0]") is None
    assert time.process_time() - begun < 5


@pytest.mark.anyio
@pytest.mark.attack
async def test_a_patch_that_is_slow_to_read_is_told_by_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(separate_process, "SECONDS", 0.01)
    lines = ["+" + "if(a)else " * 500] * 100
    slow = "\n".join(["--- /dev/null", "+++ b/b.c", "@@ -0,0 +1,100 @@", *lines, ""])
    assert len(slow) > verification.SMALL
    assert await verification.change_of(slow, TREE) == text_identity(slow)
    attempt = record(Setup(agent="a"), diff=slow)
    fix = Patch(diff=diff(SOURCE, ["x"], 3))
    assert await verification.with_overlap(attempt, fix, TREE) == attempt
    small = record(Setup(agent="a"), diff=diff(SOURCE, ["x"], 1))
    assert (await verification.with_overlap(small, fix, TREE)).files == Overlap(common=1, all=1)


def test_two_bugs_never_share_a_folder() -> None:
    places = [place(bug) for bug in ("a:6.1", "a-6.1", "a.6.1", "a:6:1")]
    assert len(set(places)) == 4
    assert places[1] == "a-6.1"
    assert not any("/" in folder or ":" in folder for folder in places)


NAMES = ("messages", "trajectory", "role", "content", "extra", "actions", "usage")
ANYTHING = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES), inner),
)


@pytest.mark.thorough
@pytest.mark.attack
@given(ANYTHING)
def test_whatever_json_it_is(value: Any) -> None:
    for form in ("mini-swe-agent", "swe-agent", "openhands"):
        data = json.dumps(value).encode()
        assert atif.trajectory(form, data, log=b"", agent=AGENT, session="s", dollars=None).steps
    used(json.dumps(value).encode())
    pointed(value, "messages.content")


@pytest.mark.parametrize(("answer", "tokens"), json_rows(__file__, "token_counts.jsonl"))
def test_tokens_are_read_as_providers_say_them(answer: Any, tokens: Any) -> None:
    usage = used(json.dumps(answer).encode())
    assert (None if usage is None else [usage.input, usage.cached, usage.output]) == tokens
    pieces = (
        b'data: {"choices": []}\n\ndata: ' + json.dumps(answer).encode() + b"\n\ndata: [DONE]\n"
    )
    assert used(pieces) == usage


def test_prices_are_for_a_million_tokens() -> None:
    prices = Prices(input=1.0, cached=0.1, output=10.0)
    took = Used(input=2_000_000, cached=1_000_000, output=100_000)
    assert took.dollars(prices) == pytest.approx(1.0 + 0.1 + 1.0)
    assert took.dollars(Prices(input=1.0, output=0.0)) == pytest.approx(2.0)


def bug(**more: Any) -> BugRecord:
    crash = {
        "repository": "https://git.kernel.org/linux.git",
        "commit": "a" * 40,
        "config": FoundText(text="CONFIG_X=y\n"),
        "c_reproducer": FoundText(text="int main(void) { return 0; }\n"),
        "report": FoundText(text="BUG: bad"),
    }
    patch = DeveloperPatch(parent="b" * 40, diff="--- a/a\n+++ b/a\n@@ -1 +1 @@\n-a\n+b\n")
    crashes = [Crash.model_validate({**crash, **more})]
    about = {"id": "b1", "title": 'KASAN: "bad" in f', "status": "fixed"}
    return BugRecord.model_validate({**about, "crashes": crashes, "patch": patch})


def test_bugs_become_tasks_of_harbor(tmp_path: Path) -> None:
    lacking = bug(config=FoundText()).model_copy(update={"id": "b2"})
    left_out = harbor.write(Dataset.of("small", [bug(), lacking]), tmp_path / "tasks")
    assert list(left_out) == ["b2"]
    assert "config" in left_out["b2"]
    (folder,) = (tmp_path / "tasks").iterdir()
    table = tomllib.loads((folder / "task.toml").read_text())
    assert table["metadata"]["title"] == 'KASAN: "bad" in f'
    assert table["verifier"]["env"]["KGYM_SERVER"] == "${KGYM_SERVER}"
    assert "b" * 40 in (folder / "environment" / "Dockerfile").read_text()
    assert "BUG: bad" in (folder / "instruction.md").read_text()
    assert (folder / "tests" / "test.sh").stat().st_mode & 0o111

    loaded = bundle.load(str(folder / "tests" / "bundle"))
    assert (loaded.file.title, loaded.build.source.commit) == ('KASAN: "bad" in f', "b" * 40)
    # The fix is nowhere that the agent sees.
    for name in ("instruction.md", "environment/Dockerfile"):
        assert "+b" not in (folder / name).read_text()
    with pytest.raises(UserError, match="can be written"):
        harbor.write(Dataset.of("small", [lacking]), tmp_path / "none")


@pytest.mark.attack
@pytest.mark.parametrize("url", ["https://x y", "https://x\nRUN e", "file:///etc", "https://x';e"])
def test_a_repository_is_an_address_and_nothing_else(url: str) -> None:
    with refused("not_triable"):
        harbor.task(bug(repository=url), "d", HarborOptions())


@pytest.mark.parametrize(
    ("outcome", "result", "expected"),
    [
        (Ran.RESOLVED, ran(Verdict.NO_CRASH), (Outcome.PASS, True)),
        (Ran.NOT_RESOLVED, ran(Verdict.NO_CRASH), (Outcome.PASS, False)),
        (Ran.NOT_RESOLVED, ran(Verdict.SAME_CRASH, "t"), (Outcome.TRIGGER, False)),
        (Ran.NOT_RESOLVED, ran(Verdict.OTHER_CRASH, "t"), (Outcome.OTHER, False)),
        (Ran.DOES_NOT_COMPILE, None, (Outcome.COMPILE, False)),
        (Ran.NOT_BUILT, None, (Outcome.TRIGGER, False)),
        (Ran.DOES_NOT_APPLY, None, (Outcome.BAD, False)),
    ],
)
def test_runs_of_kernels_are_judged_in_rgyms_classes(
    outcome: Ran, result: ReproduceResult | None, expected: tuple[Outcome, bool]
) -> None:
    run = KernelRun(bug="b", answer="a", outcome=outcome, reason="r")
    judgement = judged(run, result)
    assert (judgement.outcome, judgement.clean) == expected


def test_what_has_no_verdict_is_no_record() -> None:
    run = KernelRun(bug="b", answer="a", outcome=Ran.INCONCLUSIVE, reason="r")
    with pytest.raises(InfrastructureError, match="r"):
        judged(run, ran(Verdict.INCONCLUSIVE))
    slow = {"number": 0, "outcome": "boot_failed", "run_seconds": 0, "detail": "not booted"}
    crashed = {**slow, "number": 1, "detail": "it crashed while booting: KASAN: bad"}
    with pytest.raises(InfrastructureError, match="r"):
        judged(run, ran(Verdict.INCONCLUSIVE, instances=[slow, crashed]))
    judgement = judged(run, ran(Verdict.INCONCLUSIVE, instances=[crashed]))
    assert (judgement.outcome, judgement.clean) == (Outcome.BOOT, False)
    idle = {**slow, "outcome": "not_done"}
    refuted = run.model_copy(update={"outcome": Ran.NOT_RESOLVED})
    judgement = judged(refuted, ran(Verdict.INCONCLUSIVE, instances=[idle]))
    assert (judgement.outcome, judgement.clean) == (Outcome.PASS, False)
    with pytest.raises(InfrastructureError, match="r"):
        judged(refuted, ran(Verdict.INCONCLUSIVE, instances=[idle, slow]))


DESCRIBED = """
name = "c"
bugs = ["watch-queue-filter"]
[[agents]]
name = "a"
command = ["a"]
"""


@pytest.mark.parametrize(("text", "reason"), json_rows(__file__, "bad_campaigns.jsonl"))
def test_what_is_wrong_with_a_campaign_is_said(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "campaign.toml"
    path.write_text(text)

    def begin() -> None:
        chosen = subjects.read(path)
        subjects.load(chosen, tmp_path)
        for entry in chosen.agents:
            adapters.command(entry, tmp_path)

    with refused(reason):
        begin()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("attemps = 3", "attemps: unknown field; did you mean attempts?"),
        ("attempt = {dollar = 2}", "attempt.dollar: unknown field; did you mean dollars?"),
        ("choice = {type = ['KASAN']}", "choice.type: unknown field; did you mean types?"),
        (f"{'x' * 100_000} = 3", "unknown field"),
    ],
)
def test_a_misspelt_field_of_a_campaign_is_named_with_the_right_name(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "campaign.toml"
    path.write_text(DESCRIBED.replace("bugs = ", f"{line}\nbugs = "))
    with refused("bad_campaign", match=re.escape(message)):
        subjects.read(path)


def test_shipped_adapters_can_be_used(tmp_path: Path) -> None:
    for name in adapters.names():
        entry = AgentEntry(name="a", adapter=name, models=["m"])
        command = adapters.command(entry, tmp_path)
        assert command.words
        assert not command.free


def test_a_shipped_bug_on_two_kernels_is_two_bugs(tmp_path: Path) -> None:
    names = ["watch-queue-filter", "watch-queue-filter@linux-5.10"]
    chosen = subjects.load(campaign(bugs=names), tmp_path)
    assert [bug.id for bug in chosen.bugs] == [names[0], "watch-queue-filter:linux-5.10"]
    assert len(chosen.dataset("d")) == 2


def test_a_report_counts_the_bugs_that_all_have_tried() -> None:
    first, second = Setup(agent="a"), Setup(agent="b")
    records = [record(setup, name) for setup in (first, second) for name in ("one", "two")]
    records += [record(first, "three")]
    total = report(records, ["one", "two", "three"])
    assert (total.bugs, total.left_out, total.runs, len(total.setups)) == (2, ["three"], 1, 2)
    (compared,) = total.comparisons
    assert compared.figures[0].difference.value == 0
    tries = [FailedAttempt(bug=name, setup=second, run=1, reason="r") for name in ("two", "three")]
    (failed,) = report(records, ["one", "two", "three"], failed=tries).failed
    assert (failed.setup, failed.attempts, failed.reasons) == (second, 1, {"r": 1})
    with pytest.raises(UserError, match="numbered"):
        report(records, ["one"], pair=(1, 3))
    with pytest.raises(UserError, match="no bug has"):
        report([], ["one"])
