"""Memory leaks: the reports that kmemleak prints on the console when it scans.

Syzkaller's programs scan and print the list themselves, but their output is no evidence. So the
kernel itself prints each leak (`kmemleak.verbose`, since Linux 4.20), whoever starts the scan. We
scan too, once the program's time is over. Leaks from before the program stem from the boot, and are
cleared.
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
# kmemleak reports no object younger than 5 s, nor one that changed between two scans.
_SCAN = f"echo scan >{_LEAKS} && sleep 6 && echo scan >{_LEAKS}"
_SCAN_SECONDS = 120.0
# Time until the console shows the leaks of a scan.
_SHOWN_SECONDS = 2.0
_PREFIX = re.compile(rb"^((?:<[0-9]+>)?(?:\[[^\]\n]*\] ?)*)kmemleak: ", re.MULTILINE)


def wanted(titles: Sequence[str], shape: VmShape) -> bool:
    """Return whether to look for leaks: a title is a leak's, or the shape switches kmemleak on."""
    by_title = any(title.startswith("memory leak in ") for title in titles)
    return by_title or "kmemleak=on" in shape.append.split()


def plain(log: bytes) -> bytes:
    """Return the log without the prefix `kmemleak:` of each line, as reports have it."""
    return _PREFIX.sub(rb"\1", log)


async def clear(ssh: Ssh) -> bool:
    """Let the kernel find and forget all leaks so far; return False if kmemleak is off."""
    # The file exists even if kmemleak is switched off, but refuses the scan.
    status, _ = await ssh.run(_SCAN, limit=_SCAN_SECONDS)
    await ssh.run(f"[ ! -e {_LEAKS} ] || echo clear >{_LEAKS}", limit=_SCAN_SECONDS)
    return status == 0


async def find(connecting: Awaitable[Ssh]) -> None:
    """Let the kernel print all leaks since `clear`. Raises InstanceEnded if it does not scan."""
    # A program's own scan may have come too early, or not have ended in time.
    why = None
    try:
        status, output = await (await connecting).run(_SCAN, limit=_SCAN_SECONDS)
        if status != 0:
            why = f"the guest says `{quoted(output)}`"
    except ConnectionLost as error:
        why = str(error)
    if why is not None:
        raise InstanceEnded(InstanceOutcome.NOT_DONE, f"leaks were not looked for: {why}")
    await asyncio.sleep(_SHOWN_SECONDS)
