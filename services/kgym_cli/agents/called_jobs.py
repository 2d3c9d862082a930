"""Jobs behind an agent's tool calls, aborted once no call waits for them."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Self, TypeVar

from kgym.api.jobs import JobView
from kgym.client import AsyncClient
from kgym.errors import KgymError

# Grace period of a job whose call was cancelled. Many MCP clients give up a call after a minute and
# repeat it, so ending the job with the call would throw away a kernel that is nearly built.
PAUSE_SECONDS = 60.0
# Jobs that are aborted with the client, newest first out of all: the limit of one abort request.
_MOST = 1000
# MCP clients kill a server that has not exited two seconds after its input was closed.
_SUBMIT_SECONDS, _ABORT_SECONDS = 0.7, 1.0
T = TypeVar("T")
_jobs_of_call: ContextVar[set[int]] = ContextVar("_jobs_of_call")


class CalledJobs:
    """Context manager that runs calls and tracks the jobs they wait for."""

    def __init__(self, client: AsyncClient, pause: float = PAUSE_SECONDS) -> None:
        self._client = client
        self._pause = pause
        self._calls: dict[asyncio.Task[Any], set[int]] = {}
        self._begun: deque[int] = deque(maxlen=_MOST)
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._calls, *self._ending]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_SUBMIT_SECONDS)
        await self._abort(set(self._begun))

    async def submitted(self, job: JobView) -> None:
        """Record that the current call waits for a job."""
        _jobs_of_call.get().add(job.id)
        self._begun.append(job.id)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call; if it is cancelled, abort its jobs after the grace period."""
        jobs = set[int]()
        # The work is a task of its own: anyio cancels a call again and again, which would interrupt
        # a submission whose job id is not known yet.
        context = copy_context()
        context.run(_jobs_of_call.set, jobs)
        task = asyncio.create_task(work, context=context)
        self._calls[task] = jobs
        task.add_done_callback(self._calls.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            ending = asyncio.create_task(self._end(jobs))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            raise

    async def _end(self, jobs: set[int]) -> None:
        """Abort jobs after the grace period, unless another call waits for them by then."""
        await asyncio.sleep(self._pause)
        # Callers share jobs: the same change is the same job, so another call may still need it.
        await self._abort(jobs.difference(*self._calls.values()))

    async def _abort(self, jobs: Collection[int]) -> None:
        """Abort jobs that are still running."""
        with contextlib.suppress(KgymError, TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                if jobs:
                    await self._client.abort_all(sorted(jobs))
