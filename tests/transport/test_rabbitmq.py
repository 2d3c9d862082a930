"""What RabbitMQ adds: notifications outlive everything, and a lost broker is waited for."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator

import aio_pika
import pytest

from kgym.api.steps import StepKind
from kgym.errors import InfrastructureError
from kgym.transport.rabbitmq import DELIVERIES, PUBLISH_SECONDS, RabbitBus
from kgym_cli.platforms.servers import RabbitMQ
from tests.transport.test_bus import LIMIT, heard, silent

pytestmark = pytest.mark.anyio

BUILD = StepKind.BUILD


@contextlib.asynccontextmanager
async def channel(server: RabbitMQ) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    """A connection beside the bus, as an operator has it."""
    async with await aio_pika.connect(server.url) as connection:
        yield await connection.channel()


async def dead(server: RabbitMQ, prefix: str) -> bytes:
    """The next message of the dead-letter queue."""
    async with channel(server) as beside, asyncio.timeout(LIMIT):
        queue = await beside.get_queue(f"{prefix}.dead")
        while (message := await queue.get(fail=False)) is None:
            await asyncio.sleep(0.05)
        await message.ack()
        return message.body


async def test_a_bell_is_offered_to_others_while_a_listener_holds_one(rabbit: RabbitBus) -> None:
    for _ in range(2):
        await rabbit.publish(BUILD)
    async with rabbit.consume([BUILD]) as first, rabbit.consume([BUILD]) as second:
        await heard(first)
        await heard(second)


async def test_an_unreadable_message_goes_to_the_dead_letters_and_others_go_on(
    rabbitmq: RabbitMQ,
) -> None:
    async with RabbitBus(rabbitmq.url, "unreadable") as bus, bus.consume([BUILD]) as notifications:
        await bus.publish(BUILD)
        await (await heard(notifications)).ack()
        async with channel(rabbitmq) as beside:
            exchange = beside.default_exchange
            await exchange.publish(aio_pika.Message(b"\xff{}"), "unreadable.build")
        await bus.publish(BUILD)
        assert (await heard(notifications)).kind is BUILD
    assert await dead(rabbitmq, "unreadable") == b"\xff{}"


async def test_a_bell_that_nobody_takes_goes_to_the_dead_letters(rabbitmq: RabbitMQ) -> None:
    async with RabbitBus(rabbitmq.url, "untaken") as bus:
        await bus.publish(BUILD)
        async with bus.consume([BUILD]) as notifications:
            for _ in range(DELIVERIES + 1):
                await (await heard(notifications)).nack()
            assert await silent(notifications)
    assert await dead(rabbitmq, "untaken") == b"build"


async def notified(bus: RabbitBus, notifications: int) -> int:
    """Notify so often; return how many more times it may be, as a broker that starts is slow."""
    doubled = 0
    while notifications:
        try:
            await bus.publish(BUILD)
            notifications -= 1
        except InfrastructureError:  # it may have taken it nevertheless
            doubled += 1
    return doubled


async def signalled(bus: RabbitBus, signals: AsyncIterator[uuid.UUID]) -> None:
    """Signal until it is heard: what is signalled before a listener is back is lost."""
    hearing = asyncio.ensure_future(anext(signals))
    leases = set[uuid.UUID]()
    async with asyncio.timeout(LIMIT):
        while not hearing.done():
            leases.add(lease := uuid.uuid4())
            with contextlib.suppress(InfrastructureError):
                await bus.signal(lease)
            await asyncio.wait([hearing], timeout=0.5)
    assert hearing.result() in leases


@pytest.mark.slow
@pytest.mark.timeout(480)
async def test_bells_and_signals_go_on_after_the_broker_was_killed(mortal: RabbitMQ) -> None:
    async with (
        RabbitBus(mortal.url, "killed") as bus,
        bus.consume([BUILD]) as notifications,
        bus.signals() as signals,
    ):
        doubled = 0
        for _ in range(2):
            doubled += await notified(bus, 3)
            lost = await heard(notifications)
            await _killed_and_restarted(mortal)
            await lost.ack()  # too late, and no error
            for _ in range(3):
                await (await heard(notifications)).ack()
            await signalled(bus, signals)
        assert doubled or await silent(notifications)


@pytest.mark.slow
async def test_publishing_during_an_outage_fails_within_its_limit_and_loses_nothing_before(
    mortal: RabbitMQ,
) -> None:
    async with RabbitBus(mortal.url, "outage") as bus:
        for _ in range(3):
            await bus.publish(BUILD)
        mortal.kill()
        began = time.monotonic()
        with pytest.raises(InfrastructureError, match="RabbitMQ did not take a message"):
            await bus.publish(BUILD)
        assert time.monotonic() - began < 4 * PUBLISH_SECONDS
        await _started(mortal)
        doubled = await notified(bus, 1)
        async with bus.consume([BUILD]) as notifications:
            for _ in range(4):
                await (await heard(notifications)).ack()
            assert doubled or await silent(notifications)


async def _killed_and_restarted(server: RabbitMQ) -> None:
    server.kill()
    await _started(server)


async def _started(server: RabbitMQ) -> None:
    server.spawn()  # from this thread, with which the server dies
    await asyncio.to_thread(server.wait)
