"""Crash reports: their kind, their frames, their place in the log."""

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import NamedTuple

_IN_TITLE = re.compile(r".* in ((?:<[\w: ]+>)?[\w:]+)")


def frame_of(title: str) -> str | None:
    """Return the function named in a title; None if there is none."""
    match = _IN_TITLE.match(title)
    return match[1] if match else None


class CrashType(StrEnum):
    """Kind of crash; the values are those of the TYPE header of syzkaller's report corpus."""

    UNKNOWN = ""
    ATOMIC_SLEEP = "ATOMIC_SLEEP"
    BUG = "BUG"
    DOS = "DoS"
    HANG = "HANG"
    KASAN_INVALID_FREE = "KASAN-INVALID-FREE"
    KASAN_NULL_DEREF_READ = "KASAN-NULL-POINTER-DEREFERENCE-READ"
    KASAN_NULL_DEREF_WRITE = "KASAN-NULL-POINTER-DEREFERENCE-WRITE"
    KASAN_READ = "KASAN-READ"
    KASAN_UNKNOWN = "KASAN-UNKNOWN"
    KASAN_USE_AFTER_FREE_READ = "KASAN-USE-AFTER-FREE-READ"
    KASAN_USE_AFTER_FREE_WRITE = "KASAN-USE-AFTER-FREE-WRITE"
    KASAN_WRITE = "KASAN-WRITE"
    KCSAN_ASSERT = "KCSAN-ASSERT"
    KCSAN_DATA_RACE = "KCSAN-DATARACE"
    KCSAN_UNKNOWN = "KCSAN-UNKNOWN"
    KFENCE_INVALID_FREE = "KFENCE-INVALID-FREE"
    KFENCE_MEMORY_CORRUPTION = "KFENCE-MEMORY-CORRUPTION"
    KFENCE_READ = "KFENCE-READ"
    KFENCE_UNKNOWN = "KFENCE-UNKNOWN"
    KFENCE_USE_AFTER_FREE_READ = "KFENCE-USE-AFTER-FREE-READ"
    KFENCE_USE_AFTER_FREE_WRITE = "KFENCE-USE-AFTER-FREE-WRITE"
    KFENCE_WRITE = "KFENCE-WRITE"
    KMSAN_INFO_LEAK = "KMSAN-INFO-LEAK"
    KMSAN_UNINIT_VALUE = "KMSAN-UNINIT-VALUE"
    KMSAN_UNKNOWN = "KMSAN-UNKNOWN"
    KMSAN_USE_AFTER_FREE = "KMSAN-USE-AFTER-FREE-READ"
    LOCKDEP = "LOCKDEP"
    MEMORY_LEAK = "LEAK"
    MEMORY_SAFETY_BUG = "MEMORY_SAFETY_BUG"
    MEMORY_SAFETY_UBSAN = "MEMORY_SAFETY_UBSAN"
    NULL_DEREF = "NULL-POINTER-DEREFERENCE"
    REBOOT = "REBOOT"
    REFCOUNT = "REFCOUNT_WARNING"
    SYZ_FAILURE = "SYZ_FAILURE"
    UBSAN = "UBSAN"
    WARNING = "WARNING"


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a kernel stack trace.

    `offset` and `size` are bytes (None for inlined frames, whose lines have none); `file` and
    `line` are set in symbolised traces; `uncertain` marks an entry that the unwinder found on the
    stack but could not verify ("? func", "(unreliable)").
    """

    function: str
    offset: int | None = None
    size: int | None = None
    file: str | None = None
    line: int | None = None
    inlined: bool = False
    uncertain: bool = False
    module: str | None = None


class Executor(NamedTuple):
    """The crashed program of a syzkaller executor: its process and program numbers."""

    proc: int
    id: int


@dataclass(frozen=True, slots=True)
class CrashReport:
    """One crash, parsed from a console log.

    `start` and `end` are byte offsets in the log: the start of the first line and the end of the
    last line that announce a crash. `frames` is the crashing stack; `alloc_stack` and `free_stack`
    are a memory sanitizer's stacks of the object. `corrupted` means that the log is too damaged for
    the title to be trusted, for the reason `corrupted_reason`; `suppressed` means that the crash is
    noise of the test machine (for example, it ran out of memory).
    """

    title: str
    alt_titles: tuple[str, ...]
    type: CrashType
    corrupted: bool
    corrupted_reason: str
    suppressed: bool
    panicked: bool
    frames: tuple[Frame, ...]
    text: str
    start: int
    end: int
    executor: Executor | None = None
    task: str | None = None
    pid: int | None = None
    cpu: int | None = None
    guilty_file: str | None = None
    alloc_stack: tuple[Frame, ...] = ()
    free_stack: tuple[Frame, ...] = ()

    @property
    def frame(self) -> str | None:
        """The function named in the title; None if there is none."""
        return frame_of(self.title)

    def as_dict(self) -> dict[str, object]:
        """Return the report as JSON values, with its text as "report"."""
        values = asdict(self) | {"frame": self.frame, "report": self.text}
        if self.executor is not None:
            values["executor"] = self.executor._asdict()
        del values["text"]
        return values
