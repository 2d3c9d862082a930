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
from kgym.client import protocol
from kgym.client.protocol import ApiError, Download, Feed, Refused, Request, ServerFailed

__all__ = ["ApiError", "AsyncClient", "Client", "Refused", "ServerFailed"]

T = TypeVar("T")


class Client:
    """Speaks to the scheduler at `base_url`, e.g. `http://127.0.0.1:8000`, with a token or none.

    A request that comes too soon (429) waits as long as the scheduler says, up to a minute;
    one that it cannot serve just now (503), as while its database starts again, up to 20 s.
    Any number of jobs can be followed at once: each stream has a connection of its own.
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
        """Submit a job; a second time with the same key, it returns the first one."""
        return self._do(protocol.submit(request, key))

    def submit_all(self, requests: Sequence[JobRequest], key: str | None = None) -> Submitted:
        """Submit up to 1,000 jobs in one transaction: all of them, or none.

        A second time with the same key, it returns the first ones.
        """
        return self._do(protocol.submit_all(requests, key))

    def abort_all(self, wanted: Sequence[int] | AbortFilter) -> Aborted:
        """End up to 1,000 jobs now, given by their ids or by a filter."""
        return self._do(protocol.abort_all(wanted))

    def job(self, job_id: int) -> JobView:
        """Return the job as it stands."""
        return self._do(protocol.job(job_id))

    def page(self, wanted: JobFilter) -> JobPage:
        """Return one page of a list of jobs."""
        return self._do(protocol.page(wanted))

    def jobs(self, wanted: JobFilter | None = None) -> Iterator[JobView]:
        """Yield all jobs that are wanted, newest first, without their specs."""
        page = self.page(wanted := wanted or JobFilter())
        yield from page.jobs
        while page.next:
            page = self.page(wanted.model_copy(update={"cursor": page.next}))
            yield from page.jobs

    def abort(self, job_id: int) -> JobView:
        """End the job now."""
        return self._do(protocol.abort(job_id))

    def groups(self, wanted: GroupFilter | None = None) -> Iterator[GroupView]:
        """Yield all groups that are wanted, newest first."""
        wanted = wanted or GroupFilter()
        while True:
            page = self._do(protocol.groups(wanted))
            yield from page.groups
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    def group(self, name: str, submitter: str | None = None) -> GroupView:
        """Return one's own group of this name, or another submitter's, as it stands."""
        return self._do(protocol.group(name, submitter))

    def group_results(
        self, name: str, submitter: str | None = None, after: int = 0
    ) -> Iterator[GroupResult]:
        """Yield what the group's jobs came to, those after job number `after`, in order."""
        wanted = GroupResultFilter(submitter=submitter, cursor=str(after), limit=1000)
        while True:
            page = self._do(protocol.group_results(name, wanted))
            yield from page.results
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    def abort_group(self, name: str, submitter: str | None = None) -> Aborted:
        """End the group's unfinished jobs now, up to 1,000; `more` says if others are left."""
        return self._do(protocol.abort_group(name, submitter))

    def restart(self, job_id: int, from_step: int | None = None) -> JobView:
        """Run a finished job again, by default from the first step that did not succeed."""
        return self._do(protocol.restart(job_id, from_step))

    def tag(self, job_id: int, tags: Sequence[str]) -> JobView:
        """Replace the job's tags."""
        return self._do(protocol.tag(job_id, tags))

    def wait(self, job_id: int) -> JobView:
        """Return the job once it has finished."""
        for _ in self.events(job_id, self.job(job_id).last_event or 0):
            pass
        return self.job(job_id)

    def log(self, job_id: int, step: int | None = None, attempt: int | None = None) -> str:
        """Return what the job's steps have logged so far."""
        return self._do(protocol.log(job_id, step, attempt))

    def events(self, job_id: int, last: int = 0) -> Iterator[JobEvent]:
        """Yield the job's events after number `last`, as they happen, until it has finished.

        A lost connection is taken up again where it was lost.
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
        """Return the artifacts of a step."""
        return self._do(protocol.artifacts(job_id, step))

    def download(self, job_id: int, step: int, name: str, path: Path) -> Artifact:
        """Write an artifact to `path`: whole and verified, or not at all.

        What an interrupted download has left is used by the next one.
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
        """Return the workers that the scheduler knows."""
        return self._do(protocol.workers())

    def drain(self, worker: str) -> WorkerView:
        """Let a worker finish what it runs and take no more."""
        return self._do(protocol.drain(worker))

    def queues(self) -> list[QueueView]:
        """Return, by step kind, how many steps wait and run."""
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
    """What Client is, for coroutines."""

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
        """Submit a job; a second time with the same key, it returns the first one."""
        return await self._do(protocol.submit(request, key))

    async def submit_all(self, requests: Sequence[JobRequest], key: str | None = None) -> Submitted:
        """Submit up to 1,000 jobs in one transaction: all of them, or none.

        A second time with the same key, it returns the first ones.
        """
        return await self._do(protocol.submit_all(requests, key))

    async def abort_all(self, wanted: Sequence[int] | AbortFilter) -> Aborted:
        """End up to 1,000 jobs now, given by their ids or by a filter."""
        return await self._do(protocol.abort_all(wanted))

    async def job(self, job_id: int) -> JobView:
        """Return the job as it stands."""
        return await self._do(protocol.job(job_id))

    async def page(self, wanted: JobFilter) -> JobPage:
        """Return one page of a list of jobs."""
        return await self._do(protocol.page(wanted))

    async def jobs(self, wanted: JobFilter | None = None) -> AsyncIterator[JobView]:
        """Yield all jobs that are wanted, newest first, without their specs."""
        wanted = wanted or JobFilter()
        while True:
            page = await self.page(wanted)
            for job in page.jobs:
                yield job
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def abort(self, job_id: int) -> JobView:
        """End the job now."""
        return await self._do(protocol.abort(job_id))

    async def groups(self, wanted: GroupFilter | None = None) -> AsyncIterator[GroupView]:
        """Yield all groups that are wanted, newest first."""
        wanted = wanted or GroupFilter()
        while True:
            page = await self._do(protocol.groups(wanted))
            for group in page.groups:
                yield group
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def group(self, name: str, submitter: str | None = None) -> GroupView:
        """Return one's own group of this name, or another submitter's, as it stands."""
        return await self._do(protocol.group(name, submitter))

    async def group_results(
        self, name: str, submitter: str | None = None, after: int = 0
    ) -> AsyncIterator[GroupResult]:
        """Yield what the group's jobs came to, those after job number `after`, in order."""
        wanted = GroupResultFilter(submitter=submitter, cursor=str(after), limit=1000)
        while True:
            page = await self._do(protocol.group_results(name, wanted))
            for result in page.results:
                yield result
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def abort_group(self, name: str, submitter: str | None = None) -> Aborted:
        """End the group's unfinished jobs now, up to 1,000; `more` says if others are left."""
        return await self._do(protocol.abort_group(name, submitter))

    async def restart(self, job_id: int, from_step: int | None = None) -> JobView:
        """Run a finished job again, by default from the first step that did not succeed."""
        return await self._do(protocol.restart(job_id, from_step))

    async def tag(self, job_id: int, tags: Sequence[str]) -> JobView:
        """Replace the job's tags."""
        return await self._do(protocol.tag(job_id, tags))

    async def wait(self, job_id: int) -> JobView:
        """Return the job once it has finished."""
        async for _ in self.events(job_id, (await self.job(job_id)).last_event or 0):
            pass
        return await self.job(job_id)

    async def log(self, job_id: int, step: int | None = None, attempt: int | None = None) -> str:
        """Return what the job's steps have logged so far."""
        return await self._do(protocol.log(job_id, step, attempt))

    async def events(self, job_id: int, last: int = 0) -> AsyncIterator[JobEvent]:
        """Yield the job's events after number `last`, as they happen, until it has finished.

        A lost connection is taken up again where it was lost.
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
        """Return the artifacts of a step."""
        return await self._do(protocol.artifacts(job_id, step))

    async def download(self, job_id: int, step: int, name: str, path: Path) -> Artifact:
        """Write an artifact to `path`: whole and verified, or not at all.

        What an interrupted download has left is used by the next one.
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
        """Return the workers that the scheduler knows."""
        return await self._do(protocol.workers())

    async def drain(self, worker: str) -> WorkerView:
        """Let a worker finish what it runs and take no more."""
        return await self._do(protocol.drain(worker))

    async def queues(self) -> list[QueueView]:
        """Return, by step kind, how many steps wait and run."""
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
