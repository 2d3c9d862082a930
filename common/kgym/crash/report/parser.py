"""Reading the crashes out of a console log."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kgym.crash.report import crash_lines
from kgym.crash.report.blamed_file import guilty_file
from kgym.crash.report.crash_report import CrashReport, Executor
from kgym.crash.report.description import Description, describe
from kgym.crash.report.excerpt import MAX_LENGTH, Excerpt, excerpt
from kgym.crash.report.families import Family
from kgym.crash.report.stack import alloc_stack, crash_stack, free_stack

_LATER_LENGTH = 1 << 14
_MAX_ANNOUNCEMENTS = 400
_HANGUP = b"serialport: VM disconnected."  # GCE
_PANIC = b"Kernel panic - not syncing"
# Trouble of the machine that runs the test programs, or of the programs themselves.
_SUPPRESSED = re.compile(
    rb"fatal error: (?:(?:runtime: )?(?:out of memory|cannot allocate memory)|newosproc"
    rb"|unexpected signal during runtime execution)"
    rb"|panic: (?:failed to start executor binary|failed to create temp dir"
    rb"|executor failed: pthread_create failed|.{0,200}cannot allocate memory)"
    rb"|signal SIGBUS: bus error|SYZFAIL: (?:SIGBUS|mmap of output file failed)"
    rb"|(?:Kill|Killed) process .{0,40}\((?:syz-(?:executor|fuzzer|manager)|sshd)\)"
    rb"|lowmemorykiller: Killing '(?:syz-executor|syz-fuzzer|sshd)'"
    rb"|INIT: PANIC: segmentation violation!|\*\*\* stack smashing detected \*\*\*: terminated"
)
_EXECUTOR = re.compile(r" Comm: syz\.([0-9]+)\.([0-9]+) ")
_CPU = re.compile(r"CPU: ([0-9]+)(?: UID: [0-9]+)? PID: ([0-9]+) Comm: (.*?) (?:Not t|T)ainted")
# Where a watchdog reports, or a program that looks for leaks, another task is at fault.
_TASK = re.compile(
    r"INFO: task (.+?):([0-9]+) (?:blocked|can't die)|stuck for .*\[(.+):([0-9]+)\]"
    r"|comm \"(.*?)\", pid ([0-9]+),| by task (.+)/([0-9]+)$"
    # lockdep
    r"|^(.+)/([0-9]+) (?:is (?:trying|freeing|leaving)|just changed|\[HC[0-9])",
    re.MULTILINE,
)


def parse(log: bytes | str, *, running: bool = False) -> CrashReport | None:
    """Return the first crash in a console log, None if it holds none.

    `running` says that the machine had booted when the log begins: a boot in it is a crash then,
    even if nothing before it tells so.

    Any bytes are a log: lines may be cut, mixed and dropped. What could not be read for that is
    marked corrupted; nothing raises. The rules (which lines announce a crash, how it is named,
    what a damaged report is) are those that syzkaller's pkg/report follows for Linux.
    """
    return next(_reports(_bytes(log), running=running), None)


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


def _reports(log: bytes, *, running: bool = False) -> Iterator[CrashReport]:
    length = MAX_LENGTH
    whole: _Log | None = None
    for number, (start, family) in enumerate(crash_lines.find(log, running=running)):
        if number == _MAX_ANNOUNCEMENTS:
            return
        if number and family.dying:
            continue
        whole = whole or _Log(log, bool(_SUPPRESSED.search(log)), _HANGUP in log, log.rfind(_PANIC))
        yield _report(whole, start, family, length)
        length = _LATER_LENGTH


def _report(log: _Log, start: int, family: Family, length: int) -> CrashReport:
    report = excerpt(log.data, start, length)
    return _assemble(log, report, describe(report.own_lines(), family, report.body()))


def _assemble(log: _Log, report: Excerpt, description: Description) -> CrashReport:
    text, body = (
        part.encode("latin-1").decode("utf-8", "replace") for part in (report.text(), report.body())
    )
    executor = _EXECUTOR.search(text)
    task, pid, cpu = _who(body)
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
        task=task,
        pid=pid,
        cpu=cpu,
        guilty_file=guilty_file(body),
        alloc_stack=alloc_stack(lines),
        free_stack=free_stack(lines),
    )


def _who(body: str) -> tuple[str | None, int | None, int | None]:
    """Return the task at fault, its PID, and the CPU that it ran on where the report tells."""
    place = _CPU.search(body)
    named = _TASK.search(body)
    if named is None:
        return (place[3], int(place[2]), int(place[1])) if place else (None, None, None)
    task, pid = (group for group in named.groups() if group is not None)
    return task, int(pid), int(place[1]) if place and place[2] == pid else None
