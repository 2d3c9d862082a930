"""What programs put before the kernel's lines does not change the answer."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgym.crash.report import CrashReport, parse_all
from kgym.crash.report.line_prefixes import NAMES
from tests.crash.reports import report_of
from tests.crash.test_titles import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"
EXAMPLES = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
OUTER = [example for name, example in EXAMPLES if name in {"quote", "time"}]
KERNELS = [example for name, example in EXAMPLES if name in {"level", "caller", "vendor"}]
LOGGERS = [example for _, example in EXAMPLES if example not in (*OUTER, *KERNELS)]
# What the kernel itself prints, with and without time stamps and callers.
OWN = ["", "[   12.345678] ", "[   12.345678][  T123] ", "[  T123][   12.345678] ", "[    C0] "]
OWN += ["[   12.345678] [  T123] ", "<4>[   12.345678] ", "[   12.345678]  (3)[123:kworker/u8:3]"]


def test_the_page_has_an_example_of_each_form() -> None:
    assert {name for name, _ in EXAMPLES} == set(NAMES)


def behind(prefixes: list[str], log: str) -> str:
    """Return the log with all prefixes before each line; their times pass."""
    prefix = "".join(prefixes)
    stamped = (
        re.sub(r"([0-9]{2}:[0-9]{2}:)[0-9]{2}", rf"\g<1>{number % 60:02}", prefix) + line
        for number, line in enumerate(log.splitlines())
    )
    return "\n".join(stamped) + "\n"


def answer(report: CrashReport) -> dict[str, object]:
    fields = ("title", "alt_titles", "type", "corrupted_reason", "frames", "guilty_file", "task")
    return {name: getattr(report, name) for name in fields}


@pytest.mark.parametrize("example", [example for _, example in EXAMPLES])
def test_a_log_gives_the_same_answer_behind_each_prefix(example: str) -> None:
    log = FAMILIES["KASAN: use-after-free Read in my_driver_peek [KASAN-USE-AFTER-FREE-READ]"]
    for own in [""] if example in KERNELS else OWN:
        assert answer(report_of(behind([example, own], log))) == answer(report_of(log))


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(OUTER), max_size=2),
    st.lists(st.sampled_from(LOGGERS), max_size=1),
    st.sampled_from([*OWN, *KERNELS]),
    st.sampled_from(sorted(FAMILIES)),
)
def test_a_known_log_gives_the_same_answer_behind_any_prefixes(
    outer: list[str], logger: list[str], own: str, title: str
) -> None:
    log = behind([*outer, *logger, own], FAMILIES[title])
    assert answer(report_of(log)) == answer(report_of(FAMILIES[title]))


def test_a_prefix_that_does_not_recur_is_left_as_it_is() -> None:
    report = report_of("[00:12:33] BUG: KASAN: use-after-free in f+0x1/0x2\nall else is well\n")
    assert report.text.startswith("[00:12:33] BUG")


HOST = "Apr 07 14:13:21 host-1 "


def test_lines_that_other_programs_log_are_no_part_of_a_report_and_announce_none() -> None:
    lines = FAMILIES["KASAN: use-after-free Read in my_driver_peek [KASAN-USE-AFTER-FREE-READ]"]
    log = "".join(
        f"{HOST}app[12]: WARNING: CPU: 1 PID: 2 at x.c:1 f+0x1/0x2\n{HOST}kernel: {line}\n"
        for line in lines.splitlines()
    )
    assert answer(report_of(log)) == answer(report_of(lines))
    assert [report.frame for report in parse_all(log)] == ["my_driver_peek"]


@pytest.mark.parametrize("container", ["vm-1  | ", "ttyS0: ", "\x1b[32m", "    ", "#> "])
def test_anything_that_recurs_before_the_kernels_stamp_is_a_prefix(container: str) -> None:
    for title, log in FAMILIES.items():
        assert answer(report_of(behind([container, OWN[2]], log))) == answer(report_of(log)), title


@pytest.mark.parametrize("stamp", ["[22218.499424] ", "Apr 07 14:13:21 host kernel: "])
def test_further_lines_of_a_message_may_be_indented_without_a_stamp(stamp: str) -> None:
    log = (
        f"{stamp}BUG: workqueue leaked atomic, lock or RCU: kworker/u65:3[4146]\n"
        f"{' ' * len(stamp)}     preempt=0x00000000 lock=0->0 RCU=0->1 workfn=my_work [my]\n"
        f"{stamp}CPU: 3 PID: 4146 Comm: kworker/u65:3 Not tainted 6.10.0 #1\n"
    )
    assert report_of(log).title == "BUG: workqueue leaked atomic, lock or RCU in my_work"


def test_androids_log_takes_the_first_word_for_a_tag() -> None:
    start = "04-07 14:13:21.123  root     0     0 "
    log = (
        f"{start}E BUG     : KASAN: use-after-free in my_read+0x91/0xc0\n"
        f"{start}E         : Read of size 8 at addr ffff888006e83540 by task prog/85\n"
        "04-07 14:13:21.124   562   591 E ActivityManager: CPU usage\n"
        f"{start}E         : Call trace:\n"
        f"{start}E         :  my_read+0x91/0xc0\n"
        f"{start}E         :  vfs_read+0x91/0xc0\n"
    )
    report = report_of(log)
    assert (report.title, report.corrupted_reason) == ("KASAN: use-after-free Read in my_read", "")
