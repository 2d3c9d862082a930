"""Names of system calls and of their results, for x86-64."""

import errno
from functools import cache

from kgym.configs import CONFIGS

_TABLE = CONFIGS / "syscalls-x86_64.txt"
# The tracer adds this to the number of a 32-bit program's call.
COMPAT = 1 << 16
OK = "ok"
# ERESTARTSYS and similar codes (include/linux/errno.h), which only a tracer sees: a signal
# interrupted the call.
_RESTARTED = range(512, 517)


def call_name(number: int) -> str:
    """Return the name of a system call; `i386_N` or `syscall_N` if the table lacks it."""
    if number >= COMPAT:
        return f"i386_{number - COMPAT}"
    return _names().get(number, f"syscall_{number}")


def result_name(number: int) -> str:
    """Return `ok` for 0, the name of an error (`EINVAL`), or `error_N` for one without."""
    if number == 0:
        return OK
    if number in _RESTARTED:
        return "EINTR"
    return errno.errorcode.get(number, f"error_{number}")


@cache
def _names() -> dict[int, str]:
    lines = (line.split() for line in _TABLE.read_text().splitlines())
    return {int(words[0]): words[1] for words in lines if words and words[0] != "#"}
