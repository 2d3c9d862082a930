"""How to talk to the scheduler, without network I/O: options, errors, and when to try again."""

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

# Seconds.
TIMEOUT = httpx.Timeout(60, connect=5, pool=None)
# After which an event stream counts as cut off: its server says every 5 that it lives.
SILENCE_SECONDS = 15.0
# Seconds; of event streams.
FOLLOWING = httpx.Timeout(60, connect=5, read=SILENCE_SECONDS, pool=None)
# Of calls; further ones wait for their turn. Streams and downloads have connections apart.
CONNECTIONS = 100
# How long a request waits in all, where the scheduler says that it comes too soon.
PATIENCE_SECONDS = 60
# How long it waits in all, where the scheduler says that it cannot serve it just now.
OUTAGE_SECONDS = 20
# How often in a row a lost connection is taken up again, within about 13 seconds.
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
    """The request cannot be met as it is: no such job, a fault in the request, a conflict."""


class ServerFailed(ApiError, InfrastructureError):
    """The scheduler could not serve the request; it may be repeated."""


def options(base_url: str, token: str | None, *, streams: bool = False) -> dict[str, Any]:
    """Return the arguments for httpx's clients: for calls, or for what holds on to connections."""
    url = httpx.URL(base_url)
    # A proxy of the environment cannot reach this machine's own loopback.
    loopback = url.host in {"localhost", "127.0.0.1", "::1"}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        "base_url": url.join("/v1"),
        "timeout": TIMEOUT,
        "limits": httpx.Limits(max_connections=None if streams else CONNECTIONS),
        "trust_env": not loopback,
        "verify": url.scheme == "https",  # else certificates are read for nothing
        "headers": headers,
    }


def checked(response: httpx.Response) -> httpx.Response:
    """Return the response if it is a good one; raise ApiError. An error has to be read before."""
    if not response.is_error:
        return response
    try:
        problem = {"reason": "unknown", "detail": response.text, **response.json()}
    except (ValueError, TypeError):  # not from the scheduler, but from a proxy on the way
        phrase = HTTPStatus(response.status_code).phrase
        detail = f"{response.request.url} answered {response.status_code} {phrase}"
        problem = {"reason": "unexpected_answer", "detail": detail}
    if (seconds := response.headers.get("Retry-After", "")).isdecimal():
        problem["retry_after"] = int(seconds)
    family = Refused if response.is_client_error else ServerFailed
    raise family(response.status_code, problem)


_ENDED = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


def unreachable(url: httpx.URL, error: Exception | None) -> InfrastructureError:
    """Return the error for a server that does not answer, or for what else was in the way."""
    server = str(url).removesuffix("/").removesuffix("/v1")
    cause = str(error or "") or "the connection was closed"
    match error:
        case _ if _out_of_files(error):
            message = f"cannot connect to {server}: {cause}; this process follows too much at once"
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
    """Counts connections that were lost in a row, and the seconds waited for a busy server."""

    lost: int = 0
    connected: bool = False
    waited: float = 0
    most: int = RECONNECTS
    """How often in a row a connection is taken up again."""

    def begin(self) -> None:
        """Note that the server has answered."""
        self.lost, self.connected, self.waited = 0, True, 0

    def pause(self, url: httpx.URL, error: Exception | None) -> float:
        """Return the seconds to wait; raise InfrastructureError where waiting is no use."""
        self.lost += 1
        if not self.connected or self.lost > self.most:
            raise unreachable(url, error) from error
        return float(min(2.0, 0.05 * 2**self.lost))

    def ended(self, url: httpx.URL, error: httpx.TransportError, *, repeatable: bool) -> None:
        """Raise InfrastructureError, unless a connection has ended that had been kept.

        Servers may do that at any time (RFC 9112, section 9.3.1): what is repeatable is
        asked again, once.
        """
        self.lost += 1
        if not (repeatable and self.lost == 1 and isinstance(error, _ENDED)):
            raise unreachable(url, error) from error

    def seconds_to_wait(self, error: ApiError, *, repeatable: bool = True) -> float:
        """Return the `Retry-After` of an error; raise the error if waiting is no use."""
        seconds = error.details.get("retry_after")
        if error.status in {502, 503, 504} and error.reason == "unexpected_answer":
            seconds = seconds or 1  # of a proxy, whose scheduler is away
        outage = isinstance(error, ServerFailed)
        if not isinstance(seconds, int) or (outage and not repeatable):
            raise error
        self.waited += max(1, seconds)
        if self.waited > (OUTAGE_SECONDS if outage else PATIENCE_SECONDS):
            raise error
        return float(max(1, seconds))


class Followed(Protocol[Event_co]):
    """A stream of events that goes on across lost connections."""

    done: bool
    """Whether no more will come."""
    path: str
    retries: Retries

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request."""

    def take(self, message: ServerSentEvent) -> Event_co | None:
        """Return the event in the message, if it holds one."""


class Feed:
    """A job's events, up to the one that was received last."""

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
        """Return the event in the message, if it holds one; `done` says that no more will come."""
        if message.event == "end":
            self.done = True
            return None
        if not message.data:  # httpx-sse makes one of a keep-alive comment, too
            return None
        event = JobEvent.model_validate_json(message.data)
        self._last = event.id
        return event


class ChangeFeed:
    """The changes of all jobs, up to the one that was received last; it does not end."""

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
        """Return the change in the message, if it holds one."""
        if not message.data:
            self._last = message.id or self._last
            return None
        change = Change.model_validate_json(message.data)
        if change.kind != "worker":
            self._last = change.cursor
        return change
