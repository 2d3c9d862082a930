"""Reading the crashes out of a console log."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kgym.report import scan
from kgym.report.cut import MAX_LENGTH, Cut, cut
from kgym.report.describe import NO_FRAMES, Description, describe
from kgym.report.families import Family
from kgym.report.guilty import guilty_file
from kgym.report.lines import CONSOLE
from kgym.report.model import CrashReport, CrashType, Executor
from kgym.report.stack import alloc_stack, crash_stack, free_stack

_LATER_LENGTH = 1 << 14
_MAX_ANNOUNCEMENTS = 400
_HANGUP = b"serialport: VM disconnected."  # GCE
_PANIC = b"Kernel panic - not syncing"
# Trouble of the machine that runs the test programs, or of the programs themselves.
_SUPPRESSED = re.compile(
    rb"fatal error: (?:runtime: )?(?:out of memory|cannot allocate memory|unexpected signal)"
    rb"|signal SIGBUS: bus error|SYZFAIL: mmap of output file failed"
    rb"|(?:Kill|Killed) process [0-9]{1,10},? \((?:syz-fuzzer|sshd|syz-manager)\)"
    rb"|lowmemorykiller: Killing '(?:syz-fuzzer|sshd)'|INIT: PANIC: segmentation violation!"
    rb"|\*\*\* stack smashing detected \*\*\*: terminated"
)
_EXECUTOR = re.compile(r"Comm: syz\.([0-9]+)\.([0-9]+)")
_CPU = re.compile(r"CPU: ([0-9]+)(?: UID: [0-9]+)? PID: ([0-9]+) Comm: (.*?) (?:Not t|T)ainted")


def parse(log: bytes | str) -> CrashReport | None:
    """Return the first crash in a console log, None if it holds none.

    Any bytes are a log: lines may be cut, mixed and dropped. What could not be read for that is
    marked corrupted; nothing raises. The rules (which lines announce a crash, how it is named,
    what a damaged report is) are those that syzkaller's pkg/report follows for Linux.
    """
    return next(_reports(_bytes(log)), None)


def parse_all(log: bytes | str) -> list[CrashReport]:
    """Return every distinct crash in a console log, in order.

    Later reports of a title already seen, and what the kernel says while it dies of an earlier
    crash (panic, oops), are no crashes of their own.
    """
    reports: dict[str, CrashReport] = {}
    for report in _reports(_bytes(log)):
        reports.setdefault(report.title, report)
    return list(reports.values())


def _bytes(log: bytes | str) -> bytes:
    return log if isinstance(log, bytes) else log.encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Log:
    """A log and what holds for all of it."""

    data: bytes
    suppressed: bool
    hung_up: bool
    last_panic: int


def _reports(log: bytes) -> Iterator[CrashReport]:
    length = MAX_LENGTH
    whole: _Log | None = None
    for number, (start, family) in enumerate(scan.find(log)):
        if number == _MAX_ANNOUNCEMENTS:
            return
        if number and family.dying:
            continue
        whole = whole or _Log(log, bool(_SUPPRESSED.search(log)), _HANGUP in log, log.rfind(_PANIC))
        report = _report(whole, start, family, length)
        if report:
            yield report
            length = _LATER_LENGTH


def _report(log: _Log, start: int, family: Family, length: int) -> CrashReport | None:
    report = cut(log.data, start, family, length, uncertain=False)
    description = _describe(report)
    if (
        description
        and description.corrupted == NO_FRAMES
        and description.type is not CrashType.HANG
        and report.lines[0].context != CONSOLE
    ):
        # All frames of some stacks are uncertain: better those than none. Not for a stall, where
        # leftovers of an earlier call would be taken for the way into the loop.
        report = cut(log.data, start, family, length, uncertain=True)
        description = _describe(report) or description
    return _assemble(log, report, description) if description else None


def _describe(report: Cut) -> Description | None:
    return describe(report.own_lines(), report.family, report.body())


def _assemble(log: _Log, report: Cut, description: Description) -> CrashReport:
    text = report.text().encode("latin-1").decode("utf-8", "replace")
    executor = _EXECUTOR.search(text)
    place = _CPU.search(text)
    lines = report.all_lines()
    corrupted = description.corrupted or ("the VM hung up" if log.hung_up else "")
    return CrashReport(
        title=description.title,
        alt_titles=description.alt_titles,
        type=description.type,
        corrupted=bool(corrupted),
        corrupted_reason=corrupted,
        suppressed=log.suppressed,
        panicked=log.last_panic >= report.start,
        frames=crash_stack(lines),
        text=text,
        start=report.start,
        end=report.end,
        executor=Executor(int(executor[1]), int(executor[2])) if executor else None,
        task=place[3] if place else None,
        pid=int(place[2]) if place else None,
        cpu=int(place[1]) if place else None,
        guilty_file=guilty_file(report.body()),
        alloc_stack=alloc_stack(lines),
        free_stack=free_stack(lines),
    )
