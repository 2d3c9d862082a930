"""Lines with "WARNING:": WARN_ON() and its special places, and the reports of lockdep."""

from kgym.crash.report.blamed_function import TRACE, BlameRule, pattern
from kgym.crash.report.families.blame_rules import AT_LOCK, UNLOCKING, in_trace, warning
from kgym.crash.report.families.family import BY_KERNEL, Family, Format


def _at(file: str, function: str) -> str:
    """Return the pattern of a WARN_ON() in `file`, in a function with this prefix.

    Up to Linux 6.17: "WARNING: CPU: 1 PID: 4 at FILE:12 FUNC"; since then: "WARNING: FILE:12 at
    FUNC", for which every function of the file matches.
    """
    return rf"WARNING: .*{file}.* (?:{function}|at)"


_PLACES = (
    # WARN_ON() in the kernel's own checkers: its caller is to blame
    Format(
        _at(r"lib/debugobjects\.c", r"debug_(?:print|check)"),
        "WARNING: ODEBUG bug in {frame}",
        walk=warning(
            "debug_|rcu|hrtimer_|timer_|work_|percpu_|vunmap|vfree|__free_|debug_check|kobject_"
        ),
    ),
    Format(
        _at(r"mm/usercopy\.c", "usercopy_warn"),
        "WARNING: bad usercopy in {frame}",
        walk=warning("usercopy|__check"),
    ),
    Format(
        _at(r"lib/kobject\.c", "kobject_"),
        "WARNING: kobject bug in {frame}",
        walk=warning("kobject_"),
    ),
    Format(
        _at(r"fs/proc/generic\.c", "proc_register"),
        "WARNING: proc registration bug in {frame}",
        walk=warning("proc_"),
    ),
    Format(
        _at(r"lib/refcount\.c", "refcount_"),
        "WARNING: refcount bug in {frame}",
        walk=warning("refcount|kobject_"),
    ),
    Format(
        r"WARNING: .*kernel/locking/lockdep\.c.*lock_",
        "WARNING: locking bug in {frame}",
        walk=warning("(?:lock|release)_sock"),
    ),
    Format(
        r"WARNING: .*mm/.*\.c.* k?.?malloc",
        "WARNING: kmalloc bug in {frame}",
        walk=warning("kmalloc|krealloc|slab|kmem"),
    ),
    Format(
        r"WARNING: .*mm/vmalloc\.c.*__vmalloc_node",
        "WARNING: zero-size vmalloc in {frame}",
        walk=warning(),
    ),
    Format(
        r"WARNING: .* usb_submit_urb",
        "WARNING in {frame}/usb_submit_urb",
        walk=warning("usb_submit_urb|usb_start_wait_urb|usb_(?:bulk|interrupt|control)_msg"),
    ),
    # kernels without CONFIG_DEBUG_BUGVERBOSE name no file
    Format(
        r"WARNING: (?:.* at {SOURCE}|CPU: \d+ PID: \d+ at) {FUNC}",
        "WARNING in {frame}",
        walk=warning(),
        names=True,
    ),
    Format(
        r"WARNING: (?:\[.*\] )?{SOURCE} at (?:{FUNC}|0x)",
        "WARNING in {frame}",
        walk=warning(),
        names=True,
    ),
)

_AT = r"at: (?:{PC} +)?{FUNC}"

