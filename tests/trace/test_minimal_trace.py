"""The minimiser: a case by hand for each rule, and what holds for any trace."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import MinimalTrace, TraceCall, TracePart, TraceStack
from kgym.crash import report as reports
from kgym.crash.report import Frame
from kgym.source.edited_functions import edited
from kgym.trace.minimal_trace import Crash, minimize
from kgym.trace.records import Function, Trace
from kgym.trace.score import Stage, score, total

NAMES = "abcdefghijklmnopqrstuvwxyzABC"
FUNCTIONS = [Function("fs/cand.c" if name.islower() else "mm/other.c", name) for name in NAMES]
FILES = ["fs/cand.c"]


def trace(text: str, **rest: object) -> Trace:
    """`1:ab 2:c` is a and b by PID 1, then c by PID 2; capitals are of another file."""
    records = []
    for word in text.split():
        pid, _, letters = word.rpartition(":")
        for letter in letters:
            number = len(records)
            records.append((1000 + number, 0, int(pid or 1), NAMES.index(letter), number))
    return Trace.of(records, FUNCTIONS, **rest)


def crash(stack: str, pid: int | None = 1, *, freed: str = "", allocated: str = "") -> Crash:
    """A crash whose stack has these functions, the innermost first; `9:ab` gives a stack's PID."""
    stacks, pids = {}, {}
    for name, text in zip(TraceStack, (stack, allocated, freed), strict=True):
        who, _, letters = text.rpartition(":")
        stacks[name] = [Frame(letter, 1, 2) for letter in letters]
        if who:
            pids[name] = int(who)
    return Crash(stacks, pids | ({} if pid is None else {TraceStack.CRASH: pid}))


def shown(calls: Sequence[TraceCall]) -> str:
    """Backward `[`match`]` forward; frames in parentheses, `xn` behind what repeats."""
    parts = dict.fromkeys(TracePart, "")
    for call in calls:
        names = "".join(function.name for function in call.pattern)
        names = f"({names})" if call.anchor else names
        repeats = f"{{{names}x{call.count}}}" if call.count > 1 else names
        parts[call.part] += "…" * bool(call.omitted) + repeats
    backward, match, forward = parts.values()
    return f"{backward}[{match}]{forward}"


def minimal(text: str, fault: Crash, **how: object) -> MinimalTrace:
    return minimize(trace(text), fault, FILES, **how)  # type: ignore[arg-type]


# --- the paper's rules --------------------------------------------------------------------


def test_only_the_crashing_thread_is_kept() -> None:
    result = minimal("1:ab 2:xyz 1:c 2:x 1:d", crash("c"))
    assert (result.pid, result.guessed) == (1, False)
    assert shown(result.calls) == "ab[(c)]d"


def test_only_candidate_files_are_kept() -> None:
    assert shown(minimal("aAbBcCd", crash("c")).calls) == "ab[(c)]d"


def test_without_candidate_files_all_count() -> None:
    assert shown(minimize(trace("aAbB"), crash("b")).calls) == "aA[(b)]B"


def test_frames_are_matched_backward_in_order_and_frames_of_other_files_passed_over() -> None:
    result = minimal("apqmrg", crash("AgBmCp"))
    assert shown(result.calls) == "a[(p)q(m)r(g)]"
    assert result.anchor.stack is TraceStack.CRASH
    assert (result.anchor.frames, result.anchor.missed) == (["g", "m", "p"], [])
    assert result.anchor.span == 5
    assert [call.frame for call in result.calls] == [None, 5, None, 3, None, 1]


def test_a_frame_that_was_not_executed_is_told() -> None:
    result = minimal("apg", crash("gmp"))
    assert (result.anchor.frames, result.anchor.missed) == (["g", "p"], ["m"])


def test_the_last_place_of_the_stack_is_the_anchor() -> None:
    assert shown(minimal("pgxpgy", crash("gp")).calls) == "pgx[(p)(g)]y"


def test_both_ends_go_on_to_the_end_of_the_thread() -> None:
    result = minimal("abcgde", crash("g"))
    assert (shown(result.calls), result.before, result.after) == ("abc[(g)]de", "end", "end")


def test_both_ends_stop_at_the_limit() -> None:
    result = minimal("abcdgefhi", crash("g"), limit=5)
    assert (shown(result.calls), result.before, result.after) == ("cd[(g)]ef", "limit", "limit")


def test_the_limit_is_200_records() -> None:
    letters = "".join(NAMES[n % 23] + NAMES[n % 19] for n in range(400))
    result = minimal(letters + "z", crash("z"))
    assert sum(len(call.pattern) for call in result.calls) <= 200


def test_both_ends_stop_where_a_pattern_repeats() -> None:
    result = minimal("zqqqabgcpmpmpmz", crash("g"))
    assert shown(result.calls) == "{qx3}ab[(g)]c{pmx3}"
    assert (result.before, result.after) == ("repeat", "repeat")


