"""The asynchronous client. `Client` has the same methods, which block.

Errors::

    KgymError
    ├── ApiError                  the scheduler answered with a problem document
    │   ├── Refused               … 4xx: change the request (also a UserError)
    │   └── ServerFailed          … 5xx: a retry may help (also an InfrastructureError)
    └── InfrastructureError
        ├── `scheduler_unreachable`   no answer from the base URL
        └── `artifact_corrupt`        the SHA-256 of a downloaded file does not match
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from httpx_sse import EventSource
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
from kgym.api.changes import Change, ChangeFilter, ChangePage
from kgym.api.groups import GroupFilter, GroupPage, GroupView
from kgym.api.jobs import (
    Artifact,
    JobConditions,
    JobCount,
    JobEvent,
    JobFilter,
    JobPage,
    JobRequest,
    JobView,
    QueueView,
    WorkerView,
)
from kgym.api.patch_rows import PatchFilter, PatchPage, PatchRow
from kgym.api.source import (
    FileLook,
    FileText,
    FolderList,
    FolderLook,
    SearchLook,
    SearchResult,
    SymbolLook,
    SymbolResult,
)
from kgym.api.statistics import Statistics, StatisticsFilter
from kgym.api.storage import StorageView
from kgym.api.suitecache import DroppedEntry, EntryFilter, EntryPage, EntryView
from kgym.client import protocol
from kgym.client.download import CHUNK, Download
from kgym.client.protocol import RECONNECTS, ApiError, ChangeFeed, Feed, Followed

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Page = TypeVar("Page", JobPage, GroupPage, PatchPage)
_JSON = {"Content-Type": "application/json"}


class AsyncClient:
    """The same as `Client`, for coroutines: await its methods, iterate with `async for`."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._http = httpx.AsyncClient(**protocol.options(base_url, token))
        self._streams = httpx.AsyncClient(**protocol.options(base_url, token, streams=True))

    async def close(self) -> None:
        """Close the connections; the client cannot be used after that."""
        await self._http.aclose()
        await self._streams.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- jobs ----------------------------------------------------------------------------------

    async def submit(self, request: JobRequest, key: str | None = None) -> JobView:
        """Submit a job.

        Args:
            request: The job; `kgym.bugs.bug.Bug.job` makes one.
            key: A submission with a key that you used before for the same
                job returns that job; by default each call makes a new one.

        Raises:
            Refused: The job is invalid (`invalid_request`), the key belongs to another job
                (`key_reused`), or you have too many unfinished jobs (`too_many_jobs`).
        """
        headers = {**_JSON, "Idempotency-Key": key or uuid.uuid4().hex}
        content = request.model_dump_json()
        return await self._ask("POST", "/jobs", _as(JobView), content=content, headers=headers)

    async def submit_all(self, requests: Sequence[JobRequest], key: str | None = None) -> Submitted:
        """Submit up to 1,000 jobs in one transaction: all of them, or none.

        Args:
            requests: The jobs, in order.
            key: As of `submit`; one key for all.

        Raises:
            Refused: As of `submit`; the first invalid job refuses all.
        """
        headers = {**_JSON, "Idempotency-Key": key or uuid.uuid4().hex}
        content = JobRequests(jobs=list(requests)).model_dump_json()
        parse = _as(Submitted)
        return await self._ask("POST", "/jobs/bulk", parse, content=content, headers=headers)

    async def job(self, job_id: int) -> JobView:
        """Return the current state of a job, with its steps, their specs and results.

        Raises:
            Refused: There is no such job (`job_not_found`).
        """
        return await self._get(f"/jobs/{job_id}", JobView)

    async def page(self, wanted: JobFilter) -> JobPage:
        """Return one page of jobs, newest first, without specs; at most 200 (`wanted.limit`)."""
        return await self._get("/jobs", JobPage, wanted)

    async def jobs(self, wanted: JobFilter | None = None) -> AsyncIterator[JobView]:
        """Yield all jobs that match the filter, newest first, without specs."""
        async for page in self._pages("/jobs", JobPage, wanted or JobFilter()):
            for job in page.jobs:
                yield job

    async def tag(self, job_id: int, tags: Sequence[str]) -> JobView:
        """Replace the job's tags: at most 50, each of at most 100 characters.

        Raises:
            Refused: There is no such job (`job_not_found`), it is another submitter's
                (`not_your_job`), or a mark does not match its steps.
        """
        return await self._ask("PUT", f"/jobs/{job_id}/tags", _as(JobView), json=list(tags))

    async def restart(self, job_id: int, from_step: int | None = None) -> JobView:
        """Run a finished job again.

        Args:
            job_id: The job.
            from_step: Number of the first step to run again, from 0; by default the first one
                that did not succeed.

        Raises:
            Refused: The job has not ended (`job_unfinished`), or an earlier step has not succeeded
                (`step_before_failed`).
        """
        path, params = f"/jobs/{job_id}/restart", _given(from_step=from_step)
        return await self._ask("POST", path, _as(JobView), repeatable=False, params=params)

    async def abort(self, job_id: int) -> JobView:
        """Abort all unfinished steps of the job.

        Raises:
            Refused: The job has ended already (`job_finished`), or is another submitter's.
        """
        return await self._ask("POST", f"/jobs/{job_id}/abort", _as(JobView))

    async def abort_all(
        self, wanted: Sequence[int] | AbortFilter, expected: int | None = None
    ) -> Aborted:
        """Abort up to 1,000 jobs.

        Args:
            wanted: Ids of jobs, or a filter for unfinished ones, the oldest first.
            expected: The number of unfinished jobs that you expect to match the filter.

        Raises:
            Refused: One of the jobs is another submitter's (`not_your_job`), none matches, or
                another number matches (`count_differs`).
        """
        if isinstance(wanted, AbortFilter):
            body = AbortRequest(filter=wanted, expected=expected)
        else:
            body = AbortRequest(jobs=list(wanted))
        content = body.model_dump(mode="json", exclude_none=True)
        return await self._ask("POST", "/jobs/abort", _as(Aborted), json=content)

    async def restart_all(self, wanted: RestartFilter, expected: int | None = None) -> Restarted:
        """Run up to 1,000 finished jobs again, each from its first step that did not succeed.

        Args:
            wanted: A filter for jobs in one final state, the newest first.
            expected: The number of jobs that you expect to match.

        Raises:
            Refused: Another number matches (`count_differs`), or too many to be counted
                (`filter_too_wide`).
        """
        body = RestartRequest(filter=wanted, expected=expected)
        content = body.model_dump(mode="json", exclude_none=True)
        path, parse = "/jobs/restart", _as(Restarted)
        return await self._ask("POST", path, parse, repeatable=False, json=content)

    async def count(self, wanted: JobConditions) -> JobCount:
        """Count the jobs that meet the conditions; a minimum if `more` is true."""
        return await self._get("/jobs/count", JobCount, wanted)

    async def wait(self, job_id: int) -> JobView:
        """Wait until the job has ended, without a time limit; return it."""
        async for _ in self.events(job_id, (await self.job(job_id)).last_event or 0):
            pass
        return await self.job(job_id)

    async def log(self, job_id: int, step: int | None = None, attempt: int | None = None) -> str:
        """Return the log so far, of all steps and attempts or of selected ones.

        Args:
            job_id: The job.
            step: Number of a step, from 0.
            attempt: Number of an attempt, from 1.

        Raises:
            Refused: There is no such job (`job_not_found`) or step (`step_not_found`).
        """
        path, params = f"/jobs/{job_id}/log", _given(step=step, attempt=attempt)
        return await self._ask("GET", path, lambda response: response.text, params=params)

    async def log_after(
        self, job_id: int, step: int, attempt: int, *, after: int
    ) -> tuple[str, int]:
        """Return a part of the attempt's log after event `after`, and the part's last event.

        The last event is `after` at the end of the log.
        """
        path = f"/jobs/{job_id}/log"
        params = {"step": step, "attempt": attempt, "after": after}

        def parse(response: httpx.Response) -> tuple[str, int]:
            return response.text, int(response.headers["Kgym-Last-Event"])

        return await self._ask("GET", path, parse, params=params)

    def read_log(
        self, job_id: int, step: int | None = None, attempt: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the log in parts, in UTF-8, for logs that do not fit into memory."""
        return self._read(f"/jobs/{job_id}/log", _given(step=step, attempt=attempt))

    def events(self, job_id: int, last: int = 0) -> AsyncIterator[JobEvent]:
        """Yield the job's events as they happen, until the job has ended.

        Lost connections are opened again, without lost or repeated events.

        Args:
            job_id: The job.
            last: Number of the last known event; 0 for all events, `JobView.last_event` for
                new ones.

        Raises:
            Refused: There is no such job, or too many streams are open (`too_many_streams`).
            InfrastructureError: The scheduler could not be reached for about 13 seconds
                (`scheduler_unreachable`).
        """
        return self._follow(Feed(job_id, last))

    # --- groups --------------------------------------------------------------------------------

    async def groups(self, wanted: GroupFilter | None = None) -> AsyncIterator[GroupView]:
        """Yield the groups that match the filter, newest first; all without a filter."""
        async for page in self._pages("/groups", GroupPage, wanted or GroupFilter()):
            for group in page.groups:
                yield group

    async def group(self, name: str, submitter: str | None = None) -> GroupView:
        """Return a group: its jobs counted by outcome.

        The counts of tens of thousands of jobs may be up to ten seconds old.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default.

        Raises:
            Refused: There is no such group (`group_missing`).
        """
        return await self._get(_group(name), GroupView, submitter=submitter)

    async def group_patches(
        self, name: str, submitter: str | None = None, after: int = 0
    ) -> AsyncIterator[PatchRow]:
        """Yield one row for each patch of the group, in the order in which jobs were submitted.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default.
            after: Only jobs with a number above this one; 0 for all.

        Raises:
            Refused: There is no such group (`group_missing`).
        """
        wanted = PatchFilter(submitter=submitter, cursor=str(after), limit=1000)
        async for page in self._pages(f"{_group(name)}/patches", PatchPage, wanted):
            for patch in page.patches:
                yield patch

    async def abort_group(self, name: str, submitter: str | None = None) -> Aborted:
        """Abort the group's unfinished jobs, up to 1,000; `more` tells whether some are left.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default. Another's needs the scope `admin`.

        Raises:
            Refused: There is no such group (`group_missing`), or it is another's
                (`not_your_group`).
        """
        path, params = f"{_group(name)}/abort", _given(submitter=submitter)
        return await self._ask("POST", path, _as(Aborted), params=params)

    # --- artifacts -----------------------------------------------------------------------------

    async def artifacts(self, job_id: int, step: int) -> list[Artifact]:
        """Return the artifacts of the step's last attempt: names, sizes in bytes, SHA-256.

        Names are constants in `kgym.api.steps`, such as `BuildArtifact.VMLINUX`. If retention has
        removed the files, `StepView.artifacts_gone_at` is the time.

        Raises:
            Refused: There is no such job (`job_not_found`) or step (`step_not_found`).
        """
        return await self._ask("GET", f"/jobs/{job_id}/steps/{step}/artifacts", _as_list(Artifact))

    def read_artifact(self, job_id: int, step: int, name: str) -> AsyncIterator[bytes]:
        """Yield an artifact in parts, without verification; `download` verifies the SHA-256.

        Raises:
            Refused: The step has no such artifact (`artifact_not_found`), or it was removed
                (`artifact_gone`).
        """
        return self._read(f"/jobs/{job_id}/steps/{step}/artifacts/{quote(name, safe='')}", {})

    async def download(self, job_id: int, step: int, name: str, path: Path) -> Artifact:
        """Write an artifact to `path` atomically, after verifying its SHA-256.

        The next call resumes an interrupted download.

        Raises:
            UserError: The step has no such artifact (`artifact_not_found`).
            Refused: The file was removed (`artifact_gone`).
            InfrastructureError: The SHA-256 does not match (`artifact_corrupt`).
        """
        artifacts = await self.artifacts(job_id, step)
        download = await asyncio.to_thread(Download.of, artifacts, job_id, step, name, path)
        while not download.complete:
            try:
                if (link := await self._fetch(download)) is not None:
                    # The next request gets from the scheduler what the storage does not deliver.
                    await self._fetch_from_storage(download, link)
            except httpx.TransportError as error:
                await asyncio.sleep(download.retries.pause(self._http.base_url, error))
            except ApiError as error:
                await asyncio.sleep(download.retries.seconds_to_wait(error))
        await asyncio.to_thread(download.finish)
        return download.artifact

    async def _fetch(self, download: Download) -> str | None:
        """Download from the scheduler; return the storage's URL if it redirects there."""
        async with self._streams.stream(
            "GET", download.url, params=download.query, headers=download.headers
        ) as response:
            if response.is_redirect:
                return response.headers["Location"]
            if response.is_error:
                await response.aread()
            download.begin(protocol.checked(response))
            async for chunk in response.aiter_raw(CHUNK):
                await asyncio.to_thread(download.take, chunk)
        return None

    async def _fetch_from_storage(self, download: Download, link: str) -> None:
        """Download from the storage, without the scheduler's token; ignore its errors."""
        download.direct = False
        with contextlib.suppress(httpx.TransportError):
            async with (
                httpx.AsyncClient(**protocol.options(link, None, streams=True)) as http,
                http.stream("GET", link, headers=download.part) as response,
            ):
                if response.is_success:
                    download.begin(response)
                    async for chunk in response.aiter_raw(CHUNK):
                        await asyncio.to_thread(download.take, chunk)
                        if download.complete:
                            break

    # --- sources of kernels --------------------------------------------------------------------

    async def read_source(self, job_id: int, wanted: FileLook) -> FileText:
        """Return lines of a file, as the build of a job's step sees it.

        Args:
            job_id: A job with a step of kind source, build or check that has succeeded;
                `kgym.bugs.bug.Bug.source` makes the cheapest.
            wanted: Which file and lines; which step; patches to apply for this request.

        Raises:
            Refused: There is no such file (`file_not_found`), it is not a text file (`not_a_file`,
                `binary_file`), the patches do not apply (`patch_does_not_apply`), the job has no
                such tree (`no_source`, `step_unfinished`), or it has to be made first
                (`source_not_made`: `details["step"]` is the step to submit).
        """
        return await self._look(job_id, "file", wanted, FileText)

    async def list_source(self, job_id: int, wanted: FolderLook) -> FolderList:
        """Return the entries of a folder of that tree; raises as `read_source`."""
        return await self._look(job_id, "folder", wanted, FolderList)

    async def search_source(self, job_id: int, wanted: SearchLook) -> SearchResult:
        """Return lines of that tree that match a regular expression.

        Raises:
            Refused: The pattern is invalid (`bad_pattern`); or as `read_source`.
        """
        return await self._look(job_id, "search", wanted, SearchResult)

    async def find_symbol(self, job_id: int, wanted: SymbolLook) -> SymbolResult:
        """Return definitions and uses of a symbol in that tree; raises as `read_source`."""
        return await self._look(job_id, "symbol", wanted, SymbolResult)

    # --- the platform --------------------------------------------------------------------------

    async def workers(self) -> list[WorkerView]:
        """Return the live workers, and those lost within a day."""
        return await self._ask("GET", "/workers", _as_list(WorkerView))

    async def drain(self, worker: str) -> WorkerView:
        """Let a worker finish its steps, claim no more, and end; `admin` only."""
        path = f"/workers/{quote(worker, safe='')}/drain"
        return await self._ask("POST", path, _as(WorkerView))

    async def statistics(self, wanted: StatisticsFilter) -> Statistics:
        """Count ended attempts per minute, hour or day, by outcome and reason."""
        return await self._get("/statistics", Statistics, wanted)

    async def bugs(self, wanted: BugFilter | None = None) -> BugPage:
        """Return a page of the bugs that jobs name, last active first.

        Counts of tens of thousands of jobs may be ten seconds old. `next` is the `cursor` of the
        next page.
        """
        return await self._get("/bugs", BugPage, wanted)

    async def suitecache(self, wanted: EntryFilter | None = None) -> EntryPage:
        """Return a page of the stored compiled kernels, last used first.

        `next` is the `cursor` of the next page.
        """
        return await self._get("/suitecache", EntryPage, wanted)

    async def suitecache_entry(self, name: str) -> EntryView:
        """Return a stored compiled kernel: its places, its use, and how it was made."""
        return await self._get(f"/suitecache/{quote(name, safe='')}", EntryView)

    async def drop_entry(self, name: str) -> DroppedEntry:
        """Remove a compiled kernel from storage and workers' disks; `admin` only."""
        path = f"/suitecache/{quote(name, safe='')}"
        return await self._ask("DELETE", path, _as(DroppedEntry))

    async def queues(self) -> list[QueueView]:
        """Return, by kind, the number of queued and running steps, and the longest wait."""
        return await self._ask("GET", "/queues", _as_list(QueueView))

    async def storage(self) -> StorageView:
        """Return the bytes of artifacts, caches and database, by kind, age and job.

        The figures are at most half a minute old.
        """
        return await self._get("/storage", StorageView)

    def changes(
        self, after: str | None = None, reconnects: int = RECONNECTS
    ) -> AsyncIterator[Change]:
        """Yield changes of all jobs and workers as they happen, endlessly.

        The first is `begin`, or `reset` if the cursor is too old: then read all again. Lost
        connections are opened again, without lost or repeated changes of jobs; then `begin` is
        repeated, and `workers` returns the workers' states.

        Args:
            after: The `cursor` of the last known change; without it, only new changes.
            reconnects: Maximum of consecutive reconnections; 0 for none.

        Raises:
            Refused: Too many streams are open (`too_many_streams`).
            InfrastructureError: The scheduler could not be reached for about 13 seconds, or less
                with fewer `reconnects` (`scheduler_unreachable`).
        """
        return self._follow(ChangeFeed(after, reconnects))

    async def change_page(self, wanted: ChangeFilter) -> ChangePage:
        """Return the next changes of jobs after a cursor, at most 1,000, without waiting."""
        return await self._get("/changes", ChangePage, wanted)

    # --- connections ----------------------------------------------------------------------

    async def _get(
        self, path: str, answer: type[M], wanted: BaseModel | None = None, **params: str | None
    ) -> M:
        query: dict[str, Any] = _given(**params)
        if wanted is not None:
            query = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        return await self._ask("GET", path, _as(answer), params=query)

    async def _pages(self, path: str, answer: type[Page], wanted: BaseModel) -> AsyncIterator[Page]:
        while True:
            page = await self._get(path, answer, wanted)
            yield page
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def _look(self, job_id: int, kind: str, wanted: BaseModel, answer: type[M]) -> M:
        path, content = f"/jobs/{job_id}/source/{kind}", wanted.model_dump_json()
        return await self._ask("POST", path, _as(answer), content=content, headers=_JSON)

    async def _ask(
        self,
        method: str,
        path: str,
        parse: Callable[[httpx.Response], T],
        *,
        repeatable: bool = True,
        **arguments: Any,
    ) -> T:
        """Send a request and return its parsed answer.

        `repeatable` requests are idempotent, and are sent again after a lost connection. A restart
        is not: a second one would be refused if the first was executed.
        """
        retries = protocol.Retries()
        while True:
            try:
                response = await self._http.request(method, path, **arguments)
                return parse(protocol.checked(response))
            except httpx.TransportError as error:
                retries.ended(self._http.base_url, error, repeatable=repeatable)
            except ApiError as error:
                await asyncio.sleep(retries.seconds_to_wait(error, repeatable=repeatable))

    async def _read(self, path: str, params: dict[str, int]) -> AsyncIterator[bytes]:
        try:
            async with self._streams.stream("GET", path, params=params) as response:
                if response.is_error:
                    await response.aread()
                async for part in protocol.checked(response).aiter_bytes():
                    yield part
        except httpx.TransportError as error:
            raise protocol.unreachable(self._http.base_url, error) from error

    async def _follow(self, feed: Followed[T]) -> AsyncIterator[T]:
        while not feed.done:
            lost: Exception | None = None
            try:
                async with self._streams.stream(
                    "GET", feed.path, headers=feed.headers, timeout=protocol.FOLLOWING
                ) as response:
                    if response.is_error:
                        await response.aread()
                    protocol.checked(response)
                    feed.retries.begin()
                    async for message in EventSource(response).aiter_sse():
                        if event := feed.take(message):
                            yield event
            except httpx.TransportError as error:
                lost = error
            except ApiError as error:
                await asyncio.sleep(feed.retries.seconds_to_wait(error))
                continue
            if not feed.done:
                await asyncio.sleep(feed.retries.pause(self._http.base_url, lost))


def _group(name: str) -> str:
    return f"/groups/{quote(name, safe='')}"


def _given(**params: T | None) -> dict[str, T]:
    return {name: value for name, value in params.items() if value is not None}


def _as(model: type[M]) -> Callable[[httpx.Response], M]:
    return lambda response: model.model_validate_json(response.content)


def _as_list(model: type[M]) -> Callable[[httpx.Response], list[M]]:
    adapter = TypeAdapter(list[model])  # type: ignore[valid-type]
    return lambda response: adapter.validate_json(response.content)
