"""Titles of reports, without the parts that change from run to run.

The type of a crash is derived from its title, as syzkaller does.
"""

import re

from kgym.crash.report.crash_report import CrashType

_MAX_LENGTH = 120
_BAD_PLACE = r"(?:(?:(?:global|slab|stack|vmalloc)-)?out-of-bounds|(?:user|wild)-memory-access)"

# A byte outside ASCII is not part of a word, whatever letter it would be in some encoding.
_VOLATILE = tuple(
    (re.compile(pattern, re.ASCII), name)
    for pattern, name in (
        (r"syz-executor\.?[0-9]+(?:[/:][0-9]+)?", "syz-executor"),
        (r"syzkaller[0-9]+(?:[/:][0-9]+)?", "syzkaller"),
        (r"([^a-zA-Z0-9])(?:0x)?[0-9a-f]{6,}", r"\1ADDR"),
        (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", "IP"),
        (r"(\.\w+)(?::[0-9]+)+", r"\1:LINE"),
        (r"([a-zA-Z][a-zA-Z0-9_.]+)\+0x[0-9a-z]+/0x[0-9a-z]+", r"\1"),
        (r"CPU#[0-9]+", "CPU"),
        # A number inside a word may belong to a function's name (nl80211_...): keep it.
        (r"(?<=\W)[0-9]+(?=\W|$)", "NUM"),
        (r"[0-9]{7,}", "NUM"),
    )
)


def clean(title: str) -> str:
    """Return the title in one line of printable ASCII, without volatile parts."""
    for volatile, name in _VOLATILE:
        title = volatile.sub(name, title)
    printable = "".join(c for c in title[:_MAX_LENGTH].replace("\t", " ") if " " <= c <= "~")
    return re.sub(r" +", " ", printable).strip()


# Beginnings of titles and their types; the first match counts.
_TYPES = tuple(
    (re.compile(pattern), type_)
    for pattern, type_ in (
        (r"KASAN: (?:double-free|invalid-free)", CrashType.KASAN_INVALID_FREE),
        (r"KASAN: null-ptr-deref Write", CrashType.KASAN_NULL_DEREF_WRITE),
        (r"KASAN: null-ptr-deref Read", CrashType.KASAN_NULL_DEREF_READ),
        (r"KASAN: (?:slab-)?use-after-free Write", CrashType.KASAN_USE_AFTER_FREE_WRITE),
        (
            # an access of unknown kind is at least a read
            r"KASAN: use-after-free|KASAN: slab-use-after-free Read",
            CrashType.KASAN_USE_AFTER_FREE_READ,
        ),
        (rf"KASAN: {_BAD_PLACE} Write", CrashType.KASAN_WRITE),
        (
            rf"KASAN: (?:{_BAD_PLACE}|invalid-access|unknown-crash) Read"
            r"|KASAN: (?:slab-out-of-bounds|stack-out-of-bounds|wild-memory-access)",
            CrashType.KASAN_READ,
        ),
        (r"KASAN:", CrashType.KASAN_UNKNOWN),
        (r"KFENCE: use-after-free write", CrashType.KFENCE_USE_AFTER_FREE_WRITE),
        (r"KFENCE: use-after-free", CrashType.KFENCE_USE_AFTER_FREE_READ),
        (r"KFENCE: (?:invalid|out-of-bounds) write", CrashType.KFENCE_WRITE),
        (r"KFENCE: (?:invalid read|out-of-bounds)", CrashType.KFENCE_READ),
        (r"KFENCE: memory corruption", CrashType.KFENCE_MEMORY_CORRUPTION),
        (r"KFENCE: invalid free", CrashType.KFENCE_INVALID_FREE),
        (r"KFENCE:", CrashType.KFENCE_UNKNOWN),
        (r"KMSAN: uninit-value", CrashType.KMSAN_UNINIT_VALUE),
        (
            r"KMSAN: (?:kernel-(?:usb-)?infoleak-after-free|use-after-free)",
            CrashType.KMSAN_USE_AFTER_FREE,
        ),
        (r"KMSAN: kernel-(?:usb-)?infoleak", CrashType.KMSAN_INFO_LEAK),
        (r"KMSAN:", CrashType.KMSAN_UNKNOWN),
        (r"KCSAN: data-race", CrashType.KCSAN_DATA_RACE),
        (r"KCSAN: assert: race in", CrashType.KCSAN_ASSERT),
        (r"KCSAN:", CrashType.KCSAN_UNKNOWN),
        (r"UBSAN: array-index-out-of-bounds", CrashType.MEMORY_SAFETY_UBSAN),
        (r"UBSAN:", CrashType.UBSAN),
        (r"BUG: unable to handle kernel NULL pointer dereference in", CrashType.NULL_DEREF),
        (
            r"BUG: (?:corrupted list|unable to handle kernel paging request)",
            CrashType.MEMORY_SAFETY_BUG,
        ),
        (r"WARNING: refcount bug", CrashType.REFCOUNT),
        (
            r"(?:BUG|WARNING): (?:bad unlock balance|held lock freed|still has locks held) in"
            r"|BUG: (?:rwlock|spinlock|using)|possible deadlock in|WARNING: lock held"
            r"|WARNING: (?:locking bug|nested lock was not taken|suspicious RCU usage) in"
            r"|inconsistent lock state in",
            CrashType.LOCKDEP,
        ),
        (
            r"BUG: (?:scheduling while atomic|sleeping function called from invalid context) in",
            CrashType.ATOMIC_SLEEP,
        ),
        (r"memory leak in", CrashType.MEMORY_LEAK),
        (r"kernel BUG|BUG: bad usercopy in", CrashType.BUG),
        # these are only printed, not raised by WARN_ON()
        (r"WARNING: (?:corrupted|kernel stack (?:frame|regs))", CrashType.UNKNOWN),
        (r"WARNING", CrashType.WARNING),
        (
            r"BUG: (?:soft|hard) lockup in|INFO: (?:rcu detected stall|task (?:hung|can't die)) in",
            CrashType.HANG,
        ),
        (r"unexpected kernel reboot", CrashType.REBOOT),
        (r"SYZFAIL|SYZFATAL", CrashType.SYZ_FAILURE),
        (
            r"BUG: Object already free|(?:divide error|general protection fault|invalid opcode"
            r"|stack segment fault|Alignment trap|Internal error|Unhandled fault) in"
            r"|PANIC: double fault|VFS: (?:Busy inodes|Close: file count)|go runtime error"
            r"|kernel panic:|kernel stack overflow|panic:|trusty:|unregister_netdevice: waiting",
            CrashType.DOS,
        ),
    )
)


def type_of(title: str) -> CrashType:
    """Return the type of crash of a title."""
    return next((type_ for pattern, type_ in _TYPES if pattern.match(title)), CrashType.UNKNOWN)
