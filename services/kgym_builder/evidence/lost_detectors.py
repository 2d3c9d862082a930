"""Compare configs, compiler flags and objects: can a patched kernel still report bugs? Pure.

Macros and headers can hide what the source does, but not the compiler's flags, nor the checks in
the objects.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kgym.api.steps import Finding, Severity
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
_CALLS = {
    "address": re.compile(r"__(asan|hwasan|kasan_check|msan)_\w+"),
    "undefined": re.compile(r"__ubsan_\w+"),
    "thread": re.compile(r"__(tsan|kcsan)_\w+"),
}
# Memory accesses beyond which a function without any check is no accident: of 13,199 functions of
# Linux 6.1, only 22 that also run after boot have so many and no check.
_ACCESSES = 3
_INIT = re.compile(r"\.(init|exit|meminit|cpuinit)\b")
_SILENT = re.compile(
    r"k(asan|msan|csan|fence)_(en|dis)able\w*|kmemleak_\w+|lockdep_(off|on)|debug_locks(_off)?"
    r"|touch_\w*watchdog\w*|reset_hung_task_detector|console_(printk|suspend\w*|l?ock|set_on\w*|stop"
    r"|verbose)|(un)?register_console|panic_(on_\w+|timeout|print)|oops_in_progress|suppress_printk"
    r"|do_exit|make_task_dead|do_group_exit|complete_and_exit|kthread_complete_and_exit"
    r"|emergency_restart|machine_\w+|kernel_(restart|halt|power_off)|orderly_\w+|pm_power_off"
    r"|msleep\w*|schedule_timeout_(killable|idle|interruptible|uninterruptible)|usleep_range_state"
    r"|__const_udelay|__udelay|__ndelay|tracing_o(ff|n)|ftrace_\w+|timekeeping_suspend|stop_machine\w*"
    r"|__mem(cpy|set|move)|copy_(from|to)_kernel_nofault|set_memory_\w+|text_poke\w*|kallsyms_\w+"
    r"|sysctl_hung_task\w*|rcu_cpu_stall_\w+|add_taint|print_tainted|__set_task_comm|force_sig\w*"
    r"|static_key_(disable|slow_dec)\w*|__symbol_get"
)


@dataclass(slots=True)
class Function:
    """A function of an object file, including parts that the compiler split off."""

    sections: set[str] = field(default_factory=set)
    accesses: int = 0
    """Instructions that access memory, except on the stack or at a fixed address."""
    checks: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Calls of the sanitizers' functions, by sanitizer."""


@dataclass(slots=True)
class Profile:
    """An object file: its functions by name, and its undefined symbols."""

    functions: dict[str, Function] = field(default_factory=lambda: defaultdict(Function))
    undefined: set[str] = field(default_factory=set)

    def total(self, sanitizer: str) -> int:
        """Return the number of calls of this sanitizer in the object."""
        return sum(function.checks[sanitizer] for function in self.functions.values())


# Condenses the output of `objdump -dr` and `objdump -t` for one object: `F SECTION NAME ACCESSES
# ADDRESS UNDEFINED THREAD` for each function, `U NAME` for each undefined symbol. Loading KASAN's
# shadow offset counts as a call, as inline checks do that instead.
CONDENSE = r"""
/^Disassembly of section / { section = $4; sub(/:$/, "", section); next }
/^[0-9a-f]+ <.*>:$/ {
    tell(); name = $2; sub(/^</, "", name); sub(/>:$/, "", name); next
}
/\t[0-9a-f]+: R_/ || /^\t\t\t[0-9a-f]+: R_/ {
    symbol = $3; sub(/[-+]0x.*/, "", symbol)
    if (symbol ~ /^__(asan|hwasan|kasan_check|msan)_/) address++
    else if (symbol ~ /^__ubsan_/) undefined++
    else if (symbol ~ /^__(tsan|kcsan)_/) thread++
    if ($2 !~ /PLT32/) pending = 0
    next
}
/^ *[0-9a-f]+:\t/ {
    accesses += pending; pending = 0
    if (/dffffc0000000000/) address++
    if (/\(%r[a-z0-9]/ && !/\tlea|nop|%(rsp|rip|gs)|\(%rbp|xchg +%ax/) pending = 1
    next
}
/ \*UND\*/ { print "U", $NF }
END { tell() }
function tell() {
    accesses += pending
    if (name != "") print "F", section, name, accesses, address + 0, undefined + 0, thread + 0
    accesses = pending = address = undefined = thread = 0
    name = ""
}
"""


