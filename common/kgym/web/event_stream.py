"""The answer that is a stream of server-sent events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

# How often an event stream says that it lives: clients take one that is silent for three times
# as long to be cut off (`kgym.client.protocol.SILENCE_SECONDS`).
PING_SECONDS = 5
# Sends more of the answer at once (`Guarded.send_now`); False where the client does not read.
SendNow = Callable[[bytes], bool]
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStream(StreamingResponse):
    """An event stream that holds its caller's slot from before it begins until it has ended."""

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
        """Send the events as they come, until the last, or the client is gone."""
        # The slot is not taken within the iterator: that may never begin, and begins too late to
        # refuse a stream too many. Starlette leaves an iterator whose client is gone to the
        # garbage collector, and so would keep a follower of the job that nobody listens to.
        with self._slot:
            async with contextlib.aclosing(self._events):
                await super().__call__(scope, receive, send)


async def _with_pings(events: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the events, and a ping whenever none has come for PING_SECONDS."""
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
