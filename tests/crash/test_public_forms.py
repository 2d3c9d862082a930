"""Logs as people post them: decoded stacks, messages of recent kernels, mixed and cut logs."""

from pathlib import Path

import pytest

from kgym.crash.report import parse_all
from tests.crash.reports import logs, report_of

LOGS = logs("public_forms.txt")
ODD = Path(__file__).parents[2].parent / "shared" / "data" / "odd_inputs" / "logs"


@pytest.mark.parametrize("heading", LOGS)
def test_a_log_has_its_title_file_and_damage(heading: str) -> None:
    report = report_of(LOGS[heading])
    answer = (report.title, report.guilty_file or "-", report.corrupted_reason)
    assert " | ".join(answer).strip() == heading.strip()


def test_a_place_has_its_line_and_module_and_an_unverified_frame_is_uncertain() -> None:
    report = report_of(next(iter(LOGS.values())))
    inlined = next(frame for frame in report.frames if frame.function == "my_ioctl")
    assert (inlined.file, inlined.line, inlined.module) == ("drivers/my/main.c", 77, "my_module")
    assert [frame.function for frame in report.frames if frame.uncertain] == ["stale"]


def test_a_note_of_kdump_is_no_part_of_a_tasks_name() -> None:
    log = next(log for log in LOGS.values() if "Kdump" in log)
    assert report_of(log).task == ".my-wrapped"


def test_symbolised_lines_of_a_warning_are_one_report() -> None:
    log = (
        "WARNING: net/my/pm.c:71 at my_inner net/my/pm.c:71 [inline], CPU#1: prog/961\n"
        "WARNING: net/my/pm.c:71 at my_outer+0x81d/0x8f0 net/my/pm.c:210, CPU#1: prog/961\n"
    )
    assert [report.title for report in parse_all(log)] == ["WARNING in my_outer"]


def test_a_leak_of_a_work_function_has_one_title_whichever_worker_ran_it() -> None:
    log = next(log for heading, log in LOGS.items() if "workqueue" in heading)
    other = log.replace("kworker/2:1", "kworker/u65:3")
    assert report_of(other).title == report_of(log).title
    assert "kworker" not in report_of(log).title


@pytest.mark.parametrize("name", [b"my prog", b"a\nb", b"\xff\xfe\x80", b"a/b:c d"])
def test_a_task_may_have_any_name(name: bytes) -> None:
    log = (
        b"WARNING: net/a.c:1 at my_func+0x1/0x2, CPU#1: %b/961\n"
        b"CPU: 1 UID: 0 PID: 961 Comm: %b Not tainted 6.19.0 #1\n"
        b"RIP: 0010:my_func+0x1/0x2\nCall Trace:\n <TASK>\n caller+0x1/0x2\n do_sys+0x1/0x2\n"
    )
    report = report_of(log % (name, name))
    assert (report.title, report.corrupted) == ("WARNING in my_func", False)
    assert (report.task, report.pid) == (name.decode(errors="replace"), 961)


FOLDERS = [
    "/build/linux",
    "/home/me/kernel/msm-5.4",
    "/usr/src/linux-6.1",
    "/lib/modules/6.1/build",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_builds_folder_is_no_part_of_a_file(folder: str) -> None:
    log = next(iter(LOGS.values())).replace("/home/me/linux", folder)
    report = report_of(log)
    assert report.guilty_file == "drivers/my/main.c"
    assert folder not in report.text


TITLES = {
    "decoded-stack": ("possible deadlock in subflow_error_report", "net/mptcp/subflow.c"),
    "journald": ("WARNING in scx_dsq_insert_commit", "kernel/sched/ext.c"),
    "logread": ("WARNING: refcount bug in tcp_tsq_handler", "lib/refcount.c"),
    "new-warning-inline": ("WARNING in mptcp_pm_nl_del_addr_doit", "net/mptcp/pm_kernel.c"),
    "workqueue-leak-a": (
        "BUG: workqueue leaked atomic, lock or RCU in bch2_write_point_do_index_updates",
        None,
    ),
}
TITLES["workqueue-leak-b"] = TITLES["workqueue-leak-a"]


@pytest.mark.skipif(not ODD.is_dir(), reason="no reference data beside the checkout")
@pytest.mark.parametrize("name", TITLES)
def test_public_logs_have_their_answers(name: str) -> None:
    reports = parse_all((ODD / f"{name}.log").read_bytes())
    assert [(report.title, report.guilty_file) for report in reports][:1] == [TITLES[name]]
    assert not (name == "journald" and reports[0].corrupted), "a pager cut its lines"
