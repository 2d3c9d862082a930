"""Repeated lines and records, counted."""

import pytest

from kgym.crash.report.repeats import counted

LEAK = """unreferenced object 0xffff88800{0}4fc300 (size 96):
  comm "a", pid 10{0}, jiffies 429493999{0} (age 1{0}.000s)
  hex dump (first 32 bytes):
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................
  backtrace:
    [<0000000{0}6a5e6005>] kmalloc include/linux/slab.h:568 [inline]
    [<0000000{0}71b9321a>] ip_options_get+0x84/0x3b0 net/ipv4/ip_options.c:517
"""


def test_records_that_differ_in_addresses_are_shown_once() -> None:
    text = "".join(LEAK.format(number) for number in range(9)) + "9 new suspected memory leaks"
    first = LEAK.format(0)
    assert (
        counted(text) == f"{first}[the 7 lines above: 8 more times]\n9 new suspected memory leaks"
    )
    other = LEAK.format(1).replace("ip_options_get", "tcp_get")
    assert counted(first + other) == first + other


def test_a_drivers_line_is_shown_once_whenever_it_was_printed() -> None:
    lines = [f"[ {number}.{number}][ T1] drv: bad urb\n" for number in range(200)]
    assert counted("".join(lines)) == f"{lines[0]}[the line above: 199 more times]\n"


@pytest.mark.parametrize("text", [
    "Memory state around the buggy address:\n"
    + "".join(f" ffff8880065cf{n}00: fb fb fb fb fb fb fb fb\n" for n in range(9)),
    "\n" * 50,
    "".join(f"RAX: 000000000000000{n} RBX: dffffc0000000000\n" for n in range(4)),
    "a\na\na\n",
])  # fmt: skip
def test_what_only_looks_alike_stays(text: str) -> None:
    assert counted(text) == text
