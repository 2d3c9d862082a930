"""Histories as Git lists them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.bisection.history import History, parse
from tests.bisection.histories import history
from tests.refused import refused

A, B, C = ("a" * 40, "b" * 40, "c" * 40)


def text(written: History) -> str:
    lines = []
    for commit in written.commits:
        parents = [written.commits[parent].id for parent in commit.parents]
        lines.append(f"{' '.join([commit.id, *parents])}\t{commit.subject}\n")
    return "".join(lines)


@given(st.integers(0, 2**32), st.integers(1, 50))
def test_what_is_written_is_read(seed: int, size: int) -> None:
    written = history(seed, size)
    assert parse(text(written)) == written


def test_parents_that_are_not_listed_are_before_all() -> None:
    read = parse(f"{A} {C}\tfirst\tone\n{B} {A} {C}\tsecond\x1b[1m\n")
    assert [commit.parents for commit in read.commits] == [(), (0,)]
    assert read.commits[0].subject == "first\tone"
    assert list(read.before(1)) == [1, 1]
    assert list(read.before(0)) == [1, 0]


@pytest.mark.attack
@pytest.mark.parametrize(
    "bad",
    [
        "",
        "words\n",
        f"{A}\tone\n{A}\ttwice\n",
        f"{A}\tone\n{B}\tanother\n",  # the first does not lead to the last
        f"{A} {B}\tbefore its parent\n{B}\tparent\n",
        f"{A} 12\tshort\n",
    ],
)
def test_another_list_is_refused(bad: str) -> None:
    with refused("bad_history", match="cannot be read"):
        parse(bad)
