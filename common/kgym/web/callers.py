"""Who calls: bearer tokens (RFC 6750), checked before anything of a request is read."""

from typing import Protocol

from fastapi import Request
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from kgym.errors import KgymError, Unauthorised, UserError
from kgym.web.access import OpenPaths
from kgym.web.loopback import is_of_this_machine, refuse_web_pages
from kgym.web.problems import answer
from kgym.web.request_limits import Rates
from kgym.web.scopes import Caller, Scope


class Tokens(Protocol):
    """Knows whose a token is. Where it cannot be asked, its methods raise InfrastructureError."""

    async def caller(self, token: str) -> Caller | None:
        """Return whom this token belongs to; None if it is not valid."""
        ...

    async def anybody(self) -> Caller | None:
        """Return who calls from this machine without a token; None where everybody needs one."""
        ...


class TokenCheck:
    """Lets in who has a valid token, as `request.state.caller`, and not too often.

    It stands before the application, so that strangers cannot make it read a
    body. Paths that are not `open_to_all` need a token, whether the application has a route
    there or not.
    """

    def __init__(self, app: ASGIApp, callers: "Callers", open_to_all: OpenPaths) -> None:
        self._app = app
        self._open = open_to_all
        self._callers = callers

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            if scope["path"] in self._open:
                self._callers.count(f"address {_address(request)}")
            elif not hasattr(request.state, "caller"):  # by `Express`
                request.state.caller = await self._callers.caller(request)
        except KgymError as error:
            await answer(request, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Callers:
    """Tells callers by their tokens, and counts their requests.

    While no token was ever made, whoever calls from this machine is welcome; a web page that the
    browser of this machine shows is not.
    """

    def __init__(self, tokens: Tokens, rates: Rates, workers: str | None = None) -> None:
        """Paths that begin with `workers` are theirs, and not counted when they call."""
        self._tokens = tokens
        self._rates = rates
        self._workers = workers
        self.count = rates.take

    async def caller(self, request: Request) -> Caller:
        """Return who sends the request.

        Raises Unauthorised, Forbidden or, where there were too many, TooMany.
        """
        address = _address(request)
        try:
            caller = await self._known(request, address)
        except UserError:
            self._rates.take(f"address {address}")
            raise
        # Workers are not held up: what they send is what the platform itself has ordered.
        if (
            self._workers is None
            or not request.scope["path"].startswith(self._workers)
            or not caller.may(Scope.WORKER)
        ):
            self._rates.take(caller.name)
        return caller

    async def _known(self, request: Request, address: str) -> Caller:
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
            raise Unauthorised("token_invalid", "the token is not valid, or was revoked")
        return caller


def caller_of(request: Request) -> Caller:
    """Return who sends the request."""
    caller: Caller = request.state.caller
    return caller


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
