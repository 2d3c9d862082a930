"""The answer that is a stream of server-sent events.

Written here, as hundreds follow one job: a library's four tasks, locks and time-outs for each
follower took most of the loop's time when the job said something.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from fastapi import Response
from starlette.types import Receive, Scope, Send

from kgym.web.connection_limits import SEND_NOW

PING_SECONDS = 5
"""How often an event stream says that it lives: clients take one that is silent for three times
as long to be cut off (`kgym.client.protocol.SILENCE_SECONDS`)."""
SendNow = Callable[[bytes], bool]
"""Sends more of the answer at once (`Guarded.send_now`); False where the client does not read."""
_PING = b": ping\n\n"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStream(Response):
    """An event stream that counts from before it is answered until it has ended, however it does.

    What counted within the iterator would count too late, and for ever if it is never begun.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: Callable[[SendNow | None], AsyncIterator[bytes]],
        slot: contextlib.ExitStack,
        status_code: int = 200,
    ) -> None:
        super().__init__(status_code=status_code, headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come, until the last, or the client is gone."""
        with self._slot:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            # The server's connection takes text past all that stands between (`Guarded.send_now`).
            send_now = scope.get("extensions", {}).get(SEND_NOW, {}).get("call")
            sending = asyncio.create_task(self._send(send, send_now))
            gone = asyncio.create_task(_gone(receive))
            done: set[asyncio.Task[None]] = set()
            try:
                while True:
                    done, _ = await asyncio.wait(
                        {sending, gone}, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                    if done:
                        break
                    await send(_body(_PING))
            finally:
                for task in (sending, gone):
                    task.cancel()
                await asyncio.gather(sending, gone, return_exceptions=True)
            if sending in done:
                sending.result()
                await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, send_now: SendNow | None) -> None:
        async for told in self._events(send_now):
            await send(_body(told))


def _body(data: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
