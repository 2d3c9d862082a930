"""Which programs need no loader: by headers that a stranger wrote."""

import io
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgym.host import proc
from kgym_builder.syzkaller.programs import is_static

PT_LOAD, PT_INTERP = 1, 3


def elf(*kinds: int, table: int = 64, count: int | None = None) -> bytes:
    """The headers of an ELF file for x86_64 with segments of these kinds."""
    number = len(kinds) if count is None else count
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0x401000, table, 0, 0, 64, 56, number, 64, 0, 0)
    return ident + head + b"".join(struct.pack("<IIQQQQQQ", each, *(7,) * 7) for each in kinds)


def static(content: bytes) -> bool:
    return is_static(io.BytesIO(content))


STATIC = elf(PT_LOAD, PT_LOAD, 4)


def test_a_program_that_asks_for_a_loader_is_not_static() -> None:
    assert static(STATIC)
    assert static(STATIC + bytes(1000))
    for place in range(4):
        kinds = [PT_LOAD] * 4
        kinds[place] = PT_INTERP
        assert not static(elf(*kinds))
    assert not static(elf())


@pytest.mark.anyio
@pytest.mark.parametrize(("flag", "expected"), [("-static", True), ("-no-pie", False)])
async def test_real_programs_are_told_apart(tmp_path: Path, flag: str, expected: bool) -> None:
    (tmp_path / "a.c").write_text("int main(void) { return 0; }\n")
    await proc.run(["gcc", flag, "-o", tmp_path / "a", tmp_path / "a.c"], timeout=60)
    with (tmp_path / "a").open("rb") as file:
        assert is_static(file) is expected


@pytest.mark.attack
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1))
@example(2**63, 1)
@example(2**63 - 1, 2**16 - 1)
@example(2**64 - 1, 1)
@example(2**62, 3)
def test_a_table_that_is_not_in_the_file_is_a_damaged_file(table: int, count: int) -> None:
    content = elf(PT_LOAD, PT_LOAD, 4, table=table, count=count)
    inside = count > 0 and table + count * 56 <= len(content)
    assert inside or not static(content)


@pytest.mark.attack
@given(st.integers(0, len(STATIC) - 1))
def test_a_file_that_ends_too_early_is_damaged(end: int) -> None:
    assert not static(STATIC[:end])


@given(st.lists(st.integers(0, 5) | st.integers(0, 2**32 - 1), max_size=20), st.binary())
def test_segments_decide_whatever_lies_behind_them(kinds: list[int], behind: bytes) -> None:
    assert static(elf(*kinds) + behind) is (bool(kinds) and PT_INTERP not in kinds)


@pytest.mark.thorough
@pytest.mark.attack
@given(st.dictionaries(st.integers(0, len(STATIC) - 1), st.integers(0, 255), max_size=30))
def test_mangled_headers_are_told_of_and_never_an_error(changes: dict[int, int]) -> None:
    content = bytearray(STATIC)
    for place, byte in changes.items():
        content[place] = byte
    assert static(bytes(content)) in {True, False}


@pytest.mark.attack
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_told_of(content: bytes, begins_well: bool) -> None:
    assert static(STATIC[:20] * begins_well + content) in {True, False}


@pytest.mark.attack
def test_a_file_on_the_disk_is_read_as_bytes_are(tmp_path: Path) -> None:
    for number, table in enumerate((2**63, 2**64 - 1, 2**62, 2**40)):
        path = tmp_path / str(number)
        path.write_bytes(elf(PT_LOAD, table=table))
        with path.open("rb") as file:
            assert not is_static(file)
