"""What each family of crashes is called. The logs are ours, in the kernel's formats."""

import pytest

from kgym.crash.report import CrashType
from tests.crash.reports import logs, report_of
from tests.tables import rows

TEMPLATES = logs("templates.txt")


def kasan(kind: str, function: str = "my_driver_peek", access: str = "Read") -> str:
    return TEMPLATES["kasan"].format(kind=kind, function=function, access=access)


def registers(message: str, function: str = "my_driver_ioctl") -> str:
    return f"{message}\n" + TEMPLATES["registers"].format(function)


def trace(message: str, frames: str = "my_driver_ioctl+0x12/0x340") -> str:
    return f"{message}\n" + TEMPLATES["trace"].format(frames)


def warning(place: str, frame: str, *callers: str) -> str:
    stack = "\n ".join(callers or ("my_driver_ioctl+0x12/0x340",))
    return TEMPLATES["warning"].format(place=place, frame=frame, stack=stack)


FAMILIES = logs("families.txt")
LEAK = FAMILIES["memory leak in my_driver_open [LEAK]"]
STALL = FAMILIES["INFO: rcu detected stall in sys_fsync [HANG]"]


@pytest.mark.parametrize("heading", FAMILIES)
def test_a_crash_of_each_family_has_its_title_and_type(heading: str) -> None:
    report = report_of(FAMILIES[heading])
    assert (f"{report.title} [{report.type}]", report.corrupted_reason) == (heading, "")


@pytest.mark.parametrize("function", ["memcpy", "__lock_acquire", "_raw_spin_lock", "strlen"])
def test_a_generic_function_is_not_blamed_but_its_caller(function: str) -> None:
    report = report_of(kasan("use-after-free", function))
    assert report.title == "KASAN: use-after-free Read in my_driver_read"


@pytest.mark.parametrize("suffix", [".part.0", ".cold", ".isra.3", ".constprop.0"])
def test_a_compilers_suffix_is_not_part_of_the_title(suffix: str) -> None:
    report = report_of(registers("divide error: 0000 [#1] SMP", f"my_driver_ioctl{suffix}"))
    assert report.title == "divide error in my_driver_ioctl"


def test_a_system_call_goes_by_all_its_names() -> None:
    report = report_of(STALL)
    assert report.alt_titles == (
        "INFO: rcu detected stall in __x64_sys_fsync",
        "stall in __x64_sys_fsync",
        "stall in sys_fsync",
    )


def test_a_bad_access_has_its_kindless_title_too() -> None:
    report = report_of(kasan("use-after-free"))
    assert report.alt_titles == ("bad-access in my_driver_peek",)


def test_hangs_on_rcu_have_one_title() -> None:
    log = trace(
        "INFO: task prog:4242 blocked for more than 143 seconds.",
        "__schedule+0x1/0x2\n wait_for_completion+0x1/0x2\n synchronize_rcu_expedited+0x1/0x2",
    )
    report = report_of(log)
    assert report.title == "INFO: task hung in synchronize_rcu"
    assert "INFO: task hung in synchronize_rcu_expedited" in report.alt_titles


def test_a_double_free_is_an_invalid_free_in_every_kernels_words() -> None:
    for words in ("double-free", "invalid-free", "double-free or invalid-free"):
        report = report_of(kasan(words, "kfree").replace("Read of size 8", "Free of"))
        assert report.title == "KASAN: invalid-free in my_driver_read"
        assert report.type is CrashType.KASAN_INVALID_FREE


@pytest.mark.parametrize(("wrapper", "name"), rows(__file__, "wrappers.tsv"))
def test_the_wrappers_of_a_system_call_lose_their_prefix(wrapper: str, name: str) -> None:
    report = report_of(registers("divide error: 0000 [#1] SMP", wrapper))
    assert report.title == f"divide error in {name}"
    assert f"divide error in {wrapper}" in report.alt_titles


def test_a_warning_of_linux_6_18_names_no_cpu() -> None:
    log = warning("x", "y").replace(
        "CPU: 0 PID: 7 at x y+0x10/0x20",
        "[time_after(a, b)] drivers/my/driver.c:77 at my_driver_open+0x10/0x20, CPU#0: prog/7",
    )
    report = report_of(log.replace("RIP: 0010:y", "RIP: 0010:my_driver_open"))
    assert report.title == "WARNING in my_driver_open"


def test_volatile_parts_of_a_title_are_replaced() -> None:
    report = report_of("Kernel panic - not syncing: lost 12 of 0xffff888006e83540 at 10.0.0.1\n")
    assert report.title == "kernel panic: lost NUM of ADDR at IP"


def test_a_number_beside_a_damaged_byte_is_volatile_too() -> None:
    report = report_of(b"Kernel panic - not syncing: lost\xe912\xb2 of \xe9\n")
    assert report.title == "kernel panic: lostNUM of"


def test_symbolisation_does_not_change_the_title() -> None:
    log = kasan("use-after-free").replace(
        "BUG: KASAN: use-after-free in my_driver_peek+0x91/0xc0\n",
        "BUG: KASAN: use-after-free in my_inline include/linux/my.h:12 [inline]\n"
        "BUG: KASAN: use-after-free in my_driver_peek+0x91/0xc0 drivers/my/driver.c:77\n",
    )
    report = report_of(log)
    assert report.title == "KASAN: use-after-free Read in my_driver_peek"
