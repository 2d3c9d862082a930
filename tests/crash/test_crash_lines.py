"""Which lines announce a crash, and where a report begins and ends."""

from pathlib import Path

import pytest

from kgym.crash.report import CrashType, parse, parse_all
from kgym.crash.report.corpus import check, read_case
from tests.crash.reports import report_of
from tests.crash.test_titles import LEAK, kasan, registers, trace
from tests.tables import json_rows, rows


@pytest.mark.parametrize("line", [line for (line,) in rows(__file__, "harmless_lines.txt")])
def test_a_message_that_only_sounds_like_a_crash_is_none(line: str) -> None:
    assert parse(f"[    1.000000] {line}\n") is None


@pytest.mark.parametrize(
    "line", ["WARNING: stack going in the wrong direction? at 1", "INFO: Slab 0x12 objects=9"]
)
def test_an_unknown_message_is_a_crash_where_the_kernel_says_it(line: str) -> None:
    assert parse(f"{line}\n") is None
    report = report_of(f"[    1.000000][   T12] {line}\n")
    assert report.title.split(" ")[:2] == line.split(" ")[:2]


@pytest.mark.parametrize(("line", "title"), rows(__file__, "drivers_warnings.tsv"))
def test_a_drivers_own_warning_is_a_crash_by_its_words(line: str, title: str) -> None:
    assert parse(f"{line}\n") is None, "a program may have said it"
    for stamp in ("[    1.000000]", "<4>[    1.000000]", "my login: [    1.000000][   T12]"):
        report = report_of(f"{stamp} {line}\n[    1.1] all else is well\n")
        assert (report.title, report.type) == (title, CrashType.WARNING)
        assert not report.corrupted


def test_a_crash_printed_into_a_line_of_a_program_is_seen() -> None:
    report = report_of("starting sshBUG: kernel NULL pointer dereference, address: 8\n")
    assert report.type is CrashType.NULL_DEREF


BOOTING = ["Booting the kernel.", "Booting the kernel (entry_offset: 0x0000000000000080)."]


@pytest.mark.parametrize("words", BOOTING)
def test_a_kernel_that_boots_again_has_crashed(words: str) -> None:
    boot = f"{words}\n[    0.000000] Linux version 6.1.0\n[    9.0] all is well\n"
    assert parse(boot) is None
    report = report_of(boot + boot)
    assert (report.title, report.type) == ("unexpected kernel reboot", CrashType.REBOOT)


@pytest.mark.parametrize("words", BOOTING)
def test_a_machine_that_boots_while_programs_run_has_crashed(words: str) -> None:
    for program in ("executing program 1:\n\n", "2026/01/02 03:04:05 executed programs: 7\n"):
        assert parse(f"{program}{words}\n") is not None
    assert parse(f"SeaBIOS\nBooting from ROM..\n{words}\n") is None


def test_a_boot_is_a_crash_where_the_machine_is_known_to_have_run() -> None:
    log = "early console in extract_kernel\nDecompressing Linux... done.\nBooting the kernel.\n"
    assert parse(log) is None
    report = report_of(log, running=True)
    assert report.title == "unexpected kernel reboot"
    assert check(read_case(b"TITLE: unexpected kernel reboot\n\n" + log.encode()))["title"]


@pytest.mark.parametrize("line", [line for (line,) in rows(__file__, "boots_that_are_none.txt")])
def test_the_words_of_a_boot_that_a_program_repeats_are_none(line: str) -> None:
    assert parse(f"[   11.000000] all is well\n{line}\n", running=True) is None


def test_the_heading_of_a_leak_announces_it_and_the_object_below_does_not() -> None:
    report = report_of(LEAK)
    assert LEAK[report.start : report.end] == "BUG: memory leak"


def test_leaks_that_a_program_copies_without_a_heading_are_seen() -> None:
    objects = LEAK.partition("\n")[2]
    other = objects.replace("my_driver_open", "my_driver_read")
    assert [report.title for report in parse_all(objects + other + objects)] == [
        "memory leak in my_driver_open",
        "memory leak in my_driver_read",
    ]


def test_the_panic_behind_a_crash_belongs_to_its_report() -> None:
    panic = "Kernel panic - not syncing: KASAN: BUG: panic_on_warn set ...\n"
    log = kasan("use-after-free").replace("Read of", f"{panic}Read of")
    report = report_of(log)
    assert report.title == "KASAN: use-after-free Read in my_driver_peek"


def test_a_second_crash_ends_the_report_of_the_first_where_nobody_tells_them_apart() -> None:
    second = registers("divide error: 0000 [#1] SMP", "innocent_bystander")
    report = report_of(f"BUG: kernel NULL pointer dereference, address: 8\n{second}")
    assert report.title == "BUG: unable to handle kernel NULL pointer dereference in corrupted"


def test_the_object_in_a_report_of_the_first_kasan_may_be_of_another_one() -> None:
    slab = "BUG kmalloc-64 (Tainted: G    B): kasan: bad access detected"
    log = kasan("use-after-free", "memcpy").replace("\nCPU: 0", f"\n{slab}\nCPU: 0")
    report = report_of(log)
    assert report.title == "KASAN: use-after-free Read in corrupted"
    assert report.corrupted


def test_an_undefined_behaviour_whose_kind_is_lost_is_corrupted() -> None:
    report = report_of(trace("UBSAN: shift-out"))
    assert (report.title, report.corrupted) == ("UBSAN: shift-out", True)


@pytest.mark.parametrize(("line", "task", "pid"), json_rows(__file__, "tasks_at_fault.jsonl"))
def test_the_task_at_fault_is_the_one_that_is_named(line: str, task: str, pid: int) -> None:
    report = report_of(trace(line))
    assert (report.task, report.pid) == (task, pid)


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
