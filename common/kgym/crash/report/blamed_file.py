"""The source file blamed by a symbolised report."""

import posixpath
import re

from kgym.crash.report import crash_lines

_SOURCE = re.compile(r"([\w./-]*[\w-]\.[ch]):[0-9]+")
# Lines with functions that are not on the path to the crash: among others, locks that a task holds,
# and frames that the unwinder could not verify.
_ASIDE = re.compile(
    r"(?:hard|soft)irqs\s+last\s+(?:en|dis)abled|^Register r\d+ information"
    r"|^\s*#\d+: .*\bat: |^\s*(?:\[<?[0-9a-f]+>?\] )?\? "
)
# of builds in a folder of their own
_UPWARDS = re.compile(r"^(?:\.\./)+")
_STALL = re.compile(r"INFO: rcu_[a-z]+ (?:self-)?detected(?: expedited)? stall")
_INTERRUPTS = ("apic_timer_interrupt+0x", "el1h_64_irq+0x", "Exception stack")

# Files of generic functions, which are rarely at fault.
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
    """Return the source file to blame, relative to the kernel's root; None without source lines.

    It is the file of the topmost frame outside the generic parts of the kernel, or of the topmost
    frame if the whole stack is generic. If files further down are in a subfolder of its folder, the
    deepest of them is taken, whose maintainers know more. Lines before the crash do not count; in a
    stall, neither do the watchdog's frames above the interrupted ones. The rules are those of
    syzkaller's pkg/report.
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
    """Return whether a file has generic functions, which are rarely at fault."""
    return _GENERIC.match(path) is not None


def _topmost(text: str) -> str | None:
    guilty = fallback = None
    for line in text.split("\n"):
        files = _SOURCE.findall(line)
        if files and fallback is None:
            fallback = files[0]
        for name in () if _ASIDE.search(line) else files:
            file = _UPWARDS.sub("", posixpath.normpath(name))
            if not _GENERIC.match(name) and (
                guilty is None or _is_deeper(file, posixpath.dirname(guilty))
            ):
                guilty = file
    return guilty or fallback


def _is_deeper(file: str, folder: str) -> bool:
    """Return whether `file` is in a folder below `folder`."""
    return file.startswith(f"{folder}/") and "/" in file[len(folder) + 1 :]
