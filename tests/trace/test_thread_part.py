"""Walking until something repeats, finding stacks, and cutting: rules and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import TracePart
from kgym.crash.report import Frame
from kgym.trace.records import Function
from kgym.trace.repetition import Run, Stop, walk
from kgym.trace.stack_anchor import Anchor, find, traced
from kgym.trace.thread_part import thread_part


def seq(text: str) -> np.ndarray:
    """One letter a function."""
    return np.array([ord(letter) for letter in text], np.int32)


def shown(runs: tuple[Run, ...], text: str) -> str:
    """`qx3` for a pattern, letters for the others."""
    words = []
    for run in runs:
        pattern = text[run.start : run.start + run.length]
        words.append(pattern if run.count == 1 else f"({pattern})x{run.count}")
    return "".join(words)


# --- walking ------------------------------------------------------------------------------


def test_a_walk_without_repetition_goes_to_the_end() -> None:
    walked = walk(seq("abcde"), 200, past_repeats=False)
    assert (shown(walked.runs, "abcde"), walked.stop) == ("abcde", Stop.END)


def test_a_walk_stops_at_its_limit() -> None:
    walked = walk(seq("abcde"), 3, past_repeats=False)
    assert (shown(walked.runs, "abcde"), walked.stop) == ("abc", Stop.LIMIT)


def test_a_walk_stops_where_one_function_repeats_and_counts_it() -> None:
    text = "abqqqqqc"
    walked = walk(seq(text), 200, past_repeats=False)
    assert (shown(walked.runs, text), walked.stop) == ("ab(q)x5", Stop.REPEAT)


def test_a_walk_stops_where_a_pattern_repeats_and_counts_it() -> None:
    text = "apmpmpmpx"
    walked = walk(seq(text), 200, past_repeats=False)
    assert (shown(walked.runs, text), walked.stop) == ("a(pm)x3", Stop.REPEAT)


def test_a_walk_may_go_on_behind_what_repeats() -> None:
    text = "apmpmpmxyyz"
    walked = walk(seq(text), 200, past_repeats=True)
    assert (shown(walked.runs, text), walked.stop) == ("a(pm)x3x(y)x2z", Stop.END)


def test_a_pattern_counts_once_against_the_limit() -> None:
    text = "ab" * 50 + "cdefg"
    walked = walk(seq(text), 4, past_repeats=True)
    assert (shown(walked.runs, text), walked.stop) == ("(ab)x50cd", Stop.LIMIT)


def test_a_long_pattern_is_found() -> None:
    text = "".join(chr(200 + n) for n in range(90)) * 4
    walked = walk(seq(text), 200, past_repeats=False)
    assert walked.runs == (Run(0, 90, 4),)


def test_a_pattern_that_repeats_a_million_times_is_counted() -> None:
    walked = walk(np.tile(seq("ab"), 1_000_000), 200, past_repeats=False)
    assert walked.runs == (Run(0, 2, 1_000_000),)


def test_nothing_to_walk_is_an_end() -> None:
    assert walk(seq(""), 200, past_repeats=False).stop is Stop.END
    assert walk(seq("a"), 0, past_repeats=False).stop is Stop.LIMIT


# --- anchoring ----------------------------------------------------------------------------


def anchors(text: str, *frames: str) -> list[tuple[str, tuple[int, ...]]]:
    """Anchors as (frames found, places), best first; frames by letter, the innermost first."""
    wanted = {n: seq(letters) for n, letters in enumerate(frames)}
    return [
        ("".join(frames[n] for n in anchor.frames), anchor.places)
        for anchor in find(seq(text), wanted).best
    ]


def test_frames_are_matched_backward_in_order() -> None:
    #        0123456789
    assert anchors("xpqmqmzfgy", "g", "m", "p")[0] == ("gmp", (8, 5, 1))


def test_the_last_record_of_the_innermost_frame_is_the_anchor() -> None:
    assert anchors("pmfxpmfx", "f", "m", "p")[0] == ("fmp", (6, 5, 4))


def test_an_untraced_frame_is_passed_over() -> None:
    assert anchors("pmf", "k", "f", "m", "u", "p")[0] == ("fmp", (2, 1, 0))


def test_a_frame_that_only_stands_behind_is_passed_over() -> None:
    assert anchors("pfm", "f", "m", "p")[0] == ("fp", (1, 0))


def test_a_recursive_frame_needs_as_many_records() -> None:
    assert anchors("ffxf", "f", "f", "f")[0] == ("fff", (3, 1, 0))


def test_other_places_of_the_same_stack_are_ranked_by_frames_then_time() -> None:
    assert anchors("fxpmfxpmfxpf", "f", "m", "p") == [
        ("fmp", (11, 7, 6)),
        ("fmp", (4, 3, 2)),
        ("f", (0,)),
    ]


def test_a_stack_that_was_never_executed_has_no_anchor() -> None:
    assert anchors("abc", "f", "m") == []


def test_frames_the_unwinder_does_not_vouch_for_are_left_out() -> None:
    functions = [Function("a.c", "f"), Function("a.c", "g")]
    frames = [Frame("f", uncertain=True), Frame("g", 1, 2), Frame("h", 1, 2)]
    assert list(traced(frames, functions)) == [1]


def test_names_of_the_compiler_and_of_system_calls_are_those_of_the_source() -> None:
    functions = [Function("a.c", "f"), Function("a.c", "__do_sys_read")]
    frames = [Frame("f.isra.0", 1, 2), Frame("__x64_sys_read", 1, 2), Frame("f.cold", 1, 2)]
    assert list(traced(frames, functions)) == [0, 1, 2]


def test_a_frame_with_another_file_is_another_function() -> None:
    functions = [Function("fs/a.c", "init"), Function("fs/b.c", "init")]
    wanted = traced([Frame("init", file="/src/linux/fs/b.c", line=3)], functions)
    assert wanted[0].tolist() == [1]


# --- cutting ------------------------------------------------------------------------------


def parts(text: str, anchor: Anchor, limit: int = 200, past_repeats: bool = False) -> str:
    """`backward [match] forward`; `…` for what was left out."""
    result = thread_part(seq(text), anchor, limit, past_repeats=past_repeats)
    by_part = dict.fromkeys(TracePart, "")
    for piece in result.pieces:
        by_part[piece.part] += "…" * bool(piece.omitted) + shown((piece.run,), text)
    backward, match, forward = by_part.values()
    return f"{backward}[{match}]{forward}"


def test_figure_4() -> None:
    # Frames p, m, g are found backward; q repeats before, (pm) behind.
    text = "zqqqabpqmmgcpmpmpmz"
    anchor = find(seq(text), {0: seq("g"), 1: seq("m"), 2: seq("p")}).best[0]
    assert parts(text, anchor) == "(q)x3ab[pqmmg]c(pm)x3"


def test_the_limit_is_shared_by_both_sides() -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    assert parts(text, Anchor((13,), (0,)), 7) == "klm[n]opq"
    assert parts(text, Anchor((2,), (0,)), 7) == "ab[c]defg"
    assert parts(text, Anchor((25,), (0,)), 7) == "tuvwxy[z]"


def test_repetitions_between_frames_are_counted_and_passed() -> None:
    text = "p" + "ab" * 1000 + "cf"
    assert parts(text, Anchor((len(text) - 1, 0), (0, 1))) == "[p(ab)x1000cf]"


def test_too_much_between_frames_leaves_what_is_near_the_inner_one() -> None:
    text = "pabcdefghijf"
    assert parts(text, Anchor((11, 0), (0, 1)), 5) == "[p…hijf]"


def test_an_anchor_is_kept_whole_whatever_the_limit() -> None:
    assert parts("xaxbxcx", Anchor((5, 3, 1), (0, 1, 2)), 1) == "[a…b…c]"


traces = st.text("abcd", min_size=1, max_size=120)
limits = st.integers(1, 40)


@pytest.mark.parametrize("past_repeats", [False, True])
@given(traces, st.text("abcd", min_size=1, max_size=4), limits)
def test_a_cut_is_a_sub_sequence_with_the_anchor_in_it(
    past_repeats: bool, text: str, stack: str, limit: int
) -> None:
    sequence = seq(text)
    for anchor in find(sequence, {n: seq(frame) for n, frame in enumerate(stack)}).best:
        result = thread_part(sequence, anchor, limit, past_repeats=past_repeats)
        records = result.records().tolist()
        assert records == sorted(set(records))
        assert set(anchor.places) <= set(records)
        assert all(0 <= place < len(text) for place in records)
        assert result.size <= max(limit, len(anchor.places))
        omitted = sum(piece.omitted for piece in result.pieces)
        assert records[-1] - records[0] + 1 == len(records) + omitted


@pytest.mark.parametrize("past_repeats", [False, True])
@given(traces, st.text("abcd", min_size=1, max_size=4), limits)
def test_cutting_what_was_cut_changes_nothing(
    past_repeats: bool, text: str, stack: str, limit: int
) -> None:
    wanted = {n: seq(frame) for n, frame in enumerate(stack)}
    anchors = find(seq(text), wanted).best
    if not anchors:
        return
    once = thread_part(seq(text), anchors[0], limit, past_repeats=past_repeats)
    records = once.records()
    left = "".join(text[place] for place in records)
    places = tuple(int(np.searchsorted(records, place)) for place in anchors[0].places)
    twice = thread_part(
        seq(left), Anchor(places, anchors[0].frames), limit, past_repeats=past_repeats
    )
    assert [shown((p.run,), left) for p in twice.pieces] == [
        shown((p.run,), text) for p in once.pieces
    ]


@given(traces, limits)
def test_a_walk_covers_its_start_and_stops_for_a_reason(text: str, limit: int) -> None:
    result = walk(seq(text), limit, past_repeats=False)
    covered = [n for run in result.runs for n in range(run.start, run.stop)]
    assert covered == list(range(result.covered))
    if result.stop is Stop.END:
        assert result.covered == len(text)
    if result.stop is Stop.LIMIT:
        assert result.size == limit
    if result.stop is Stop.REPEAT:
        assert result.runs[-1].count > 1
