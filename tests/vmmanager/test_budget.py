"""VMs share the host: they wait for room, in turn."""

import asyncio

import pytest

from kgym_vmmanager.budget import OVERHEAD_MIB, Budget

pytestmark = pytest.mark.anyio


async def most_at_once(budget: Budget, cpus: int, memory: int, wanted: int = 6) -> int:
    now = most = 0

    async def one() -> None:
        nonlocal now, most
        async with budget.share(cpus, memory):
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1

    await asyncio.gather(*(one() for _ in range(wanted)))
    return most


async def test_cpus_bound_what_runs_at_once() -> None:
    assert await most_at_once(Budget(4, 100_000), 2, 100) == 2


async def test_memory_bounds_what_runs_at_once() -> None:
    assert await most_at_once(Budget(64, 3 * (512 + OVERHEAD_MIB)), 1, 512) == 3


async def test_one_vm_always_fits() -> None:
    assert await most_at_once(Budget(1, 100), 8, 4096) == 1


async def test_who_is_cancelled_in_the_queue_blocks_nobody() -> None:
    budget = Budget(1, 100_000)
    async with budget.share(1, 100):
        waiting = asyncio.create_task(most_at_once(budget, 1, 100, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await most_at_once(budget, 1, 100) == 1
