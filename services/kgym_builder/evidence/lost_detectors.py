"""Compare configs and compiler flags: can a patched kernel still report bugs? Pure."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping

from kgym.api.steps import Finding, Severity
from kgym_builder.evidence.scrutiny import detector
from kgym_builder.kbuild import kconfig

_SHOWN = 5
_DETECTOR = re.compile(
    r"(HAVE_|ARCH_)?(KASAN|KCSAN|KMSAN|UBSAN|KFENCE|KCOV|CFI|LOCKDEP|PROVE|LOCK_STAT|DEBUG|HARDENED"
    r"|FORTIFY|STACKPROTECTOR|SLUB_DEBUG|DETECT|SOFTLOCKUP|HARDLOCKUP|BOOTPARAM|WQ_WATCHDOG|WATCHDOG"
    r"|RCU_CPU_STALL|RCU_EXP|TRACE_IRQFLAGS|PANIC|PRINTK|CONSOLE|MESSAGE_|EARLY_PRINTK|SERIAL|TTY"
    r"|BUG|GENERIC_BUG|KALLSYMS|STACKTRACE|UNWINDER|FRAME_POINTER|STACKDEPOT|PAGE_POISONING|REFCOUNT"
    r"|PAGE_OWNER|INIT_ON|VMAP_STACK|FAULT_INJECTION|FTRACE|TRACING|DYNAMIC_DEBUG|LOG_BUF|CC_HAS"
    r"|DEFAULT_HUNG_TASK|SCHED_STACK_END|RANDOMIZE)\w*",
    re.ASCII,
)
_SANITIZER = re.compile(
    r"-f(no-)?sanitize\S*|-fasan\S*|asan-\S+|hwasan-\S+|-D\w*(SANITIZE|KASAN|KCSAN|UBSAN|KMSAN)\w*"
    r"|-fplugin\S*|-mllvm|-fstack-protector\S*|-fno-stack-protector\S*"
)
_LOSES = re.compile(r"-fno-sanitize\S*|-f(no-)stack-protector\S*|-U\S+")


# --- config -------------------------------------------------------------------------------------


def configs(before: str, after: str) -> Iterator[Finding]:
    """Compare two final configs: a lost or weaker detector blocks, other changes are notes."""
    old, new = kconfig.symbols(before), kconfig.symbols(after)
    changed = {
        name: (old.get(name, "n"), new.get(name, "n"))
        for name in sorted({*old, *new})
        if old.get(name, "n") != new.get(name, "n")
    }
    grave = {name: change for name, change in changed.items() if _DETECTOR.fullmatch(name)}
    for severity, group, reason in (
        (Severity.BLOCKING, grave, "config_weaker"),
        (Severity.NOTE, {k: v for k, v in changed.items() if k not in grave}, "config_changed"),
    ):
        if group:
            shown = [f"CONFIG_{name} is {new}, not {old}" for name, (old, new) in group.items()]
            yield detector(reason, severity, _listed(shown))


# --- compiler commands --------------------------------------------------------------------------


def commands(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the commands of objects, by path: any other flag than before blocks."""
    weaker, other = [], []
    for path in sorted(before.keys() & after.keys()):
        if before[path] == after[path]:
            continue
        old, new = set(_words(before[path])), set(_words(after[path]))
        lost = {word for word in old - new if _SANITIZER.fullmatch(word)}
        lost |= {word for word in new - old if _LOSES.fullmatch(word)}
        if lost:
            weaker.append(f"{path} ({', '.join(sorted(lost)[:3])})")
        elif old != new:
            other.append(f"{path} ({', '.join(sorted(old ^ new)[:3])})")
    if weaker:
        message = f"compiled without a sanitizer: {_listed(weaker)}"
        yield detector("flags_weaker", Severity.BLOCKING, message)
    if other:
        message = f"compiled with other flags: {_listed(other)}"
        yield detector("flags_changed", Severity.BLOCKING, message)


def linked(before: Collection[str], after: Collection[str]) -> Iterator[Finding]:
    """Compare the objects of two kernels: a missing one blocks."""
    if gone := sorted(set(before) - set(after)):
        message = f"no longer in the kernel: {_listed(gone)}"
        yield detector("object_dropped", Severity.BLOCKING, message)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _listed(items: Collection[str]) -> str:
    shown = list(items)[:_SHOWN]
    more = len(items) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
