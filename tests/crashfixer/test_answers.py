"""What models answer is read leniently."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym_crashfixer.search import answers
from kgym_crashfixer.search.answers import UnreadableError
from tests.tables import json_rows, rows


def test_an_explanation_has_bounds() -> None:
    assert len(answers.solution("<solution>" + "because " * 100_000)) <= answers.LONGEST_WORDS


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


PIECES = st.sampled_from(json_rows(__file__, "pieces.jsonl"))


READERS = (answers.ranked, answers.solution, lambda text: answers.chosen(text, 2))


@pytest.mark.thorough
@pytest.mark.parametrize("read", READERS)
@given(st.lists(PIECES | st.text(max_size=5), max_size=60).map("".join))
def test_no_answer_makes_it_raise_anything_else(read: Callable[[str], object], text: str) -> None:
    with contextlib.suppress(UnreadableError):
        read(text)


@pytest.mark.thorough
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
    first, second = (
        "<original>a</original><patched>b</patched>",
        "<original>a</original><patched>c",
    )
    assert answers.attempts(f"<attempt>{first}</attempt>\n<attempt>{second}</attempt>") == [
        first,
        second,
    ]
    assert answers.attempts(first) == [first]
    assert answers.attempts(f"## Patch 1\n{first}\n### Patch 2:\n{second}") == [
        f"\n{first}\n",
        f"\n{second}",
    ]


@given(st.text(alphabet="<>/solutinrakgemp123, \n", max_size=300))
def test_whatever_is_ranked_is_a_hypothesis_of_the_answer(text: str) -> None:
    with contextlib.suppress(UnreadableError):
        assert all(hypothesis and hypothesis in text for hypothesis in answers.ranked(text))
    assert answers.attempts(text)
