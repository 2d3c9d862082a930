"""Titles: what a report is called, with everything that changes from run to run left out."""

import re

from kgym.report.model import CrashType

_MAX_LENGTH = 120

_VOLATILE = (
    (re.compile(r"syz-executor\.?[0-9]+(?:[/:][0-9]+)?"), "syz-executor"),
    (re.compile(r"syzkaller[0-9]+(?:[/:][0-9]+)?"), "syzkaller"),
    (re.compile(r"([^a-zA-Z0-9])(?:0x)?[0-9a-f]{6,}(?![a-zA-Z0-9_])"), r"\1ADDR"),
    (re.compile(r"([^a-zA-Z0-9])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}"), r"\1IP"),
    (re.compile(r"(\.\w+)(?::[0-9]+)+"), r"\1:LINE"),
    (re.compile(r"([a-zA-Z][a-zA-Z0-9_.]+)\+0x[0-9a-z]+/0x[0-9a-z]+"), r"\1"),
    (re.compile(r"CPU#[0-9]+"), "CPU"),
    # A number inside a word may belong to a function's name (nl80211_...): it stays.
    (re.compile(r"(?<=\W)[0-9]+(?=\W|$)"), "NUM"),
    (re.compile(r"[0-9]{7,}"), "NUM"),
)


def clean(title: str) -> str:
    """Return the title as it is printed: one line of plain ASCII without volatile parts."""
    for volatile, name in _VOLATILE:
        title = volatile.sub(name, title)
    printable = "".join(c for c in title[:_MAX_LENGTH].replace("\t", " ") if " " <= c <= "~")
    return re.sub(r" +", " ", printable).strip()


# The first pattern found at the start of a title gives the type.
_TYPES = tuple(
    (re.compile(pattern), type_)
    for pattern, type_ in (
        (r"KASAN: (?:double-free|invalid-free)", CrashType.KASAN_INVALID_FREE),
        (r"KASAN: null-ptr-deref Write", CrashType.KASAN_NULL_DEREF_WRITE),
        (r"KASAN: null-ptr-deref", CrashType.KASAN_NULL_DEREF_READ),
        (r"KASAN: (?:slab-)?use-after-free Write", CrashType.KASAN_USE_AFTER_FREE_WRITE),
        (r"KASAN: (?:slab-)?use-after-free", CrashType.KASAN_USE_AFTER_FREE_READ),
        (r"KASAN: \S+ Write", CrashType.KASAN_WRITE),
        (r"KASAN: ", CrashType.KASAN_READ),
        (r"KFENCE: use-after-free write", CrashType.KFENCE_USE_AFTER_FREE_WRITE),
        (r"KFENCE: use-after-free", CrashType.KFENCE_USE_AFTER_FREE_READ),
        (r"KFENCE: invalid free", CrashType.KFENCE_INVALID_FREE),
        (r"KFENCE: memory corruption", CrashType.KFENCE_MEMORY_CORRUPTION),
        (r"KFENCE: \S+ write", CrashType.KFENCE_WRITE),
        (r"KFENCE: \S+ read", CrashType.KFENCE_READ),
        (r"KFENCE: ", CrashType.KFENCE_UNKNOWN),
        (r"KMSAN: \S*infoleak", CrashType.KMSAN_INFO_LEAK),
        (r"KMSAN: uninit-value", CrashType.KMSAN_UNINIT_VALUE),
        (r"KMSAN: use-after-free", CrashType.KMSAN_USE_AFTER_FREE),
        (r"KMSAN: ", CrashType.KMSAN_UNKNOWN),
        (r"KCSAN: assert", CrashType.KCSAN_ASSERT),
        (r"KCSAN: data-race", CrashType.KCSAN_DATA_RACE),
        (r"KCSAN: ", CrashType.KCSAN_UNKNOWN),
    )
)


def type_of(title: str) -> CrashType:
    """Return the kind of crash that a title tells of, for messages that have several."""
    return next((type_ for found, type_ in _TYPES if found.match(title)), CrashType.UNKNOWN)
