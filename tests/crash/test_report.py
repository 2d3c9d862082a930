"""What else a report says: frames, offsets, the text, the machine, the damage."""

import json
from pathlib import Path

import pytest

from kgym.crash.report import CrashType, Executor, guilty_file, parse, parse_all
from kgym.crash.report.frames import parse_crashed, parse_frame
from tests.crash.reports import report_of
from tests.tables import json_rows, rows

OOPS = Path(__file__).with_name("oops.log").read_text()


@pytest.mark.parametrize(("line", "function", "offset", "size"), rows(__file__, "frames.tsv"))
def test_a_frame_is_read_in_every_architectures_form(
    line: str, function: str, offset: str, size: str
) -> None:
    frame = parse_frame(line)
    assert frame is not None
    assert (frame.function, hex(frame.offset), hex(frame.size)) == (function, offset, size)


@pytest.mark.parametrize("line", [line for (line,) in rows(__file__, "crashed_frames.txt")])
def test_the_crashing_instruction_is_read_in_every_architectures_form(line: str) -> None:
    frame = parse_crashed(line)
    assert frame is not None
    assert frame.function == "my_func"


def test_a_user_space_instruction_is_no_kernel_frame() -> None:
    assert parse_crashed("RIP: 0033:0x44a739") is None


def test_a_symbolised_frame_has_file_line_and_inlining() -> None:
    outer = parse_frame(" my_func+0x12/0x340 drivers/my/driver.c:77")
    inner = parse_frame(" my_inline drivers/my/driver.c:12 [inline]")
    assert outer is not None
    assert inner is not None
    assert (outer.file, outer.line, outer.inlined) == ("drivers/my/driver.c", 77, False)
    assert (inner.function, inner.line, inner.inlined) == ("my_inline", 12, True)


@pytest.mark.parametrize("line", [" ? stale+0x1/0x2", "[c000] [c000] stale+0x1/0x2 (unreliable)"])
def test_a_leftover_on_the_stack_is_uncertain(line: str) -> None:
    frame = parse_frame(line)
    assert frame is not None
    assert frame.uncertain


@pytest.mark.parametrize("line", ["", "Modules linked in:", "RAX: 0000", " <TASK>", "Code: 00 01"])
def test_other_lines_of_an_oops_are_no_frames(line: str) -> None:
    assert parse_frame(line) is None


def test_the_stack_begins_with_the_crashing_instruction() -> None:
    report = report_of(OOPS)
    assert [frame.function for frame in report.frames] == [
        "my_driver_ioctl",
        "stale_leftover",
        "vfs_ioctl",
        "do_syscall_64",
    ]
    assert report.frames[0].module == "my_driver"


def test_the_report_says_where_it_happened() -> None:
    report = report_of(OOPS)
    assert (report.task, report.pid, report.cpu) == ("syz.2.104", 4242, 1)
    assert report.executor == Executor(proc=2, id=104)
    assert report.panicked


def test_start_and_end_are_the_lines_that_announce_a_crash() -> None:
    log = OOPS.encode()
    report = report_of(log)
    assert log[report.start :].startswith(b"[    3.000000] BUG: kernel NULL")
    assert log[: report.end].endswith(b"Kernel panic - not syncing: Fatal exception")


def test_offsets_count_bytes_where_the_log_is_not_ascii() -> None:
    report = report_of("ä\n" + OOPS)
    assert report.start == len("ä\n".encode()) + OOPS.index("[    3.000000] BUG")


def test_the_text_has_neither_prefixes_nor_uncertain_frames_but_the_lines_before() -> None:
    report = report_of(OOPS)
    assert report.text.startswith("booting\nsomething before\nBUG: kernel NULL pointer")
    assert "stale_leftover" not in report.text
    assert "[    3" not in report.text


@pytest.mark.parametrize("prefix", json_rows(__file__, "line_prefixes.jsonl"))
def test_every_kind_of_line_prefix_is_understood(prefix: str) -> None:
    lines = [line.partition("] ")[2] for line in OOPS.splitlines()]
    report = report_of("".join(f"{prefix}{line}\r\n" for line in lines))
    assert report.title == (
        "BUG: unable to handle kernel NULL pointer dereference in my_driver_ioctl"
    )
    assert not report.corrupted


