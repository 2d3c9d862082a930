"""The markers of one message each: oopses, panics, and failures of the test programs."""

from kgym.report.families.bug import SLUB
from kgym.report.families.family import Family, Format
from kgym.report.families.sanitizers import UBSAN
from kgym.report.families.walks import AT_RIP, BAD_ACCESS, CALL_TRACE, LEAKED, RIP, stall
from kgym.report.model import CrashType
from kgym.report.walk import TRACE, Walk

_DOS = CrashType.DOS


def _trap(
    marker: str, message: str, name: str, alt: tuple[str, ...] = (), *, dying: bool = False
) -> Family:
    return Family(
        marker,
        (Format(message, name + " in {frame}", alt=alt, walk=AT_RIP),),
        # "traps: prog[12] general protection fault ip:..." is a program's fault
        reject=r"ip:[0-9a-f]+|traps:",
        dying=dying,
        type=_DOS,
    )


PANIC = Family(
    "Kernel panic",
    (
        # kernel/panic.c and its callers
        Format(
            r"Kernel panic - not syncing: Attempted to kill init!",
            "kernel panic: Attempted to kill init!",
            has_stack=False,
        ),
        Format(
            r"Kernel panic - not syncing: Couldn't open N_TTY ldisc for .{1,60} --- error",
            "kernel panic: Couldn't open N_TTY ldisc",
            has_stack=False,
        ),
        Format(
            r"Kernel panic - not syncing: .{0,60}[Ss]tack is corrupted in: {FUNC}",
            "kernel panic: stack is corrupted in {func}",
            has_stack=False,
        ),
        Format(
            r"Kernel panic - not syncing: corrupted stack end detected inside scheduler",
            "kernel panic: corrupted stack end in {frame}",
            alt=("stack-overflow in {frame}",),
            walk=Walk((CALL_TRACE, TRACE), pick=stall),
        ),
        Format(
            r"Kernel panic - not syncing: kernel stack overflow",
            "kernel stack overflow in {frame}",
            alt=("stack-overflow in {frame}",),
            walk=AT_RIP,
        ),
        Format(
            # the last words after a crash that is missing in the log
            r"Kernel panic - not syncing: (?P<what>hung_task: blocked tasks|softlockup: hung tasks"
            r"|(?:.{1,40}: )?panic_on_warn set|Fatal exception)(?P<rest>.*)",
            "kernel panic: {what}{rest}",
            intact=False,
        ),
        Format(r"Kernel panic - not syncing: (?P<what>.*)", "kernel panic: {what}"),
    ),
    dying=True,
    type=_DOS,
)

KERNEL_BUG = Family(
    "kernel BUG",
    (
        # lib/bug.c: report_bug() with BUG_ON()
        Format(
            r"kernel BUG at lib/list_debug\.c",
            "BUG: corrupted list in {frame}",
            alt=BAD_ACCESS,
            walk=Walk((RIP, CALL_TRACE, TRACE), skip=("list_",)),
            type=CrashType.MEMORY_SAFETY_BUG,
        ),
        Format(
            r"kernel BUG at mm/usercopy\.c",
            "BUG: bad usercopy in {frame}",
            walk=Walk((RIP, CALL_TRACE, TRACE), skip=("usercopy", "__check")),
        ),
        Format(
            r"kernel BUG at ",
            "kernel BUG in {frame}",
            walk=Walk((RIP, CALL_TRACE, TRACE), skip=("^skb_", "fortify_panic")),
        ),
    ),
    type=CrashType.BUG,
)

