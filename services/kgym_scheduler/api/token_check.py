"""Who calls: bearer tokens (RFC 6750), checked before anything of a request is read."""

import ipaddress
import re

from fastapi import Request
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from kgym.errors import KgymError, UserError
from kgym_scheduler.api.access import OpenPaths
from kgym_scheduler.api.caller_limits import Rates
from kgym_scheduler.api.problems import answer
from kgym_scheduler.database.tokens import ANYBODY_HERE, Caller, Scope, Tokens
from kgym_scheduler.errors import Forbidden, Unauthorised

_WORKERS = "/v1/worker/"
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/@]+)(?::[0-9]{1,5})?")


class Door:
    """Lets in who has a valid token, as `request.state.caller`, and not too often.

    It stands before the application, so that strangers cannot make it read a
    body. While no token was ever made, whoever calls from this machine is
    welcome; a web page that the browser of this machine shows is not. Paths that are
    not `open_to_all` need a token, whether the application has a route there or not.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, rates: Rates, open_to_all: OpenPaths) -> None:
        self._app = app
        self._open = open_to_all
        self._tokens = tokens
        self._rates = rates

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            if scope["path"] in self._open:
                self._rates.take(f"address {_address(request)}")
            else:
                request.state.caller = await self._caller(request)
        except KgymError as error:
            await answer(request, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _caller(self, request: Request) -> Caller:
        address = _address(request)
        try:
            caller = await self._known(request, address)
        except UserError:
            self._rates.take(f"address {address}")
            raise
        # Workers are not held up: what they send is what the platform itself has ordered.
        if not (request.scope["path"].startswith(_WORKERS) and caller.may(Scope.WORKER)):
            self._rates.take(caller.name)
        return caller

    async def _known(self, request: Request, address: str) -> Caller:
        header = request.headers.get("authorization")
        if header is None and not await self._tokens.needed() and is_loopback(address):
            _refuse_web_pages(request)
            return ANYBODY_HERE
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


def is_loopback(host: str) -> bool:
    """Return whether this address, or the name in a URL, means this machine itself."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _refuse_web_pages(request: Request) -> None:
    """Refuse what a web page of another site makes a browser of this machine send.

    Such a page cannot read the answer, but it could abort jobs; and by a name that
    resolves to 127.0.0.1 (DNS rebinding) it could do anything.
    """
    host = request.headers.get("host", "")
    named = _HOST.fullmatch(host)
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")  # of browsers that do not say the other
    foreign = site not in {"none", "same-origin"} or origin not in {None, f"http://{host}"}
    if foreign or named is None or not is_loopback(named[1]):
        raise Forbidden("foreign_page", "only pages of this server may do this")
