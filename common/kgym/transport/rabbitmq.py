"""The message bus on RabbitMQ (AMQP 0-9-1).

Notices of a kind are in a durable quorum queue `PREFIX.KIND`. Unreadable ones, and those that were
delivered `DELIVERIES` times without an acknowledgement, go to `PREFIX.dead`. Signals go to a
fanout exchange, which copies them to each listener's own queue. Lost connections are opened again
while anything is sent or consumed.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self, TypeVar
from uuid import UUID

import aio_pika
import structlog
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractExchange,
    AbstractIncomingMessage,
)
from aio_pika.connection import make_url
from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from kgym.api.steps import StepKind
from kgym.errors import InfrastructureError
from kgym.transport.bus import Delivery

# How long sending a message is retried.
PUBLISH_SECONDS = 5.0
# Time without an answer of the broker after which the connection counts as lost.
ANSWER_SECONDS = 3.0
CLOSE_SECONDS = 1.0
# A silently lost idle connection is noticed after two heartbeats.
HEARTBEAT_SECONDS = 10
# The first and the longest pause before reconnecting; it doubles each time.
RETRY_SECONDS = (0.1, 2.0)
DELIVERIES = 100
# Number of messages, the newest, that the dead-letter queue keeps.
DEAD_LENGTH = 10_000

Subscribe = Callable[[AbstractChannel], Awaitable[None]]
_Answer = TypeVar("_Answer")
_LOST = (*CONNECTION_EXCEPTIONS, TimeoutError)

_log = structlog.get_logger()


class RabbitBus:
    """The bus of the broker at `url` (amqp://…); platforms that share one differ in `prefix`."""

    def __init__(self, url: str, prefix: str = "kgym") -> None:
        # It logs each failed reconnection as an error; this module logs lost connections itself.
        logging.getLogger("aiormq").setLevel(logging.CRITICAL)
        self._url = url
        self._prefix = prefix
        self._lock = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._sending: tuple[AbstractChannel, AbstractExchange] | None = None
        self._hearing: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; unacknowledged notices are delivered again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)

    async def publish(self, kind: StepKind) -> None:
        """Return once the broker has the notice on disk.

        Raises InfrastructureError `bus_unavailable` after `PUBLISH_SECONDS`.
        """
        await self._send("", self._name(kind), kind.encode())

    async def signal(self, lease: UUID) -> None:
        """Send the lease to the connected listeners; raises like `publish`."""
        await self._send(self._name("signals"), "", lease.bytes)

    @contextlib.asynccontextmanager
    async def consume(self, kinds: Collection[StepKind]) -> AsyncIterator[AsyncIterator[Delivery]]:
        """Context manager: receive notices of these kinds, one at a time."""
        notifications = asyncio.Queue[Delivery]()

        async def hear(incoming: AbstractIncomingMessage) -> None:
            kind = incoming.body.decode(errors="replace")
            if kind in kinds:
                notifications.put_nowait(_Delivery(StepKind(kind), incoming))
                return
            _log.warning("unreadable message", queue=incoming.routing_key)
            with _losses("refusing"):
                await incoming.reject(requeue=False)

        async def subscribe(channel: AbstractChannel) -> None:
            await channel.set_qos(prefetch_count=1)
            for kind in kinds:
                queue = await channel.get_queue(self._name(kind), ensure=False)
                await queue.consume(hear)

        async with self._subscribed(subscribe) as hearing:
            self._hearing = hearing
            try:
                yield _stream(notifications)
            finally:
                self._hearing = None

    @property
    def notifies(self) -> bool:
        """Whether a consumer of this process is subscribed now."""
        return self._hearing is not None and self._hearing.is_set()

    @contextlib.asynccontextmanager
    async def signals(self) -> AsyncIterator[AsyncIterator[UUID]]:
        """Context manager: receive revoked leases; signals are lost while the broker is away."""
        leases = asyncio.Queue[UUID]()

        async def hear(incoming: AbstractIncomingMessage) -> None:
            leases.put_nowait(UUID(bytes=incoming.body))

        async def subscribe(channel: AbstractChannel) -> None:
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(self._name("signals"))
            await queue.consume(hear, no_ack=True)

        async with self._subscribed(subscribe) as listening:
            await listening.wait()
            yield _stream(leases)

    # --- within ---------------------------------------------------------------------------

    def _name(self, what: str) -> str:
        return f"{self._prefix}.{what}"

    @contextlib.asynccontextmanager
    async def _subscribed(self, subscribe: Subscribe) -> AsyncIterator[asyncio.Event]:
        """Stay subscribed, with reconnections; the event is set while it is."""
        subscribed = asyncio.Event()
        task = asyncio.create_task(self._stay(subscribe, subscribed))
        try:
            yield subscribed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _stay(self, subscribe: Subscribe, subscribed: asyncio.Event) -> None:
        pause, longest = RETRY_SECONDS
        while True:
            with _losses("listening"):
                channel = await self._soon(self._channel())
                try:
                    await self._soon(subscribe(channel))
                    subscribed.set()
                    pause, _ = RETRY_SECONDS
                    await channel.closed()
                finally:
                    subscribed.clear()
                    with _losses("leaving"):
                        await self._soon(channel.close())
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _send(self, exchange: str, key: str, body: bytes) -> None:
        """Send until the broker confirms; raise InfrastructureError if that takes too long."""
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        error: BaseException = TimeoutError("no answer")
        pause, _ = RETRY_SECONDS
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                while True:
                    try:
                        channel, signals = await self._soon(self._sender())
                        to = signals if exchange else channel.default_exchange
                        await self._soon(to.publish(message, key, mandatory=not exchange))
                        return
                    except _LOST as lost:
                        error = lost
                    self._sending = None
                    await asyncio.sleep(pause)
                    pause *= 2
        except TimeoutError:
            raise InfrastructureError(
                "bus_unavailable", f"RabbitMQ did not take a message: {error!r}"
            ) from error

    async def _soon(self, answer: Awaitable[_Answer]) -> _Answer:
        """Wait for an answer; after ANSWER_SECONDS, close the connection and raise TimeoutError."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            await self.close()
            raise

    async def _sender(self) -> tuple[AbstractChannel, AbstractExchange]:
        """Return the channel for sending, and the exchange of signals."""
        if self._sending is None or self._sending[0].is_closed:
            channel = await self._channel()
            signals = await channel.get_exchange(self._name("signals"), ensure=False)
            self._sending = channel, signals
        return self._sending

    async def _channel(self) -> AbstractChannel:
        """Open a channel, on a new connection if there is none or it was lost."""
        async with self._lock:
            if self._connection is None or not self._connection.connected.is_set():
                await self.close()
                self._connection = await self._connect()
            return await self._connection.channel(on_return_raises=True)

    async def _connect(self) -> AbstractConnection:
        """Connect, and declare queues and exchange."""
        connection = aio_pika.Connection(make_url(self._url, heartbeat=HEARTBEAT_SECONDS))
        try:
            await connection.connect()
            await self._declare(connection)
        except BaseException:
            # Otherwise the garbage collector would close it, with a task for which there may be no
            # event loop any more.
            await _close(connection)
            raise
        return connection

    async def _declare(self, connection: AbstractConnection) -> None:
        dead = self._name("dead")
        async with connection.channel() as channel:
            await channel.declare_exchange(
                self._name("signals"), aio_pika.ExchangeType.FANOUT, durable=True
            )
            await channel.declare_queue(
                dead,
                durable=True,
                arguments={"x-queue-type": "quorum", "x-max-length": DEAD_LENGTH},
            )
            for kind in StepKind:
                await channel.declare_queue(
                    self._name(kind),
                    durable=True,
                    arguments={
                        "x-queue-type": "quorum",
                        "x-delivery-limit": DELIVERIES,
                        "x-dead-letter-exchange": "",
                        "x-dead-letter-routing-key": dead,
                    },
                )


@dataclass(frozen=True, slots=True)
class _Delivery:
    """A delivered notice. If the connection is lost, it is delivered again."""

    kind: StepKind
    incoming: AbstractIncomingMessage

    async def ack(self) -> None:
        with _losses("acknowledging"):
            await self.incoming.ack()

    async def nack(self) -> None:
        with _losses("giving back"):
            await self.incoming.nack(requeue=True)


async def _close(connection: AbstractConnection) -> None:
    with _losses("closing"):
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.close()


async def _stream(queue: asyncio.Queue[_Answer]) -> AsyncIterator[_Answer]:
    while True:
        yield await queue.get()


class _losses(AbstractContextManager[None]):  # noqa: N801 - used like contextlib.suppress
    """Context manager: log and suppress errors of a lost connection."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, _LOST):
            return False
        _log.info("the connection to RabbitMQ is lost", doing=self._doing, error=repr(error))
        return True
