"""Recipes for the function to blame that several families share."""

import re
from collections.abc import Sequence

from kgym.report.walk import TRACE, Walk, pattern

CALL_TRACE = pattern(r"Call (?:T|t)race:|Backtrace:")
RIP = pattern(
    r"(?:\b[RE]?IP(?:: | +:|:| is at| (?=\[))|\bNIP (?=\[)|\bPC is at|\bp?c :|\bepc +:"
    r"|\b(?:era|ERA):|PSW : [0-9a-f]+ [0-9a-f]+ \()"
    r" *(?:[0-9a-f]{2,4}:)?(?: *{PC}:? *){0,2}"
    r"(?:(?:[0-9a-f]{8,16} )?{FUNC}| *(?:0x)?[0-9a-f]{6,}| *\[?< *\(null\)>?| *\(null\)|0x0)"
)
"""The line that names the crashing instruction (show_regs() of every architecture)."""

BAD_ACCESS = ("bad-access in {frame}",)
"""The other title of every bad memory access, by which its kinds are told to be one bug."""

IN_TRACE = Walk((CALL_TRACE, TRACE))
AT_RIP = Walk((RIP, CALL_TRACE, TRACE))
AT_LOCK = Walk(
    (pattern(r"at: (?:{PC} +)?{FUNC}"), pattern(r"at: (?:{PC} +)?{FUNC}"), TRACE),
    skip=("process_one_work", "flush_workqueue", "drain_workqueue", "destroy_workqueue"),
)
"""Lockdep: the lock wanted, the lock held, the trace of the acquisition."""


def warning(*skip: str) -> Walk:
    """Blame for a WARNING: kernels since 4.11 trap and print registers, older ones do not."""
    return Walk((RIP, CALL_TRACE, TRACE), (CALL_TRACE, TRACE), skip=skip)


MEMORY = (
    "slab_|slub_|mempool_|dma_pool|vmalloc|vzalloc|vfree|vunmap|page_frag",
    "get_free_page|get_page_from_freelist|might_alloc|fs_reclaim|free_unref",
)
"""The memory management's own steps, for reports about what its callers ask of it."""

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


def hung_task(functions: Sequence[str]) -> Sequence[str]:
    """Blame for a hung task: the function that waits, not how it waits.

    A bug in RCU or under the rtnl mutex hangs tasks all over the kernel: one name for each.
    """
    for function in functions:
        for waiting, bucket in _HUNG_ON.items():
            if waiting in function:
                return [bucket or function, function] if bucket != function else [function]
    for function in functions:
        if not _WAITING.search(function):
            return [function]
    return []


_DISPATCHERS = pattern(
    # work that the kernel runs by itself
    r"process_one_work|do_syscall_|do_fast_syscall_|sysenter_dispatch|sysenter_flags|tracesys"
    r"|(?:x64|ia32)_sys_call|el0_svc|invoke_syscall|ret_fast_syscall|syscall_common|netif_receive_skb|irq_exit"
    r"|call_timer_fn|_run_timers|hrtimer_run|run_ksoftirqd|smpboot_thread_fn"
    r"|^kthread$|start_secondary|cpu_startup_entry|ret_from_fork|entry_SYSCALL|entry_INT80"
    r"|entry_SYSENTER|system_call|worker_thread|tasklet_action|tasklet_hi_action|smp_call_function"
    # file operations
    r"|vfs_write|vfs_read|vfs_iter_read|vfs_iter_write|do_iter_read|do_iter_write|call_read_iter"
    r"|call_write_iter|new_sync_read|new_sync_write|vfs_ioctl|ksys_read|ksys_write|compat_ioctl"
    r"|compat_sys_ioctl|blkdev_driver_ioctl|blkdev_ioctl|do_iter_readv_writev|^call_mmap"
    r"|mmap_region|do_mmap|do_dentry_open|vfs_open"
    # socket operations
    r"|^sock_sendmsg|^sock_recvmsg|^sock_release|^__sock_release|__sys_setsockopt"
    r"|kernel_setsockopt|sock_common_setsockopt|__sys_listen|kernel_listen|sk_common_release"
    r"|^sock_mmap|__sys_accept|kernel_accept|^sock_do_ioctl|^sock_ioctl|^compat_sock_ioctl"
    r"|^nfnetlink_rcv_msg|^rtnetlink_rcv_msg|^netlink_dump|^(?:sys_)?(?:socketpair|connect|ioctl)"
    # page faults and the way back to user space
    r"|__do_fault|do_page_fault|^page_fault$|__fput|task_work_run"
    r"|exit_to_usermode"
)


def stall(functions: Sequence[str]) -> Sequence[str]:
    """Blame for a stall: what the kernel was asked to do, not where in it the watchdog hit.

    That is the function called by the first dispatcher up the stack (the system call, the file
    or socket operation, the timer).
    """
    called = functions[0]
    for function in functions:
        if _DISPATCHERS.search(function):
            if "smp_call_function" in function:
                general = "smp_call_function"
                return [general] if function == general else [general, function]
            return [called]
        called = function
    return []


INTERRUPT = pattern(r"apic_timer_interrupt|Exception stack|el1_irq|el1h_64_irq|asm_sysvec")
STALL_SKIP = ("apic_timer_interrupt", "rcu", "asm_sysvec", "sysvec_", "__irq_svc", "el1_irq")
STALLED = Walk((INTERRUPT, TRACE), skip=STALL_SKIP, pick=stall)
LOCKED_UP = Walk((RIP, CALL_TRACE, TRACE), (CALL_TRACE, TRACE), skip=STALL_SKIP, pick=stall)

LEAKED = Walk(
    (pattern("backtrace"), TRACE),
    skip=(
        "kmemleak|mmap|kmem|slab|alloc|create_object|idr_get|list_lru_init|kasprintf|kvasprintf",
        "pcpu_create|strdup|strndup|memdup",
    ),
)
"""kmemleak: whose allocation it was."""
