"""What a title's class and a file's subsystem are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.bugs import shipped
from kgym.crash.report.crash_class import crash_class, subsystem


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("KASAN: slab-out-of-bounds Write in watch_queue_set_filter", "KASAN slab-out-of-bounds"),
        ("KASAN: use-after-free Read in filp_close", "KASAN use-after-free"),
        ("KFENCE: invalid read in f", "KFENCE invalid"),
        ("KCSAN: data-race in a / b", "KCSAN data-race"),
        ("UBSAN: shift-out-of-bounds in futex_wake_op", "UBSAN shift-out-of-bounds"),
        ("WARNING in shm_open", "WARNING"),
        ("WARNING: suspicious RCU usage in f", "WARNING suspicious RCU usage"),
        ("BUG: soft lockup in f", "soft lockup"),
        ("INFO: task hung in __ep_eventpoll_poll", "task hung"),
        (
            "BUG: unable to handle kernel NULL pointer dereference in loop_rw_iter",
            "unable to handle kernel NULL pointer dereference",
        ),
        ("general protection fault in user_read", "general protection fault"),
        ("memory leak in ip_options_get", "memory leak"),
        ("no output from test machine", "no output from test machine"),
        ("", ""),
    ],
)
def test_the_class_is_what_a_title_says_before_its_place(title: str, expected: str) -> None:
    assert crash_class(title) == expected


def test_crashes_of_one_kind_have_one_class() -> None:
    classes = [crash_class(bug.title) for bug in shipped.shipped()]
    assert len(set(classes)) == len(classes)  # the shipped ones are each of another kind


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("net/ipv4/udp.c", "net/ipv4"),
        ("drivers/net/ethernet/intel/e1000/main.c", "drivers/net"),
        ("kernel/watch_queue.c", "kernel"),
        ("./mm//slab.c", "mm"),
        ("../../etc/passwd", "etc"),
        ("main.c", None),
        ("", None),
    ],
)
def test_a_subsystem_is_a_folder(path: str, expected: str | None) -> None:
    assert subsystem(path) == expected


@given(st.text(max_size=300))
def test_both_are_short_whatever_they_are_given(text: str) -> None:
    assert len(crash_class(text)) <= 60
    assert len(subsystem(text) or "") <= 60
