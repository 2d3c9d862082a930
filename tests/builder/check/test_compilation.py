"""What a compiler's end says."""

import pytest

from kgym_builder.check.compilation import CompileResult
from tests.tables import rows


def done(status: int, output: str = "") -> CompileResult:
    return CompileResult(status, output, {}, {}, frozenset())


@pytest.mark.parametrize("words", [line for (line,) in rows(__file__, "limits.txt")])
def test_one_that_ran_into_a_limit_gives_no_verdict(words: str) -> None:
    assert done(1, words).killed


@pytest.mark.parametrize("status", [124, 137])
def test_one_that_was_killed_gives_none_either(status: int) -> None:
    assert done(status).killed


def test_an_error_is_a_verdict() -> None:
    assert not done(1, "kernel/fork.c:9:1: error: expected ';' before 'out'\n").killed
    crash = "gcc: internal compiler error: Segmentation fault signal terminated program cc1\n"
    assert not done(1, crash).killed


def test_an_unreadable_tree_is_told_from_other_limits() -> None:
    assert done(1, "cc1: fatal error: kernel/fork.c: Input/output error\n").unreadable
    assert not done(1, "cc1: fatal error: No space left on device\n").unreadable
