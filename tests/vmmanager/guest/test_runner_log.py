"""The runner's lines are understood however they are cut, and nothing else is."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kgym_vmmanager.guest.runner_log import RunnerLog

TALK = b"tick 1 0\nend 1 exit 3 12\ntick 2 1\nend 2 signal 11 1500\nstuck 4\nover 3 1\n"


def fed(*pieces: bytes) -> RunnerLog:
    log = RunnerLog()
    for piece in pieces:
        log.feed(piece)
    return log


def test_a_whole_talk_is_understood() -> None:
    log = fed(TALK)
    assert (log.runs, log.quick, log.over, log.stuck, log.lines) == (3, 1, True, 4, 6)
    assert log.last_end == "signal 11 after 1.5 s"


def test_a_failed_start_gives_the_error_number() -> None:
    assert fed(b"failed 8\n").failed == 8


@given(st.lists(st.integers(0, len(TALK)), max_size=10).map(sorted))
def test_it_is_the_same_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *cuts, len(TALK)]
    assert fed(*(TALK[a:b] for a, b in itertools.pairwise(edges))) == fed(TALK)


@given(st.lists(st.binary(max_size=400), max_size=10))
def test_noise_is_no_sign_of_life(noise: list[bytes]) -> None:
    quiet = [b"x" + piece.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n" for piece in noise]
    assert fed(*quiet).lines == 0


@given(st.binary(max_size=400))
def test_nothing_makes_it_raise(data: bytes) -> None:
    fed(data, b"\n", data)
