"""Results: on stdout, with their verdicts, whole, and found again by what was printed."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from kgym import configs
from kgym.api.jobs import JobRequest
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.api.steps import (
    BuildSpec,
    Finding,
    ReproduceResult,
    ReproduceSpec,
    Severity,
    StepKind,
    StepRef,
    Verdict,
)
from kgym.bugs import bundle
from kgym.bugs.bug import AFTER
from kgym.client import Client
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Answer, Kgym
from tests.cli.test_commands import wait_for
from tests.cli.worked import working
from tests.results import GOOD, built, ran

TITLE = "KASAN: use-after-free Read in demo"


def trial(after: Verdict) -> JobRequest:
    """A trial's job; `after` is what its last step will answer."""
    bug = bundle.load("watch-queue-filter")
    request = bug.job(bug.fix)
    steps = [step.model_copy(update={"evidence": False}) for step in request.steps[1::2]]
    first, second = request.steps[0], request.steps[2]
    return JobRequest(steps=[first, steps[0], second, steps[1]], tags=[f"then={after}"])


def judged(platform: Platform, data: Path, *afters: Verdict) -> list[int]:
    """Do trials whose fixes end like this."""
    ids = []
    for after in afters:
        verdicts = iter([ran(Verdict.SAME_CRASH, TITLE), ran(after)])
        answers = {
            StepKind.BUILD: lambda _: built(),
            StepKind.REPRODUCE: lambda _, v=verdicts: next(v),
        }
        with working(platform, data, answers), Client(platform.url) as client:
            ids.append(client.wait(client.submit(trial(after)).id).id)
    return ids


@pytest.mark.parametrize("words", [["show"], ["wait"]])
def test_results_go_to_stdout_and_notes_to_stderr(
    kgym: Kgym, idle: Platform, data: Path, words: list[str]
) -> None:
    [number] = judged(idle, data, Verdict.NO_CRASH)
    done = kgym("--server", idle.url, "job", *words, number)
    assert done.out.startswith(f"job {number}: Resolved: by the reproducer alone; ")
    assert "verdict: same_crash" in done.out
    assert "verdict" not in done.err


@pytest.mark.thorough
def test_what_a_command_has_done_goes_to_stdout(kgym: Kgym, idle: Platform, build_job: str) -> None:
    submitted = kgym("job", "submit", "-", stdin=build_job)
    assert "job 1: Waiting: step 0 (build)" in submitted.out
    assert "job 1: Aborted" in kgym("job", "abort", 1).out
    assert (kgym("job", "log", 1).status, kgym("job", "log", 1, "--step", 0).status) == (0, 0)
    for words, wrong in ((["--step", 7], "job 1 has no step 7"), ([], "there is no job 2")):
        missing = kgym("job", "log", 1 if words else 2, *words)
        assert (missing.status, wrong in missing.err) == (2, True), missing.err
    assert "can be removed with --apply" in kgym("gc").out
    kgym("token", "create", "alice", "--scope", "read")
    assert "revoked" in kgym("token", "revoke", "alice").out
    assert "up to date" in kgym("db", "upgrade").out


@pytest.mark.thorough
def test_the_verdict_is_shown_and_decides_the_status(
    kgym: Kgym, idle: Platform, data: Path
) -> None:
    right, wrong, open_ = judged(
        idle, data, Verdict.NO_CRASH, Verdict.SAME_CRASH, Verdict.INCONCLUSIVE
    )
    listed = {line.split()[0]: line for line in kgym("job", "list").out.splitlines()}
    for number, outcome in {
        right: "resolved",
        wrong: "not_resolved",
        open_: "inconclusive",
    }.items():
        assert listed[str(number)].split()[1] == outcome
    assert "  it was same_crash  " in listed[str(wrong)]
    waits = [kgym("--server", idle.url, "job", "wait", job) for job in (right, wrong, open_)]
    assert [waited.status for waited in waits] == [0, 1, 3]


@pytest.mark.thorough
def test_a_finding_of_a_build_is_named_by_list_show_and_wait(
    kgym: Kgym, idle: Platform, data: Path
) -> None:
    hides = Finding(
        check="detector",
        severity=Severity.BLOCKING,
        reason="attribute",
        message="the patch hides code from KASAN",
        file="kernel/watch_queue.c",
        line=320,
    )
    builds = iter([built(), built(findings=[hides])])
    runs = iter([ran(Verdict.SAME_CRASH, TITLE), ran(evidence=GOOD)])
    answers = {StepKind.BUILD: lambda _: next(builds), StepKind.REPRODUCE: lambda _: next(runs)}
    with working(idle, data, answers), Client(idle.url) as client:
        client.wait(client.submit(trial(Verdict.NO_CRASH)).id)
    reason = "the patch hides code from KASAN, kernel/watch_queue.c:320"
    line = kgym("--server", idle.url, "job", "list", "--outcome", "not_resolved").out.splitlines()[
        1
    ]
    assert f"  {reason}  " in line
    assert len(kgym("job", "list", "--outcome", "resolved").out.splitlines()) == 1
    shown = kgym("--server", idle.url, "job", "show", 1).out.splitlines()
    assert shown[0] == f"job 1: Not resolved: {reason}"
    assert shown[1].startswith("  evidence: 1 of 1 controls reported; ")
    assert f"    BLOCKING: attribute: {reason}" in shown
    waited = kgym("--server", idle.url, "job", "wait", 1)
    assert (waited.status, waited.out.splitlines()[0]) == (1, shown[0])


