"""What every bus promises, whatever carries it."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from kgym.api.steps import StepKind
from kgym.transport.bus import Bus, Delivery

pytestmark = pytest.mark.anyio

BUILD, CHECK, REPRODUCE = StepKind.BUILD, StepKind.CHECK, StepKind.REPRODUCE


# Seconds after which what should happen counts as not happening, on a busy machine too.
LIMIT = 60


async def heard(notifications: AsyncIterator[Delivery]) -> Delivery:
    async with asyncio.timeout(LIMIT):
        return await anext(notifications)


async def silent(notifications: AsyncIterator[Delivery]) -> bool:
    try:
        async with asyncio.timeout(0.3):
            await anext(notifications)
    except TimeoutError:
        return True
    return False


async def test_a_bell_waits_until_somebody_listens(bus: Bus) -> None:
    await bus.publish(BUILD)
    async with bus.consume([BUILD]) as notifications:
        assert (await heard(notifications)).kind is BUILD


@pytest.mark.thorough
async def test_a_listener_hears_all_its_kinds_and_no_other(bus: Bus) -> None:
    for kind in (REPRODUCE, CHECK, BUILD):
        await bus.publish(kind)
    kinds = set()
    async with bus.consume([BUILD, CHECK]) as notifications:
        for _ in range(2):
            delivery = await heard(notifications)
            kinds.add(delivery.kind)
            await delivery.ack()
        assert kinds == {BUILD, CHECK}
        assert await silent(notifications)


@pytest.mark.thorough
async def test_an_acknowledged_bell_is_not_heard_again(bus: Bus) -> None:
    await bus.publish(BUILD)
    async with bus.consume([BUILD]) as notifications:
        await (await heard(notifications)).ack()
    async with bus.consume([BUILD]) as notifications:
        assert await silent(notifications)


async def test_an_unacknowledged_bell_is_heard_again_by_another(bus: Bus) -> None:
    await bus.publish(BUILD)
    async with bus.consume([BUILD]) as notifications:
        await heard(notifications)
    async with bus.consume([BUILD]) as notifications:
        assert (await heard(notifications)).kind is BUILD


async def test_a_bell_given_back_is_heard_again(bus: Bus) -> None:
    await bus.publish(BUILD)
    async with bus.consume([BUILD]) as notifications:
        await (await heard(notifications)).nack()
        assert (await heard(notifications)).kind is BUILD


async def test_every_bell_is_heard_by_one_of_several_listeners(bus: Bus) -> None:
    for _ in range(20):
        await bus.publish(BUILD)
    count = 0

    async def listen() -> None:
        nonlocal count
        async with bus.consume([BUILD]) as notifications:
            async for delivery in notifications:
                count += 1
                await delivery.ack()

    listeners = [asyncio.create_task(listen()) for _ in range(3)]
    async with asyncio.timeout(LIMIT):
        while count < 20:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    for listener in listeners:
        listener.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)
    assert count == 20


async def test_a_signal_reaches_every_listener(bus: Bus) -> None:
    lease = uuid.uuid4()
    async with bus.signals() as first, bus.signals() as second:
        await bus.signal(lease)
        async with asyncio.timeout(LIMIT):
            assert [await anext(first), await anext(second)] == [lease, lease]


async def test_a_signal_that_nobody_listens_to_is_gone(bus: Bus) -> None:
    await bus.signal(uuid.uuid4())
    async with bus.signals() as signals:
        later = uuid.uuid4()
        await bus.signal(later)
        async with asyncio.timeout(LIMIT):
            assert await anext(signals) == later
