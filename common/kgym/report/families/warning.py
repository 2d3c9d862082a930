"""Lines with "WARNING:": WARN_ON() and its special places, and the reports of lockdep."""

from kgym.report.families.family import Family, Format, formats
from kgym.report.families.walks import (
    AT_LOCK,
    CALL_TRACE,
    IN_TRACE,
    warning,
)
from kgym.report.model import CrashType
from kgym.report.walk import TRACE, Walk, pattern


def _at(file: str, function: str = "") -> str:
    """Match a WARN_ON() in `file`, in a function whose name begins with `function`.

    Up to 6.17 "WARNING: CPU: 1 PID: 4 at FILE:12 FUNC", since then "WARNING: FILE:12 at FUNC".
    """
    return rf"WARNING: .{{0,300}}?{file}:[0-9]+,? (?:at )?{function}"


_PLACES = (
    # WARN_ON() in the kernel's own checkers: its caller is to blame
    Format(
        _at(r"lib/debugobjects\.c", r"debug_(?:print|check)"),
        "WARNING: ODEBUG bug in {frame}",
        walk=warning("debug_", "free$", "vunmap", "rcu"),
    ),
    Format(
        _at(r"mm/usercopy\.c", "usercopy_warn"),
        "WARNING: bad usercopy in {frame}",
        walk=warning("usercopy", "__check"),
    ),
    Format(
        _at(r"lib/kobject\.c", "kobject_"),
        "WARNING: kobject bug in {frame}",
        walk=warning("kobject_"),
    ),
    Format(
        _at(r"fs/proc/generic\.c", "proc_register"),
        "WARNING: proc registration bug in {frame}",
        walk=warning("proc_(create_|net_)*(register|data|reg|single|seq|mkdir|create)", "_proc_"),
    ),
    Format(
        _at(r"lib/refcount\.c", "refcount_"),
        "WARNING: refcount bug in {frame}",
        walk=warning("refcount", "kobject_", "^kref_"),
        type=CrashType.REFCOUNT,
    ),
    Format(
        _at(r"kernel/locking/(?:lockdep|locktorture|rwsem|mutex|rtmutex|spinlock_debug)\.c"),
        "WARNING: locking bug in {frame}",
        walk=warning("print_", "check_"),
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"WARNING: .{1,40} still has locks held!",
        "WARNING: still has locks held in {frame}",
        walk=IN_TRACE,
        type=CrashType.LOCKDEP,
    ),
    Format(
        _at(
            r"mm/(?:slab_common|page_alloc|slub|util)\.c",
            r"(?:kmalloc_slab|kmalloc_fix_flags|_*kvmalloc_node|new_slab)",
        ),
        "WARNING: kmalloc bug in {frame}",
        walk=warning("slab", "alloc_skb"),
    ),
    Format(
        _at(r"mm/vmalloc\.c", "_*(?:vfree|vunmap)"),
        "WARNING: vmalloc bug in {frame}",
        walk=warning("vfree", "vunmap", "free"),
    ),
    Format(
        _at(r"mm/vmalloc\.c", "_*vmalloc_node"),
        "WARNING: zero-size vmalloc in {frame}",
        walk=warning("vmalloc", "vzalloc"),
    ),
    Format(
        _at(r"mm/page_alloc\.c", r"\w*alloc_"),
        "WARNING in {frame}",
        walk=warning("alloc_(?:frozen_)?page|folio_alloc", "get_page_from_freelist|get_free_page"),
    ),
)

LOCKDEP = (
    # kernel/locking/lockdep.c, kernel/rcu/update.c
    Format(
        r"WARNING: possible circular locking dependency detected",
        "possible deadlock in {frame}",
        walk=AT_LOCK,
        type=CrashType.LOCKDEP,
        then=(r"is trying to acquire lock", r"at: (?:{PC} +)?[a-zA-Z_]"),
    ),
    Format(
        r"WARNING: possible irq lock inversion dependency detected",
        "possible deadlock in {frame}",
        walk=AT_LOCK,
        type=CrashType.LOCKDEP,
        then=(r"just changed the state of lock", r"at: (?:{PC} +)?[a-zA-Z_]"),
    ),
    Format(
        r"WARNING: \S+-safe -> \S+-unsafe lock order detected",
        "possible deadlock in {frame}",
        walk=Walk((pattern(r"which became .{1,40} at:"), TRACE)),
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"WARNING: possible recursive locking detected",
        "possible deadlock in {frame}",
        walk=AT_LOCK,
        type=CrashType.LOCKDEP,
        then=(r"is trying to acquire lock", r"at: (?:{PC} +)?[a-zA-Z_]"),
    ),
    Format(
        r"WARNING: inconsistent lock state",
        "inconsistent lock state in {frame}",
        walk=Walk(
            (pattern(r"takes:"), pattern(r"at: (?:{PC} +)?{FUNC}"), CALL_TRACE, TRACE),
            skip=("^iput$",),
        ),
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"WARNING: (?P<what>suspicious RCU usage)",
        "WARNING: {what} in {frame}",
        then=(r"\n{SOURCE}",),
        walk=Walk((CALL_TRACE, TRACE), skip=("rcu", "might_sleep", "slab")),
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"WARNING: bad unlock balance detected!",
        "WARNING: bad unlock balance in {frame}",
        walk=IN_TRACE,
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"WARNING: held lock freed!",
        "WARNING: held lock freed in {frame}",
        walk=Walk((CALL_TRACE, TRACE), skip=("debug_check_no_locks", "kfree", "slab", "kmem")),
        type=CrashType.LOCKDEP,
    ),
    Format(
        r"WARNING: lock held when returning to user space!",
        "WARNING: lock held when returning to user space in {func}",
        then=(r"leaving the kernel with locks still held", r"at: (?:{PC} +)?{FUNC}"),
        type=CrashType.LOCKDEP,
        has_stack=False,
    ),
    Format(
        r"WARNING: [Nn]ested lock was not taken",
        "WARNING: nested lock was not taken in {frame}",
        walk=Walk((pattern("at: (?:{PC} +)?{FUNC}"), CALL_TRACE, TRACE), skip=("^iput$",)),
        type=CrashType.LOCKDEP,
    ),
)

_STACK_CHECKS = (
    # arch/x86/kernel/unwind_frame.c
    Format(
        r"WARNING: kernel stack regs .{1,80} has bad '.{1,8}' value",
        "WARNING: kernel stack regs has bad value",
        has_stack=False,
        type=CrashType.UNKNOWN,
    ),
    Format(
        r"WARNING: kernel stack frame pointer .{1,80} has bad value",
        "WARNING: kernel stack frame pointer has bad value",
        has_stack=False,
        type=CrashType.UNKNOWN,
    ),
)


WARNINGS = (
    Family(
        "WARNING:",
        formats(
            _PLACES,
            LOCKDEP,
            _STACK_CHECKS,
            Format(
                r"WARNING: (?:CPU: |at |(?:\[.{0,300}\] )?\S+:\d+ at )",
                "WARNING in {frame}",
                walk=warning("^(fast_)?dput$"),
            ),
        ),
        accept=r"WARNING: (?:CPU: \d|at \S|(?:\[.{0,300}\] )?\S+:\d+ at |possible |suspicious "
        r"|inconsistent lock|bad unlock|held lock|lock held|[Nn]ested lock|kernel stack"
        r"|\S+-safe -> \S+-unsafe lock order|.{1,40} still has locks)",
        type=CrashType.WARNING,
    ),
)
