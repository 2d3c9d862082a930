"""What a title's class and a file's subsystem are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.bugs import shipped
from kgym.crash.report.crash_class import crash_class, subsystem
from tests.tables import rows


@pytest.mark.parametrize(("title", "expected"), rows(__file__, "classes.tsv"))
def test_the_class_is_what_a_title_says_before_its_place(title: str, expected: str) -> None:
    assert crash_class(title) == expected


def test_crashes_of_one_kind_have_one_class() -> None:
    classes = [crash_class(bug.title) for bug in shipped.shipped()]
    assert len(set(classes)) == len(classes)  # the shipped ones are each of another kind


@pytest.mark.parametrize(("path", "expected"), rows(__file__, "subsystems.tsv"))
def test_a_subsystem_is_a_folder(path: str, expected: str) -> None:
    assert subsystem(path) == (expected or None)


@given(st.text(max_size=300))
def test_both_are_short_whatever_they_are_given(text: str) -> None:
    assert len(crash_class(text)) <= 60
    assert len(subsystem(text) or "") <= 60
