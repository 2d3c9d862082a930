"""The jobs that an agent's calls wait for: they end when nobody waits for them any more.

A client that gives up a call, because it took too long, often calls again; so a job goes on for a
minute. When the client itself is gone, all that its calls have begun ends at once.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Coroutine
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any, Self, TypeVar

from kgym.api.jobs import JobView
from kgym.client import AsyncClient
from kgym.errors import KgymError

# For which a job goes on after its call was cancelled.
PAUSE_SECONDS = 60.0
# Jobs that end with the client, the newest: one request may name as many.
_MOST = 1000
# Clients kill a server that is still there after two seconds.
_SUBMIT_SECONDS, _ABORT_SECONDS = 0.7, 1.0
T = TypeVar("T")
_jobs_of_call: ContextVar[set[int]] = ContextVar("_jobs_of_call")


class CalledJobs:
    """Does calls, and knows which jobs they wait for, until the context ends."""

    def __init__(self, client: AsyncClient, pause: float = PAUSE_SECONDS) -> None:
        self._client = client
        self._pause = pause
        self._calls: dict[asyncio.Task[Any], set[int]] = {}
        self._begun: deque[int] = deque(maxlen=_MOST)
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        tasks = [*self._calls, *self._ending]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_SUBMIT_SECONDS)
        await self._abort(set(self._begun))

    async def submitted(self, job: JobView) -> None:
        """Note that the call that is done here waits for a job."""
        _jobs_of_call.get().add(job.id)
        self._begun.append(job.id)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work of a call; if it is cancelled, its jobs end after a while.

        The work is a task of its own: whatever cancels the call again and again, as anyio does,
        leaves it the time to hear of a job that is being submitted.
        """
        jobs = set[int]()
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
        """End jobs after a while, unless another call waits for them then."""
        await asyncio.sleep(self._pause)
        await self._abort(jobs.difference(*self._calls.values()))

    async def _abort(self, jobs: Collection[int]) -> None:
        """End those of the jobs that have not ended yet."""
        with contextlib.suppress(KgymError, TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                if jobs:
                    await self._client.abort_all(sorted(jobs))
