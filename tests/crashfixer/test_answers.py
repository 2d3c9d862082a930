"""What models answer is read leniently."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym_crashfixer.search import answers
from kgym_crashfixer.search.answers import Change, UnreadableError
from tests.tables import json_rows, rows

EDIT = Path(__file__).with_name("edit_answer.txt").read_text()


def test_the_form_that_was_asked_for() -> None:
    (change,) = answers.changes(EDIT)
    assert change == Change("drivers/a.c", "\tkfree(a);", "\tkfree(a);\n\tkfree(b);", "it leaks")


@pytest.mark.parametrize(
    "text",
    [
        EDIT.replace("<original>\n", "<original>\n```c\n").replace(
            "\n</original>", "\n```\n</original>"
        ),
        EDIT.replace("<file>\ndrivers/a.c\n</file>", "<FILE>`drivers/a.c`</FILE>"),
        EDIT.replace("\n", "\r\n").replace("kfree(a);\r\n\tkfree", "kfree(a);\n\tkfree"),
        "<solution>x</solution>" + EDIT + "That is all. <original>cut off",
    ],
)
def test_other_ways_of_writing_it(text: str) -> None:
    (change,) = answers.changes(text)
    assert (change.file, change.original) == ("drivers/a.c", "\tkfree(a);")
    assert change.patched == "\tkfree(a);\n\tkfree(b);"


def test_one_file_and_reason_count_for_several_edits() -> None:
    more = EDIT + "<original>\nx\n</original><patched>\n</patched>"
    first, second = answers.changes(more)
    assert (second.file, second.reason, second.patched) == (first.file, first.reason, "")


@pytest.mark.parametrize(
    "text", ["", "nothing", "<file>a</file>", "<original>a</original>", "<patched>a</patched>"]
)
def test_what_is_no_patch_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableError):
        answers.changes(text)


@pytest.mark.parametrize("rest", [line for (line,) in rows(__file__, "half_patches.txt")])
def test_a_patch_of_which_a_part_is_missing_is_none(rest: str) -> None:
    with pytest.raises(UnreadableError, match=r"1 modifications|1 are"):
        answers.changes(f"{EDIT}{rest}")


def test_an_explanation_has_bounds() -> None:
    assert len(answers.solution("<solution>" + "because " * 100_000)) <= answers.LONGEST_WORDS


def test_a_diff_is_found_wherever_it_stands() -> None:
    diff = "--- a/x.c\n+++ b/x.c\n@@ -1 +1 @@\n-a\n+b\n"
    for text in (
        diff,
        f"Sure!\n```diff\n{diff}```\nDone.",
        f"<patch>\n{diff}</patch>",
        f"diff --git a/x.c b/x.c\nindex 1..2 100644\n{diff}",
    ):
        assert answers.diff(text).endswith(diff)
    with pytest.raises(UnreadableError):
        answers.diff("@@ -1 +1 @@\n-a\n+b\n")


@pytest.mark.parametrize(("text", "which"), json_rows(__file__, "choices.jsonl"))
def test_a_choice(text: str, which: int) -> None:
    assert answers.chosen(text, 3) == which


@pytest.mark.parametrize("text", ["", "none", "<choice>4</choice>", "0x2", "v1.2"])
def test_no_choice(text: str) -> None:
    with pytest.raises(UnreadableError):
        answers.chosen(text, 3)


def test_a_solution_is_all_prose_where_it_has_no_tag() -> None:
    assert answers.solution("<solution> a </solution>") == "a"
    assert answers.solution("It frees b twice.\n```c\nkfree(b);\n```\n") == "It frees b twice."
    assert answers.solution("<solution>cut off") == "cut off"
    with pytest.raises(UnreadableError):
        answers.solution(" \n")


def test_whole_functions_are_read_with_their_files_and_reasons() -> None:
    text = (
        "Here.\n<reason> it leaks </reason><file>\n`drivers/a.c`\n</file>\n"
        "<function>\n```c\nint f(void)\n{\n}\n```\n</function>\n"
        "<FUNCTION>int g(void)\n{\n}\n</FUNCTION>"
    )
    first, second = answers.functions(text)
    assert (first.file, first.reason) == ("drivers/a.c", "it leaks")
    assert (first.text, second.text) == ("int f(void)\n{\n}", "int g(void)\n{\n}")
    assert second.file == "drivers/a.c"
    assert answers.functions(EDIT) == []  # modifications are another form


PIECES = st.sampled_from(json_rows(__file__, "pieces.jsonl"))


READERS = (
    answers.changes,
    answers.functions,
    answers.diff,
    answers.solution,
    lambda text: answers.chosen(text, 2),
)


@pytest.mark.parametrize("read", READERS)
@given(st.lists(PIECES | st.text(max_size=5), max_size=60).map("".join))
def test_no_answer_makes_it_raise_anything_else(read: Callable[[str], object], text: str) -> None:
    with contextlib.suppress(UnreadableError):
        read(text)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("piece", [line for (line,) in rows(__file__, "costly_pieces.txt")])
def test_ten_megabytes_are_read_in_time(read: Callable[[str], object], piece: str) -> None:
    with contextlib.suppress(UnreadableError):
        read("diff --git a b\n" + piece * (10_000_000 // len(piece)))


@pytest.mark.parametrize(("text", "ranked"), json_rows(__file__, "ranked_answers.jsonl"))
def test_hypotheses_are_read_by_their_rank(text: str, ranked: list[str] | None) -> None:
    if ranked is None:
        with pytest.raises(UnreadableError):
            answers.ranked(text)
    else:
        assert answers.ranked(text) == ranked


def test_patches_of_one_answer_are_told_apart() -> None:
    two = f"<attempt>\n{EDIT}</attempt>\n<attempt>{EDIT.replace('(b)', '(c)')}</attempt>"
    first, second = (answers.changes(attempt) for attempt in answers.attempts(two))
    assert (first[0].patched, second[0].patched) == (
        "\tkfree(a);\n\tkfree(b);",
        "\tkfree(a);\n\tkfree(c);",
    )
    assert answers.attempts(EDIT) == [EDIT]


@given(st.text(alphabet="<>/solutinrakgemp123, \n", max_size=300))
def test_whatever_is_ranked_is_a_hypothesis_of_the_answer(text: str) -> None:
    with contextlib.suppress(UnreadableError):
        assert all(hypothesis and hypothesis in text for hypothesis in answers.ranked(text))
    assert answers.attempts(text)
