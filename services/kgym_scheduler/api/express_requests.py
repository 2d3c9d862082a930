"""The most frequent requests, answered without the layers of the framework.

The application's routing, dependencies and exception handlers take longer than what a submission
or a worker's call takes to be done. So what is plain goes past them. Whatever is unusual about a
request goes their way, with its body, and is answered, or refused, as if this were not here.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from kgym.errors import KgymError
from kgym_scheduler.api.problems import answer
from kgym_scheduler.api.token_check import caller_of
from kgym_scheduler.database.tokens import Scope

SHORT = 32 << 10
"""Bytes of a body that is plain: they cannot hold more values than a route takes."""


Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Stop(Generic[Model]):
    """A route that is answered here."""

    path: str
    scope: Scope
    """The scope that callers need; whoever lacks it is refused the usual way."""
    model: type[Model]
    """The model of the body."""
    act: Callable[[Request, Model, int], Awaitable[Response | None]]
    """Answers a request with this body, of so many bytes; None sends it the usual way."""


class Express:
    """Stands between the limits, which hold for all requests, and the application."""

    def __init__(self, app: ASGIApp, stops: Sequence[Stop[Any]]) -> None:
        self._app = app
        self._stops = {stop.path: stop for stop in stops}

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        stop = self._stops.get(scope["path"]) if _is_plain(scope) else None
        if stop is None:
            await self._app(scope, receive, send)
            return
        messages: list[Message] = []
        more = True
        while more:
            messages.append(await receive())
            more = messages[-1].get("more_body", False)  # not of `http.disconnect`
        body = b"".join(message.get("body", b"") for message in messages)
        response = None
        request = Request(scope)
        allowed = caller_of(request).may(stop.scope)
        if allowed and (asked := _read(stop.model, body)) is not None:
            response = await _response(stop, request, asked, len(body))
        if response is not None:
            scope["route"] = stop
            await response(scope, receive, send)
            return

        async def again() -> Message:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, again, send)


def _read(model: type[Model], body: bytes) -> Model | None:
    """Return what the body says; None if it is no JSON, or none that the route takes."""
    try:
        return model.model_validate(from_json(body, allow_inf_nan=False))
    except ValueError:
        return None


async def _response(
    stop: Stop[Model], request: Request, asked: Model, size: int
) -> Response | None:
    try:
        return await stop.act(request, asked, size)
    except KgymError as error:
        return answer(request, error)


def _is_plain(scope: AsgiScope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
        return False
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"")
    return (
        headers.get(b"content-type") == b"application/json"
        and length.isdigit()
        and int(length) <= SHORT
    )
