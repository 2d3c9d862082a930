"""Markers with a single message: oopses, panics, and other messages of a dying kernel."""

from kgym.crash.report.blamed_function import TRACE, BlameRule
from kgym.crash.report.families.blame_rules import (
    AT_RIP,
    BAD_ACCESS,
    CALL_TRACE,
    LEAKED,
    LOCKED_UP,
    RIP_ONLY,
    in_trace,
    stall,
)
from kgym.crash.report.families.bug import SLUB
from kgym.crash.report.families.family import Family, Format
from kgym.crash.report.families.sanitizers import UBSAN


def _oops(
    marker: str,
    name: str,
    walk: BlameRule = AT_RIP,
    *,
    alt: tuple[str, ...] = (),
    dying: bool = False,
    follows: bool = False,
) -> Family:
    """Return the family of an exception that is named by its marker."""
    return Family(
        marker,
        (Format(marker, name + " in {frame}", alt=alt, walk=walk),),
        # "traps: prog[12] general protection fault ip:..." is a program's fault
        reject=r"ip:[0-9a-f]+|traps: (?!PANIC)",
        dying=dying,
        follows=follows,
    )


def _death(marker: str, name: str = "") -> Family:
    """Return the family of an exception named by die() with its counter: "int3: 0000 [#1]"."""
    return Family(
        marker,
        (Format(marker, f"{name or marker} in {{frame}}", walk=AT_RIP),),
        accept=marker + r".*\[#[0-9]+\]",
        dying=True,
    )


def _overflow(*skip: str) -> BlameRule:
    return BlameRule((CALL_TRACE, TRACE), skip=skip, pick=stall)


PANIC = Family(
    "Kernel panic",
    (
        # kernel/panic.c and its callers
        Format(
            r"Kernel panic - not syncing: .*[Ss]tack is corrupted in: {FUNC}",
            "kernel panic: stack is corrupted in {func}",
            has_stack=False,
        ),
        Format(
            r"Kernel panic - not syncing: stack-protector: .* is corrupted in: [a-f0-9]+",
            "kernel panic: stack is corrupted in {frame}",
            walk=in_trace("stack_chk"),
        ),
        Format(
            r"Kernel panic - not syncing: corrupted stack end detected inside scheduler",
            "kernel panic: corrupted stack end in {frame}",
            alt=("stack-overflow in {frame}",),
            walk=_overflow("schedule|retint_kernel"),
        ),
        Format(
            r"Kernel panic - not syncing: kernel stack overflow",
            "kernel stack overflow in {frame}",
            alt=("stack-overflow in {frame}",),
            walk=_overflow("bad_stack"),
        ),
        Format(
            r"Kernel panic - not syncing: Attempted to kill init!",
            "kernel panic: Attempted to kill init!",
        ),
        Format(
            r"Kernel panic - not syncing: Couldn't open N_TTY ldisc for [^ ]+ --- error",
            "kernel panic: Couldn't open N_TTY ldisc",
        ),
        Format(
            # the end of a crash whose report is missing in the log
            r"Kernel panic - not syncing: (?P<what>Fatal exception|panic_on_warn set"
            r"|hung_task: blocked tasks)",
            "kernel panic: {what}",
            intact=False,
        ),
        Format(r"Kernel panic - not syncing: (?P<what>.*)", "kernel panic: {what}"),
    ),
    dying=True,
)

KERNEL_BUG = Family(
    "kernel BUG",
    (
        # lib/bug.c: report_bug() with BUG_ON()
        Format(
            r"kernel BUG at lib/list_debug\.c",
            "BUG: corrupted list in {frame}",
            alt=BAD_ACCESS,
            walk=in_trace(),
        ),
        Format(
            r"kernel BUG at mm/usercopy\.c",
            "BUG: bad usercopy in {frame}",
            walk=in_trace("usercopy|__check"),
        ),
        Format(
            r"kernel BUG at .",
            "kernel BUG in {frame}",
            # assertions of socket buffers blame their callers
            walk=BlameRule(AT_RIP.steps, skip=("^skb_",)),
        ),
    ),
)

NO_ACCESS = Family(
    "Unable to handle kernel",
    (
        # arch/*/mm/fault.c: die_kernel_fault() of arm, arm64, riscv and others
        Format(
            r"Unable to handle kernel (?P<what>NULL pointer dereference|access to user memory)",
            "BUG: unable to handle kernel {what} in {frame}",
            alt=BAD_ACCESS,
            walk=AT_RIP,
        ),
        Format(
            # arm64's messages about forbidden accesses are used unchanged as titles
            r"Unable to handle kernel (?!read from|write to|execut)",
            "BUG: unable to handle kernel paging request in {frame}",
            alt=BAD_ACCESS,
            walk=AT_RIP,
        ),
    ),
)

# A crash only where another kernel was running before it: see `crash_lines.py`.
REBOOT = Family(
    # arch/x86/boot/compressed/misc.c: extract_kernel(); it tells of an entry_offset since 6.6
    "Booting the kernel",
    (Format(r"^Booting the kernel", "unexpected kernel reboot", has_stack=False),),
    # It begins a line: there is no printk() yet. Elsewhere in a line, a program has read it from
    # the console and passed it back to the kernel, for example as a mount option.
    accept=r"^Booting the kernel(?:\.| \(entry_offset: )",
)

