"""Which source file a symbolised report blames."""

import posixpath
import re

_SOURCE = re.compile(r"(?<![\w/.-])((?:[\w-]+|\.\.?)(?:/(?:[\w+-]|\.)+)*\.[chS]):[0-9]+")
_TRACE = re.compile(r"Call [Tt]race:|Backtrace:")

# Files whose functions serve all others: the fault is rarely theirs.
_GENERIC = re.compile(
    r"\.[hS]$|^(?:lib|virt/lib|rust|trusty)/|^tools/"
    r"|^mm/(?:kasan|kmsan|kfence|sl.b|slab_common|filemap|folio-compat|truncate|memory|percpu"
    r"|vmalloc|page_alloc|mempool|util|mempolicy|kmemleak|debug|gup|usercopy|mmap|maccess)\b"
    r"|^kernel/(?:rcu|locking|sched|printk|kcsan|entry|irq|time)/"
    r"|^kernel/(?:kcov|cpu|panic|softirq|kthread|stacktrace|workqueue|hung_task|watchdog|fork"
    r"|exit|task_work|smp|signal)\.c$"
    r"|^net/(?:core/(?:dev|sock|skbuff)|socket)\.c$"
    r"|^fs/(?:proc/generic|inode|super|fs-writeback|buffer|dcache|namei|read_write|ioctl|open"
    r"|file_table|namespace|libfs)\.c$"
    r"|^arch/[^/]+/(?:entry|lib)/|^arch/[^/]+/mm/(?:fault|physaddr|extable)"
    r"|^arch/[^/]+/kernel/(?:traps|unwind|stacktrace|entry|dumpstack|process|irq|syscall|apic)"
    r"|^arch/[^/]+/include/|^drivers/usb/core/urb\.c$|^security/security\.c$|^block/bio\.c$"
)


def guilty_file(report_text: str) -> str | None:
    """Return the source file to blame, relative to the kernel's root.

    That is the file of the topmost frame outside of the generic parts of the kernel, or the
    topmost of all where the whole stack is generic; None for a report without source lines.
    """
    if "rcu detected stall" in report_text or "_stall" in report_text[:200]:
        trace = _TRACE.search(report_text)
        report_text = report_text[trace.start() :] if trace else report_text
    topmost: str | None = None
    for match in _SOURCE.finditer(report_text):
        file = posixpath.normpath(match[1])
        if topmost is None and not file.endswith((".h", ".S")):
            topmost = file
        if not _GENERIC.search(file):
            return file
    return topmost
