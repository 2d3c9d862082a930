"""The parser of console logs: finds crashes and makes their reports."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kgym.crash.report import crash_lines
from kgym.crash.report.blamed_file import guilty_file
from kgym.crash.report.crash_report import CrashReport, Executor, Frame
from kgym.crash.report.description import Description, describe
from kgym.crash.report.excerpt import MAX_LENGTH, Excerpt, excerpt
from kgym.crash.report.frames import parse_crashed, parse_frame
from kgym.crash.report.line_prefixes import Prefixes

_LATER_LENGTH = 1 << 14
_MAX_ANNOUNCEMENTS = 400
_HANGUP = b"serialport: VM disconnected."  # GCE
_PANIC = b"Kernel panic - not syncing"
# Problems of the machine that runs the test programs, or of the programs themselves.
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
# A task's name has up to 15 bytes, of any kind (TASK_COMM_LEN); a worker's has more.
_NAME = r"((?s:.){0,64}?)"
_CPU = re.compile(
    rf"CPU: ([0-9]+)(?: UID: [0-9]+)? PID: ([0-9]+) Comm: {_NAME}"
    r"(?: Kdump: loaded)? (?:Not t|T)ainted"
)
# Reports of a watchdog or of a leak detector, in which another task than the printing one is meant.
_TASK = re.compile(
    rf"INFO: task {_NAME}:([0-9]+) (?:blocked|can't die)|stuck for .*\[{_NAME}:([0-9]+)\]"
    rf"|comm \"{_NAME}\", pid ([0-9]+),| by task {_NAME}/([0-9]+)$|, CPU#[0-9]+: {_NAME}/([0-9]+)$"
    # lockdep
    r"|^(.+)/([0-9]+) (?:is (?:trying|freeing|leaving)|just changed|\[HC[0-9])",
    re.MULTILINE,
)
_TRACE = re.compile(r"Call [Tt]race:|Backtrace:|backtrace(?: \(crc [0-9a-f]+\))?:")
_OWN_TRACE = "stack backtrace:"
_ALLOCATED = re.compile(
    r"Allocated(?: by task [0-9]+.*)?:|allocated by task [0-9]+|was created at:"
)
_FREED = re.compile(r"Freed(?: by task [0-9]+.*)?:|freed by task [0-9]+")
_END = re.compile(
    r"\s*$|Modules linked in|---\[ end|={20}|The buggy address|Memory state|R?IP: 0033:"
    r"|unreferenced object|Kernel panic|INFO: |Exception stack"
)


def parse(log: bytes | str, *, running: bool = False) -> CrashReport | None:
    """Return the first crash in a console log; None if it contains none.

    `running` says that the machine had already booted when the log begins. Then a boot in the log
    is a crash, even if no earlier line shows that a kernel was running.

    Any bytes are accepted: lines may be cut, mixed and dropped. A report damaged by that is marked
    as corrupted; no error is raised. The rules (which lines announce a crash, its title, what makes
    a report corrupted) are those of syzkaller's pkg/report for Linux, so that the count of crashes
    is that of syzbot.
    """
    # Only the kernel can write crashes to the log: the guest boots with printk.devkmsg=off, and its
    # programs find no device that leads to the console.
    return next(_reports(_bytes(log), running=running), None)


def parse_all(log: bytes | str) -> list[CrashReport]:
    """Return every distinct crash in a console log, in order.

    Later reports with the same title, and messages of a kernel that is dying of an earlier crash
    (panic, oops), do not count.
    """
    reports: dict[str, CrashReport] = {}
    for report in _reports(_bytes(log)):
        reports.setdefault(report.title, report)
    return list(reports.values())


def _bytes(log: bytes | str) -> bytes:
    return log if isinstance(log, bytes) else log.encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Log:
    """Properties of a whole log."""

    suppressed: bool
    hung_up: bool
    last_panic: int


def _reports(log: bytes, *, running: bool = False) -> Iterator[CrashReport]:
    length = MAX_LENGTH
    whole: _Log | None = None
    prefixes = Prefixes.of(log)
    announcements = crash_lines.find(log, running=running, prefixes=prefixes)
    for number, (start, family) in enumerate(announcements):
        if number == _MAX_ANNOUNCEMENTS:
            return
        if number and family.dying:
            continue
        whole = whole or _Log(bool(_SUPPRESSED.search(log)), _HANGUP in log, log.rfind(_PANIC))
        report = excerpt(log, start, length, prefixes)
        yield _assemble(whole, report, describe(report.own_lines(), family, report.body()))
        length = _LATER_LENGTH


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
        frames=_crash_stack(lines),
        text=text,
        start=report.start,
        end=report.end,
        executor=Executor(int(executor[1]), int(executor[2])) if executor else None,
        task=task,
        pid=pid,
        cpu=cpu,
        guilty_file=guilty_file(body),
        alloc_stack=_stack_after(lines, _ALLOCATED),
        free_stack=_stack_after(lines, _FREED),
    )


def _who(body: str) -> tuple[str | None, int | None, int | None]:
    """Return the task at fault, its PID and its CPU, as far as the report names them."""
    place = _CPU.search(body)
    named = _TASK.search(body)
    if named is None:
        return (place[3], int(place[2]), int(place[1])) if place else (None, None, None)
    task, pid = (group for group in named.groups() if group is not None)
    return task, int(pid), int(place[1]) if place and place[2] == pid else None


# --- stack traces: of the crash, of the object's allocation, and of its release -----------------


def _crash_stack(lines: Sequence[str]) -> tuple[Frame, ...]:
    """Return the crashing stack, beginning with the instruction in the register dump, if any."""
    start = _stack_start(lines)
    if start is None:
        return _frames(lines, 1)
    crashed = next((frame for line in lines[1:start] if (frame := parse_crashed(line))), None)
    frames = _frames(lines, start + 1)
    if crashed and (not frames or frames[0] != crashed):
        return (crashed, *frames)
    return frames


def _stack_start(lines: Sequence[str]) -> int | None:
    """Return the index of the line where the report's own stack begins; None without a stack.

    lockdep prints the traces of other tasks before it.
    """
    own = next((i for i, line in enumerate(lines) if _OWN_TRACE in line), 0)
    return next((i for i, line in enumerate(lines) if i > own and _TRACE.search(line)), None)


def _stack_after(lines: Sequence[str], heading: re.Pattern[str]) -> tuple[Frame, ...]:
    """Return the stack below a heading; empty if the report has none."""
    for number, line in enumerate(lines):
        if heading.search(line):
            return _frames(lines, number + 1)
    return ()


def _frames(lines: Sequence[str], start: int) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    for line in lines[start:]:
        frame = parse_frame(line)
        if frame:
            frames.append(frame)
        elif frames and (_END.match(line) or _TRACE.search(line)):
            break
    return tuple(frames)
