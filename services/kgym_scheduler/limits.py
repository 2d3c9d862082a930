"""A limit on the size of request bodies."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_LIMIT = 16 << 20
"""Bytes of a request's body."""


class BodyLimit:
    """Refuses a body that is longer than BODY_LIMIT, as soon as that is known."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the application reads."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        announced, seen = int(length), 0

        async def limited() -> Message:
            nonlocal seen
            if announced > BODY_LIMIT:
                raise _too_large()
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > BODY_LIMIT:
                raise _too_large()
            return message

        await self._app(scope, limited, send)


def _too_large() -> HTTPException:
    return HTTPException(413, f"the body is longer than {BODY_LIMIT >> 20} MiB")
