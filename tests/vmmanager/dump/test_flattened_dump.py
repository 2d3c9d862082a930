"""makedumpfile's stream: put together as it was sent, refused where it lies."""

import struct
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym_vmmanager.dump.received_dump import SIGNATURE, Flattened

END = struct.pack(">qq", -1, -1)
START = SIGNATURE.ljust(4096, b"\0")
PARTS = st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=40)), max_size=8)


def stream(parts: list[tuple[int, bytes]]) -> bytes:
    sent = [struct.pack(">qq", place, len(data)) + data for place, data in parts]
    return b"".join([START, *sent, END])


def put_together(pieces: list[bytes], most: int = 1000) -> tuple[bytes, bool]:
    flattened, whole = Flattened(most), bytearray()
    for piece in pieces:
        for place, data in flattened.feed(piece):
            whole[len(whole) :] = bytes(max(0, place - len(whole)))
            whole[place : place + len(data)] = data
    return bytes(whole), flattened.complete


@given(PARTS, st.lists(st.integers(1, 4200), max_size=8))
def test_any_pieces_give_the_same(parts: list[tuple[int, bytes]], cuts: list[int]) -> None:
    sent = stream(parts)
    at = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    pieces = [sent[start:stop] for start, stop in pairwise(at)]
    expected = bytearray()
    for place, data in parts:
        expected[len(expected) :] = bytes(max(0, place - len(expected)))
        expected[place : place + len(data)] = data
    assert put_together(pieces) == (bytes(expected), True)


def test_a_part_may_lie_before_what_came_earlier() -> None:
    assert put_together([stream([(4, b"end"), (0, b"head")])]) == (b"headend", True)


@given(st.integers(0, 4150))
def test_a_stream_that_breaks_off_is_not_complete(length: int) -> None:
    assert not put_together([stream([(0, bytes(60))])[:length]])[1]


@pytest.mark.attack
@pytest.mark.parametrize(
    "sent",
    [
        START.replace(b"makedumpfile", b"makedumpfil\0"),
        START + struct.pack(">qq", 2**63 - 1, 2**63 - 1),
        START + struct.pack(">qq", -1, 0),
        START + struct.pack(">qq", 0, -1),
        START + struct.pack(">qq", -(2**63), 2**63 - 1),
        b"\x7fELF".ljust(4096, b"\0"),
        START + struct.pack(">qq", 990, 20),
        START + struct.pack(">qq", -5, 20),
        START + struct.pack(">qq", 0, -20),
        stream([(0, bytes(600)), (0, bytes(600))]),
    ],
    ids=[
        *"12345",
        "no stream",
        "beyond the end",
        "negative place",
        "negative size",
        "too much in all",
    ],
)
def test_a_lie_is_refused(sent: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        put_together([sent])


@pytest.mark.attack
def test_a_megabyte_of_tiny_parts_takes_no_time() -> None:
    sent = START + struct.pack(">qq", 0, 0) * (1 << 16)
    begin = time.process_time()
    assert put_together([sent, b"", sent[4096:]]) == (b"", False)
    assert time.process_time() - begin < 2
