"""The monitor's application: routes, middleware, error pages."""

from http import HTTPStatus
from urllib.parse import urlencode

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from kgym.client import ApiError
from kgym.errors import KgymError, NotFound, Unauthorised, UserError
from kgym.web import problems
from kgym.web.access import EVERYBODY, open_paths
from kgym.web.request_limits import SizeLimits
from kgym.web.routing import add_routes
from kgym_monitor.assets import AssetFiles, assets
from kgym_monitor.monitor_state import MonitorState
from kgym_monitor.page_policy import PagePolicy
from kgym_monitor.routes import (
    benchmark_routes,
    bulk_routes,
    check_routes,
    group_routes,
    job_routes,
    login_routes,
    output_routes,
    overview_routes,
    reproduce_routes,
    run_action_routes,
    run_routes,
    search_routes,
    subject_routes,
    trace_routes,
)
from kgym_monitor.session_check import SessionCheck

_ROUTERS = (
    login_routes.everybody,
    login_routes.readers,
    overview_routes.readers,
    overview_routes.admins,
    bulk_routes.openers,
    bulk_routes.submitters,
    job_routes.readers,
    job_routes.submitters,
    output_routes.readers,
    reproduce_routes.readers,
    subject_routes.readers,
    benchmark_routes.readers,
    trace_routes.readers,
    check_routes.readers,
    group_routes.readers,
    search_routes.readers,
    run_routes.readers,
    run_action_routes.readers,
    run_action_routes.submitters,
)


class Monitor(FastAPI):
    """The pages of the scheduler in `state`.

    Raises RuntimeError if a route does not declare who may use it (`kgym.web.access`).
    """

    def __init__(self, state: MonitorState) -> None:
        super().__init__(title="kGymSuite monitor", docs_url=None, redoc_url=None, openapi_url=None)
        self.state.monitor = state
        self.tokens = state.tokens
        add_routes(self, _ROUTERS)
        self.add_api_route("/healthz", _healthz, dependencies=[EVERYBODY])
        self.mount("/assets", AssetFiles(assets()))
        for kind in (KgymError, HTTPException, RequestValidationError):
            self.add_exception_handler(kind, _answered)
        # Starlette runs the last added first: headers are set on every answer, sizes are checked
        # before a session is looked up.
        self.add_middleware(
            SessionCheck,
            sessions=state.sessions,
            tokens=self.tokens,
            scheduler=state.scheduler,
            open_to_all=open_paths(self.routes),
            refuse=_refused,
        )
        self.add_middleware(SizeLimits)
        self.add_middleware(PagePolicy)

    def hang_up(self) -> None:
        """Do nothing: no page keeps a connection open."""


async def _healthz() -> dict[str, str]:
    """Return that the process is alive."""
    return {"status": "ok"}


async def _answered(request: Request, error: Exception) -> Response:
    match error:
        case KgymError():
            return _refused(request, error)
        case HTTPException(status_code=404):
            return _refused(request, NotFound("not_found", "There is no such page."))
        case HTTPException():
            return _page(request, error.status_code, "bad_request", str(error.detail))
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"][1:]))
            return _refused(request, UserError("bad_request", f"{where}: {first['msg']}"))
    raise error


def _refused(request: Request, error: KgymError) -> Response:
    status = error.status if isinstance(error, ApiError) else _status(request, error)
    session = getattr(request.state, "session", None)
    # The scheduler refused a token that was valid when the session began: log in again. A page of
    # nobody in particular cannot log in, so it shows the error.
    unknown = status == HTTPStatus.UNAUTHORIZED and not isinstance(error, Unauthorised)
    if unknown and request.method == "GET" and (session is None or not session.anonymous):
        return RedirectResponse("/login?" + urlencode({"next": request.url.path}), 303)
    return _page(request, status, error.reason, str(error))


def _status(request: Request, error: KgymError) -> int:
    return problems.answer(request, error).status_code


def _page(request: Request, status: int, reason: str, message: str) -> Response:
    state: MonitorState = request.app.state.monitor
    title = HTTPStatus(status).phrase
    return state.rendering.page(
        request,
        "error.html",
        title=title,
        status=status,
        message=message,
        reason=reason,
        code=status,
    )