OTHERS = (
    UBSAN,
    KERNEL_BUG,
    SLUB,
    _trap(
        "general protection fault",
        r"general protection fault[:,]",
        "general protection fault",
        BAD_ACCESS,
    ),
    _trap("stack segment: ", r"stack segment: ", "stack segment fault"),
    _trap("divide error:", r"divide error: ", "divide error"),
    _trap("invalid opcode:", r"invalid opcode: ", "invalid opcode", dying=True),
    Family(
        "PANIC: double fault",
        (Format(r"PANIC: double fault", "PANIC: double fault in {frame}", walk=AT_RIP),),
        type=_DOS,
    ),
    Family(
        "Unable to handle kernel",
        (
            # arch/arm/mm/fault.c, arch/arm64/mm/fault.c: die_kernel_fault()
            Format(
                r"Unable to handle kernel (?:paging request|pointer dereference"
                r"|execute from non-executable memory|write to read-only memory)",
                "BUG: unable to handle kernel paging request in {frame}",
                alt=BAD_ACCESS,
                walk=AT_RIP,
                type=CrashType.MEMORY_SAFETY_BUG,
            ),
            Format(
                r"Unable to handle kernel NULL pointer dereference",
                "BUG: unable to handle kernel NULL pointer dereference in {frame}",
                alt=BAD_ACCESS,
                walk=AT_RIP,
                type=CrashType.NULL_DEREF,
            ),
            Format(
                r"Unable to handle kernel access to user memory",
                "BUG: unable to handle kernel access to user memory in {frame}",
                alt=BAD_ACCESS,
                walk=AT_RIP,
            ),
        ),
    ),
    Family(
        "Internal error:",
        (Format(r"Internal error:", "Internal error in {frame}", alt=BAD_ACCESS, walk=AT_RIP),),
        dying=True,
        type=_DOS,
    ),
    Family(
        "Unhandled fault:",
        (Format(r"Unhandled fault:", "Unhandled fault in {frame}", alt=BAD_ACCESS, walk=AT_RIP),),
        type=_DOS,
    ),
    Family(
        "Alignment trap:",
        (Format(r"Alignment trap:", "Alignment trap in {frame}", walk=AT_RIP),),
        type=_DOS,
    ),
    PANIC,
    Family(
        "unreferenced object",
        (
            Format(
                r"unreferenced object {ADDR} \(size [0-9]+\):",
                "memory leak in {frame}",
                walk=LEAKED,
                has_stack=False,
            ),
        ),
        follows=True,
        type=CrashType.MEMORY_LEAK,
    ),
    Family(
        "unregister_netdevice: waiting for",
        (
            # net/core/dev.c: netdev_wait_allrefs_any()
            Format(
                r"unregister_netdevice: waiting for .{1,40} to become free",
                "unregister_netdevice: waiting for DEV to become free",
                has_stack=False,
            ),
        ),
        type=_DOS,
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
        type=_DOS,
    ),
    Family(
        "trusty: panic",
        (
            Format(
                r"trusty: panic.{0,80} ASSERT FAILED.{0,80}: (?P<what>.*)",
                "trusty: ASSERT FAILED: {what}",
                has_stack=False,
            ),
            Format(
                r"trusty: panic.{0,40}?: (?P<what>.*)", "trusty: panic: {what}", has_stack=False
            ),
        ),
        reject="panic notifier",
        type=_DOS,
    ),
    Family(
        "SYZFAIL:",
        (Format(r"SYZFAIL: *(?P<what>.*?)(?: \(errno .*)?$", "SYZFAIL: {what}", has_stack=False),),
        type=CrashType.SYZ_FAILURE,
    ),
    Family(
        "SYZFATAL:",
        (Format(r"SYZFATAL: *(?P<what>.*)$", "SYZFATAL: {what}", has_stack=False),),
        type=CrashType.SYZ_FAILURE,
    ),
    Family(
        "fatal error:",
        (Format(r"fatal error:", "go runtime error", has_stack=False),),
        accept=r"^fatal error: ",
        type=_DOS,
    ),
    Family(
        "panic:",
        (Format(r"panic:", "go runtime error", has_stack=False),),
        accept=r"^panic: runtime error|^panic: ",
        type=_DOS,
    ),
    Family(
        "rust_kernel: panicked",
        (
            Format(
                r"rust_kernel: panicked at .*\n(?P<what>.*)",
                "{what} in {frame}",
                walk=Walk((CALL_TRACE, TRACE), skip=("rust_helper", "rust_begin_unwind")),
            ),
        ),
    ),
)
