"""Which warnings a patch adds."""

from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Diagnostic
from kgym_builder.check.patch_judgement import Lines, new_warnings

BEFORE = "a\nb\nc\nd\n"


def warning(line: int | None, message: str = "unused", file: str = "f.c") -> Diagnostic:
    return Diagnostic(file=file, line=line, severity="warning", message=message)


def test_a_line_is_followed_to_where_it_stood() -> None:
    lines = Lines(BEFORE, "new\na\nB\nc\nd\n")
    assert [lines.before(line) for line in range(1, 6)] == [None, 1, None, 3, 4]


@given(st.lists(st.sampled_from("abc\n")), st.lists(st.sampled_from("abc\n")))
def test_a_line_that_stayed_reads_the_same(old_lines: list[str], new_lines: list[str]) -> None:
    before, after = "".join(old_lines), "".join(new_lines)
    lines = Lines(before, after)
    for number, text in enumerate(after.split("\n"), 1):
        if (old := lines.before(number)) is not None:
            assert before.split("\n")[old - 1] == text


def test_a_warning_of_a_line_that_only_moved_is_old() -> None:
    lines = {"f.c": Lines(BEFORE, "new\n" + BEFORE)}
    assert new_warnings([warning(2)], [warning(3)], lines) == []


def test_a_warning_elsewhere_with_the_same_words_is_new_if_the_old_one_is_still_there() -> None:
    lines = {"f.c": Lines(BEFORE, "new\n" + BEFORE)}
    assert new_warnings([warning(2)], [warning(1), warning(3)], lines) == [warning(1)]


def test_a_warning_whose_line_was_rewritten_is_old() -> None:
    lines = {"f.c": Lines(BEFORE, "a\nB\nc\nd\n")}
    assert new_warnings([warning(2)], [warning(2)], lines) == []


def test_a_warning_in_another_file_or_with_other_words_is_new() -> None:
    after = [warning(2, file="f.h"), warning(2, "shadowed")]
    assert new_warnings([warning(2)], after, {}) == after