@pytest.mark.thorough
def test_a_bug_that_does_not_show_is_a_no_and_a_fix_that_holds_is_a_yes(
    kgym: Kgym, idle: Platform, data: Path
) -> None:
    request = bundle.load("watch-queue-filter").job(None)
    build, shown = request.steps
    again = shown.model_copy(update={"name": AFTER, "baseline": StepRef(job=1, step=1)})

    def quiet(run: StepContext) -> ReproduceResult:
        based = run.spec(ReproduceSpec).baseline is not None
        return ran(Verdict.NO_CRASH, baseline=Verdict.SAME_CRASH if based else None)

    with (
        working(idle, data, {StepKind.BUILD: lambda _: built(), StepKind.REPRODUCE: quiet}),
        Client(idle.url) as client,
    ):
        for steps in ([build, shown], [build, again]):
            client.wait(client.submit(JobRequest(steps=steps)).id)
    waits = [kgym("--server", idle.url, "job", "wait", number) for number in (1, 2)]
    assert [waited.status for waited in waits] == [1, 0]


def test_an_aborted_job_has_no_verdict_wherever_it_is_shown(
    kgym: Kgym, idle: Platform, data: Path
) -> None:
    verdicts, aborted = iter([ran(Verdict.SAME_CRASH, TITLE)]), threading.Event()
    answers = {
        StepKind.BUILD: lambda _: built(),
        StepKind.REPRODUCE: lambda _: next(verdicts, None) or aborted.wait(60),
    }
    with working(idle, data, answers), Client(idle.url) as client:
        number = client.submit(trial(Verdict.NO_CRASH)).id
        wait_for(lambda: client.job(number).steps[3].state is State.RUNNING)
        assert kgym("job", "show", number, "--json").json["outcome"] == "running"
        client.abort(number)
        aborted.set()
    [listed] = kgym("job", "list", "--json").json
    shown = kgym("job", "show", number, "--json").json
    for answer in (listed, shown):
        assert (answer["outcome"], answer["verdict"], answer["reason"]) == ("aborted", None, None)
    shown = kgym("job", "show", number).out
    assert shown.splitlines()[0] == f"job {number}: Aborted"
    assert "    verdict: same_crash" in shown  # of its step


def test_a_list_has_the_verdict_that_was_stored_not_one_of_its_own(
    kgym: Kgym, idle: Platform, data: Path
) -> None:
    build, shown = bundle.load("watch-queue-filter").job(None).steps
    twice = shown.model_copy(update={"name": "again"})  # no trial: nothing was patched
    crash = ran(Verdict.SAME_CRASH, "a crash")
    given = {StepKind.BUILD: lambda _: built(), StepKind.REPRODUCE: lambda _: crash}
    with working(idle, data, given), Client(idle.url) as client:
        stored = client.wait(client.submit(JobRequest(steps=[build, shown, twice])).id)
    [listed] = kgym("--server", idle.url, "job", "list", "--json").json
    assert (stored.verdict, stored.outcome) == (Verdict.SAME_CRASH, Outcome.REPRODUCED)
    assert (listed["verdict"], listed["outcome"]) == ("same_crash", "reproduced")
    assert listed["kernel"] == built().kernel_release
    line = kgym("--server", idle.url, "job", "list").out.splitlines()[1]
    assert " reproduced  " in line
    assert f" {built().kernel_release} " in line


# --- whole lines ------------------------------------------------------------------------------


