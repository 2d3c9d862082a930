"""Authentication of page requests: by session, or none on this machine while no tokens exist."""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kgym.client import AsyncClient
from kgym.errors import Forbidden, KgymError, Unauthorised
from kgym.web.access import OpenPaths
from kgym.web.callers import Tokens
from kgym.web.loopback import is_loopback, is_of_this_machine
from kgym_monitor.sessions import Session, Sessions


def host_of(request: Request) -> str:
    """Return the host name in the browser's address bar, without port."""
    host = request.headers.get("host", "")
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host


def cookie_name(request: Request) -> str:
    """Return the name of the session's cookie."""
    # With the port: browsers share cookies between ports of a host, but each monitor has its own.
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"kgym_monitor_{port}" if port.isdecimal() else "kgym_monitor"


@dataclass(frozen=True)
class SessionCheck:
    """Middleware that sets `state.session` and `state.caller`, or redirects to the login.

    `refuse` renders an error.
    """

    app: ASGIApp
    sessions: Sessions
    tokens: Tokens
    scheduler: str
    open_to_all: OpenPaths
    refuse: Callable[[Request, KgymError], Response]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle or refuse a request."""
        if scope["type"] != "http" or scope["path"] in self.open_to_all:
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            session = await self._session(request)
            if session is None:
                await self._to_login(request)(scope, receive, send)
                return
        except KgymError as error:
            await self.refuse(request, error)(scope, receive, send)
            return
        request.state.session, request.state.caller = session, session.caller
        await self.app(scope, receive, send)

    async def _session(self, request: Request) -> Session | None:
        word = request.cookies.get(cookie_name(request), "")
        session = self.sessions.find(word) if word else None
        if session is not None:
            # Checked on every request: a revoked token ends its sessions.
            caller = await self.tokens.caller(session.token)
            if caller is not None:
                session.caller = caller
                return session
            self.sessions.end(word)  # the token was revoked
        if not is_of_this_machine(request):
            return None
        caller = await self.tokens.anybody()
        if caller is None:
            return None
        if not is_loopback(host_of(request)):  # a name that resolves to 127.0.0.1: DNS rebinding
            raise Forbidden("foreign_page", "call this monitor by 127.0.0.1 or localhost")
        if self.sessions.anybody is None:
            client = AsyncClient(self.scheduler)
            self.sessions.anybody = Session(client, caller, "", anonymous=True)
        self.sessions.anybody.caller = caller
        return self.sessions.anybody

    def _to_login(self, request: Request) -> RedirectResponse:
        if (
            request.method != "GET"
            or request.headers.get("sec-fetch-mode", "navigate") != "navigate"
        ):
            raise Unauthorised("login_needed", "log in first: /login")
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login?" + urlencode({"next": path}), 303)
