"""The requests to the scheduler: each with its path, its arguments, and the model of its answer."""

import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter

from kgym.api.bugs import BugFilter, BugPage
from kgym.api.bulk import (
    Aborted,
    AbortFilter,
    AbortRequest,
    JobRequests,
    Restarted,
    RestartFilter,
    RestartRequest,
    Submitted,
)
from kgym.api.changes import ChangeFilter, ChangePage
from kgym.api.groups import (
    GroupFilter,
    GroupPage,
    GroupResultFilter,
    GroupResultPage,
    GroupView,
)
from kgym.api.jobs import (
    Artifact,
    JobConditions,
    JobCount,
    JobFilter,
    JobPage,
    JobRequest,
    JobView,
    QueueView,
    WorkerView,
)
from kgym.api.source import (
    FileLook,
    FileText,
    FolderList,
    FolderLook,
    Look,
    SearchLook,
    SearchResult,
    SymbolLook,
    SymbolResult,
)
from kgym.api.statistics import Statistics, StatisticsFilter
from kgym.api.storage import StorageView
from kgym.api.suitecache import DroppedEntry, EntryFilter, EntryPage, EntryView
from kgym.client.protocol import Request

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


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


def abort_all(wanted: Sequence[int] | AbortFilter, expected: int | None) -> Request[Aborted]:
    """Abort up to 1,000 jobs: those with these ids, or the oldest unfinished of a filter."""
    if isinstance(wanted, AbortFilter):
        body = AbortRequest(filter=wanted, expected=expected)
    else:
        body = AbortRequest(jobs=list(wanted))
    arguments = {"json": body.model_dump(mode="json", exclude_none=True)}
    return Request("POST", "/jobs/abort", _as(Aborted), arguments)


def restart_all(wanted: RestartFilter, expected: int | None) -> Request[Restarted]:
    """Restart up to 1,000 finished jobs of a filter."""
    body = RestartRequest(filter=wanted, expected=expected)
    arguments = {"json": body.model_dump(mode="json", exclude_none=True)}
    return Request("POST", "/jobs/restart", _as(Restarted), arguments, repeatable=False)


def count(wanted: JobConditions) -> Request[JobCount]:
    """Count jobs, up to 10,000."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", "/jobs/count", _as(JobCount), {"params": params})


def job(job_id: int) -> Request[JobView]:
    """Show a job, with the specs and results of its steps."""
    return Request("GET", f"/jobs/{job_id}", _as(JobView))


def page(wanted: JobFilter) -> Request[JobPage]:
    """Show a page of a list of jobs, newest first, without specs."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", "/jobs", _as(JobPage), {"params": params})


def abort(job_id: int) -> Request[JobView]:
    """Abort a job: what it runs is killed."""
    return Request("POST", f"/jobs/{job_id}/abort", _as(JobView))


def groups(wanted: GroupFilter) -> Request[GroupPage]:
    """Show a page of the list of groups."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", "/groups", _as(GroupPage), {"params": params})


def group(name: str, submitter: str | None) -> Request[GroupView]:
    """Show a group of the submitter, or of the caller: its jobs counted."""
    return Request("GET", _group(name), _as(GroupView), {"params": _given(submitter=submitter)})


def group_results(name: str, wanted: GroupResultFilter) -> Request[GroupResultPage]:
    """Show a page of what a group's jobs came to."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", f"{_group(name)}/results", _as(GroupResultPage), {"params": params})


def abort_group(name: str, submitter: str | None) -> Request[Aborted]:
    """Abort a group's unfinished jobs, the first 1,000."""
    params = _given(submitter=submitter)
    return Request("POST", f"{_group(name)}/abort", _as(Aborted), {"params": params})


def _group(name: str) -> str:
    return f"/groups/{quote(name, safe='')}"


def changes(wanted: ChangeFilter) -> Request[ChangePage]:
    """Show a page of the feed of all jobs' changes."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", "/changes", _as(ChangePage), {"params": params})


def restart(job_id: int, from_step: int | None) -> Request[JobView]:
    """Run a finished job again, from this step or from the first that did not succeed."""
    params = _given(from_step=from_step)
    return Request(
        "POST", f"/jobs/{job_id}/restart", _as(JobView), {"params": params}, repeatable=False
    )


def tag(job_id: int, tags: Sequence[str]) -> Request[JobView]:
    """Replace a job's tags by these; none of the old ones stays."""
    return Request("PUT", f"/jobs/{job_id}/tags", _as(JobView), {"json": list(tags)})