OTHERS = (
    NO_ACCESS,
    Family(
        "general protection fault",
        (
            Format(
                r"general protection fault.*:",
                "general protection fault in {frame}",
                alt=BAD_ACCESS,
                walk=AT_RIP,
            ),
        ),
        reject=r"ip:[0-9a-f]+|traps:",
    ),
    _oops("stack segment: ", "stack segment fault"),
    PANIC,
    _oops("PANIC: double fault", "PANIC: double fault", RIP_ONLY, follows=True),
    Family(
        "rust_kernel: panicked",
        (
            Format(
                r"rust_kernel: panicked at .*\n(?P<what>.+)",
                "{what} in {frame}",
                walk=in_trace("rust_helper|rust_begin_unwind"),
            ),
        ),
    ),
    # where a panic of Rust code ends
    Family("kernel BUG at rust/", KERNEL_BUG.formats, dying=True),
    KERNEL_BUG,
    # riscv and arm say this once more when they die of a BUG()
    Family("Kernel BUG", (Format(r"Kernel BUG (?P<what>.*)", "kernel BUG {what}"),), dying=True),
    SLUB,
    _oops("divide error: ", "divide error", RIP_ONLY),
    _oops("divide_error: ", "divide error", RIP_ONLY),  # so since 5.8, to 5.10
    _oops("invalid opcode: ", "invalid opcode", RIP_ONLY, dying=True),
    UBSAN,
    # arch/x86/kernel/traps.c
    *map(_death, ("int3", "bounds", "invalid TSS", "segment not present", "alignment check")),
    # arch/s390/kernel/traps.c, arch/mips/kernel/traps.c
    *map(_death, ("illegal operation", "specification exception")),
    _death("Kernel bug detected", "kernel BUG"),
    _death("Reserved instruction in kernel code", "invalid opcode"),
    REBOOT,
    Family(
        # kernel/watchdog.c: watchdog_hardlockup_check(); arch/powerpc/kernel/watchdog.c
        "detected hard LOCKUP",
        (
            Format(
                r"detected hard LOCKUP",
                "BUG: hard lockup in {frame}",
                alt=("stall in {frame}",),
                walk=LOCKED_UP,
            ),
        ),
    ),
    Family(
        "unregister_netdevice: waiting for",
        (
            # net/core/dev.c: netdev_wait_allrefs_any()
            Format(
                r"unregister_netdevice: waiting for .* to become free",
                "unregister_netdevice: waiting for DEV to become free",
                has_stack=False,
            ),
        ),
        follows=True,
    ),
    Family(
        "VFS:",
        (
            Format(
                r"VFS: Close: file count is (?:zero|0)",
                "VFS: Close: file count is zero (use-after-free)",
                has_stack=False,
            ),
            Format(
                r"VFS: Busy inodes after unmount",
                "VFS: Busy inodes after unmount (use-after-free)",
                has_stack=False,
            ),
        ),
        accept=r"VFS: (?:Close: file count is|Busy inodes after unmount)",
    ),
    _oops("Internal error:", "Internal error", alt=BAD_ACCESS, dying=True),
    _oops("Unhandled fault:", "Unhandled fault", alt=BAD_ACCESS),
    _oops("Alignment trap:", "Alignment trap"),
    Family(
        "trusty: panic",
        (
            Format(
                r"trusty: panic \(.*?\):(?: DEBUG)? ASSERT FAILED at \(.*?\): (?P<what>.+)",
                "trusty: ASSERT FAILED: {what}",
                has_stack=False,
            ),
            Format(
                r"trusty: panic.* ASSERT FAILED.*: *(?P<what>.*)",
                "trusty: ASSERT FAILED: {what}",
                intact=False,
            ),
            Format(
                r"trusty: panic \(.*?\): (?P<what>.+)", "trusty: panic: {what}", has_stack=False
            ),
        ),
        reject="panic notifier",
    ),
)

# An oops whose message before it is missing; riscv's other exceptions have no other message.
OOPS = Family(
    # arch/*/kernel/traps.c, dumpstack.c: die()
    "Oops",
    (
        Format(
            r"Oops - illegal instruction",
            "Oops - illegal instruction in {frame}",
            alt=("invalid opcode in {frame}",),
            walk=AT_RIP,
        ),
        Format(r"Oops - (?P<what>[a-z ]+[a-z])", "Oops - {what} in {frame}", walk=AT_RIP),
        Format(r"Oops", "Oops in {frame}", alt=BAD_ACCESS, walk=AT_RIP),
    ),
    accept=r"Oops(?:: .*| - [a-z /]+)? ?\[#[0-9]+\]",
    dying=True,
)

# --- messages of the test programs: memory leaks, and their own failures -------------------------

LEAKED_OBJECT = Family(
    # mm/kmemleak.c: print_unreferenced(), as programs copy it without a heading
    "unreferenced object",
    (
        Format(
            r"unreferenced object 0x[0-9a-f]+ \(size [0-9]+\):",
            "memory leak in {frame}",
            walk=LEAKED,
            has_stack=False,
        ),
    ),
    follows=True,
)

PROGRAMS = (
    LEAKED_OBJECT,
    # Go's runtime
    Family(
        "fatal error:",
        (Format(r"fatal error:", "go runtime error", has_stack=False),),
        reject=r"ALSA|fatal error: cannot create timer",
    ),
    # syzkaller's executor and tools
    Family("SYZFAIL:", (Format(r"SYZFAIL:(?P<what>.*)", "SYZFAIL:{what}", has_stack=False),)),
    Family(
        "SYZFATAL:",
        (Format(r"SYZFATAL:(?P<what>.*)", "SYZFATAL:{what}", alt=("SYZFATAL",), has_stack=False),),
    ),
    Family(
        "panic:",
        (Format(r"panic:(?P<what>.*)", "panic:{what}", has_stack=False),),
        # skb_panic: and sysctls are no panics
        reject=r"[\w.]panic:|(?:xlog|evtlog)_status:",
    ),
)
