"""Resource balance: what a kernel loses over many runs of a program.

A fix that leaks an object instead of freeing it twice causes no report. The kernel's counts show
the leak: objects per slab cache (files, sockets, tasks and mounts have caches of their own),
references of modules, and pages of vmalloc other than stacks.
"""

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping

from kgym.api.steps import Loss
from kgym_vmmanager.guest.ssh import Ssh

# Runs of one measurement; a slow program makes fewer, but at least LEAST_RUNS. Over fewer runs, a
# slab that is allocated for its first object would look like a loss.
RUNS, LEAST_RUNS = 180, 60
# Objects lost with each run: fewer than _LEAST are noise of caches and timing. A kernel leaks if it
# loses LEAK more than the kernel that it is compared with.
_LEAST = 0.2
LEAK = 0.5
_COUNT = "cat /proc/slabinfo; sed s/^/module\\ / /proc/modules; grep kB /proc/meminfo"
_DROP = "sync; echo 3 >/proc/sys/vm/drop_caches"
_SLAB = re.compile(r"([A-Za-z_][\w.:+-]{0,99}) +([0-9]{1,15}) +[0-9]+ +[0-9]+ ", re.ASCII)
_MODULE = re.compile(r"(module \w{1,60}) [0-9]+ ([0-9]{1,9}) ", re.ASCII)
_MEMORY = re.compile(r"(VmallocUsed|KernelStack): +([0-9]{1,15}) kB", re.ASCII)
_ROUNDS = 3
_CALL_SECONDS = 60.0
# A hostile guest could free a little more each time it is asked.
_MOST_SECONDS = 300.0
# Pages of vmalloc are counted without stacks: work queues keep idle threads, and each has eight
# pages. Lost tasks show in their slab cache.
_PAGE_KIB = {"VmallocUsed": 4, "KernelStack": -4}


def counts(output: str) -> dict[str, int]:
    """Return the counts that a guest has printed; malformed lines are ignored. Pure."""
    known: dict[str, int] = {}
    for line in output.splitlines():
        if match := _SLAB.match(line) or _MODULE.match(line):
            known[match[1]] = int(match[2])
        elif match := _MEMORY.match(line):
            known["vmalloc"] = known.get("vmalloc", 0) + int(match[2]) // _PAGE_KIB[match[1]]
    return known


async def measured(
    ssh: Ssh, run_all: Callable[[], Awaitable[None]], runs: int = RUNS
) -> list[Loss]:
    """Return the losses per run; `run_all` makes so many `runs`.

    Raises ConnectionLost or TimeoutError.
    """
    async with asyncio.timeout(_MOST_SECONDS):
        before = await _counts(ssh)
        await run_all()
        after = await _settled(ssh, before, runs)
        losses = _losses(before, after, runs)
        # KASAN keeps freed objects for a while (mm/kasan/quarantine.c), and they count as in use.
        # Shrinking a cache frees them. That is slow, so only caches that grow are shrunk.
        shrink = _shrink(losses)
        if losses:
            after = await _settled(ssh, before, runs, shrink)
        # A leak loses as much in each round of runs. A pool, such as the threads of a work queue,
        # grows only until it is large enough.
        rounds = 1
        while losses and rounds < _ROUNDS:
            first = after
            await run_all()
            after = await _settled(ssh, first, runs, shrink)
            again = _losses(first, after, runs)
            losses = {name: min(losses[name], again[name]) for name in losses if name in again}
            rounds += 1
    return [Loss(name=name, per_run=round(loss, 2)) for name, loss in losses.items()]


async def _settled(
    ssh: Ssh, before: Mapping[str, int], runs: int, shrink: str = ":"
) -> dict[str, int]:
    """Return the counts once nothing that has grown since `before` is freed any more."""
    # An io_uring is torn down by a work queue, long after its program has ended.
    known = await _counts(ssh, shrink)
    for _ in range(6):
        grown = _losses(before, known, runs)
        if not grown:
            break
        counted = await _counts(ssh, shrink)
        # The minimum of all counts: counting itself sometimes allocates up to 80 dentries.
        earlier = known
        known = {name: min(count, earlier.get(name, count)) for name, count in counted.items()}
        if all(known.get(name, 0) >= earlier[name] for name in grown):
            break
    return known


def _losses(before: Mapping[str, int], after: Mapping[str, int], runs: int) -> dict[str, float]:
    losses = {name: (after[name] - before[name]) / runs for name in after if name in before}
    return {name: loss for name, loss in losses.items() if loss >= _LEAST}


def _shrink(names: Collection[str]) -> str:
    paths = (shlex.quote(f"/sys/kernel/slab/{name}/shrink") for name in names if " " not in name)
    return f"for path in {' '.join(paths)}; do [ ! -e $path ] || echo 1 >$path; done"


async def _counts(ssh: Ssh, shrink: str = ":") -> dict[str, int]:
    await asyncio.sleep(1)  # RCU and work queues free some objects later
    _, output = await ssh.run(f"{_DROP}; {shrink}; {_COUNT}", limit=_CALL_SECONDS)
    return counts(output.decode(errors="replace"))