def test_off_a_terminal_nothing_is_wrapped_or_cut(
    kgym: Kgym, idle: Platform, build_job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    tags = [f"{number}:{'x' * 90}" for number in range(40)]
    kgym("job", "submit", "-", stdin=json.dumps({**json.loads(build_job), "tags": tags}))
    head, line = kgym("job", "list").out.splitlines()
    heads = ["job", "outcome", "bug", "patch", "s", "reason", "steps", "kernel", "created", "tags"]
    assert head.split() == heads
    assert line.split()[:5] == ["1", "waiting", "-", "-", "0.0"]
    assert "  step 0 (build)  " in line
    assert line.endswith(" ".join(tags))
    log = tmp_path / "crash.log"
    log.write_text(f"[    1.0] BUG: KASAN: use-after-free in f+0x1/0x2\n[    1.0] {'y ' * 500}\n")
    assert "y " * 499 in kgym("report", "parse", log).out
    assert all(line == line.rstrip() for line in kgym("bug", "list").out.splitlines())


# --- bugs and folders --------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a bundle that has a shipped bug's name."""
    shutil.copytree(configs.CONFIGS / "bugs" / "epoll-loop", tmp_path / "here" / "epoll-loop")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, SOURCES)]))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


SOURCES = [configs.CONFIGS.parent / name for name in ("common", "services")]


def test_a_folder_beside_a_shipped_bugs_name_does_not_lose_silently(kgym: Kgym, here: Path) -> None:
    mine = here / "epoll-loop" / "bug.toml"
    mine.write_text(mine.read_text().replace('title = "', 'title = "MINE '))
    refused = kgym("bug", "show", "epoll-loop")
    assert refused.status == 2
    assert "./epoll-loop" in refused.err
    assert "MINE" in kgym("bug", "show", "./epoll-loop").out
    assert "MINE" not in kgym("bug", "show", configs.CONFIGS / "bugs" / "epoll-loop").out


def test_the_folder_that_one_is_in_is_a_bundle_too(
    kgym: Kgym, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here / "epoll-loop")
    shown: Answer = kgym("bug", "show", ".", "--json")
    assert (shown.status, shown.json["name"]) == (0, "epoll-loop")
    monkeypatch.chdir(configs.CONFIGS / "bugs")
    assert kgym("bug", "show", "epoll-loop").status == 0


# --- finding jobs again ------------------------------------------------------------------------


@pytest.mark.thorough
def test_lists_take_the_states_and_times_that_they_print(
    kgym: Kgym, idle: Platform, fake_build: BuildSpec, data: Path
) -> None:
    with Client(idle.url) as client:
        jobs = [client.submit(JobRequest(steps=[fake_build])) for _ in range(3)]
        client.abort(jobs[0].id)
        with working(idle, data, {StepKind.BUILD: lambda _: built()}):
            client.wait(jobs[1].id)
            client.wait(jobs[2].id)
        jobs.append(client.submit(JobRequest(steps=[fake_build])))

    def listed(*words: object) -> list[str]:
        lines = kgym("job", "list", *words).out.splitlines()[1:]
        return [line.split()[0] for line in lines]

    for line in kgym("job", "list").out.splitlines()[1:]:
        number, outcome = line.split()[:2]
        assert number in listed("--outcome", outcome)
    assert listed("--state", "succeeded") == ["3", "2"]
    assert listed("--state", "succeeded", "--state", "aborted", "--limit", 2) == ["3", "2"]
    assert listed("--state", "queued", "--state", "aborted") == ["4", "1"]
    assert listed("--kind", "build", "--state", "aborted") == ["1"]
    moment = jobs[1].created_at.astimezone()
    assert listed("--until", moment.isoformat()) == ["1"]
    assert listed("--since", moment.isoformat()) == ["4", "3", "2"]
    assert (
        len(listed("--since", jobs[0].created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"))) == 4
    )
    assert listed("--since", "2999-01-01") == []
    assert kgym("job", "list", "--since", "yesterday-ish").status == 2
    assert kgym("job", "list", "--state", "sucessful").status == 2


def test_a_fix_is_not_tried_where_the_bug_came_to_no_verdict(
    kgym: Kgym, idle: Platform, data: Path
) -> None:
    began: list[int] = []

    def inconclusive(run: StepContext) -> ReproduceResult:
        began.append(run.assignment.number)
        return ran(Verdict.INCONCLUSIVE)

    with working(idle, data, {StepKind.BUILD: lambda _: built(), StepKind.REPRODUCE: inconclusive}):
        name = "watch-queue-filter"
        done = kgym("--server", idle.url, "bug", "reproduce", name, "--json")
    assert (done.status, began) == (3, [1])
    assert (done.json["before"]["verdict"], done.json["resolved"]) == ("inconclusive", False)
    assert "so nothing further is tried: it was inconclusive" in done.json["after"]["reason"]
    shown = kgym("--server", idle.url, "job", "show", done.json["job"], "--json").json
    assert [step["state"] for step in shown["steps"]] == ["succeeded", "failed", *["skipped"] * 2]
    failure = shown["steps"][1]["failure"]
    assert (failure["reason"], shown["steps"][1]["attempt"]) == ("no_verdict", 1)
    assert shown["steps"][1]["result"]["verdict"] == "inconclusive"
