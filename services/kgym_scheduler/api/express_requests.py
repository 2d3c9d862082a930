"""The most frequent requests, answered without the layers of the framework.

The application's layers, routing and dependencies take longer than what a submission or a worker's
call takes to be done. So what is plain goes past them: who calls is asked here, the bounds of query
and body are kept by what is plain, and the answer is counted. Whatever is unusual about a request
goes their way, with its body, and is answered, or refused, as if this were not here.
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
from kgym.web.callers import Callers
from kgym.web.problems import answer, unknown
from kgym.web.scopes import Scope
from kgym_scheduler.api.metrics import Metrics

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
    """Stands before the application, with the limits that plain requests can exceed."""

    def __init__(
        self, app: ASGIApp, stops: Sequence[Stop[Any]], callers: Callers, metrics: Metrics
    ) -> None:
        self._app = app
        self._stops = {stop.path: stop for stop in stops}
        self._callers = callers
        self._metrics = metrics

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        stop = self._stops.get(scope["path"]) if _is_plain(scope) else None
        if stop is None:
            await self._app(scope, receive, send)
            return
        request, messages = Request(scope), list[Message]()
        try:
            response = await self._response(stop, request, receive, messages)
        except KgymError as error:
            response = answer(request, error)
        except Exception as error:
            await self._answer(stop, await unknown(request, error), scope, receive, send)
            raise
        if response is not None:
            await self._answer(stop, response, scope, receive, send)
            return

        async def again() -> Message:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, again, send)

    async def _response(
        self, stop: Stop[Any], request: Request, receive: Receive, messages: list[Message]
    ) -> Response | None:
        """Return the answer, or None for the usual way; `messages` gets what it takes to go it."""
        request.state.caller = caller = await self._callers.caller(request)
        more = True
        while more:
            messages.append(await receive())
            more = messages[-1].get("more_body", False)  # not of `http.disconnect`
        body = b"".join(message.get("body", b"") for message in messages)
        asked = _read(stop.model, body) if caller.may(stop.scope) else None
        return None if asked is None else await stop.act(request, asked, len(body))

    async def _answer(
        self, stop: Stop[Any], response: Response, scope: AsgiScope, receive: Receive, send: Send
    ) -> None:
        self._metrics.answered("POST", stop.path, response.status_code)
        await response(scope, receive, send)


def _read(model: type[Model], body: bytes) -> Model | None:
    """Return what the body says; None if it is no JSON, or none that the route takes."""
    try:
        return model.model_validate(from_json(body, allow_inf_nan=False))
    except ValueError:
        return None


def _is_plain(scope: AsgiScope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
        return False
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"")
    return (
        b"transfer-encoding" not in headers
        and headers.get(b"content-type") == b"application/json"
        and length.isdigit()
        and int(length) <= SHORT
    )
