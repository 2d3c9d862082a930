"""Lines with "BUG:": page faults, broken lists and pages, and what lockdep calls a BUG."""

from kgym.report.families.family import Family, Format, formats
from kgym.report.families.sanitizers import KASAN, KCSAN, KFENCE, KMSAN
from kgym.report.families.walks import (
    AT_RIP,
    BAD_ACCESS,
    CALL_TRACE,
    IN_TRACE,
    LEAKED,
    LOCKED_UP,
    MEMORY,
    RIP,
    stall,
)
from kgym.report.model import CrashType
from kgym.report.walk import TRACE, Walk, pattern

_PAGE_FAULTS = (
    # arch/x86/mm/fault.c: show_fault_oops()
    Format(
        r"BUG: unable to handle (?:kernel paging request|page fault for address)"
        r"|BUG: Unable to handle kernel (?:data access|instruction fetch)",
        "BUG: unable to handle kernel paging request in {frame}",
        alt=BAD_ACCESS,
        walk=AT_RIP,
        type=CrashType.MEMORY_SAFETY_BUG,
    ),
    Format(
        r"BUG: (?:[Uu]nable to handle )?[Kk]ernel NULL pointer dereference",
        "BUG: unable to handle kernel NULL pointer dereference in {frame}",
        alt=BAD_ACCESS,
        walk=AT_RIP,
        type=CrashType.NULL_DEREF,
    ),
    Format(
        r"BUG: unable to handle kernel access to user memory",
        "BUG: unable to handle kernel access to user memory in {frame}",
        alt=BAD_ACCESS,
        walk=AT_RIP,
    ),
    Format(r"BUG: unable to handle kernel", "BUG: unable to handle kernel", intact=False),
    Format(
        r"BUG: (?:stack guard page|TASK stack guard page|IRQ stack guard page|\S+ stack guard page)"
        r" was hit at",
        "BUG: stack guard page was hit in {frame}",
        alt=("stack-overflow in {frame}",),
        walk=Walk((RIP, CALL_TRACE, TRACE), (CALL_TRACE, TRACE), pick=stall),
    ),
)

_PAGE_KEEPERS = (
    "^bad_page|^print_bad|^post_alloc_hook|alloc_page|folio|pagecache|free_page|free_pcp|^__free",
    "get_page_from|prep_new_page|^rmqueue|dump_page|check_new_page|free_unref|free_tail",
)

_LOCKS = (
    # kernel/locking/lockdep.c, spinlock_debug.c
    Format(
        r"BUG: spinlock (?P<what>[a-zA-Z ]+?) on CPU",
        "BUG: spinlock {what} in {frame}",
        walk=Walk((CALL_TRACE, TRACE), skip=("spin_", "_lock")),
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"BUG: rwlock (?P<what>[a-zA-Z ]+?) on CPU",
        "BUG: rwlock {what} in {frame}",
        walk=IN_TRACE,
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"BUG: rwlock-lockup",
        "BUG: rwlock-lockup in {frame}",
        walk=IN_TRACE,
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"BUG: bad unlock balance detected!",
        "BUG: bad unlock balance in {frame}",
        walk=Walk((CALL_TRACE, TRACE)),
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"BUG: held lock freed!",
        "BUG: held lock freed in {frame}",
        walk=IN_TRACE,
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"BUG: lock held when returning to user space",
        "BUG: lock held when returning to user space in {func}",
        then=(r"leaving the kernel with locks still held", r"at: (?:{PC} +)?{FUNC}"),
        type=CrashType.LOCKDEP,
        has_stack=False,
    ),
    Format(
        r"BUG: .{1,40} still has locks held",
        "BUG: still has locks held in {frame}",
        walk=IN_TRACE,
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"BUG: Invalid wait context",
        "WARNING: locking bug in {frame}",
        walk=IN_TRACE,
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"BUG: (?P<what>MAX_[A-Z_]+) too (?P<size>low|small)",
        "BUG: {what} too {size}!",
        has_stack=False,
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"BUG: using (?P<what>[a-zA-Z0-9_]+\(\)) in preemptible",
        "BUG: using {what} in preemptible code in {frame}",
        walk=Walk((CALL_TRACE, TRACE), skip=("dump_stack", "preemption", "preempt_check")),
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"BUG: (?P<what>workqueue leaked lock(?: or atomic)?)",
        "BUG: {what} in {func}",
        then=(r"last function: (?P<func>[a-zA-Z0-9_]+)",),
        has_stack=False,
    ),
)

