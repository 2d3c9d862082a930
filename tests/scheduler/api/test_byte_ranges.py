"""Byte ranges against Python's slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym_scheduler.api.artifact_routes import ByteRange, UnsatisfiableRange, parse_range

numbers = st.integers(0, 30)


@given(first=numbers, last=numbers, size=numbers)
def test_a_range_from_first_to_last_is_that_slice(first: int, last: int, size: int) -> None:
    content = bytes(range(size))
    wanted = content[first : last + 1]
    try:
        part = parse_range(f"bytes={first}-{last}", size)
    except UnsatisfiableRange:
        assert not wanted
    else:
        if part is None:
            assert last < first
        else:
            assert content[part.start : part.stop] == wanted


@given(count=numbers, size=numbers)
@pytest.mark.thorough
def test_a_suffix_range_is_the_end(count: int, size: int) -> None:
    content = bytes(range(size))
    try:
        part = parse_range(f"bytes=-{count}", size)
    except UnsatisfiableRange:
        assert not size or not count
    else:
        assert part is not None
        assert content[part.start : part.stop] == content[-count:]


@given(st.text())
def test_any_text_is_a_part_or_the_whole_or_unsatisfiable(text: str) -> None:
    try:
        part = parse_range(text, 10)
    except UnsatisfiableRange:
        return
    assert part is None or 0 <= part.start < part.stop <= 10


def test_the_content_range_counts_the_last_byte_in() -> None:
    assert ByteRange(0, 5, 10).content_range == "bytes 0-4/10"


def test_numbers_of_any_length_are_numbers() -> None:
    many = "9" * 10_000
    assert parse_range(f"bytes=2-{many}", 10) == ByteRange(2, 10, 10)
    assert parse_range(f"bytes=-{many}", 10) == ByteRange(0, 10, 10)
    assert parse_range(f"bytes={'0' * 10_000}-3", 10) == ByteRange(0, 4, 10)
    with pytest.raises(UnsatisfiableRange):
        parse_range(f"bytes={many}-", 10)
