"""The Complete Intersection Score, and which functions a fix edits."""

from pathlib import Path

import pytest

from kgym.api.steps import TraceStack
from kgym.crash.report import Frame
from kgym.source.edited_functions import edited
from kgym.trace.minimal_trace import Crash, minimize
from kgym.trace.records import Function, Trace
from kgym.trace.score import Stage, score, total


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
