"""Connections to Google Cloud: its compute library, plain REST for the rest, and errors.

Google's libraries for IAM, storage policies and secrets support gRPC only; the few calls of those
services are plain REST.
"""

import contextlib
import random
import time
import uuid
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import google.auth
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession

from kgym.errors import InfrastructureError, KgymError, UserError

T = TypeVar("T")

# Time limit of one request.
CALL_SECONDS = 60.0
# Time limit of an operation that a request starts.
OPERATION_SECONDS = 600.0
# How long a call with a temporary error is retried.
PATIENCE_SECONDS = 120.0
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_PASSING = {408, 429, 500, 502, 503, 504}
_LOST = (requests.ConnectionError, requests.Timeout, TransportError)
_STOCKOUT = ("ZONE_RESOURCE_POOL_EXHAUSTED", "STOCKOUT", "does not have enough resources")
_QUOTA = ("QUOTA_EXCEEDED", "quotaExceeded", "Quota '")
# Messages of temporary errors, whatever the status.
_BUSY = (
    *("resourceNotReady", "rateLimitExceeded", "RESOURCE_NOT_READY", "is not ready"),
    "does not exist",  # a service account that was made just now
)


class Cloud:
    """One project of the cloud; `emulator` is the address of a server that replaces all of it."""

    def __init__(self, project: str, emulator: str | None = None) -> None:
        self.project = project
        self.emulator = emulator
        # Interval of polling an operation, in seconds.
        self.polls = 0.02 if emulator else 1.0
        self._clients: dict[str, Any] = {}

    @cached_property
    def _credentials(self) -> Credentials:
        if self.emulator:
            return AnonymousCredentials()
        try:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
        except DefaultCredentialsError as error:
            raise UserError(
                "no_credentials",
                "no credentials for Google Cloud: create some with `gcloud auth application-default"
                " login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file",
            ) from error
        return credentials

    @cached_property
    def _session(self) -> AuthorizedSession:
        session = AuthorizedSession(self._credentials)
        session.trust_env = self.emulator is None  # a proxy cannot reach this machine's loopback
        return session

    @cached_property
    def compute(self) -> Any:
        """Google's compute library, which takes seconds to import."""
        from google.cloud import compute_v1  # noqa: PLC0415

        return compute_v1

    def client(self, name: str) -> Any:
        """Return the client for a kind of resources, such as `Instances`."""
        if name not in self._clients:
            options = {"api_endpoint": self.emulator} if self.emulator else None
            self._clients[name] = getattr(self.compute, f"{name}Client")(
                credentials=self._credentials, transport="rest", client_options=options
            )
        return self._clients[name]

    def rest(
        self, method: str, service: str, path: str, body: Any = None, **params: str
    ) -> dict[str, Any]:
        """Call another service (`iam`, `storage`, …).

        Raises google.api_core.exceptions.GoogleAPICallError, as the compute library does.
        """
        base = self.emulator or f"https://{service}.googleapis.com"
        answer = self._session.request(
            method, f"{base}{path}", params=params, json=body, timeout=CALL_SECONDS
        )
        if answer.status_code >= 300:
            raise exceptions.from_http_response(answer)
        content: dict[str, Any] = answer.json() if answer.content else {}
        return content

    def call(self, function: Callable[[], T], what: str) -> T:
        """Call `function`, with retries of temporary errors; raise other errors as KgymErrors.

        NotFound and Conflict are raised unchanged: callers handle them as answers.
        """
        began = time.monotonic()
        pause = 0.1
        while True:
            try:
                return function()
            except (exceptions.NotFound, exceptions.Conflict):
                raise
            except (exceptions.GoogleAPICallError, GoogleAuthError, *_LOST) as error:
                if not _passes(error) or time.monotonic() - began > PATIENCE_SECONDS:
                    raise refused(error, what) from error
            # Jitter: many hosts are made at once, and would all retry at the same time.
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
            pause = min(2 * pause, 10.0)

    def ask(self, resources: str, method: str, request: Mapping[str, Any], what: str) -> Any:
        """Call a method of the client for a kind of resources, as `call` does.

        `request` is completed by the project.
        """
        asked = getattr(self.client(resources), method)
        own = {"project": self.project, **request}
        return self.call(lambda: asked(request=own, retry=None, timeout=CALL_SECONDS), what)

    def get(self, resources: str, request: Mapping[str, Any], what: str) -> Any:
        """Return the library's object; None if it does not exist."""
        try:
            return self.ask(resources, "get", request, what)
        except exceptions.NotFound:
            return None

    def delete(self, resources: str, request: Mapping[str, Any], what: str) -> None:
        """Delete a resource, and wait until it is gone; do nothing if it does not exist."""
        with contextlib.suppress(exceptions.NotFound):
            self.done(resources, "delete_unary", request, what)

    def done(self, resources: str, method: str, request: Mapping[str, Any], what: str) -> None:
        """Start an operation, and wait until it is done; the library's waiting ignores `emulator`.

        A request ID, the same for each retry, lets the cloud do it once.
        """
        begun = {**request, "request_id": str(uuid.uuid4())}
        operation = self.ask(resources, method, begun, what)
        scope = {name: request[name] for name in ("zone", "region") if name in request}
        operations = f"{next(iter(scope), 'global').capitalize()}Operations"
        named = {**scope, "operation": operation.name}
        ends = time.monotonic() + OPERATION_SECONDS
        while operation.status != self.compute.Operation.Status.DONE:
            if time.monotonic() > ends:
                raise InfrastructureError(
                    "cloud_operation", f"{what}: not done after {OPERATION_SECONDS:g} s"
                )
            time.sleep(self.polls)
            operation = self.ask(operations, "get", named, what)
        if failed := list(operation.error.errors):
            raise failure(what, "; ".join(f"{error.code}: {error.message}" for error in failed))


def _passes(error: Exception) -> bool:
    if isinstance(error, _LOST):
        return True
    if isinstance(error, exceptions.GoogleAPICallError):
        busy = any(word in str(error) for word in _BUSY)
        return error.code in _PASSING or busy
    return False


def refused(error: Exception, what: str) -> KgymError:
    """Return the KgymError for a call's error."""
    if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized | GoogleAuthError):
        if any(word in str(error) for word in _QUOTA):
            return failure(what, str(error))
        return UserError(
            "cloud_forbidden",
            f"{what}: your credentials do not allow this: {error} (docs/google-cloud.md: roles)",
        )
    if isinstance(error, _LOST) or not isinstance(error, exceptions.ClientError):
        return InfrastructureError(
            "cloud_unreachable", f"{what}: {error}; run the same command again to continue"
        )
    return failure(what, str(error))


def failure(what: str, message: str) -> KgymError:
    """Return the error for the cloud's message: no capacity, a quota, or else a refusal."""
    if any(word in message for word in _STOCKOUT):
        return InfrastructureError("cloud_stockout", f"{what}: no capacity in the zone: {message}")
    if any(word in message for word in _QUOTA):
        return InfrastructureError(
            "cloud_quota", f"{what}: {message}; the project's quota can be raised at IAM > Quotas"
        )
    return InfrastructureError("cloud_refused", f"{what}: {message}")