def profile(lines: Iterable[str]) -> Profile:
    """Parse the output of `CONDENSE`; other lines are ignored."""
    result = Profile()
    for line in lines:
        words = line.split(" ")
        if words[0] == "U" and len(words) == 2:
            result.undefined.add(words[1])
        elif words[0] == "F" and len(words) == 7 and all(word.isdigit() for word in words[3:]):
            name = re.sub(r"\.(isra|constprop|part|cold|localalias|llvm)\b.*", "", words[2])
            if name.startswith("."):  # code without a function: alternatives, say
                continue
            function = result.functions[name]
            function.sections.add(words[1])
            function.accesses += int(words[3])
            for sanitizer, count in zip(_CALLS, map(int, words[4:]), strict=True):
                function.checks[sanitizer] += count
    return result


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
            yield _finding(severity, reason, _listed(shown))


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
        yield _finding(Severity.BLOCKING, "flags_weaker", message)
    if other:
        message = f"compiled with other flags: {_listed(other)}"
        yield _finding(Severity.BLOCKING, "flags_changed", message)


def linked(before: Collection[str], after: Collection[str]) -> Iterator[Finding]:
    """Compare the objects of two kernels: a missing one blocks."""
    if gone := sorted(set(before) - set(after)):
        message = f"no longer in the kernel: {_listed(gone)}"
        yield _finding(Severity.BLOCKING, "object_dropped", message)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


# --- objects ------------------------------------------------------------------------------------


def objects(
    path: str, source: str, before: Profile, after: Profile, changed: Collection[str]
) -> Iterator[Finding]:
    """Compare an object before and after a patch, which changes the functions `changed`."""
    for sanitizer in _CALLS:
        if before.total(sanitizer) and not after.total(sanitizer) and len(before.functions) > 1:
            severity = Severity.NOTE if sanitizer == "undefined" else Severity.BLOCKING
            message = f"{path} no longer has any check of the {sanitizer} sanitizer"
            yield _finding(severity, "object_unchecked", message, source)
    for sanitizer in ("address", "thread"):
        if before.total(sanitizer) or after.total(sanitizer):
            yield from _unchecked(path, source, before, after, sanitizer)
    for name in sorted(changed & before.functions.keys() & after.functions.keys()):
        lost = before.functions[name].checks["undefined"]
        if lost and not after.functions[name].checks["undefined"]:
            message = f"{name}() had {lost} checks of the undefined sanitizer, and now has none"
            yield _finding(Severity.NOTE, "fewer_checks", message, source, name)
    yield from _moved(source, before, after)
    if new := sorted(
        name for name in after.undefined - before.undefined if _SILENT.fullmatch(name)
    ):
        message = f"{path} now refers to {_listed(new)}"
        yield _finding(Severity.BLOCKING, "silencing_symbol", message, source)


def _unchecked(
    path: str, source: str, before: Profile, after: Profile, sanitizer: str
) -> Iterator[Finding]:
    """Find functions that access memory without any check, and did not do so before."""
    for name, function in sorted(after.functions.items()):
        if function.checks[sanitizer] or function.accesses < _ACCESSES or _runs_at_boot(function):
            continue
        old = before.functions.get(name)
        if old is not None and not old.checks[sanitizer] and old.accesses >= _ACCESSES:
            continue
        had = f"had {old.checks[sanitizer]} checks" if old is not None else "is new"
        message = (
            f"{name}() of {path} {had}: it accesses memory in {function.accesses} places,"
            f" none of them checked by the {sanitizer} sanitizer"
        )
        yield _finding(Severity.BLOCKING, "checks_lost", message, source, name)


def _runs_at_boot(function: Function) -> bool:
    return all(_INIT.match(section) for section in function.sections)


def _moved(source: str, before: Profile, after: Profile) -> Iterator[Finding]:
    known = {section for function in before.functions.values() for section in function.sections}
    known |= {".text", ".text.unlikely", ".text.hot", ".text.startup"}
    for name, function in sorted(after.functions.items()):
        if new := sorted(function.sections - known):
            message = f"{name}() is in the section {new[0]}, which its file did not use before"
            yield _finding(Severity.BLOCKING, "other_section", message, source, name)
            return


def _listed(items: Collection[str]) -> str:
    shown = list(items)[:_SHOWN]
    more = len(items) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _finding(
    severity: Severity,
    reason: str,
    message: str,
    file: str | None = None,
    function: str | None = None,
) -> Finding:
    return Finding(
        check="detector",
        severity=severity,
        reason=reason,
        message=message,
        file=file,
        function=function,
    )
