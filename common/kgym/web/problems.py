"""Errors as problem documents (RFC 9457)."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from kgym.errors import (
    Conflict,
    Forbidden,
    Gone,
    InfrastructureError,
    KgymError,
    NotFound,
    TooMany,
    Unauthorised,
    UserError,
)

MEDIA_TYPE = "application/problem+json"
# Maximum number of faults in the answer to an invalid request.
SHOWN = 20
# Maximum characters of each fault: its message may quote the request.
SHOWN_CHARACTERS = 300


class BodyTooLarge(HTTPException):
    """A body that is too large.

    An HTTPException, as FastAPI turns every other error that occurs while it reads a body into a
    status of 400.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)


class ProblemError(BaseModel):
    """One of the faults of a request."""

    location: str = Field(description="where it is, e.g. `body.steps.0.compiler` or `query.limit`")
    message: str


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "urn:kgymsuite:problem:job_not_found",
                "title": "Not Found",
                "status": 404,
                "detail": "there is no job 7",
                "instance": "/v1/jobs/7",
                "reason": "job_not_found",
                "job": 7,
            }
        }
    )

    type: str = Field(description="`urn:kgymsuite:problem:` and the reason")
    title: str = Field(description="the status in words")
    status: int
    detail: str = Field(description="what happened, to what, and what to do")
    instance: str = Field(description="the path that was asked for")
    reason: str = Field(description="the kind of problem as one stable word")
    errors: list[ProblemError] | None = Field(
        None, description=f"the faults of a faulty request, the first {SHOWN} of them"
    )
    error_count: int | None = Field(None, description="how many faults it has")


def documented(
    *statuses: int, answers: dict[int | str, dict[str, Any]] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route: its answers, its problems and those of all routes."""
    return (answers or {}) | {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({*statuses, 401, 403, 414, 422, 429, 503})
    }


def install(app: FastAPI) -> None:
    """Install the handlers that answer every error with a problem document."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(KgymError, _known)
    app.add_exception_handler(Exception, unknown)


def problem(
    request: Request,
    status: int,
    reason: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    **more: object,
) -> JSONResponse:
    """Return a problem document as a response."""
    document = {
        "type": f"urn:kgymsuite:problem:{reason}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": request.scope["path"],
        "reason": reason,
    }
    extensions = {name: value for name, value in more.items() if name not in document}
    return JSONResponse(document | extensions, status, headers, MEDIA_TYPE)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    errors = [
        {"location": _cut(_location(fault)), "message": _cut(_message(fault))}
        for fault in faults[:SHOWN]
    ]
    detail = "; ".join(f"{error['location']}: {error['message']}" for error in errors[:5])
    return problem(request, 422, "invalid_request", detail, errors=errors, error_count=len(faults))


async def _http(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    if isinstance(error, BodyTooLarge):
        return problem(request, error.status_code, "body_too_large", error.detail)
    reason = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    detail = f"{error.detail}: {request.method} {request.scope['path']}"
    return problem(request, error.status_code, reason, detail, error.headers)


async def _known(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, KgymError):
        raise error
    return answer(request, error)


def answer(request: Request, error: KgymError, status: int | None = None) -> JSONResponse:
    """Return the problem document of an error."""
    usual = _STATUSES.get(type(error), 422 if isinstance(error, UserError) else 503)
    headers = _headers(error)
    return problem(request, status or usual, error.reason, error.message, headers, **error.details)


async def unknown(request: Request, _: Exception) -> JSONResponse:
    """Return the answer to a request that failed; the server also logs the error."""
    detail = f"the {request.app.title} failed at this request; see its log"
    return problem(request, 500, "internal_error", detail)


_STATUSES: dict[type[KgymError], int] = {
    Unauthorised: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    Gone: 410,
    TooMany: 429,
}


def _headers(error: KgymError) -> dict[str, str]:
    """Return the headers of an error's answer (RFC 6750, section 3; RFC 9110, section 10.2.3)."""
    match error:
        case Unauthorised(reason="token_invalid"):
            return {"WWW-Authenticate": 'Bearer realm="kgym", error="invalid_token"'}
        case Unauthorised():
            return {"WWW-Authenticate": 'Bearer realm="kgym"'}
        case Forbidden(details={"scope": scope}):
            challenge = f'Bearer realm="kgym", error="insufficient_scope", scope="{scope}"'
            return {"WWW-Authenticate": challenge}
        case TooMany(details={"retry_after": seconds}):
            return {"Retry-After": str(seconds)}
        case InfrastructureError(
            reason="database_failed" | "scheduler_away" | "scheduler_stopping" | "source_loading"
        ):
            return {"Retry-After": "1"}
    return {}


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _location(fault: Mapping[str, Any]) -> str:
    return "body" if fault["type"] == "json_invalid" else ".".join(map(str, fault["loc"]))


def _message(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown field"
    if fault["type"] == "json_invalid":
        return f"not JSON: {fault['ctx']['error']}"
    return str(fault["msg"]).removeprefix("Value error, ")


def faulty_parameters(faults: Mapping[str, str]) -> RequestValidationError:
    """Return the error for query parameters, each with its message."""
    return RequestValidationError(
        [
            {"type": "parameter", "loc": ("query", name), "msg": message}
            for name, message in faults.items()
        ]
    )