def test_a_trace_without_the_candidate_files_gives_no_calls() -> None:
    result = minimal("ABC", crash("g"))
    assert (result.pid, result.calls, result.statistics.records) == (None, [], 3)


def test_the_statistics_say_how_much_there_was_and_is_left() -> None:
    numbers = minimize(trace("aqqqg 2:aA", lost=7), crash("g"), FILES).statistics
    assert (numbers.records, numbers.lost, numbers.threads) == (7, 7, 2)
    assert (numbers.candidate_records, numbers.thread_records, numbers.anchors) == (6, 5, 1)
    assert (numbers.minimal_records, numbers.represented_records) == (2, 4)


# --- where the paper stops ----------------------------------------------------------------


def test_repetitions_are_counted_and_may_be_walked_past() -> None:
    result = minimal("zqqqqqabg", crash("g"), past_repeats=True)
    assert (shown(result.calls), result.before) == ("z{qx5}ab[(g)]", "end")


def test_repetitions_between_frames_are_counted() -> None:
    assert shown(minimal("apqqqqg", crash("gp")).calls) == "a[(p){qx4}(g)]"


def test_other_places_of_the_stack_are_offered_ranked_by_frames_then_time() -> None:
    result = minimal("gxpmgypgzpmg", crash("gmp"))
    assert shown(result.calls).endswith("[(p)(m)(g)]")
    assert result.statistics.anchors == 3
    assert [shown(alternative.calls) for alternative in result.alternatives] == [
        "gx[(p)(m)gyp(g)]zpmg", "[(g)]xpmgypgzpmg",
    ]  # fmt: skip


def test_who_freed_the_object_is_shown_by_the_pid_in_the_report() -> None:
    result = minimal("1:a 2:xfw 3:f 1:bg", crash("g", freed="2:f"))
    freed = result.related[0]
    assert (freed.why, freed.pid, shown(freed.calls)) == ("freed", 2, "x[(f)]w")


def test_who_freed_the_object_is_found_by_the_stack_where_the_report_names_nobody() -> None:
    result = minimal("2:f 1:a 3:xf 1:g 2:f", crash("g", freed="f"))
    assert [(task.why, task.pid) for task in result.related] == [("freed", 3)]


def test_who_allocated_the_object_is_shown_unless_it_is_in_the_trace_already() -> None:
    apart = minimal("1:a 2:n 1:g", crash("g", allocated="2:n"))
    assert [(task.why, task.pid) for task in apart.related] == [("allocated", 2)]
    assert minimal("1:nag", crash("g", allocated="1:n")).related == []


def test_threads_that_ran_the_same_code_meanwhile_are_shown_the_busiest_first() -> None:
    result = minimal("1:ab 2:g 3:gxg 4:y 1:g", crash("g"))
    related = [(task.why, task.pid) for task in result.related]
    assert related == [("concurrent", 3), ("concurrent", 2)]


def test_a_leak_is_anchored_where_the_report_says_that_the_object_was_allocated() -> None:
    result = minimal("anmb", crash("A", allocated="mn"))
    assert (result.anchor.stack, shown(result.calls)) == (TraceStack.ALLOCATED, "a[(n)(m)]b")


def test_without_any_frame_the_last_record_is_the_anchor() -> None:
    result = minimal("abc", crash("g"))
    assert (result.anchor.stack, shown(result.calls)) == (None, "ab[(c)]")


def test_a_report_without_a_pid_leads_to_the_thread_that_fits_its_stack_best() -> None:
    result = minimal("1:pmg 2:g 3:ab", crash("gmp", None))
    assert (result.pid, result.guessed) == (1, True)


def test_a_pid_without_records_is_as_good_as_none() -> None:
    result = minimal("1:pmg", crash("gmp", 77))
    assert (result.pid, result.guessed) == (1, True)


def test_pids_and_stacks_come_from_the_report() -> None:
    text = (
        b"BUG: KASAN: use-after-free in g+0x1/0x20\nRead of size 8 at addr ffff888001 by task"
        b" r/31\n\nCPU: 0 PID: 31 Comm: r Not tainted 6.1.0 #1\nCall Trace:\n <TASK>\n"
        b" g+0x1/0x20\n p+0x3/0x9\n </TASK>\n\nAllocated by task 32:\n n+0x1/0x20\n\n"
        b"Freed by task 33:\n f+0x1/0x20\n\n"
    )
    report = reports.parse(text)
    assert report is not None
    fault = Crash.of(report)
    assert list(fault.pids.values()) == [31, 32, 33]
    assert [[frame.function for frame in fault.stacks[kind]] for kind in TraceStack] == [
        ["g", "p"], ["n"], ["f"],
    ]  # fmt: skip


# --- what holds for any trace -------------------------------------------------------------

texts = st.lists(st.sampled_from(["1:", "1:", "2:"]).flatmap(
    lambda who: st.text("abcdgA", min_size=1, max_size=30).map(who.__add__)
), min_size=1, max_size=12).map(" ".join)  # fmt: skip
stacks = st.text("abgA", min_size=1, max_size=4)
limits = st.integers(1, 40)


