"""Watching a console that grows."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kgym.crash.report import Watch

BOOT = b"[    1.0] booting\n[    2.0] all is well\n"
CRASH = b"[    3.0] divide error: 0000 [#1] SMP\n[    3.1] RIP: 0010:my_func+0x1/0x2\n"
PANIC = b"[    3.2] Kernel panic - not syncing: Fatal exception\n"
LAST = b"[    3.3] Kernel Offset: disabled\n[    3.4] Rebooting in 1 seconds..\n"


def watch(log: bytes) -> Watch:
    seen = Watch()
    seen.feed(log)
    return seen


def state(seen: Watch) -> tuple[bool, bool, bool, bytes]:
    return seen.crash_seen, seen.panicked, seen.complete, seen.log


def test_a_healthy_boot_is_no_crash() -> None:
    assert state(watch(BOOT)) == (False, False, False, BOOT)


def test_a_crash_is_seen_before_its_report_is_whole() -> None:
    assert state(watch(BOOT + CRASH))[:3] == (True, False, False)


def test_a_report_is_complete_after_the_last_words_of_the_panic() -> None:
    assert state(watch(BOOT + CRASH + PANIC))[:3] == (True, True, False)
    assert state(watch(BOOT + CRASH + PANIC + LAST))[:3] == (True, True, True)


def test_last_words_before_any_crash_do_not_count() -> None:
    assert state(watch(LAST + CRASH))[:3] == (True, False, False)


def test_a_crash_seen_on_a_line_that_is_still_being_written_waits_for_its_end() -> None:
    seen = watch(BOOT + b"[    3.0] divide error: 0000")
    assert not seen.crash_seen
    seen.feed(b" [#1] SMP\n")
    assert seen.crash_seen


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([BOOT, CRASH, PANIC, LAST, b"\xff\n", b"BUG:"]), max_size=8),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_how_the_log_is_cut_into_pieces_does_not_matter(
    parts: list[bytes], cuts: list[int]
) -> None:
    log = b"".join(parts)
    pieces = Watch()
    at = 0
    for end in [*sorted(cuts), len(log)]:
        pieces.feed(log[at:end])
        at = max(at, end)
    assert state(pieces) == state(watch(log))
