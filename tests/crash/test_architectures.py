"""The forms that each architecture gives to its oopses."""

import pytest

from kgym.crash.report.frames import parse_crashed
from tests.crash.reports import logs, report_of
from tests.crash.test_titles import TEMPLATES
from tests.tables import json_rows, rows


@pytest.mark.parametrize(("registers", "frame"), rows(__file__, "crashing_instructions.tsv"))
def test_the_crashing_instruction_is_found_on_every_architecture(
    registers: str, frame: str
) -> None:
    report = report_of(
        f"Unable to handle kernel paging request at 0\n{registers}\n" + TEMPLATES["trace"]
    )
    assert report.title == "BUG: unable to handle kernel paging request in my_driver_ioctl", frame


@pytest.mark.parametrize(
    "line", json_rows(__file__, "addresses.jsonl"), ids=["mips", "loongarch", "s390"]
)
def test_an_address_before_the_crashing_function_is_passed_over(line: str) -> None:
    report = report_of(
        f"Unable to handle kernel NULL pointer dereference at 8\n{line}\n" + TEMPLATES["trace"]
    )
    assert report.title.endswith("NULL pointer dereference in my_driver_ioctl")
    frame = parse_crashed(line)
    assert frame is not None
    assert (frame.function, frame.offset) == ("my_driver_ioctl", 0x12)


LOGS = logs("architectures.txt")


@pytest.mark.parametrize("name", LOGS)
def test_a_bad_access_has_one_title_on_all(name: str) -> None:
    report = report_of(LOGS[name])
    assert (report.title, report.corrupted_reason) == (
        "BUG: unable to handle kernel paging request in my_func",
        "",
    )


@pytest.mark.parametrize(
    ("message", "registers"),
    json_rows(__file__, "one_bug.jsonl"),
    ids=["arm64", "powerpc", "s390", "x86", "mips"],
)
def test_a_bug_has_one_title_on_all(message: str, registers: str) -> None:
    report = report_of(f"kernel BUG at fs/my.c:12!\n{message}\n{registers}\n" + TEMPLATES["trace"])
    assert report.title == "kernel BUG in my_func"


@pytest.mark.parametrize(
    "what",
    [
        "write to read-only memory",
        "execute from non-executable memory",
        "read from unreadable memory",
    ],
)
def test_what_arm64_says_of_memory_that_is_not_for_this_is_the_title(what: str) -> None:
    """syzbot's bugs of this kind have it, with no function."""
    paging = "Unable to handle kernel paging request"
    assert paging in LOGS["arm64"]
    report = report_of(LOGS["arm64"].replace(paging, f"Unable to handle kernel {what}"))
    assert report.title == f"Unable to handle kernel {what} at virtual address ADDR"
    assert not report.corrupted
