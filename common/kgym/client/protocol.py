"""The client's protocol without network I/O: options, errors, retries, event streams."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import httpx
from httpx_sse import ServerSentEvent

from kgym.api.changes import Change
from kgym.api.jobs import JobEvent
from kgym.errors import InfrastructureError, KgymError, UserError

# A call may take 60 s, since the server may work on it for that long.
TIMEOUT = httpx.Timeout(60, connect=5, pool=None)
# Silence after which an event stream counts as lost: servers send a ping every 5 s.
SILENCE_SECONDS = 15.0
# Time limits of event streams.
FOLLOWING = httpx.Timeout(60, connect=5, read=SILENCE_SECONDS, pool=None)
# Connections for calls; further calls wait. Streams and downloads have connections of their own, or
# a hundred followers would leave none for calls.
CONNECTIONS = 100
# Total time for which a request over the rate limit is repeated.
PATIENCE_SECONDS = 60
# Total time for which a request is repeated while the scheduler is unavailable.
OUTAGE_SECONDS = 20
# Number of consecutive attempts to reconnect, within about 13 seconds.
RECONNECTS = 10

Event_co = TypeVar("Event_co", covariant=True)


class ApiError(KgymError):
    """The scheduler answered with this problem document (RFC 9457)."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        known = {"type", "title", "status", "detail", "instance", "reason"}
        details = {name: value for name, value in problem.items() if name not in known}
        super().__init__(str(problem["reason"]), str(problem["detail"]), **details)
        self.status = status
        self.problem = problem


class Refused(ApiError, UserError):
    """The request cannot be fulfilled: no such job, an invalid request, a conflict."""


class ServerFailed(ApiError, InfrastructureError):
    """The scheduler could not serve the request; it may be repeated."""


def options(base_url: str, token: str | None, *, streams: bool = False) -> dict[str, Any]:
    """Return the arguments of httpx's clients, for calls or for streams."""
    url = httpx.URL(base_url)
    # A proxy set in the environment cannot reach this machine's loopback.
    loopback = url.host in {"localhost", "127.0.0.1", "::1"}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        "base_url": url.join("/v1"),
        "timeout": TIMEOUT,
        "limits": httpx.Limits(max_connections=None if streams else CONNECTIONS),
        "trust_env": not loopback,
        "verify": url.scheme == "https",  # otherwise reading the certificates wastes time
        "headers": headers,
    }


def checked(response: httpx.Response) -> httpx.Response:
    """Return the response, or raise ApiError; an error's body must have been read."""
    if not response.is_error:
        return response
    try:
        problem = {"reason": "unknown", "detail": response.text, **response.json()}
    except (ValueError, TypeError):  # from a proxy, not from the scheduler
        phrase = HTTPStatus(response.status_code).phrase
        detail = f"{response.request.url} answered {response.status_code} {phrase}"
        problem = {"reason": "unexpected_answer", "detail": detail}
    if (seconds := response.headers.get("Retry-After", "")).isdecimal():
        problem["retry_after"] = int(seconds)
    family = Refused if response.is_client_error else ServerFailed
    raise family(response.status_code, problem)


_ENDED = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


def unreachable(url: httpx.URL, error: Exception | None) -> InfrastructureError:
    """Return the error of a request without an answer."""
    server = str(url).removesuffix("/").removesuffix("/v1")
    cause = str(error or "") or "the connection was closed"
    match error:
        case _ if _out_of_files(error):
            message = f"cannot connect to {server}: {cause}; this process has too many streams open"
        case httpx.ReadTimeout() | httpx.WriteTimeout():
            seconds = error.request.extensions["timeout"]["read"]
            message = f"the scheduler at {server} did not answer within {seconds:g} s"
        case _ if error is None or isinstance(error, _ENDED):
            message = f"the scheduler at {server} ended the connection without an answer ({cause})"
        case _:
            message = (
                f"no scheduler answers at {server} ({cause}); "
                "start one with `kgym up`, or name another with `--server URL`"
            )
    return InfrastructureError("scheduler_unreachable", message, server=server)