@pytest.mark.thorough
@pytest.mark.parametrize("past_repeats", [False, True])
@given(texts, stacks, limits)
def test_a_minimal_trace_is_a_sub_sequence_of_the_thread(
    past_repeats: bool, text: str, stack: str, limit: int
) -> None:
    whole = trace(text)
    result = minimal(text, crash(stack), limit=limit, past_repeats=past_repeats)
    mine = [
        (int(time) - 1000, FUNCTIONS[number].name)
        for time, pid, number in zip(whole.time, whole.pid, whole.function, strict=True)
        if pid == result.pid and FUNCTIONS[number].file in FILES
    ]
    at = 0
    for call in result.calls:
        while mine[at][0] != call.time - 1000:
            at += 1
        names = [function.name for function in call.pattern] * call.count
        assert [name for _, name in mine[at : at + len(names)]] == names
        at += len(names)


@pytest.mark.thorough
@given(texts, stacks, limits)
def test_the_anchor_survives_any_limit(text: str, stack: str, limit: int) -> None:
    result = minimal(text, crash(stack), limit=limit)
    if result.pid is not None:
        anchors = [call for call in result.calls if call.anchor]
        assert anchors
        assert [call.pattern[0].name for call in reversed(anchors) if call.frame is not None] == (
            result.anchor.frames
        )


@pytest.mark.thorough
@pytest.mark.parametrize("past_repeats", [False, True])
@given(texts, stacks, limits)
def test_minimising_a_minimal_trace_changes_nothing(
    past_repeats: bool, text: str, stack: str, limit: int
) -> None:
    whole, fault = trace(text), crash(stack)
    once = minimize(whole, fault, FILES, limit=limit, past_repeats=past_repeats)
    if once.pid is None:
        return
    relevant = np.array([function.file in FILES for function in FUNCTIONS])[whole.function]
    mine = np.flatnonzero((whole.pid == once.pid) & relevant).tolist()
    kept = []
    for call in once.calls:
        first = mine.index(call.time - 1000)
        kept += mine[first : first + len(call.pattern) * call.count]
    twice = minimize(
        whole.take(np.array(kept)), fault, FILES, limit=limit, past_repeats=past_repeats
    )
    assert shown(twice.calls).replace("…", "") == shown(once.calls).replace("…", "")
    assert twice.anchor.frames == once.anchor.frames


def scores(text: str, stack: str, *wanted: str) -> str:
    """Which stages score, by their first letters."""
    functions = [Function("a.c", name) for name in sorted(set(text))]
    names = [function.name for function in functions]
    records = [(n, 0, 1, names.index(name), n) for n, name in enumerate(text)]
    crash = Crash({TraceStack.CRASH: [Frame(name, 1, 2) for name in stack]}, {TraceStack.CRASH: 1})
    reached = score(minimize(Trace.of(records, functions), crash), wanted)
    return "".join(stage.value[0] for stage in Stage if reached[stage])


@pytest.mark.parametrize(
    ("edits", "stages"),
    [("p", "sabft"), ("m", "abft"), ("b", "bft"), ("f", "ft"), ("z", "t"), ("x", ""), ("pz", "t")],
)
def test_a_stage_scores_if_it_has_all_that_the_fix_edits(edits: str, stages: str) -> None:
    assert scores("zqqqbpmgf", "gp", *edits) == stages


def test_a_fix_that_edits_no_function_scores_nothing() -> None:
    assert scores("pmg", "gp") == ""


def test_names_count_as_in_the_source() -> None:
    assert scores("pg", "gp", "p.isra.0") == "sabft"


def test_the_score_of_many_bugs_is_the_sum() -> None:
    full = dict.fromkeys(Stage, 1)
    last_only = {**dict.fromkeys(Stage, 0), Stage.THREAD: 1}
    assert total([full, last_only]) == {**dict.fromkeys(Stage, 1), Stage.THREAD: 2}
    assert total([]) == dict.fromkeys(Stage, 0)


BEFORE = Path(__file__).with_name("functions.c").read_text()


def test_the_functions_that_differ_are_edited() -> None:
    after = BEFORE.replace("return a;", "return a + 1;").replace("two(void) { }", "two(void) { ; }")
    assert edited(BEFORE, after) == {"one", "two", "sys_three"}


def test_a_function_that_is_removed_is_edited_and_one_that_is_added_is_not() -> None:
    start = BEFORE.index("static const char *four")
    end = BEFORE.index("struct ops")
    after = BEFORE[:start] + "static void five(void) { }\n" + BEFORE[end:]
    assert edited(BEFORE, after) == {"four"}


def test_what_stands_outside_of_functions_is_no_function() -> None:
    assert edited(BEFORE, BEFORE.replace(".one = one", ".one = 0")) == set()
