"""The connections of a client: requests that are answered, and streams that are followed.

`Connection` blocks and `AsyncConnection` awaits; what is the same for both, and does no network
I/O, is in `kgym.client.protocol`, `following` and `download`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self, TypeVar

import httpx
from httpx_sse import EventSource

from kgym.client import protocol
from kgym.client.following import Followed
from kgym.client.protocol import ApiError, Request

T = TypeVar("T")


class Connection:
    """Blocks until the scheduler has answered."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._http = httpx.Client(**protocol.options(base_url, token))
        self._streams = httpx.Client(**protocol.options(base_url, token, streams=True))

    def close(self) -> None:
        """Close the connections; the client is of no use after that."""
        self._http.close()
        self._streams.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, call: Request[T]) -> T:
        retries = protocol.Retries()
        while True:
            try:
                response = self._http.request(call.method, call.path, **call.arguments)
                return call.parse(protocol.checked(response))
            except httpx.TransportError as error:
                retries.ended(self._http.base_url, error, repeatable=call.repeatable)
            except ApiError as error:
                time.sleep(retries.told(error, repeatable=call.repeatable))

    def _read(self, call: Request[T]) -> Iterator[bytes]:
        try:
            with self._streams.stream(call.method, call.path, **call.arguments) as response:
                if response.is_error:
                    response.read()
                yield from protocol.checked(response).iter_bytes()
        except httpx.TransportError as error:
            raise protocol.unreachable(self._http.base_url, error) from error

    def _follow(self, feed: Followed[T]) -> Iterator[T]:
        while not feed.done:
            lost: Exception | None = None
            try:
                with self._streams.stream(
                    "GET", feed.path, headers=feed.headers, timeout=protocol.FOLLOWING
                ) as response:
                    if response.is_error:
                        response.read()
                    protocol.checked(response)
                    feed.retries.begin()
                    for message in EventSource(response).iter_sse():
                        if event := feed.take(message):
                            yield event
            except httpx.TransportError as error:
                lost = error
            except ApiError as error:
                time.sleep(feed.retries.told(error))
                continue
            if not feed.done:
                time.sleep(feed.retries.pause(self._http.base_url, lost))


class AsyncConnection:
    """Awaits what the scheduler answers."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._http = httpx.AsyncClient(**protocol.options(base_url, token))
        self._streams = httpx.AsyncClient(**protocol.options(base_url, token, streams=True))

    async def close(self) -> None:
        """Close the connections; the client is of no use after that."""
        await self._http.aclose()
        await self._streams.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def _do(self, call: Request[T]) -> T:
        retries = protocol.Retries()
        while True:
            try:
                response = await self._http.request(call.method, call.path, **call.arguments)
                return call.parse(protocol.checked(response))
            except httpx.TransportError as error:
                retries.ended(self._http.base_url, error, repeatable=call.repeatable)
            except ApiError as error:
                await asyncio.sleep(retries.told(error, repeatable=call.repeatable))

    async def _read(self, call: Request[T]) -> AsyncIterator[bytes]:
        try:
            async with self._streams.stream(call.method, call.path, **call.arguments) as response:
                if response.is_error:
                    await response.aread()
                async for part in protocol.checked(response).aiter_bytes():
                    yield part
        except httpx.TransportError as error:
            raise protocol.unreachable(self._http.base_url, error) from error

    async def _follow(self, feed: Followed[T]) -> AsyncIterator[T]:
        while not feed.done:
            lost: Exception | None = None
            try:
                async with self._streams.stream(
                    "GET", feed.path, headers=feed.headers, timeout=protocol.FOLLOWING
                ) as response:
                    if response.is_error:
                        await response.aread()
                    protocol.checked(response)
                    feed.retries.begin()
                    async for message in EventSource(response).aiter_sse():
                        if event := feed.take(message):
                            yield event
            except httpx.TransportError as error:
                lost = error
            except ApiError as error:
                await asyncio.sleep(feed.retries.told(error))
                continue
            if not feed.done:
                await asyncio.sleep(feed.retries.pause(self._http.base_url, lost))
