"""The excerpt of a report from a log in which other tasks and CPUs print in between."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kgym.crash.report import crash_lines
from kgym.crash.report.console_lines import Line, read
from kgym.crash.report.families import OOPS, Family
from kgym.crash.report.frames import is_inlined
from kgym.crash.report.line_prefixes import Prefixes

_LINES_BEFORE = 5
_TASKS_LINES_BEFORE = 50
_BYTES_BEFORE = (1 << 12, 1 << 16)
_ENOUGH_LINES = 22
_ENOUGH_KMSAN_LINES = 16  # its reports have no registers
# Bytes of log after the first line of a crash that can belong to its report.
MAX_LENGTH = 1 << 20

# Messages with a stack trace that are not a crash. If the log has no callers, the lines after one
# may belong to it.
_OTHER_TRACES = re.compile(
    r"vmalloc: allocation failure|FAULT_INJECTION: forcing a failure"
    r"|FAULT_FLAG_ALLOW_RETRY missing"
)
# panic_on_warn and oopses print the same stack again; so does lockdep when printing deadlocks.
_REPEATS = re.compile(
    r"Kernel panic - not syncing|WARNING: possible circular locking dependency detected"
)
# Paths as symbolizers print them, and the folders of the kernel's tree.
_ABSOLUTE = re.compile(r"(?<![\w.])/[\w./+~@-]{1,200}\.(?:[chS]|rs)(?=:[0-9])")
_TOP = re.compile(
    r"(?<=/)(?<!/drivers/)(?<!/include/)(?<!/lib/)(?<!/rust/)(?<!/arch/x86/)(?<!/arch/arm64/)"
    r"(?<!/arch/arm/)(?<!/arch/riscv/)(?<!/arch/s390/)(?<!/arch/powerpc/)(?:arch|block|certs|crypto|drivers|fs|include|init|io_uring|ipc|kernel|lib|mm|net|rust"
    r"|samples|security|sound|virt)(?=/)"
)
_LOCKDEP_TAINT = "Disabling lock debugging due to kernel taint"
_ALL_CPUS = "Sending NMI from CPU"


@dataclass(slots=True)
class Excerpt:
    """The lines of a report.

    `before` are up to 5 preceding lines of the same printer (50 if the log distinguishes tasks).
    `lines` include uncertain frames, which do not count. The first `own` of `lines` certainly
    belong to the report; the rest follows the announcement of another crash. `start` and `end` are
    offsets in the log, see `CrashReport`.
    """

    start: int
    end: int
    before: list[Line] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    own: int = 0

    def own_lines(self) -> list[str]:
        """The lines that certainly belong to the report, without prefixes.

        Inlined functions added by symbolisation are left out, so that it does not change a title.
        """
        own = (line for line in self.lines[: self.own] if not line.uncertain)
        return [line.text for line in own if not is_inlined(line.text)]

    def all_lines(self) -> list[str]:
        """All lines without prefixes, including uncertain frames."""
        return [line.text for line in self.lines]

    def body(self) -> str:
        """The report without the lines before it."""
        return "".join(f"{line.text}\n" for line in self.lines if not line.uncertain)

    def text(self) -> str:
        """The report with the lines before it."""
        return "".join(f"{line.text}\n" for line in self.before) + self.body()


def excerpt(log: bytes, start: int, length: int, prefixes: Prefixes) -> Excerpt:
    """Extract the report that begins with the line at `start` from the next `length` bytes."""
    window = log[start : start + length].decode("latin-1")
    announcements = dict(
        crash_lines.find(log, start, start + length, running=True, prefixes=prefixes)
    )
    lines = read(window, start, prefixes)
    first = next(lines)._replace(uncertain=False)
    before = _before(log, start, first.context, prefixes)
    report = Excerpt(start, first.end, before, lines=[first], own=1)
    enough = _ENOUGH_KMSAN_LINES if "BUG: KMSAN:" in first.text else _ENOUGH_LINES
    sure = True
    skipping = all_cpus = False
    count = 1
    for line in lines:
        if announcements.get(line.start, OOPS) is not OOPS:
            report.end = line.end
        sure = sure and not _another(line, announcements)
        if line.context != first.context and not (all_cpus and line.from_cpu):
            continue
        count += not line.uncertain
        # the backtraces of the other CPUs do not have the report's context
        all_cpus = all_cpus or _ALL_CPUS in line.text
        skipping = skipping or (count > enough and bool(_REPEATS.search(line.text)))
        if skipping or _LOCKDEP_TAINT in line.text:
            continue
        report.lines.append(line)
        if sure or first.context.startswith("["):  # it names a task or a CPU
            report.own = len(report.lines)
    _cut_paths(report)
    return report


def _cut_paths(report: Excerpt) -> None:
    """Remove the build's folder from the paths of source files, as the kernel names them."""
    paths = _ABSOLUTE.findall("\n".join(report.all_lines()))
    folders = Counter(
        path[: match.start()].removesuffix("./") for path in paths for match in _TOP.finditer(path)
    )
    # The folder in which most paths are those of the kernel's tree.
    folder = max(folders, key=lambda folder: (folders[folder], len(folder)), default="")
    if folder:
        report.lines = [
            line._replace(text=line.text.replace(f"{folder}./", "").replace(folder, ""))
            for line in report.lines
        ]


def _another(line: Line, announcements: Mapping[int, Family]) -> bool:
    """Return whether the lines from here on may belong to another message."""
    if line.start not in announcements:
        return _OTHER_TRACES.search(line.text) is not None
    return not crash_lines.continues(line.text)


def _before(log: bytes, start: int, context: str, prefixes: Prefixes) -> list[Line]:
    most = _TASKS_LINES_BEFORE if context.startswith("[T") else _LINES_BEFORE
    for length in _BYTES_BEFORE:
        begin = max(0, start - length)
        if begin:
            begin = log.find(b"\n", begin, start) + 1 or start
        lines = read(log[begin:start].decode("latin-1"), begin, prefixes)
        own = (line for line in lines if line.context == context and not line.uncertain)
        kept = [line for line in own if line.text][-most:]
        if len(kept) == most:
            break
    return kept