LOCKDEP = (
    # kernel/locking/lockdep.c, kernel/rcu/update.c
    Format(
        r"WARNING: possible circular locking dependency detected",
        "possible deadlock in {frame}",
        then=(r"is trying to acquire lock",),
        walk=AT_LOCK,
    ),
    Format(
        r"WARNING: possible irq lock inversion dependency detected",
        "possible deadlock in {func}",
        then=(r"just changed the state of lock", _AT),
    ),
    Format(
        r"WARNING: .*-safe -> .*-unsafe lock order detected",
        "possible deadlock in {frame}",
        walk=BlameRule((pattern(r"which became .* at:"), TRACE)),
    ),
    Format(
        r"WARNING: possible recursive locking detected",
        "possible deadlock in {func}",
        then=(r"is trying to acquire lock", _AT),
    ),
    Format(
        r"WARNING: inconsistent lock state",
        "inconsistent lock state in {frame}",
        then=(r"takes", _AT),
        walk=in_trace(),
    ),
    Format(
        r"WARNING: suspicious RCU usage",
        "WARNING: suspicious RCU usage in {frame}",
        then=(r"\n.*?{SOURCE}",),
        walk=in_trace("rcu|kmem|slab"),
    ),
    Format(
        r"WARNING: bad unlock balance detected!",
        "WARNING: bad unlock balance in {frame}",
        walk=UNLOCKING,
    ),
    Format(
        r"WARNING: held lock freed!",
        "WARNING: held lock freed in {func}",
        then=(r"at:(?: {PC})? +{FUNC}",),
    ),
    Format(
        r"WARNING: .*still has locks held!",
        "WARNING: still has locks held in {func}",
        then=(r"at: {FUNC}",),
    ),
    Format(
        r"WARNING: lock held when returning to user space",
        "WARNING: lock held when returning to user space in {func}",
        then=(r"leaving the kernel with locks still held", _AT),
        has_stack=False,
    ),
    Format(
        r"WARNING: Nested lock was not taken",
        "WARNING: nested lock was not taken in {frame}",
        walk=warning(),
    ),
)

_UNWINDER = (
    # arch/x86/kernel/unwind_frame.c
    Format(
        r"WARNING: kernel stack regs at [0-9a-f]+ in [^ ]* has bad '(?P<register>[^']+)' value",
        "WARNING: kernel stack regs has bad '{register}' value",
        has_stack=False,
    ),
    Format(
        r"WARNING: kernel stack frame pointer at [0-9a-f]+ in [^ ]* has bad value",
        "WARNING: kernel stack frame pointer has bad value",
        has_stack=False,
    ),
    Format(
        r"WARNING: kernel stack (?:regs .* has bad 'bp'|frame pointer .* has bad) value",
        "WARNING: kernel stack regs has bad value",
        has_stack=False,
    ),
)

WARNINGS = Family(
    "WARNING:",
    (
        *(*_PLACES, *LOCKDEP, *_UNWINDER),
        Format(r"WARNING:\s*$", "WARNING: corrupted", intact=False),
    ),
    # Programs begin many harmless lines with this word. Every such line of the kernel counts,
    # wherever the word is in it: a driver that prints it has detected a fault.
    accept=r"WARNING: (?:CPU: \d|at \S|(?:\[.*\] )?\S+:\d+ at |possible |suspicious RCU"
    r"|inconsistent lock|bad (?:unlock|contention)|held lock|lock held|[Nn]ested lock|kernel stack"
    r"|\S+-safe -> \S+-unsafe lock order|.*still has locks held)|WARNING:\s*$"
    rf"|{BY_KERNEL}WARNING: |^[^\[]*{BY_KERNEL}.*\bWARNING: ",
    # Messages about the machine, its settings and deprecated features: every boot on such a machine
    # has them.
    # fs/namespace.c, kernel/capability.c, net/wireless/wext-core.c, kernel/workqueue.c,
    # arch/x86/kernel/cpu/bugs.c, init/main.c
    reject=r"WARNING: (?:[Tt]he mand mount option|workqueue cpumask: online|See https?:"
    r"|Unprivileged eBPF|Unsupported flag value|fbcon: Driver|BIOS bug|polling idle"
    r"|CPU does not support|.*(?:deprecated|not compiled with|kernel command line"
    r"|mitigation|data leaks possible|retbleed))"
    r"|EXT4-[Ff][Ss](?: \(.*\))?:|XFS \(\w+\): WARNING"
    r"|(?i:warning: .* uses (?:deprecated v2 capabilities|wireless extensions))"
    # programs that write to the kernel's log with their name and number, as systemd does
    rf"|^[^\[]*{BY_KERNEL}[\w@./-]+\[[0-9]+\]: ",
)
