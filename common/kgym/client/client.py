"""A client of the scheduler: `Client` blocks, `AsyncClient` awaits; they have the same methods.

Errors::

    KgymError
    ├── ApiError                  the scheduler answered with a problem document
    │   ├── Refused               … 4xx: the request has to change (also a UserError)
    │   └── ServerFailed          … 5xx: it may be repeated (also an InfrastructureError)
    └── InfrastructureError
        ├── `scheduler_unreachable`   nobody answers at the base URL
        └── `artifact_corrupt`        what was downloaded is not what was stored

What both share, and what does no network I/O, is in `kgym.client.protocol`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx
from httpx_sse import EventSource

from kgym.api.bulk import Aborted, AbortFilter, Submitted
from kgym.api.groups import GroupFilter, GroupResult, GroupResultFilter, GroupView
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
from kgym.client import protocol
from kgym.client.protocol import ApiError, Download, Feed, Refused, Request, ServerFailed

__all__ = ["ApiError", "AsyncClient", "Client", "Refused", "ServerFailed"]

T = TypeVar("T")


class Client:
    """A connection to the scheduler at `base_url`, such as `http://127.0.0.1:8420`.

    Use it as a context manager, or call `close`. It may be used by several threads.

    Requests that come too soon (429) are repeated when the scheduler says so, for up to a minute;
    those that it cannot serve just now (503) for up to 20 s. Every method raises:

    - `Refused` if the request is wrong, or not allowed: repeating it cannot help;
    - `ServerFailed` if the scheduler failed;
    - `InfrastructureError` with the reason `scheduler_unreachable` if nobody answers.

    Args:
        base_url: Where the scheduler listens.
        token: What `kgym token create` printed; None where no token is needed.
    """

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._http = httpx.Client(**protocol.options(base_url, token))
        self._streams = httpx.Client(**protocol.options(base_url, token, streams=True))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        self._streams.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, request: JobRequest, key: str | None = None) -> JobView:
        """Submit a job.

        Args:
            request: The job; `kgym.bugs.bundle.Bug.job` makes one.
            key: A submission with a key that you used before for the same
                job returns that job; by default each call makes a new one.

        Raises:
            Refused: The job is wrong (`invalid_request`), the key belongs to another job
                (`key_reused`), or you have too many unfinished jobs (`too_many_jobs`).
        """
        return self._do(protocol.submit(request, key))

    def submit_all(self, requests: Sequence[JobRequest], key: str | None = None) -> Submitted:
        """Submit up to 1,000 jobs in one transaction: all of them, or none.

        Args:
            requests: The jobs, in order.
            key: As of `submit`; one key for all.

        Raises:
            Refused: As of `submit`; the first job that is wrong refuses all.
        """
        return self._do(protocol.submit_all(requests, key))

    def abort_all(self, wanted: Sequence[int] | AbortFilter) -> Aborted:
        """End up to 1,000 jobs now.

        Args:
            wanted: Ids of jobs, or a filter for unfinished ones, the oldest first.

        Raises:
            Refused: One of the jobs is another submitter's (`not_your_job`), or there is none.
        """
        return self._do(protocol.abort_all(wanted))

    def job(self, job_id: int) -> JobView:
        """Return the job as it is now, with its steps, their specs and results.

        Raises:
            Refused: There is no such job (`job_not_found`).
        """
        return self._do(protocol.job(job_id))

    def page(self, wanted: JobFilter) -> JobPage:
        """Return one page of jobs, newest first, without specs; at most 200 (`wanted.limit`)."""
        return self._do(protocol.page(wanted))

    def jobs(self, wanted: JobFilter | None = None) -> Iterator[JobView]:
        """Yield all jobs that the filter lets through, newest first, without specs."""
        page = self.page(wanted := wanted or JobFilter())
        yield from page.jobs
        while page.next:
            page = self.page(wanted.model_copy(update={"cursor": page.next}))
            yield from page.jobs

    def abort(self, job_id: int) -> JobView:
        """End all unfinished steps of the job now.

        Raises:
            Refused: The job has ended already (`job_finished`), or is another submitter's.
        """
        return self._do(protocol.abort(job_id))

    def groups(self, wanted: GroupFilter | None = None) -> Iterator[GroupView]:
        """Yield the groups that the filter lets through, newest first; all without a filter."""
        wanted = wanted or GroupFilter()
        while True:
            page = self._do(protocol.groups(wanted))
            yield from page.groups
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    def group(self, name: str, submitter: str | None = None) -> GroupView:
        """Return a group as it is now: its jobs counted by state and by verdict.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default.

        Raises:
            Refused: There is no such group (`group_missing`).
        """
        return self._do(protocol.group(name, submitter))

    def group_results(
        self, name: str, submitter: str | None = None, after: int = 0
    ) -> Iterator[GroupResult]:
        """Yield one row for each job of the group, in the order of submission.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default.
            after: Only jobs with a number above this one; 0 for all.
        """
        wanted = GroupResultFilter(submitter=submitter, cursor=str(after), limit=1000)
        while True:
            page = self._do(protocol.group_results(name, wanted))
            yield from page.results
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    def abort_group(self, name: str, submitter: str | None = None) -> Aborted:
        """End the group's unfinished jobs now, up to 1,000; `more` says whether some are left."""
        return self._do(protocol.abort_group(name, submitter))

    def restart(self, job_id: int, from_step: int | None = None) -> JobView:
        """Run a finished job again.

        Args:
            job_id: The job.
            from_step: Number of the first step to run again, from 0; by default the first one
                that did not succeed.

        Raises:
            Refused: The job has not ended (`job_unfinished`), or an earlier step has not succeeded
                (`step_before_failed`).
        """
        return self._do(protocol.restart(job_id, from_step))

    def tag(self, job_id: int, tags: Sequence[str]) -> JobView:
        """Replace the job's tags: at most 50, each of at most 100 characters."""
        return self._do(protocol.tag(job_id, tags))

    def wait(self, job_id: int) -> JobView:
        """Wait until the job has ended, then return it. There is no limit of time."""
        for _ in self.events(job_id, self.job(job_id).last_event or 0):
            pass
        return self.job(job_id)

    def log(self, job_id: int, step: int | None = None, attempt: int | None = None) -> str:
        """Return the log so far, of all steps and attempts unless you name some.

        Args:
            job_id: The job.
            step: Number of a step, from 0.
            attempt: Number of an attempt, from 1.
        """
        return self._do(protocol.log(job_id, step, attempt))

    def events(self, job_id: int, last: int = 0) -> Iterator[JobEvent]:
        """Yield the job's events as they happen, until the job has ended.

        A lost connection is opened again, and no event is lost or comes twice.

        Args:
            job_id: The job.
            last: Number of the last event that you know; 0 for all, `JobView.last_event` for
                only what is new.

        Raises:
            Refused: There is no such job, or you follow too many (`too_many_streams`).
            InfrastructureError: The scheduler could not be reached for about 13 seconds
                (`scheduler_unreachable`).
        """
        feed = Feed(job_id, last)
        while not feed.done:
            lost: Exception | None = None
            try:
                with self._streams.stream("GET", feed.path, headers=feed.headers) as response:
                    if response.is_error:
                        response.read()
                    protocol.checked(response)
                    feed.retries.begin()
                    for message in EventSource(response).iter_sse():
                        if event := feed.take(message):
                            yield event
            except httpx.TransportError as error:
                lost = error
            except ApiError as error:
                time.sleep(feed.retries.told(error))
                continue
            if not feed.done:
                time.sleep(feed.retries.pause(self._http.base_url, lost))

    def artifacts(self, job_id: int, step: int) -> list[Artifact]:
        """Return the files that the step's last attempt left: names, sizes in bytes, SHA-256."""
        return self._do(protocol.artifacts(job_id, step))

    def download(self, job_id: int, step: int, name: str, path: Path) -> Artifact:
        """Write an artifact to `path`: whole, with the right SHA-256, or not at all.

        The next call goes on where an interrupted download ended.

        Raises:
            UserError: The step left no such file (`artifact_not_found`).
            Refused: The file was removed since (`artifact_gone`).
            InfrastructureError: Other bytes came than were stored (`artifact_corrupt`).
        """
        download = Download.of(self.artifacts(job_id, step), job_id, step, name, path)
        while not download.complete:
            try:
                with self._streams.stream(
                    "GET", download.url, headers=download.headers
                ) as response:
                    if response.is_error:
                        response.read()
                    download.begin(protocol.checked(response))
                    for chunk in response.iter_raw(protocol.CHUNK):
                        download.take(chunk)
            except httpx.TransportError as error:
                time.sleep(download.retries.pause(self._http.base_url, error))
            except ApiError as error:
                time.sleep(download.retries.told(error))
        download.finish()
        return download.artifact

    def workers(self) -> list[WorkerView]:
        """Return the workers: those alive, and those lost within a day."""
        return self._do(protocol.workers())

    def drain(self, worker: str) -> WorkerView:
        """Let a worker finish what it runs, take nothing more, and end; `admin` only."""
        return self._do(protocol.drain(worker))

    def storage(self) -> StorageView:
        """Return what artifacts, caches and database take, by kind, age and job."""
        return self._do(protocol.storage())

    def queues(self) -> list[QueueView]:
        """Return, for each kind of step, how many wait and run, and how long the oldest waits."""
        return self._do(protocol.queues())

    def _do(self, call: Request[T]) -> T:
        retries = protocol.Retries()
        while True:
            try:
                response = self._http.request(call.method, call.path, **call.arguments)
                return call.parse(protocol.checked(response))
            except httpx.TransportError as error:
                raise protocol.unreachable(self._http.base_url, error) from error
            except ApiError as error:
                time.sleep(retries.told(error, repeatable=call.repeatable))


