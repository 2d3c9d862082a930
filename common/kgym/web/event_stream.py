"""Responses that are streams of server-sent events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated

from fastapi import Header
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from kgym.api.jobs import DIGITS

# Interval of pings. A network that fails silently is noticed by their absence: clients reconnect
# after three times as long (`kgym.client.protocol.SILENCE_SECONDS`).
PING_SECONDS = 5
_AFTER = Header(ge=0, lt=1 << 63, description="Continue after this event, as browsers do")
LastEventId = Annotated[int, _AFTER, DIGITS]
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStream(StreamingResponse):
    """An event stream that occupies one of its caller's slots (`Streams`) until it has ended."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        slot: contextlib.ExitStack,
        status_code: int = 200,  # FastAPI reads this default to describe routes
    ) -> None:
        self._events = _with_pings(events)
        self._slot = slot
        super().__init__(self._events, status_code, _HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events as they come, until the last one or until the client disconnects."""
        # The iterator cannot take the slot itself: it may never be started, and is started too
        # late to refuse a stream. It is closed here because Starlette leaves it to the garbage
        # collector when the client disconnects, and it would keep following the job.
        with self._slot:
            async with contextlib.aclosing(self._events):
                await super().__call__(scope, receive, send)


async def _with_pings(events: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the events, and a ping after each PING_SECONDS without one."""
    next_event = asyncio.ensure_future(_next(events))
    try:
        while True:
            if not (await asyncio.wait({next_event}, timeout=PING_SECONDS))[0]:
                yield b": ping\n\n"
            elif (event := next_event.result()) is None:
                return
            else:
                yield event
                next_event = asyncio.ensure_future(_next(events))
    finally:
        next_event.cancel()
        await asyncio.gather(next_event, return_exceptions=True)


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    return await anext(events, None)
