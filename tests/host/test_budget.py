"""Work shares the host: it waits for room, in turn."""

import asyncio

import pytest

from kgym.host.budget import Budget, Use

pytestmark = pytest.mark.anyio


async def most_at_once(budget: Budget, cpus: int, memory: int, wanted: int = 6) -> int:
    now = most = 0

    async def use() -> None:
        nonlocal now, most
        async with budget.share(Use.VM, cpus, memory):
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1

    await asyncio.gather(*(use() for _ in range(wanted)))
    return most


async def test_cpus_bound_what_runs_at_once() -> None:
    assert await most_at_once(Budget(4, 100_000), 2, 100) == 2


async def test_memory_bounds_what_runs_at_once() -> None:
    assert await most_at_once(Budget(64, 3 * 512), 1, 512) == 3


async def test_one_always_fits() -> None:
    assert await most_at_once(Budget(1, 100), 8, 4096) == 1


async def test_who_is_cancelled_in_the_queue_blocks_nobody() -> None:
    budget = Budget(1, 100_000)
    async with budget.share(Use.VM, 1, 100):
        waiting = asyncio.create_task(most_at_once(budget, 1, 100, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await most_at_once(budget, 1, 100) == 1


async def test_a_check_waits_for_no_cores_of_a_vm_but_for_its_memory() -> None:
    budget = Budget(2, 1000)
    async with budget.share(Use.VM, 2, 600):
        async with budget.share(Use.CHECK, 2, 400) as cores:
            assert cores == 2
        async with asyncio.timeout(10):
            assert await most_at_once(budget, 1, 100, 0) == 0
        blocked = asyncio.create_task(most_at_once(budget, 1, 100, 1))
        big = asyncio.create_task(held(budget, Use.BUILD, 900))
        small = asyncio.create_task(held(budget, Use.CHECK, 100))
        await asyncio.sleep(0.02)
        # The build waits for memory, and is passed by nobody; the VM waits for cores.
        assert not any(task.done() for task in (blocked, big, small))
    await asyncio.gather(blocked, big, small)


async def held(budget: Budget, use: Use, memory: int) -> None:
    async with budget.share(use, 0, memory):
        pass
