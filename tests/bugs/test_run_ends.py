"""Which runs of a program did its work, by how they ended."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kgym.api.steps import CompletedEnd, RunEnd
from kgym.bugs.run_ends import CONVENTION, DONE, KILLED, End, completed, in_words, listed

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
