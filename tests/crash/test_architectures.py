"""The forms that each architecture gives to its oopses."""

import pytest

from kgym.crash.report.frames import parse_crashed
from tests.crash.reports import report_of
from tests.crash.test_titles import TRACE


@pytest.mark.parametrize(
    ("registers", "frame"),
    [
        ("pc : my_driver_ioctl+0x12/0x340\nlr : caller_of_it+0x1/0x2", "arm64"),
        ("PC is at my_driver_ioctl+0x12/0x340\nLR is at caller_of_it+0x1/0x2", "arm"),
        ("epc : my_driver_ioctl+0x12/0x340\n ra : caller_of_it+0x1/0x2", "riscv"),
        ("NIP [c000000000123456] my_driver_ioctl+0x12/0x340", "powerpc"),
        ("RIP: 0010:[<ffffffff81234567>]  [<ffffffff81234567>] my_driver_ioctl+0x12/0x340", "x86"),
        ("RIP: 0010:my_driver_ioctl+0x12/0x340 fs/file.c:12", "symbolised"),
        ("EIP: my_driver_ioctl+0x12/0x340", "i386"),
    ],
)
def test_the_crashing_instruction_is_found_on_every_architecture(
    registers: str, frame: str
) -> None:
    report = report_of(f"Unable to handle kernel paging request at 0\n{registers}\n" + TRACE)
    assert report.title == "BUG: unable to handle kernel paging request in my_driver_ioctl", frame


@pytest.mark.parametrize(
    "line",
    [
        "epc   : 80123456 my_driver_ioctl+0x12/0x340",
        "   ERA: 9000000000ba1c8c my_driver_ioctl+0x12/0x340",
        "Krnl PSW : 0704c00180000000 000000000012e5ae (my_driver_ioctl+0x12/0x340)",
    ],
    ids=["mips", "loongarch", "s390"],
)
def test_an_address_before_the_crashing_function_is_passed_over(line: str) -> None:
    report = report_of(f"Unable to handle kernel NULL pointer dereference at 8\n{line}\n" + TRACE)
    assert report.title.endswith("NULL pointer dereference in my_driver_ioctl")
    frame = parse_crashed(line)
    assert frame is not None
    assert (frame.function, frame.offset) == ("my_driver_ioctl", 0x12)


LOGS = {
    "arm": """\
8<--- cut here ---
Unable to handle kernel paging request at virtual address 00000008 when read
Internal error: Oops: 207 [#1] PREEMPT SMP ARM
CPU: 0 PID: 12 Comm: prog Not tainted 6.1 #1
PC is at memcpy+0x28/0x2c
LR is at caller+0x12/0x34
Register r0 information: slab my_cache
 Call trace:
 memcpy from my_func+0x28/0x2c
 my_func from caller+0x28/0x2c
""",
    "arm up to 5.17": """\
Unable to handle kernel paging request at virtual address 00000008
Internal error: Oops: 207 [#1] PREEMPT SMP ARM
PC is at memcpy+0x28/0x2c
Backtrace:
[<80123456>] (memcpy) from [<80123556>] (my_func+0x28/0x2c)
[<80123456>] (my_func) from [<80123556>] (caller+0x28/0x2c)
""",
    "arm64": """\
Unable to handle kernel paging request at virtual address dfff800000000003
Mem abort info:
  ESR = 0x0000000096000006
Internal error: Oops: 0000000096000006 [#1] PREEMPT SMP
pstate: 60400005 (nZCv daif +PAN -UAO)
pc : my_func+0x12/0x34
lr : caller+0x12/0x34
Call trace:
 my_func+0x12/0x34
 el0_svc_common+0x12/0x34
""",
    "powerpc": """\
BUG: Unable to handle kernel data access on read at 0xc00a000000000000
Faulting instruction address: 0xc0000000001234
Oops: Kernel access of bad area, sig: 11 [#1]
NIP:  c0000000001234 LR: c0000000001230 CTR: 000
NIP [c0000000001234] my_func+0x12/0x34
LR [c0000000001230] caller+0x12/0x34
Call Trace:
[c000000012345680] [c0000000001238] sys_read+0x12/0x34
[c000000012345690] [c000000000123c] system_call+0x5c/0x70
""",
    "s390": """\
Unable to handle kernel pointer dereference in virtual kernel address space
Failing address: 0000000000000000 TEID: 0000000000000483
Oops: 0004 ilc:2 [#1] SMP
Krnl PSW : 0704c00180000000 000000000012e5ae (my_func+0x26/0x78)
Call Trace:
 [<000000000012e5ae>] my_func+0x26/0x78
 [<000000000012e6ae>] system_call+0x26/0x78
""",
    "riscv": """\
Unable to handle kernel paging request at virtual address 0000000000000008
Oops [#1]
epc : my_func+0x12/0x34
 ra : caller+0x12/0x34
status: 0000000000000120 badaddr: 0000000000000008 cause: 000000000000000d
[<ffffffff80123456>] my_func+0x12/0x34
[<ffffffff80123656>] ret_from_syscall+0x0/0x2
---[ end trace 0000 ]---
""",
    "mips": """\
CPU 0 Unable to handle kernel paging request at virtual address 00000000, epc == 80123456
Oops[#1]:
epc   : 80123456 my_func+0x10/0x20
ra    : 80123400 caller+0x1/0x20
Call Trace:
[<80123456>] my_func+0x10/0x20
[<80123656>] handle_sys+0x10/0x20
""",
    "loongarch": """\
CPU 1 Unable to handle kernel paging request at virtual address 0000000000000008, era == 9
Oops[#1]:
   ra: 9000000000ba1c80 caller+0x48/0xf0
  ERA: 9000000000ba1c8c my_func+0x3c/0x14c
Call Trace:
[<9000000000ba1c8c>] my_func+0x3c/0x14c
[<9000000000ba1c80>] handle_syscall+0x48/0xf0
""",
}


@pytest.mark.parametrize("name", LOGS)
def test_a_bad_access_has_one_title_on_all(name: str) -> None:
    report = report_of(LOGS[name])
    assert (report.title, report.corrupted_reason) == (
        "BUG: unable to handle kernel paging request in my_func",
        "",
    )


@pytest.mark.parametrize(
    ("message", "registers"),
    [
        ("Internal error: Oops - BUG: 00000000f2000800 [#1] PREEMPT SMP", "pc : my_func+0x1/0x2"),
        ("Oops: Exception in kernel mode, sig: 5 [#1]", "NIP [c0000000001234] my_func+0x1/0x2"),
        ("monitor event: 0040 ilc:2 [#1] SMP", "Krnl PSW : 07 12e5ae (my_func+0x1/0x2)"),
        ("invalid opcode: 0000 [#1] SMP", "RIP: 0010:my_func+0x1/0x2"),
        ("", "Kernel bug detected[#1]:\nepc   : 80123456 my_func+0x1/0x2"),
    ],
    ids=["arm64", "powerpc", "s390", "x86", "mips"],
)
def test_a_bug_has_one_title_on_all(message: str, registers: str) -> None:
    report = report_of(f"kernel BUG at fs/my.c:12!\n{message}\n{registers}\n" + TRACE)
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
