"""Memory leaks, in the kernel's own words: what kmemleak prints on the console when it scans.

A leak is silent until somebody has memory scanned, and read the list; programs
of syzkaller's do, and print what they read. Such a print is a program's word. So
where leaks are looked for, the kernel is told to print each one itself
(`kmemleak.verbose`, since Linux 4.20), whoever makes it scan; we do, too, when the
program's time is over. What it finds before the program runs is the boot's, and cleared.
"""

import asyncio
import re
from collections.abc import Awaitable, Sequence

from kgym.api.steps import InstanceOutcome, VmShape
from kgym.host.quoted_words import quoted
from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh
from kgym_vmmanager.vm.instance_ending import InstanceEnded

# Words for the kernel's command line.
WORDS = "kmemleak.verbose=1"
OFF = "leaks were not looked for: kmemleak is not at work in this kernel"

_LEAKS = "/sys/kernel/debug/kmemleak"
# kmemleak tells of nothing younger than 5 s, nor of what changes between two scans.
_SCAN = f"echo scan >{_LEAKS} && sleep 6 && echo scan >{_LEAKS}"
_SCAN_SECONDS = 120.0
# How long the console may take to show what a scan has found.
_TOLD_SECONDS = 2.0
_PREFIX = re.compile(rb"^((?:<[0-9]+>)?(?:\[[^\]\n]*\] ?)*)kmemleak: ", re.MULTILINE)


def wanted(titles: Sequence[str], shape: VmShape) -> bool:
    """Whether leaks are looked for: by a title, or by switching kmemleak on."""
    by_title = any(title.startswith("memory leak in ") for title in titles)
    return by_title or "kmemleak=on" in shape.append.split()


def plain(log: bytes) -> bytes:
    """Return the log with the records as reports have them: without `kmemleak:` on each line."""
    return _PREFIX.sub(rb"\1", log)


async def clear(ssh: Ssh) -> bool:
    """Have the kernel find what has leaked so far, and forget it; False if it knows no leaks."""
    # The file is there, too, where kmemleak is switched off; then it refuses.
    status, _ = await ssh.run(_SCAN, limit=_SCAN_SECONDS)
    await ssh.run(f"[ ! -e {_LEAKS} ] || echo clear >{_LEAKS}", limit=_SCAN_SECONDS)
    return status == 0


async def find(connecting: Awaitable[Ssh]) -> None:
    """Have the kernel tell of what has leaked since, whether or not the program had it scan.

    A program whose own scan came too early, or did not end in time, would prove
    nothing. Raises Ended if the guest does not scan.
    """
    try:
        status, output = await (await connecting).run(_SCAN, limit=_SCAN_SECONDS)
    except ConnectionLost as error:
        raise InstanceEnded(
            InstanceOutcome.NOT_DONE, f"leaks were not looked for: {error}"
        ) from error
    if status != 0:
        words = quoted(output)
        raise InstanceEnded(
            InstanceOutcome.NOT_DONE, f"leaks were not looked for: the guest says `{words}`"
        )
    await asyncio.sleep(_TOLD_SECONDS)
