"""A console that is watched while it is being judged."""

from pathlib import Path

from kgym_vmmanager.guest.console import NOTHING, Console

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


def test_last_lines_are_printable_and_bounded(tmp_path: Path) -> None:
    console = Console(tmp_path / "console.log")
    assert console.last_lines() == NOTHING
    console.feed(b"\n \x1b[0m\n")
    assert console.last_lines() == NOTHING
    console.feed(b"first\n\n\x1b[31mno tun\x1b[0m here\r\n\x07" + b"x" * 5000)
    words = console.last_lines()
    assert words.isprintable()
    assert len(words) <= 600
    console.feed(b"\nfirst\n\n\x1b[31mno tun\x1b[0m here\r\nlast\n")
    assert console.last_lines() == "first / no tun here / last"
    console.close()


def test_a_line_of_the_guest_is_printable_and_bounded(tmp_path: Path) -> None:
    console = Console(tmp_path / "console.log")
    console.feed(b"refused: no \x1b[2Jroom" + b"!" * (1 << 20))
    assert console.line_after(b"refused: ") is None
    console.feed(b"\n")
    words = console.line_after(b"refused: ")
    assert words is not None
    assert words.startswith("no room!")
    assert len(words) <= 400
    console.close()
