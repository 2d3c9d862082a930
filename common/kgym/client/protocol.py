"""Requests to the scheduler and their answers, without network I/O.

A `Request` is a request and the way to read its answer, a `Feed` follows a job's
events across lost connections, a `Download` collects a file. `kgym.client.client`
drives them, blocking or awaiting.
"""

import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from httpx_sse import ServerSentEvent
from pydantic import BaseModel, TypeAdapter

from kgym.api.bulk import Aborted, AbortFilter, AbortRequest, JobRequests, Submitted
from kgym.api.groups import (
    GroupFilter,
    GroupPage,
    GroupResultFilter,
    GroupResultPage,
    GroupView,
)
from kgym.api.jobs import (
    Artifact,
    JobEvent,
    JobFilter,
    JobPage,
    JobRequest,
    JobView,
    QueueView,
    WorkerView,
)
from kgym.api.storage import StorageView
from kgym.errors import InfrastructureError, KgymError, UserError

TIMEOUT = httpx.Timeout(60, connect=5, pool=None)
"""Seconds; an event stream says at least every 10 that it lives."""
CONNECTIONS = 100
"""Of calls; further ones wait for their turn. Streams and downloads have connections apart."""
PATIENCE_SECONDS = 60
"""How long a request waits in all, where the scheduler says that it comes too soon."""
OUTAGE_SECONDS = 20
"""How long it waits in all, where the scheduler says that it cannot serve it just now."""
RECONNECTS = 10
"""How often in a row a lost connection is taken up again, within about 13 seconds."""
CHUNK = 1 << 20

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


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


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A request, with further `arguments` for httpx, and what reads its answer."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    repeatable: bool = True
    """Whether it does no more when it is sent again, as the answer does not tell what was done."""


def _as(model: type[M]) -> Callable[[httpx.Response], M]:
    return lambda response: model.model_validate_json(response.content)


def _as_list(model: type[M]) -> Callable[[httpx.Response], list[M]]:
    adapter = TypeAdapter(list[model])  # type: ignore[valid-type]
    return lambda response: adapter.validate_json(response.content)


def submit(request: JobRequest, key: str | None) -> Request[JobView]:
    """Submit a job, under a key of its own where none is given."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key or uuid.uuid4().hex}
    arguments = {"content": request.model_dump_json(), "headers": headers}
    return Request("POST", "/jobs", _as(JobView), arguments)


def submit_all(requests: Sequence[JobRequest], key: str | None) -> Request[Submitted]:
    """Submit many jobs, under a key of its own where none is given."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key or uuid.uuid4().hex}
    content = JobRequests(jobs=list(requests)).model_dump_json()
    return Request("POST", "/jobs/bulk", _as(Submitted), {"content": content, "headers": headers})


def abort_all(wanted: Sequence[int] | AbortFilter) -> Request[Aborted]:
    """Abort many jobs."""
    if isinstance(wanted, AbortFilter):
        body = AbortRequest(filter=wanted)
    else:
        body = AbortRequest(jobs=list(wanted))
    arguments = {"json": body.model_dump(mode="json", exclude_none=True)}
    return Request("POST", "/jobs/abort", _as(Aborted), arguments)


def job(job_id: int) -> Request[JobView]:
    """Show a job."""
    return Request("GET", f"/jobs/{job_id}", _as(JobView))


def page(wanted: JobFilter) -> Request[JobPage]:
    """Show a page of a list of jobs."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", "/jobs", _as(JobPage), {"params": params})


def abort(job_id: int) -> Request[JobView]:
    """Abort a job."""
    return Request("POST", f"/jobs/{job_id}/abort", _as(JobView))


def groups(wanted: GroupFilter) -> Request[GroupPage]:
    """Show a page of the list of groups."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", "/groups", _as(GroupPage), {"params": params})


def group(name: str, submitter: str | None) -> Request[GroupView]:
    """Show a group."""
    return Request("GET", _group(name), _as(GroupView), {"params": _given(submitter=submitter)})


def group_results(name: str, wanted: GroupResultFilter) -> Request[GroupResultPage]:
    """Show a page of what a group's jobs came to."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", f"{_group(name)}/results", _as(GroupResultPage), {"params": params})


def abort_group(name: str, submitter: str | None) -> Request[Aborted]:
    """Abort a group's jobs."""
    params = _given(submitter=submitter)
    return Request("POST", f"{_group(name)}/abort", _as(Aborted), {"params": params})


def _group(name: str) -> str:
    return f"/groups/{quote(name, safe='')}"


def restart(job_id: int, from_step: int | None) -> Request[JobView]:
    """Restart a job."""
    params = _given(from_step=from_step)
    return Request(
        "POST", f"/jobs/{job_id}/restart", _as(JobView), {"params": params}, repeatable=False
    )


def tag(job_id: int, tags: Sequence[str]) -> Request[JobView]:
    """Replace a job's tags."""
    return Request("PUT", f"/jobs/{job_id}/tags", _as(JobView), {"json": list(tags)})