def test_lines_of_other_tasks_are_left_out() -> None:
    log = (
        "[    3.0][   T85] divide error: 0000 [#1] SMP\n"
        "[    3.1][   T99] RIP: 0010:innocent_bystander+0x1/0x2\n"
        "[    3.2][   T85] RIP: 0010:my_driver_ioctl+0x1/0x2\n"
        "[    3.3][   T85] Call Trace:\n"
        "[    3.4][   T85]  vfs_ioctl+0x1/0x2\n"
        "[    3.5][   T85]  do_syscall_64+0x1/0x2\n"
    )
    report = report_of(log)
    assert report.title == "divide error in my_driver_ioctl"
    assert "innocent_bystander" not in report.text


def test_a_log_that_ends_too_early_is_corrupted() -> None:
    report = report_of("[    3.0] divide error: 0000 [#1] SMP\n")
    assert report.title == "divide error in corrupted"
    assert report.corrupted
    assert report.corrupted_reason


def test_a_fault_injection_trace_is_not_taken_for_the_crash() -> None:
    log = (
        "[    3.0] WARNING: CPU: 1 PID: 8 at drivers/my/driver.c:7 my_driver_open+0x1/0x2\n"
        "[    3.1] Call Trace:\n"
        "[    3.2]  dump_stack+0x1/0x2\n"
        "[    3.3]  should_fail.cold+0xa/0x15\n"
        "[    3.4]  innocent_bystander+0x1/0x2\n"
    )
    report = report_of(log)
    assert report.title == "WARNING in corrupted"


def test_a_death_of_the_test_machine_is_suppressed() -> None:
    report = report_of("fatal error: out of memory\n")
    assert report.suppressed


def test_kasan_tells_where_the_object_came_from_and_went() -> None:
    log = (
        "BUG: KASAN: use-after-free in my_read+0x1/0x2\n"
        "Read of size 8 at addr ffff888006e83540 by task prog/85\n"
        "Call Trace:\n kasan_report+0x1/0x2\n my_read+0x1/0x2\n\n"
        "Allocated by task 80:\n kasan_save_stack+0x1/0x2\n my_open+0x1/0x2\n\n"
        "Freed by task 81:\n kasan_save_stack+0x1/0x2\n my_close+0x1/0x2\n\n"
    )
    report = report_of(log)
    assert report.frames[-1].function == "my_read"
    assert report.alloc_stack[-1].function == "my_open"
    assert report.free_stack[-1].function == "my_close"


def test_a_report_is_json() -> None:
    report = report_of(OOPS)
    data = json.loads(json.dumps(report.as_dict()))
    assert data["title"] == report.title
    assert data["type"] == CrashType.NULL_DEREF
    assert data["report"] == report.text
    assert data["frames"][0]["function"] == "my_driver_ioctl"
    assert data["executor"] == {"proc": 2, "id": 104}


def test_the_panic_after_a_crash_is_no_crash_of_its_own() -> None:
    assert [report.type for report in parse_all(OOPS)] == [CrashType.NULL_DEREF]


def test_each_distinct_crash_is_reported_once_in_order() -> None:
    other = OOPS.replace("my_driver_ioctl", "my_driver_open")
    assert [report.frame for report in parse_all(OOPS + other + OOPS)] == [
        "my_driver_ioctl",
        "my_driver_open",
    ]


def test_a_log_without_a_crash_has_no_reports() -> None:
    assert parse(b"") is None
    assert parse_all("[    1.0] all is well\n") == []


def test_the_guilty_file_is_the_topmost_that_is_not_generic() -> None:
    report = (
        "BUG: KASAN: use-after-free in my_inline include/linux/my.h:12 [inline]\n"
        "Call Trace:\n"
        " dump_stack+0x1/0x2 lib/dump_stack.c:118\n"
        " kasan_report+0x1/0x2 mm/kasan/report.c:33\n"
        " my_driver_read+0x1/0x2 arch/x86/kvm/../../../virt/kvm/driver.c:77\n"
        " vfs_read+0x1/0x2 fs/read_write.c:12\n"
    )
    assert guilty_file(report) == "virt/kvm/driver.c"


def test_a_stack_of_generic_files_only_blames_the_topmost() -> None:
    assert guilty_file(" do_trap+0x1/0x2 arch/x86/kernel/traps.c:12\n") == "arch/x86/kernel/traps.c"


def test_a_report_without_source_lines_blames_no_file() -> None:
    assert guilty_file(" my_func+0x1/0x2\n") is None
