"""The readings of a C file: one branch of each conditional, and all of them in the end."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.source.c_branches import MOST, read
from tests.tables import json_rows


def readings(text: str) -> list[str]:
    return list(read(text).readings())


def words(text: str) -> list[list[str]]:
    return [re.findall(r"\w+", reading) for reading in readings(text)]


def test_comments_strings_and_directives_become_blanks() -> None:
    text = 'a /* b\nc */ d // e\\\nf\n#define G \\\n  {\n"h\\"{" \'{\' i\n'
    (only,) = readings(text)
    assert len(only) == len(text)
    assert only.split() == ["a", "d", '"', '"', "'", "'", "i"]


@pytest.mark.parametrize(
    ("text", "expected"),
    json_rows(__file__, "branches.jsonl"),
    ids=["if", "else", "elif", "beside", "within", "never", "within-never", "unbalanced"],
)
def test_every_branch_is_followed_and_none_beside_its_other(
    text: str, expected: list[list[str]]
) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(("text", "line"), json_rows(__file__, "first_lines.jsonl"))
def test_the_first_line_that_is_no_directive_is_told(text: str, line: int) -> None:
    assert text[: read(text).start].count("\n") == line


LINES = json_rows(__file__, "lines.jsonl")


@given(st.lists(st.sampled_from([*LINES, "*/", '"', "f\\"]), max_size=30))
def test_offsets_stay_and_no_branch_is_forgotten(lines: list[str]) -> None:
    text = "\n".join(f"{line} w{number}" for number, line in enumerate(lines))
    all_readings = readings(text)
    assert 1 <= len(all_readings) <= MOST
    for reading in all_readings:
        assert [at for at, char in enumerate(reading) if char == "\n"] == [
            at for at, char in enumerate(text) if char == "\n"
        ]
        assert all(char in {" ", text[at]} for at, char in enumerate(reading))
    if "#if 0" not in lines:
        together = {word for reading in all_readings for word in re.findall(r"w\d+", reading)}
        assert together == set(re.findall(r"w\d+", read(text).whole))