_SLEEPS = (
    # kernel/sched/core.c: __might_resched(), __schedule_bug()
    Format(
        r"BUG: sleeping function called from invalid context (?:at|in)",
        "BUG: sleeping function called from invalid context in {frame}",
        walk=Walk(
            (CALL_TRACE, TRACE),
            skip=("^_*might_", "stack", *MEMORY),
        ),
        type=CrashType.ATOMIC_SLEEP,
    ),
    Format(
        r"BUG: scheduling while atomic",
        "BUG: scheduling while atomic in {frame}",
        walk=Walk((CALL_TRACE, TRACE), skip=("schedule", "sched_", "timeout", "wait_for")),
        type=CrashType.ATOMIC_SLEEP,
    ),
)

_HANGS = (
    # kernel/watchdog.c, kernel/workqueue.c
    Format(
        r"BUG: soft lockup",
        "BUG: soft lockup in {frame}",
        alt=("stall in {frame}",),
        walk=LOCKED_UP,
        type=CrashType.HANG,
    ),
    Format(r"BUG: workqueue lockup", "BUG: workqueue lockup", has_stack=False, type=CrashType.HANG),
)

_STATE = (
    # mm/page_alloc.c, mm/memory.c, kernel/fork.c, fs/dcache.c
    Format(
        r"BUG: Bad (?P<what>page (?:state|cache))",
        "BUG: Bad {what} in {frame}",
        walk=Walk(
            # page_owner knows who allocated the page, who found it bad is chance
            (pattern("page last allocated via|Call Trace:|Backtrace:"), TRACE),
            skip=_PAGE_KEEPERS,
        ),
    ),
    Format(r"BUG: Bad (?P<what>rss-counter state|page map)", "BUG: Bad {what}", has_stack=False),
    Format(
        r"BUG: non-zero (?P<what>nr_ptes|nr_pmds|pgtables_bytes) on freeing mm",
        "BUG: non-zero {what} on freeing mm: NUM",
        has_stack=False,
    ),
    Format(
        r"BUG: Dentry .{1,200} still in use \([0-9-]+\) \[(?P<what>unmount of .{1,80}?)\]",
        "BUG: Dentry still in use in unmount",
        alt=("BUG: Dentry still in use [{what}]",),
        has_stack=False,
    ),
    Format(
        r"BUG: memory leak",
        "memory leak in {frame}",
        then=(r"unreferenced object {ADDR} \(size [0-9]+\):",),
        walk=LEAKED,
        type=CrashType.MEMORY_LEAK,
    ),
    Format(
        r"BUG: memory leak", "memory leak in corrupted", intact=False, type=CrashType.MEMORY_LEAK
    ),
)

BUG = Family(
    "BUG:",
    formats(
        KASAN,
        KFENCE,
        KMSAN,
        KCSAN,
        _PAGE_FAULTS,
        _LOCKS,
        _SLEEPS,
        _HANGS,
        _STATE,
        Format(r"BUG: executor-detected bug", "BUG: executor-detected bug", has_stack=False),
    ),
    # arm64 dies of a BUG() with "Internal error: Oops - BUG: 0"
    reject=r"[A-Za-z_-]BUG:|Oops - BUG:|BUG: no syscalls",
)

SLUB = Family(
    # mm/slub.c: slab_bug()
    "BUG ",
    (
        Format(
            r"BUG .{1,80}\): Object already free",
            "BUG: Object already free",
            has_stack=False,
            intact=False,
            type=CrashType.DOS,
        ),
        Format(
            r"BUG .{1,80}\): (?P<what>[A-Z][A-Za-z ]+)",
            "BUG: {what}",
            has_stack=False,
            intact=False,
        ),
    ),
    accept=r"BUG [\w:-]+ \([^)]*\): (?:Object already free|Redzone overwritten|Poison overwritten"
    r"|Freepointer corrupt|Invalid object pointer|Wrong object count|Objects remaining)",
)
