"""Which source file a symbolised report blames."""

import posixpath
import re

from kgym.crash.report import crash_lines

_SOURCE = re.compile(r"([\w./-]*[\w-]\.[ch]):[0-9]+")
# Lines that name functions which are not on the way to the crash.
_ASIDE = re.compile(r"(?:hard|soft)irqs\s+last\s+(?:en|dis)abled|^Register r\d+ information")
_STALL = re.compile(r"INFO: rcu_[a-z]+ (?:self-)?detected(?: expedited)? stall")
_INTERRUPTS = ("apic_timer_interrupt+0x", "el1h_64_irq+0x", "Exception stack")

# Files whose functions serve all others: the fault is rarely theirs.
_GENERIC = re.compile(
    r".*\.h|(?:lib|virt/lib|mm/kasan|mm/kmsan|kernel/rcu|kernel/locking|trusty)/"
    r"|mm/(?:sl[aou]b|slab_common|filemap|folio-compat|truncate|memory|vmalloc|page_alloc|mempool|util)\.c"
    r"|mm/percpu"
    r"|kernel/(?:kcov|panic|softirq|kthread|stacktrace|workqueue|time/timer)\.c"
    r"|kernel/(?:printk/printk|sched/).*\.c"
    r"|arch/.*/kernel/(?:traps|unwind.*|stacktrace|apic/apic)\.c|arch/.*/mm/(?:fault|physaddr)\.c"
    r"|arch/arm64/kernel/(?:entry.*|process)\.c|arch/.*/lib/crc"
    r"|net/core/(?:dev|sock|skbuff)\.c|fs/proc/generic\.c|drivers/usb/core/urb\.c"
)


def guilty_file(report_text: str) -> str | None:
    """Return the source file to blame, relative to the kernel's root.

    That is the file of the topmost frame outside of the generic parts of the kernel, or the
    topmost of all where the whole stack is generic; where files further down stand in a
    subfolder of its folder, the deepest of those, whose maintainers know more. None for a report
    without source lines. What stands before the crash does not count, and of a stall neither does
    what the watchdog did above what it interrupted. The rules are those of syzkaller's pkg/report.
    """
    log = report_text.encode("utf-8", "replace")
    start = next((start for start, _ in crash_lines.find(log)), 0)
    report_text = log[start:].decode("utf-8", "replace")
    if _STALL.search(report_text.partition("\n")[0]):
        for interrupt in _INTERRUPTS:
            start = report_text.find(interrupt)
            if start >= 0 and (file := _topmost(report_text[start:])):
                return file
    return _topmost(report_text)


def is_generic(path: str) -> bool:
    """Tell whether the functions of a file serve all others, so that the fault is rarely theirs."""
    return _GENERIC.match(path) is not None


def _topmost(text: str) -> str | None:
    guilty = fallback = None
    for line in text.split("\n"):
        match = _SOURCE.search(line)
        if match is None:
            continue
        fallback = fallback or match[1]
        if _GENERIC.match(match[1]) or _ASIDE.search(line):
            continue
        file = posixpath.normpath(match[1])
        if guilty is None or _is_deeper(file, posixpath.dirname(guilty)):
            guilty = file
    return guilty or fallback


def _is_deeper(file: str, folder: str) -> bool:
    """Whether `file` stands in a folder below `folder`."""
    return file.startswith(f"{folder}/") and "/" in file[len(folder) + 1 :]