def _out_of_files(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            return True
        error = error.__cause__ or error.__context__
    return False


@dataclass(slots=True)
class Retries:
    """Counts consecutive lost connections, and the seconds waited for a busy server."""

    lost: int = 0
    connected: bool = False
    waited: float = 0
    most: int = RECONNECTS
    """Maximum number of consecutive reconnections."""

    def begin(self) -> None:
        """Note that the server has answered."""
        self.lost, self.connected, self.waited = 0, True, 0

    def pause(self, url: httpx.URL, error: Exception | None) -> float:
        """Return the seconds to wait; raise InfrastructureError if waiting cannot help."""
        self.lost += 1
        # A server that never answered is probably not there: waiting for it would hide that.
        if not self.connected or self.lost > self.most:
            raise unreachable(url, error) from error
        return float(min(2.0, 0.05 * 2**self.lost))

    def ended(self, url: httpx.URL, error: httpx.TransportError, *, repeatable: bool) -> None:
        """Raise InfrastructureError, unless the request can be repeated on a new connection.

        Servers may close an idle connection at any time (RFC 9112, section 9.3.1), so a repeatable
        request is sent once more.
        """
        self.lost += 1
        if not (repeatable and self.lost == 1 and isinstance(error, _ENDED)):
            raise unreachable(url, error) from error

    def seconds_to_wait(self, error: ApiError, *, repeatable: bool = True) -> float:
        """Return the `Retry-After` of an error; raise the error if waiting cannot help."""
        seconds = error.details.get("retry_after")
        if error.status in {502, 503, 504} and error.reason == "unexpected_answer":
            seconds = seconds or 1  # a proxy's answer while the scheduler is down
        outage = isinstance(error, ServerFailed)
        if not isinstance(seconds, int) or (outage and not repeatable):
            raise error
        self.waited += max(1, seconds)
        if self.waited > (OUTAGE_SECONDS if outage else PATIENCE_SECONDS):
            raise error
        return float(max(1, seconds))


class Followed(Protocol[Event_co]):
    """A stream of events that continues across lost connections."""

    done: bool
    """Whether the stream has ended."""
    path: str
    retries: Retries

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request."""

    def take(self, message: ServerSentEvent) -> Event_co | None:
        """Return the event in the message; None if it has none."""


class Feed:
    """The stream of a job's events, with the number of the last received one."""

    def __init__(self, job_id: int, last: int) -> None:
        self.path = f"/jobs/{job_id}/events"
        self.done = False
        self.retries = Retries()
        self._last = last

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request."""
        return {"Accept": "text/event-stream", "Last-Event-ID": str(self._last)}

    def take(self, message: ServerSentEvent) -> JobEvent | None:
        """Return the event in the message; None if it has none."""
        if message.event == "end":
            self.done = True
            return None
        if not message.data:  # httpx-sse also yields keep-alive comments
            return None
        event = JobEvent.model_validate_json(message.data)
        self._last = event.id
        return event


class ChangeFeed:
    """The endless stream of all jobs' changes, with the cursor of the last received one."""

    def __init__(self, after: str | None, reconnects: int = RECONNECTS) -> None:
        self.path = "/changes"
        self.done = False
        self.retries = Retries(most=reconnects)
        self._last = after

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request."""
        since = {} if self._last is None else {"Last-Event-ID": self._last}
        return {"Accept": "text/event-stream", **since}

    def take(self, message: ServerSentEvent) -> Change | None:
        """Return the change in the message; None if it has none."""
        if not message.data:
            self._last = message.id or self._last
            return None
        change = Change.model_validate_json(message.data)
        # Changes of workers have no place in the feed that could be returned to.
        if change.kind != "worker":
            self._last = change.cursor
        return change
