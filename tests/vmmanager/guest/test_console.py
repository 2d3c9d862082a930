"""A console that is watched while it is being judged."""

from pathlib import Path

from kgym_vmmanager.guest.console import Console

DISMISSED = b"[   1.000000] WARNING: not judged to be a crash\n"
CRASH = b"[   2.000000] BUG: KASAN: use-after-free in bad+0x1/0x10\n"


def test_what_came_while_a_report_was_judged_is_not_forgotten(tmp_path: Path) -> None:
    console = Console(tmp_path / "console.log")
    console.feed(DISMISSED + CRASH[:20])
    judged = console.watch.log
    console.feed(CRASH[20:])
    console.watch_anew(judged)
    assert console.watch.crash_seen
    assert console.watch.log == CRASH
    console.watch_anew()
    assert not console.watch.crash_seen
    assert console.watch.log == b""
    console.close()