def log(job_id: int, step: int | None, attempt: int | None) -> Request[str]:
    """Read a job's log."""
    params = _given(step=step, attempt=attempt)
    return Request("GET", f"/jobs/{job_id}/log", lambda r: r.text, {"params": params})


def artifacts(job_id: int, step: int) -> Request[list[Artifact]]:
    """List a step's artifacts."""
    return Request("GET", f"/jobs/{job_id}/steps/{step}/artifacts", _as_list(Artifact))


def workers() -> Request[list[WorkerView]]:
    """Show the workers."""
    return Request("GET", "/workers", _as_list(WorkerView))


def drain(worker: str) -> Request[WorkerView]:
    """Let a worker take no more steps."""
    return Request("POST", f"/workers/{quote(worker, safe='')}/drain", _as(WorkerView))


def storage() -> Request[StorageView]:
    """Show what is stored."""
    return Request("GET", "/storage", _as(StorageView))


def queues() -> Request[list[QueueView]]:
    """Show the queues."""
    return Request("GET", "/queues", _as_list(QueueView))


def _given(**params: T | None) -> dict[str, T]:
    return {name: value for name, value in params.items() if value is not None}


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


def unreachable(url: httpx.URL, error: Exception | None) -> InfrastructureError:
    """Return the error for a server that does not answer, or for what else was in the way."""
    server = str(url).removesuffix("/").removesuffix("/v1")
    said = str(error or "") or "the connection was closed"
    match error:
        case _ if _out_of_files(error):
            message = f"cannot connect to {server}: {said}; this process follows too much at once"
        case httpx.ReadTimeout() | httpx.WriteTimeout():
            message = f"the scheduler at {server} did not answer within {TIMEOUT.read:g} s"
        case httpx.ReadError() | httpx.WriteError() | httpx.RemoteProtocolError() | None:
            message = f"the scheduler at {server} ended the connection without an answer ({said})"
        case _:
            message = (
                f"no scheduler answers at {server} ({said}); "
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

    def begin(self) -> None:
        """Note that the server has answered."""
        self.lost, self.connected, self.waited = 0, True, 0

    def pause(self, url: httpx.URL, error: Exception | None) -> float:
        """Return the seconds to wait; raise InfrastructureError where waiting is no use."""
        self.lost += 1
        if not self.connected or self.lost > RECONNECTS:
            raise unreachable(url, error) from error
        return float(min(2.0, 0.05 * 2**self.lost))

    def told(self, error: ApiError, *, repeatable: bool = True) -> float:
        """Return the seconds to wait, as the server says; raise the error if waiting is no use."""
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


class Download:
    """A file on its way: `.NAME.SHA.part` beside its place, until it is whole."""

    def __init__(self, artifact: Artifact, url: str, path: Path) -> None:
        self.artifact = artifact
        self.url = url
        self.retries = Retries(connected=True)  # by whoever has just listed the artifact
        self._path = path
        self._part = path.with_name(f".{path.name}.{artifact.sha256[:16]}.part")
        self._part.touch()
        self._have = self._part.stat().st_size

    @classmethod
    def of(
        cls, artifacts: Sequence[Artifact], job_id: int, step: int, name: str, path: Path
    ) -> "Download":
        """Begin with the artifact of this name; raise UserError if the step left none."""
        found = next((artifact for artifact in artifacts if artifact.name == name), None)
        if found is None:
            left = ", ".join(artifact.name for artifact in artifacts) or "none"
            raise UserError(
                "artifact_not_found",
                f"step {step} of job {job_id} left no artifact {name!r} (it left: {left})",
            )
        return cls(found, f"/jobs/{job_id}/steps/{step}/artifacts/{quote(name, safe='')}", path)

    @property
    def complete(self) -> bool:
        """Whether all bytes are here."""
        return self._have >= self.artifact.size

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request: for what is missing, of this very content."""
        etag = f'"{self.artifact.sha256}"'
        return {"Range": f"bytes={self._have}-", "If-Range": etag, "Accept-Encoding": "identity"}

    def begin(self, response: httpx.Response) -> None:
        """Note the answer: one that is not partial begins at the first byte."""
        self.retries.begin()
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            self._have = 0
            os.truncate(self._part, 0)

    def take(self, chunk: bytes) -> None:
        """Append to what is here."""
        with self._part.open("ab") as file:
            file.write(chunk)
        self._have += len(chunk)

    def finish(self) -> None:
        """Verify the file and move it into its place; raise InfrastructureError if it is wrong."""
        with self._part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        if digest != self.artifact.sha256:
            self._part.unlink()
            raise InfrastructureError(
                "artifact_corrupt",
                f"{self.artifact.name} arrived with SHA-256 {digest}, not {self.artifact.sha256}; "
                "download it again",
            )
        self._part.replace(self._path)
