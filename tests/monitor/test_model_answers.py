"""Parts of a model's answer: reasoning, what stands between tags, code."""

import pytest

from kgym_monitor.pages import run_page


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("plain", [("Text", "plain")]),
        ("it overflows\n</think>\ndone", [("Reasoning", "it overflows"), ("Text", "done")]),
        (
            "<think>\nhm\n</think>\n<solution>\ncheck it\n</solution>",
            [("Reasoning", "hm"), ("Solution", "check it")],
        ),
        ("see\n```c\nint x;\n```\n", [("Text", "see"), ("Code", "c\nint x;")]),
        ("list<int> is no tag", [("Text", "list<int> is no tag")]),
        ("<patch>\na </think-not>", [("Text", "<patch>\na </think-not>")]),
        ("", []),
    ],
)
def test_an_answer_is_shown_in_its_parts(answer: str, parts: list[tuple[str, str]]) -> None:
    assert run_page.answer_parts(answer) == parts


def test_an_answer_of_tags_alone_is_read_in_linear_time() -> None:
    assert len(run_page.answer_parts("<ab>" * 250_000)) == 1
    assert len(run_page.answer_parts("<ab></ab>" * 100_000 + "x")) == 1
    assert len(run_page.answer_parts("x</think>" * 100_000)) == 2
