"""From instances to a verdict: `no_crash` only when every instance survived."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kgym.api.steps import (
    CompletedEnd,
    Control,
    ControlName,
    ControlOutcome,
    InstanceOutcome,
    InstanceResult,
    RunEnd,
    Verdict,
)
from kgym.bugs.run_ends import CONVENTION, DONE, KILLED, End, completed, in_words, listed
from kgym.bugs.verdict import judge, likeness, unseen_chance
from tests.tables import json_rows

TITLE = "KASAN: use-after-free Read in f"


def run(outcome: InstanceOutcome, title: str | None = None, number: int = 0) -> InstanceResult:
    return InstanceResult(number=number, outcome=outcome, title=title, detail="why")


def test_a_crash_with_the_title_is_the_same_crash() -> None:
    judged = judge([run(InstanceOutcome.CRASH, TITLE), run(InstanceOutcome.STOPPED)], [TITLE], 2)
    assert (judged.verdict, judged.crashed, judged.completed) == (Verdict.SAME_CRASH, 1, 1)


def test_a_crash_with_another_title_is_another_crash_and_says_what_was_looked_for() -> None:
    judged = judge([run(InstanceOutcome.CRASH, "WARNING in g")], [TITLE], 1)
    assert judged.verdict is Verdict.OTHER_CRASH
    assert TITLE in judged.reason
    assert judged.title == "WARNING in g"


def test_any_crash_is_the_same_when_no_title_is_given() -> None:
    assert judge([run(InstanceOutcome.CRASH, "x")], [], 1).verdict is Verdict.SAME_CRASH


def test_no_crash_needs_all_instances() -> None:
    survived = run(InstanceOutcome.SURVIVED)
    assert judge([survived, survived], [TITLE], 2).verdict is Verdict.NO_CRASH
    assert judge([survived], [TITLE], 2).verdict is Verdict.INCONCLUSIVE


def control(name: ControlName, outcome: ControlOutcome) -> Control:
    return Control(name=name, outcome=outcome, title=None, detail="nothing came")


@pytest.mark.parametrize("outcome", [ControlOutcome.SILENT, ControlOutcome.NOT_TRIED])
def test_no_crash_needs_a_kernel_that_could_have_told(outcome: ControlOutcome) -> None:
    fine = control(ControlName.PANIC, ControlOutcome.REPORTED)
    absent = control(ControlName.LEAK, ControlOutcome.NOT_CONFIGURED)
    survived = [run(InstanceOutcome.SURVIVED)]
    assert judge(survived, [TITLE], 1, [fine, absent]).verdict is Verdict.NO_CRASH
    judged = judge(survived, [TITLE], 1, [fine, control(ControlName.LOCKDEP, outcome), absent])
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "the control lockdep" in judged.reason
    assert "nothing came" in judged.reason
    assert "leak" not in judged.reason


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        (ControlName.KASAN_USE_AFTER_FREE, Verdict.INCONCLUSIVE),
        (ControlName.PANIC, Verdict.INCONCLUSIVE),
        (ControlName.LOCKDEP, Verdict.NO_CRASH),
    ],
)
def test_what_the_kernel_never_took_counts_where_the_bugs_class_needs_it(
    name: ControlName, verdict: Verdict
) -> None:
    gone = [control(name, ControlOutcome.NOT_AVAILABLE)]
    judged = judge([run(InstanceOutcome.SURVIVED)], [TITLE], 1, gone)
    assert judged.verdict is verdict
    assert ("cannot be raised (nothing came)" in judged.reason) == (verdict is not Verdict.NO_CRASH)
    assert judge([run(InstanceOutcome.SURVIVED)], [], 1, gone).verdict is Verdict.INCONCLUSIVE


def test_a_crash_counts_whatever_the_controls_say() -> None:
    silent = [control(ControlName.PANIC, ControlOutcome.SILENT)]
    judged = judge([run(InstanceOutcome.CRASH, TITLE)], [TITLE], 1, silent)
    assert judged.verdict is Verdict.SAME_CRASH


def test_the_reason_of_an_inconclusive_verdict_names_what_went_wrong() -> None:
    judged = judge(
        [run(InstanceOutcome.SURVIVED), run(InstanceOutcome.SSH_LOST, number=1)], [TITLE], 2
    )
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "instance 1: ssh_lost: why" in judged.reason


@given(st.lists(st.sampled_from(InstanceOutcome), max_size=6), st.integers(1, 6))
def test_no_crash_is_said_exactly_when_everything_survived(
    outcomes: list[InstanceOutcome], requested: int
) -> None:
    judged = judge([run(outcome, TITLE) for outcome in outcomes], [TITLE], requested)
    survived = outcomes.count(InstanceOutcome.SURVIVED)
    all_survived = survived == requested and InstanceOutcome.CRASH not in outcomes
    assert (judged.verdict is Verdict.NO_CRASH) == all_survived
    assert judged.completed == survived + outcomes.count(InstanceOutcome.CRASH)


def test_the_chance_to_miss_a_bug_shrinks_with_every_instance() -> None:
    assert unseen_chance(1, 2, 1) == 0.5
    assert unseen_chance(1, 2, 3) == 0.125
    assert unseen_chance(0, 0, 3) is None


def crash(title: str, *alt_titles: str) -> InstanceResult:
    return InstanceResult(
        number=0, outcome=InstanceOutcome.CRASH, title=title, alt_titles=list(alt_titles)
    )


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (crash(TITLE), "by its title"),
        (crash("KASAN: use-after-free Write in g", TITLE), "by its other title"),
        (crash("KASAN: slab-use-after-free Read in f"), "by type and function"),
        (crash("general protection fault in f"), "by type and function"),
        (crash("Internal error in f"), "by type and function"),
        (crash("KMSAN: uninit-value in f"), "by type and function"),
    ],
)
def test_a_crash_is_the_same_for_a_reason_that_is_told(seen: InstanceResult, why: str) -> None:
    assert why in (likeness(seen, [TITLE]) or "")
    assert why in judge([seen], [TITLE], 1).reason


@pytest.mark.parametrize("title", json_rows(__file__, "other_crashes.jsonl"))
def test_another_function_or_kind_is_another_crash(title: str) -> None:
    assert likeness(crash(title), [TITLE]) is None
    assert likeness(crash(title), ["KASAN: use-after-free Read in corrupted"]) in (
        None,
        "by its title",
    )


@pytest.mark.parametrize(
    "title", ["SYZFAIL: mmap failed", "INFO: rcu detected stall in corrupted", "panic: runtime"]
)
def test_noise_is_told_but_is_neither_a_crash_nor_survival(title: str) -> None:
    judged = judge([crash(title), run(InstanceOutcome.SURVIVED)], [TITLE], 2)
    assert (judged.verdict, judged.crashed, judged.completed) == (Verdict.INCONCLUSIVE, 0, 1)
    assert title in judged.reason


def test_noise_that_is_looked_for_is_the_crash() -> None:
    stall = "INFO: rcu detected stall in my_loop"
    assert judge([crash(stall)], [stall], 1).verdict is Verdict.SAME_CRASH


def test_noise_does_not_hide_another_crash() -> None:
    judged = judge([crash("SYZFAIL: x"), crash("WARNING in g")], [TITLE], 2)
    assert (judged.verdict, judged.title) == (Verdict.OTHER_CRASH, "WARNING in g")


FAILED: End = ("exit", 1)
SIGNAL: End = ("signal", 11)
ENDS = st.one_of(
    st.tuples(st.just("exit"), st.integers(0, 255)),
    st.tuples(st.just("signal"), st.integers(1, 64)),
    st.just(KILLED),
)
COUNTS = st.dictionaries(ENDS, st.integers(1, 1000), max_size=5)


def before(**counts: int) -> list[RunEnd]:
    ends = {"done": DONE, "failed": FAILED, "signal": SIGNAL, "killed": KILLED}
    return listed({ends[name]: count for name, count in counts.items()})


def test_without_anything_known_a_run_exits_0_or_goes_on() -> None:
    assert CONVENTION.lacks({DONE: 1, FAILED: 700}) is None
    assert CONVENTION.lacks({KILLED: 1}) is None
    assert CONVENTION.lacks({FAILED: 783}) == (
        "none of 783 runs did its work: 783 x exit status 1;"
        " a run that does its work exits 0, or goes on to the end of its time"
    )


def test_no_run_did_no_work() -> None:
    assert "no run ended" in (CONVENTION.lacks({}) or "")


def test_a_program_that_always_failed_may_fail() -> None:
    assert completed([], before(failed=5)).lacks({FAILED: 100}) is None
    assert completed([], before(signal=5)).lacks({DONE: 1}) is None
    assert completed([], before(failed=5)).lacks({SIGNAL: 100}) is not None


def test_a_program_that_ended_has_to_end() -> None:
    assert completed([], before(done=5)).lacks({KILLED: 1}) is not None
    assert completed([], before(killed=1)).lacks({KILLED: 1}) is None


@pytest.mark.parametrize(
    ("good", "bad", "enough"), [(48, 52, True), (40, 60, False), (1, 3, True), (0, 3, False)]
)
def test_completed_runs_are_about_as_frequent_as_before(good: int, bad: int, enough: bool) -> None:
    wanted = completed([], before(done=99, failed=1))
    assert (wanted.lacks({DONE: good, FAILED: bad}) is None) is enough


def test_what_the_bundle_says_counts_alone() -> None:
    wanted = completed(["exit 1", "signal 11"], before(done=100))
    assert wanted.lacks({FAILED: 100}) is None
    assert "the bundle says: exit 1, signal 11" in (wanted.lacks({DONE: 100}) or "")


@pytest.mark.parametrize("words", ["exit", "exit x", "killed 1", "stop 1", "exit 1 ", "exit -1"])
def test_a_bundle_names_ends_that_there_are(words: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(CompletedEnd).validate_python(words)


@given(COUNTS)
@pytest.mark.thorough
def test_a_kernel_like_the_old_one_does_the_work(counts: dict[End, int]) -> None:
    after = counts or {DONE: 1}
    assert completed([], listed(counts)).lacks(after) is None


@given(COUNTS, st.integers(1, 1000))
def test_an_end_that_never_was_is_no_work(counts: dict[End, int], count: int) -> None:
    new = ("exit", 256)
    assert completed([], listed(counts)).lacks({new: count}) is not None


@given(COUNTS)
def test_ends_are_listed_whole(counts: dict[End, int]) -> None:
    assert Counter({(end.how, end.value): end.count for end in listed(counts)}) == counts
    assert in_words(counts)
