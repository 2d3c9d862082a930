"""Blame rules shared by several families."""

import re
from collections.abc import Sequence

from kgym.crash.report.blamed_function import TRACE, BlameRule, Culprit, pattern

CALL_TRACE = pattern(r"Call (?:T|t)race:|Backtrace:")
_IP = (
    r"(?:IP|NIP|pc |PC is at):? "
    r"(?:(?:[0-9]+:)?(?:{PC} +){0,2}{FUNC}|(?:[0-9]+:)?0x[0-9a-f]+"
    r"|(?:[0-9]+:)?{PC} +\[< *\(null\)>\] +\(null\)|[0-9]+: +\(null\))"
    # s390: the program status word; mips, loongarch: the exception's address
    r"|PSW : [0-9a-f]+ [0-9a-f]+ \({FUNC}|\b(?:epc|era|ERA) *: [0-9a-f]+ {FUNC}"
)
# The line that names the crashing instruction (show_regs() of every architecture).
RIP = pattern(_IP)

# The other title of every bad memory access, by which all kinds of it are merged into one bug.
BAD_ACCESS = ("bad-access in {frame}",)

AT_RIP = BlameRule((RIP, CALL_TRACE, TRACE))
RIP_ONLY = BlameRule((RIP,))


def in_trace(*skip: str) -> BlameRule:
    """Blame the top of the stack trace, skipping `skip`."""
    return BlameRule((CALL_TRACE, TRACE), skip=skip)


_AT = pattern(r"at: (?:{PC} +)?{FUNC}")
# Lockdep: the lock wanted, the lock held, the trace of the acquisition.
AT_LOCK = BlameRule(
    (_AT, _AT, TRACE),
    # they take the lock of the work item, whose owner is to blame
    skip=("process_one_work", "(?:flush|drain|destroy)_workqueue"),
)
# Lockdep prints the caller's address on a line of its own (print_ip_sym()).
UNLOCKING = BlameRule((pattern("{PC} +{FUNC}"), CALL_TRACE, TRACE))


def warning(*skip: str) -> BlameRule:
    """Blame for a WARNING: kernels since 4.11 trap and print registers, older ones do not."""
    return BlameRule(
        (pattern(rf"{_IP}|--- interrupt: [0-9]+ at {{FUNC}}"), TRACE),
        (CALL_TRACE, TRACE),
        skip=skip,
    )


_HUNG_ON = {
    "rtnl_lock": None,
    "synchronize_rcu": "synchronize_rcu",
    "synchronize_srcu": "synchronize_rcu",
    "synchronize_net": "synchronize_rcu",
    "synchronize_sched": "synchronize_rcu",
}
_WAITING = re.compile(
    "sched|_lock|_slowlock|down|rwsem|completion|kthread|wait|synchronize|context_switch"
    "|__switch_to|cancel_delayed_work|rcu_barrier"
)


def hung_task(candidates: Sequence[Culprit]) -> Culprit | None:
    """Blame the waiting function of a hung task, not the primitive by which it waits.

    A bug in RCU or under the rtnl mutex hangs tasks all over the kernel: these get one name each.
    """
    for candidate in candidates:
        for waiting, bucket in _HUNG_ON.items():
            if waiting in candidate.name:
                return Culprit(bucket or candidate.name, candidate.raw)
    return next(
        (candidate for candidate in candidates if not _WAITING.search(candidate.name)), None
    )


_DISPATCHERS = re.compile(
    # work that the kernel runs by itself, and the ways into system calls
    r"process_one_work|do_syscall_|do_fast_syscall_|sysenter_dispatch|tracesys_phase2"
    r"|el0_svc_handler|invoke_syscall|ret_fast_syscall|netif_receive_skb|do_softirq|call_timer_fn"
    r"|_run_timers|run_timer_softirq|hrtimer_run|run_ksoftirqd|smpboot_thread_fn|^kthread$"
    r"|start_secondary|cpu_startup_entry|ret_from_fork|smp_call_function|tasklet_(?:hi_)?action"
    # file operations
    r"|vfs_(?:iter_)?(?:read|write)|do_iter_(?:read|write)|call_(?:read|write)_iter"
    r"|new_sync_(?:read|write)|vfs_ioctl|ksys_ioctl|compat_(?:sys_)?ioctl|blkdev_(?:driver_)?ioctl"
    r"|^call_mmap|mmap_region|do_mmap|do_dentry_open|vfs_open"
    # socket operations
    r"|^sock_(?:sendmsg|recvmsg|release|mmap|do_ioctl|ioctl)|^__sock_release|^compat_sock_ioctl"
    r"|^(?:setsockopt|listen|accept)$|kernel_(?:setsockopt|listen|accept)|sock_common_setsockopt"
    r"|sk_common_release|^(?:nfnetlink|rtnetlink)_rcv_msg|^netlink_dump"
    r"|^(?:sys_)?(?:socketpair|connect|ioctl)"
    # page faults and the way back to user space
    r"|__do_fault|do_page_fault|^page_fault$|__fput|task_work_run|exit_to_usermode"
)


def stall(candidates: Sequence[Culprit]) -> Culprit | None:
    """Blame the operation that stalls, not the place at which the watchdog hit.

    It is the function called by the first dispatcher up the stack: the system call, the file or
    socket operation, the timer.
    """
    called = candidates[0]
    for candidate in candidates:
        if _DISPATCHERS.search(candidate.name):
            if "smp_call_function" in candidate.name:
                return Culprit("smp_call_function", candidate.raw)
            return called
        called = candidate
    return None


_TIMER = pattern("apic_timer_interrupt")
STALLED = BlameRule(
    (_TIMER, RIP, TRACE),
    (pattern(r"apic_timer_interrupt|Exception stack|el1h_64_irq"), TRACE),
    skip=("apic_timer_interrupt", "rcu"),
    pick=stall,
)
LOCKED_UP = BlameRule((RIP, CALL_TRACE, TRACE), pick=stall)

# kmemleak: whose allocation it was.
LEAKED = BlameRule(
    (pattern(r"backtrace(?: \(crc [0-9a-f]*\))?:"), TRACE),
    skip=(
        "kmemleak|mmap|kmem|slab|alloc|create_object|idr_get|list_lru_init|kv?asprintf"
        "|pcpu_create|strn?dup|memdup",
    ),
)
