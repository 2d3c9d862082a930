"""Lines with "BUG:": page faults, broken lists and pages, and lockdep's BUGs."""

from kgym.crash.report.blamed_function import TRACE, BlameRule, pattern
from kgym.crash.report.families.blame_rules import (
    AT_RIP,
    BAD_ACCESS,
    LEAKED,
    LOCKED_UP,
    UNLOCKING,
    in_trace,
)
from kgym.crash.report.families.family import Family, Format
from kgym.crash.report.families.sanitizers import KASAN, KCSAN, KFENCE, KMSAN

_PAGE_FAULTS = (
    # arch/x86/mm/fault.c: show_fault_oops(); arch/powerpc/mm/fault.c: bad_page_fault()
    Format(
        r"BUG: unable to handle (?:kernel paging request|page fault for address)"
        r"|BUG: Unable to handle kernel (?:data access|instruction fetch)",
        "BUG: unable to handle kernel paging request in {frame}",
        alt=BAD_ACCESS,
        walk=AT_RIP,
    ),
    Format(
        r"BUG: (?:unable to handle )?[Kk]ernel NULL pointer dereference",
        "BUG: unable to handle kernel NULL pointer dereference in {frame}",
        alt=BAD_ACCESS,
        walk=AT_RIP,
    ),
    # the rest of the message is a printk of its own
    Format(r"BUG: [Uu]nable to handle kernel", "BUG: unable to handle kernel", intact=False),
    Format(
        r"BUG: .*stack guard page was hit at",
        "BUG: stack guard page was hit in {frame}",
        alt=("stack-overflow in {frame}",),
        walk=LOCKED_UP,
    ),
)

_LOCKS = (
    # kernel/locking/lockdep.c, spinlock_debug.c
    Format(
        r"BUG: (?P<kind>spinlock|rwlock) (?P<what>lockup suspected|already unlocked|recursion"
        r"|cpu recursion|bad magic|wrong owner|wrong CPU|trylock failure on UP|uninitialized)",
        "BUG: {kind} {what} in {frame}",
        walk=in_trace("spin_|_lock|_unlock"),
    ),
    Format(
        r"BUG: bad unlock balance detected!", "BUG: bad unlock balance in {frame}", walk=UNLOCKING
    ),
    Format(
        r"BUG: held lock freed!", "BUG: held lock freed in {func}", then=(r"\n.*?{PC} +{FUNC}",)
    ),
    Format(
        r"BUG: lock held when returning to user space",
        "BUG: lock held when returning to user space in {func}",
        then=(r"leaving the kernel with locks still held", r"at: (?:{PC} +)?{FUNC}"),
        has_stack=False,
    ),
    Format(
        r"BUG: .*still has locks held!",
        "BUG: still has locks held in {func}",
        then=(r"\n.*?{PC} +{FUNC}",),
    ),
    Format(
        # lockdep says so on arm, where x86 has a WARNING
        r"BUG: Invalid wait context",
        "WARNING: locking bug in {frame}",
        walk=in_trace("(?:lock|release)_sock"),
    ),
    Format(
        r"BUG: using (?P<what>[a-z_]+\(\)) in preemptible",
        "BUG: using {what} in preemptible code in {frame}",
        walk=in_trace("dump_stack|preempt|debug_|processor_id|this_cpu"),
    ),
    Format(
        r"BUG: workqueue leaked (?P<what>lock or atomic|atomic, lock or RCU)",
        "BUG: workqueue leaked {what} in {func}",
        then=(r"(?:last function: |workfn=|^Workqueue: \S+ )(?P<func>[a-zA-Z0-9_]+)",),
        has_stack=False,
    ),
)

_SLEEPS = (
    # kernel/sched/core.c: __might_resched(), __schedule_bug()
    Format(
        r"BUG: sleeping function called from invalid context at",
        "BUG: sleeping function called from invalid context in {frame}",
        walk=in_trace(),
    ),
    Format(
        r"BUG: scheduling while atomic",
        "BUG: scheduling while atomic in {frame}",
        walk=in_trace("schedule"),
    ),
)

_HANGS = (
    # kernel/watchdog.c, kernel/workqueue.c
    Format(
        r"BUG: soft lockup",
        "BUG: soft lockup in {frame}",
        alt=("stall in {frame}",),
        walk=LOCKED_UP,
    ),
    Format(r"BUG: workqueue lockup", "BUG: workqueue lockup", has_stack=False),
)

_STATE = (
    # mm/page_alloc.c, mm/memory.c, kernel/fork.c, fs/dcache.c
    Format(
        r"BUG: Bad page (?P<what>state|cache)",
        "BUG: Bad page {what} in {frame}",
        # page_owner gives the page's allocator; who detected the bad page is chance
        walk=BlameRule(
            (pattern(r"page last allocated"), TRACE),
            skip=(
                "(?:free|put|get|update|release)_page|free_unref|^_*folio|truncate_inode_pages"
                "|page_frag_free|alloc|vmap|page_owner",
            ),
        ),
    ),
    Format(r"BUG: Bad page map", "BUG: Bad page map"),
    Format(r"BUG: Bad rss-counter state", "BUG: Bad rss-counter state", has_stack=False),
    Format(
        r"BUG: non-zero (?P<what>nr_ptes|nr_pmds) on freeing mm",
        "BUG: non-zero {what} on freeing mm",
        has_stack=False,
    ),
    Format(
        r"BUG: Dentry .* still in use \([0-9]+\) \[unmount of (?P<what>[^\]]+)\]",
        "BUG: Dentry still in use in unmount",
        alt=("BUG: Dentry still in use [unmount of {what}]",),
    ),
    Format(r"BUG: memory leak", "memory leak in {frame}", walk=LEAKED),
)

BUG = Family(
    "BUG:",
    (
        *(*KASAN, *KFENCE, *KMSAN, *KCSAN, *_PAGE_FAULTS, *_LOCKS, *_SLEEPS, *_HANGS, *_STATE),
        Format(r"BUG:\s*$", "BUG: corrupted", intact=False),
    ),
    # arm64 dies of a BUG() with "Internal error: Oops - BUG: 0"; Android and programs say DEBUG:
    reject=r"DEBUG:|Oops - BUG:|BUG: no syscalls can create|xlog_status:",
)

SLUB = Family(
    # mm/slub.c: slab_bug()
    "BUG ",
    (Format(r"BUG kmalloc-.*: Object already free", "BUG: Object already free"),),
    # KASAN up to 4.9 says "BUG cache (Not tainted): kasan: bad access detected" in its report
    accept=r"BUG kmalloc-|BUG [\w:-]+ \([^)]*\): [A-Z]",
)
