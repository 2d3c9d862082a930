"""Memory leaks, in the kernel's own words: what kmemleak prints on the console when it scans.

A leak is silent until somebody has memory scanned, and read the list; programs
of syzkaller's do, and print what they read. Such a print is a program's word. So
where leaks are looked for, the kernel is told to print each one itself
(`kmemleak.verbose`, since Linux 4.20), whoever makes it scan. What it finds
before the program runs is the boot's, and cleared.
"""

import re
from collections.abc import Sequence

from kgym.steps import VmShape
from kgym_vmmanager.ssh import Ssh

WORDS = "kmemleak.verbose=1"
"""For the kernel's command line."""

_LEAKS = "/sys/kernel/debug/kmemleak"
# kmemleak tells of nothing younger than 5 s, nor of what changes between two scans.
_CLEAR = f"echo scan >{_LEAKS} && sleep 6 && echo scan >{_LEAKS}; echo clear >{_LEAKS}"
_CLEAR_SECONDS = 120.0
_PREFIX = re.compile(rb"^((?:<[0-9]+>)?(?:\[[^\]\n]*\] ?)*)kmemleak: ", re.MULTILINE)


def wanted(titles: Sequence[str], shape: VmShape) -> bool:
    """Whether leaks are looked for: by a title, or by switching kmemleak on."""
    by_title = any(title.startswith("memory leak in ") for title in titles)
    return by_title or "kmemleak=on" in shape.append.split()


def plain(log: bytes) -> bytes:
    """Return the log with the records as reports have them: without `kmemleak:` on each line."""
    return _PREFIX.sub(rb"\1", log)


async def clear(ssh: Ssh) -> None:
    """Have the kernel find what has leaked so far, and forget it."""
    await ssh.run(f"[ ! -e {_LEAKS} ] || {{ {_CLEAR}; }}", limit=_CLEAR_SECONDS)