def log(job_id: int, step: int | None, attempt: int | None) -> Request[str]:
    """Read a job's log as text, of one step or attempt where they are named."""
    params = _given(step=step, attempt=attempt)
    return Request("GET", f"/jobs/{job_id}/log", lambda r: r.text, {"params": params})


def log_after(job_id: int, step: int, attempt: int, after: int) -> Request[tuple[str, int]]:
    """Read what an attempt has logged after an event, and the number of the last event of that."""
    params = {"step": step, "attempt": attempt, "after": after}

    def parse(response: httpx.Response) -> tuple[str, int]:
        return response.text, int(response.headers["Kgym-Last-Event"])

    return Request("GET", f"/jobs/{job_id}/log", parse, {"params": params})


def artifacts(job_id: int, step: int) -> Request[list[Artifact]]:
    """List what the step's last attempt left."""
    return Request("GET", f"/jobs/{job_id}/steps/{step}/artifacts", _as_list(Artifact))


def artifact(job_id: int, step: int, name: str) -> Request[bytes]:
    """Read an artifact."""
    path = f"/jobs/{job_id}/steps/{step}/artifacts/{quote(name, safe='')}"
    return Request("GET", path, lambda response: response.content)


def workers() -> Request[list[WorkerView]]:
    """Show the workers: those alive, and those lost within a day."""
    return Request("GET", "/workers", _as_list(WorkerView))


def drain(worker: str) -> Request[WorkerView]:
    """Let a worker take no more steps."""
    return Request("POST", f"/workers/{quote(worker, safe='')}/drain", _as(WorkerView))


def storage() -> Request[StorageView]:
    """Show what takes disk, by kind, age and job."""
    return Request("GET", "/storage", _as(StorageView))


def statistics(wanted: StatisticsFilter) -> Request[Statistics]:
    """Count the attempts that ended in each minute, hour or day."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", "/statistics", _as(Statistics), {"params": params})


def bugs(wanted: BugFilter) -> Request[BugPage]:
    """Show a page of the list of bugs."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", "/bugs", _as(BugPage), {"params": params})


def suitecache(wanted: EntryFilter) -> Request[EntryPage]:
    """Show a page of the list of SuiteCache's entries."""
    params = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Request("GET", "/suitecache", _as(EntryPage), {"params": params})


def suitecache_entry(name: str) -> Request[EntryView]:
    """Show an entry of SuiteCache."""
    return Request("GET", f"/suitecache/{quote(name, safe='')}", _as(EntryView))


def drop_entry(name: str) -> Request[DroppedEntry]:
    """Remove an entry of SuiteCache."""
    return Request("DELETE", f"/suitecache/{quote(name, safe='')}", _as(DroppedEntry))


def queues() -> Request[list[QueueView]]:
    """Show, for each kind of step, what waits and runs."""
    return Request("GET", "/queues", _as_list(QueueView))


def read_source(job_id: int, wanted: FileLook) -> Request[FileText]:
    """Read a file of a kernel's source."""
    return _look(job_id, "file", wanted, FileText)


def list_source(job_id: int, wanted: FolderLook) -> Request[FolderList]:
    """List a folder of a kernel's source."""
    return _look(job_id, "folder", wanted, FolderList)


def search_source(job_id: int, wanted: SearchLook) -> Request[SearchResult]:
    """Search a kernel's source."""
    return _look(job_id, "search", wanted, SearchResult)


def find_symbol(job_id: int, wanted: SymbolLook) -> Request[SymbolResult]:
    """Look up a name in a kernel's source."""
    return _look(job_id, "symbol", wanted, SymbolResult)


def _look(job_id: int, what: str, wanted: Look, answer: type[M]) -> Request[M]:
    headers = {"Content-Type": "application/json"}
    arguments = {"content": wanted.model_dump_json(), "headers": headers}
    return Request("POST", f"/jobs/{job_id}/source/{what}", _as(answer), arguments)


def _given(**params: T | None) -> dict[str, T]:
    return {name: value for name, value in params.items() if value is not None}


def _as(model: type[M]) -> Callable[[httpx.Response], M]:
    return lambda response: model.model_validate_json(response.content)


def _as_list(model: type[M]) -> Callable[[httpx.Response], list[M]]:
    adapter = TypeAdapter(list[model])  # type: ignore[valid-type]
    return lambda response: adapter.validate_json(response.content)
