"""Authentication by bearer tokens (RFC 6750), before a request's body is read."""

from typing import Protocol

from fastapi import Request
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from kgym.errors import KgymError, Unauthorised, UserError
from kgym.web.access import OpenPaths
from kgym.web.loopback import is_of_this_machine, refuse_web_pages
from kgym.web.problems import answer
from kgym.web.request_limits import Rates, WrongTokens, address_of
from kgym.web.scopes import Caller, Scope


class Tokens(Protocol):
    """A token store. Its methods raise InfrastructureError if it cannot be reached."""

    async def caller(self, token: str) -> Caller | None:
        """Return the token's owner; None if it is not valid."""

    async def anybody(self) -> Caller | None:
        """Return the caller for requests of this machine without a token; None to refuse them."""


class TokenCheck:
    """Middleware that checks token and request rate, and sets `request.state.caller`.

    It runs before the application, so that callers without a token cannot make it read a
    body. Paths that are not in `open_to_all` need a token, even if no route exists.
    """

    def __init__(self, app: ASGIApp, callers: "Callers", open_to_all: OpenPaths) -> None:
        self._app = app
        self._open = open_to_all
        self._callers = callers

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with a problem document."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            if scope["path"] in self._open:
                self._callers.count(f"address {address_of(request)}")
            else:
                request.state.caller = await self._callers.caller(request)
        except KgymError as error:
            await answer(request, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Callers:
    """Identifies callers by their tokens, and limits their request rates.

    Until the first token is created, programs of this machine need none; web pages in a browser
    of this machine are still refused.
    """

    def __init__(self, tokens: Tokens, rates: Rates, workers: str | None = None) -> None:
        """Workers' requests to paths that begin with `workers` are not limited."""
        self._tokens = tokens
        self._rates = rates
        self._wrong = WrongTokens()
        self._workers = workers
        self.count = rates.take

    async def caller(self, request: Request) -> Caller:
        """Return the caller of a request. Raises Unauthorised, Forbidden, or TooMany."""
        try:
            caller = await self._known(request)
        except UserError:
            self._rates.take(f"address {address_of(request)}")
            raise
        # Workers are not limited: the platform itself decides what they have to send.
        if (
            self._workers is None
            or not request.scope["path"].startswith(self._workers)
            or not caller.may(Scope.WORKER)
        ):
            self._rates.take(caller.name)
        return caller

    async def _known(self, request: Request) -> Caller:
        header = request.headers.get("authorization")
        if header is None and is_of_this_machine(request):
            anybody = await self._tokens.anybody()
            if anybody is not None:
                refuse_web_pages(request)
                return anybody
        kind, _, token = (header or "").partition(" ")
        if kind.lower() != "bearer":
            raise Unauthorised(
                "token_needed",
                "a token is needed: `Authorization: Bearer kgym_…` (kgym: --token or KGYM_TOKEN); "
                "`kgym token create` makes one",
            )
        caller = await self._tokens.caller(token.strip())
        if caller is None:
            self._wrong.count(request)
            raise Unauthorised("token_invalid", "the token is not valid, or was revoked")
        return caller


def caller_of(request: Request) -> Caller:
    """Return the caller of a request that passed `TokenCheck`."""
    caller: Caller = request.state.caller
    return caller