class AsyncClient:
    """The same as `Client`, for coroutines: await its methods, iterate with `async for`."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._http = httpx.AsyncClient(**protocol.options(base_url, token))
        self._streams = httpx.AsyncClient(**protocol.options(base_url, token, streams=True))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        await self._streams.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(self, request: JobRequest, key: str | None = None) -> JobView:
        """Submit a job.

        Args:
            request: The job; `kgym.bugs.bundle.Bug.job` makes one.
            key: A submission with a key that you used before for the same
                job returns that job; by default each call makes a new one.

        Raises:
            Refused: The job is wrong (`invalid_request`), the key belongs to another job
                (`key_reused`), or you have too many unfinished jobs (`too_many_jobs`).
        """
        return await self._do(protocol.submit(request, key))

    async def submit_all(self, requests: Sequence[JobRequest], key: str | None = None) -> Submitted:
        """Submit up to 1,000 jobs in one transaction: all of them, or none.

        Args:
            requests: The jobs, in order.
            key: As of `submit`; one key for all.

        Raises:
            Refused: As of `submit`; the first job that is wrong refuses all.
        """
        return await self._do(protocol.submit_all(requests, key))

    async def abort_all(self, wanted: Sequence[int] | AbortFilter) -> Aborted:
        """End up to 1,000 jobs now.

        Args:
            wanted: Ids of jobs, or a filter for unfinished ones, the oldest first.

        Raises:
            Refused: One of the jobs is another submitter's (`not_your_job`), or there is none.
        """
        return await self._do(protocol.abort_all(wanted))

    async def job(self, job_id: int) -> JobView:
        """Return the job as it is now, with its steps, their specs and results.

        Raises:
            Refused: There is no such job (`job_not_found`).
        """
        return await self._do(protocol.job(job_id))

    async def page(self, wanted: JobFilter) -> JobPage:
        """Return one page of jobs, newest first, without specs; at most 200 (`wanted.limit`)."""
        return await self._do(protocol.page(wanted))

    async def jobs(self, wanted: JobFilter | None = None) -> AsyncIterator[JobView]:
        """Yield all jobs that the filter lets through, newest first, without specs."""
        wanted = wanted or JobFilter()
        while True:
            page = await self.page(wanted)
            for job in page.jobs:
                yield job
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def abort(self, job_id: int) -> JobView:
        """End all unfinished steps of the job now.

        Raises:
            Refused: The job has ended already (`job_finished`), or is another submitter's.
        """
        return await self._do(protocol.abort(job_id))

    async def groups(self, wanted: GroupFilter | None = None) -> AsyncIterator[GroupView]:
        """Yield the groups that the filter lets through, newest first; all without a filter."""
        wanted = wanted or GroupFilter()
        while True:
            page = await self._do(protocol.groups(wanted))
            for group in page.groups:
                yield group
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def group(self, name: str, submitter: str | None = None) -> GroupView:
        """Return a group as it is now: its jobs counted by state and by verdict.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default.

        Raises:
            Refused: There is no such group (`group_missing`).
        """
        return await self._do(protocol.group(name, submitter))

    async def group_results(
        self, name: str, submitter: str | None = None, after: int = 0
    ) -> AsyncIterator[GroupResult]:
        """Yield one row for each job of the group, in the order of submission.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default.
            after: Only jobs with a number above this one; 0 for all.
        """
        wanted = GroupResultFilter(submitter=submitter, cursor=str(after), limit=1000)
        while True:
            page = await self._do(protocol.group_results(name, wanted))
            for result in page.results:
                yield result
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def abort_group(self, name: str, submitter: str | None = None) -> Aborted:
        """End the group's unfinished jobs now, up to 1,000; `more` says whether some are left."""
        return await self._do(protocol.abort_group(name, submitter))

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
        return await self._do(protocol.restart(job_id, from_step))

    async def tag(self, job_id: int, tags: Sequence[str]) -> JobView:
        """Replace the job's tags: at most 50, each of at most 100 characters."""
        return await self._do(protocol.tag(job_id, tags))

    async def wait(self, job_id: int) -> JobView:
        """Wait until the job has ended, then return it. There is no limit of time."""
        async for _ in self.events(job_id, (await self.job(job_id)).last_event or 0):
            pass
        return await self.job(job_id)

    async def log(self, job_id: int, step: int | None = None, attempt: int | None = None) -> str:
        """Return the log so far, of all steps and attempts unless you name some.

        Args:
            job_id: The job.
            step: Number of a step, from 0.
            attempt: Number of an attempt, from 1.
        """
        return await self._do(protocol.log(job_id, step, attempt))

    async def events(self, job_id: int, last: int = 0) -> AsyncIterator[JobEvent]:
        """Yield the job's events as they happen, until the job has ended.

        A lost connection is opened again, and no event is lost or comes twice.

        Args:
            job_id: The job.
            last: Number of the last event that you know; 0 for all, `JobView.last_event` for
                only what is new.

        Raises:
            Refused: There is no such job, or you follow too many (`too_many_streams`).
            InfrastructureError: The scheduler could not be reached for about 13 seconds
                (`scheduler_unreachable`).
        """
        feed = Feed(job_id, last)
        while not feed.done:
            lost: Exception | None = None
            try:
                async with self._streams.stream("GET", feed.path, headers=feed.headers) as response:
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
                await asyncio.sleep(feed.retries.told(error))
                continue
            if not feed.done:
                await asyncio.sleep(feed.retries.pause(self._http.base_url, lost))

    async def artifacts(self, job_id: int, step: int) -> list[Artifact]:
        """Return the files that the step's last attempt left: names, sizes in bytes, SHA-256."""
        return await self._do(protocol.artifacts(job_id, step))

    async def download(self, job_id: int, step: int, name: str, path: Path) -> Artifact:
        """Write an artifact to `path`: whole, with the right SHA-256, or not at all.

        The next call goes on where an interrupted download ended.

        Raises:
            UserError: The step left no such file (`artifact_not_found`).
            Refused: The file was removed since (`artifact_gone`).
            InfrastructureError: Other bytes came than were stored (`artifact_corrupt`).
        """
        artifacts = await self.artifacts(job_id, step)
        download = await asyncio.to_thread(Download.of, artifacts, job_id, step, name, path)
        while not download.complete:
            try:
                async with self._streams.stream(
                    "GET", download.url, headers=download.headers
                ) as response:
                    if response.is_error:
                        await response.aread()
                    download.begin(protocol.checked(response))
                    async for chunk in response.aiter_raw(protocol.CHUNK):
                        await asyncio.to_thread(download.take, chunk)
            except httpx.TransportError as error:
                await asyncio.sleep(download.retries.pause(self._http.base_url, error))
            except ApiError as error:
                await asyncio.sleep(download.retries.told(error))
        await asyncio.to_thread(download.finish)
        return download.artifact

    async def workers(self) -> list[WorkerView]:
        """Return the workers: those alive, and those lost within a day."""
        return await self._do(protocol.workers())

    async def drain(self, worker: str) -> WorkerView:
        """Let a worker finish what it runs, take nothing more, and end; `admin` only."""
        return await self._do(protocol.drain(worker))

    async def storage(self) -> StorageView:
        """Return what artifacts, caches and database take, by kind, age and job."""
        return await self._do(protocol.storage())

    async def queues(self) -> list[QueueView]:
        """Return, for each kind of step, how many wait and run, and how long the oldest waits."""
        return await self._do(protocol.queues())

    async def _do(self, call: Request[T]) -> T:
        retries = protocol.Retries()
        while True:
            try:
                response = await self._http.request(call.method, call.path, **call.arguments)
                return call.parse(protocol.checked(response))
            except httpx.TransportError as error:
                raise protocol.unreachable(self._http.base_url, error) from error
            except ApiError as error:
                await asyncio.sleep(retries.told(error, repeatable=call.repeatable))
