"""Tasks that hang, and grace periods that take long, in the words of old and new kernels."""

from pathlib import Path

import pytest

from kgym.crash.report import CrashType, parse, parse_all
from tests.crash.reports import report_of
from tests.tables import rows

STACK = Path(__file__).with_name("hung_stack.txt").read_text()


@pytest.mark.parametrize("how", ["blocked", "blocked in I/O wait"])
def test_a_task_hangs_whatever_it_waits_for(how: str) -> None:
    for stamp in ("", "[  143.000000][   T30] "):
        log = f"INFO: task prog:77 {how} for more than 143 seconds.\n{STACK}"
        report = report_of("".join(stamp + line for line in log.splitlines(keepends=True)))
        assert report.title == "INFO: task hung in my_fs_get_page"
        assert (report.type, report.task, report.corrupted) == (CrashType.HANG, "prog", False)


@pytest.mark.parametrize("whom", [line for (line,) in rows(__file__, "hung_task_waits.txt")])
def test_whom_a_hung_task_waits_for_is_no_crash_of_its_own(whom: str) -> None:
    log = f"INFO: task prog:77 blocked for more than 143 seconds.\n{STACK}"
    log += f"INFO: task prog:77 {whom}\n" + STACK.replace("my_fs_get_page", "innocent")
    stamped = "".join(f"[  143.000000] {line}" for line in log.splitlines(keepends=True))
    assert [report.title for report in parse_all(stamped)] == ["INFO: task hung in my_fs_get_page"]


def test_a_name_like_the_kernels_words_does_not_hide_a_hung_task() -> None:
    log = f"INFO: task a blocked on a :77 blocked for more than 143 seconds.\n{STACK}"
    report = report_of(log)
    assert report.title == "INFO: task hung in my_fs_get_page"


def test_a_stall_that_ended_in_time_is_none() -> None:
    for end in ("before state dump start", "during stack backtracing."):
        assert parse(f"[    9.000000] INFO: Stall ended {end}\n") is None


def test_a_writeback_that_is_slow_and_goes_on_is_no_hang() -> None:
    words = "The task sync:77 has been waiting for writeback completion for more than 143 seconds."
    assert parse(f"[  150.000000][   T77] INFO: {words}\n") is None
