"""Login with a token, and logout."""

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from kgym.client import AsyncClient
from kgym.web.access import EVERYBODY, needs
from kgym.web.loopback import is_loopback
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import state_of
from kgym_monitor.routes.own_forms import back, is_own, own_form, refuse_foreign
from kgym_monitor.session_check import cookie_name, host_of
from kgym_monitor.sessions import SESSION_SECONDS, Session

everybody = APIRouter(dependencies=[EVERYBODY])
readers = APIRouter(dependencies=[needs(Scope.READ), own_form])


@everybody.get("/login")
async def show_login(request: Request) -> HTMLResponse:
    """Show the login form."""
    return _page(request, request.query_params.get("next", "/"), None)


@everybody.post("/login", response_model=None)
async def login(
    request: Request,
    token: str = Form(max_length=500),
    wanted: str = Form("/", alias="next", max_length=2000),
) -> HTMLResponse | RedirectResponse:
    """Start a session if the token is valid and allows reading."""
    refuse_foreign(request)
    state = state_of(request)
    # Browsers drop Secure cookies from http pages, so only loopback, which nobody can overhear,
    # gets one without.
    secure = not is_loopback(host_of(request))
    if secure and request.url.scheme != "https" and not _behind_tls(request):
        fault = (
            "From other machines, use https: over http, anybody on the way could take the session."
        )
        return _page(request, wanted, fault)
    caller = await state.tokens.caller(token.strip())
    if caller is None:
        state.wrong_tokens.count(request)
        return _page(request, wanted, "This token is not valid.", 401)
    if not caller.may(Scope.READ):
        return _page(request, wanted, "This token does not allow reading.")
    client = AsyncClient(state.scheduler, token.strip())
    session = Session(client, caller, token.strip())
    answer = RedirectResponse(wanted if is_own(wanted) else "/", 303)
    answer.set_cookie(
        cookie_name(request),
        state.sessions.begin(session),
        max_age=SESSION_SECONDS,
        secure=secure,
        httponly=True,
        samesite="lax",
    )
    return answer


@readers.post("/logout")
async def logout(request: Request) -> RedirectResponse:
    """End the session."""
    name = cookie_name(request)
    state_of(request).sessions.end(request.cookies.get(name, ""))
    answer = back("/login", "You are logged out.")
    answer.delete_cookie(name)
    return answer


def _behind_tls(request: Request) -> bool:
    """Return whether the browser reached a proxy in front by https."""
    # The browser sets Origin itself; the proxy need not add a header that a client could forge.
    return request.headers.get("origin", "").startswith("https://")


def _page(request: Request, wanted: str, fault: str | None, status: int = 403) -> HTMLResponse:
    return state_of(request).rendering.page(
        request,
        "login.html",
        title="Log in",
        status=200 if fault is None else status,
        next=wanted if is_own(wanted) else "/",
        fault=fault,
    )
