"""What is asked of the scheduler about jobs."""

from collections.abc import AsyncIterator, Iterator, Sequence

from kgym.api.bulk import Aborted, AbortFilter, Restarted, RestartFilter, Submitted
from kgym.api.jobs import (
    JobConditions,
    JobCount,
    JobEvent,
    JobFilter,
    JobPage,
    JobRequest,
    JobView,
)
from kgym.client import endpoints
from kgym.client.connection import AsyncConnection, Connection
from kgym.client.following import Feed


class JobCalls(Connection):
    """Jobs, for `Client`."""

    def submit(self, request: JobRequest, key: str | None = None) -> JobView:
        """Submit a job.

        Args:
            request: The job; `kgym.bugs.bug.Bug.job` makes one.
            key: A submission with a key that you used before for the same
                job returns that job; by default each call makes a new one.

        Raises:
            Refused: The job is wrong (`invalid_request`), the key belongs to another job
                (`key_reused`), or you have too many unfinished jobs (`too_many_jobs`).
        """
        return self._do(endpoints.submit(request, key))

    def submit_all(self, requests: Sequence[JobRequest], key: str | None = None) -> Submitted:
        """Submit up to 1,000 jobs in one transaction: all of them, or none.

        Args:
            requests: The jobs, in order.
            key: As of `submit`; one key for all.

        Raises:
            Refused: As of `submit`; the first job that is wrong refuses all.
        """
        return self._do(endpoints.submit_all(requests, key))

    def job(self, job_id: int) -> JobView:
        """Return the job as it is now, with its steps, their specs and results.

        Raises:
            Refused: There is no such job (`job_not_found`).
        """
        return self._do(endpoints.job(job_id))

    def page(self, wanted: JobFilter) -> JobPage:
        """Return one page of jobs, newest first, without specs; at most 200 (`wanted.limit`)."""
        return self._do(endpoints.page(wanted))

    def jobs(self, wanted: JobFilter | None = None) -> Iterator[JobView]:
        """Yield all jobs that the filter lets through, newest first, without specs."""
        page = self.page(wanted := wanted or JobFilter())
        yield from page.jobs
        while page.next:
            page = self.page(wanted.model_copy(update={"cursor": page.next}))
            yield from page.jobs

    def tag(self, job_id: int, tags: Sequence[str]) -> JobView:
        """Replace the job's tags: at most 50, each of at most 100 characters.

        Raises:
            Refused: There is no such job (`job_not_found`), it is another submitter's
                (`not_your_job`), or a tag claims what is not true of it.
        """
        return self._do(endpoints.tag(job_id, tags))

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
        return self._do(endpoints.restart(job_id, from_step))

    def abort(self, job_id: int) -> JobView:
        """End all unfinished steps of the job now.

        Raises:
            Refused: The job has ended already (`job_finished`), or is another submitter's.
        """
        return self._do(endpoints.abort(job_id))

    def abort_all(
        self, wanted: Sequence[int] | AbortFilter, expected: int | None = None
    ) -> Aborted:
        """End up to 1,000 jobs now.

        Args:
            wanted: Ids of jobs, or a filter for unfinished ones, the oldest first.
            expected: How many unfinished jobs the filter lets through, as you know it.

        Raises:
            Refused: One of the jobs is another submitter's (`not_your_job`), or there is none; or
                they are not as many (`count_differs`).
        """
        return self._do(endpoints.abort_all(wanted, expected))

    def restart_all(self, wanted: RestartFilter, expected: int | None = None) -> Restarted:
        """Run up to 1,000 finished jobs again, each from its first step that did not succeed.

        Args:
            wanted: A filter for jobs in one final state, the newest first.
            expected: How many jobs it lets through, as you know it.

        Raises:
            Refused: They are not as many (`count_differs`), or too many to be counted
                (`filter_too_wide`).
        """
        return self._do(endpoints.restart_all(wanted, expected))

    def count(self, wanted: JobConditions) -> JobCount:
        """Return how many jobs meet the conditions; at least so many, where `more` is true."""
        return self._do(endpoints.count(wanted))

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

        Raises:
            Refused: There is no such job (`job_not_found`) or step (`step_not_found`).
        """
        return self._do(endpoints.log(job_id, step, attempt))

    def log_after(self, job_id: int, step: int, attempt: int, *, after: int) -> tuple[str, int]:
        """Return a part of what the attempt has logged after event `after`, and its last event.

        That is `after` once there is no more.
        """
        return self._do(endpoints.log_after(job_id, step, attempt, after))

    def read_log(
        self, job_id: int, step: int | None = None, attempt: int | None = None
    ) -> Iterator[bytes]:
        """Yield the same as `log`, in UTF-8, part by part: memory need not hold it."""
        yield from self._read(endpoints.log(job_id, step, attempt))

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
        yield from self._follow(Feed(job_id, last))


class AsyncJobCalls(AsyncConnection):
    """Jobs, for `AsyncClient`."""

    async def submit(self, request: JobRequest, key: str | None = None) -> JobView:
        """Submit a job."""
        return await self._do(endpoints.submit(request, key))

    async def submit_all(self, requests: Sequence[JobRequest], key: str | None = None) -> Submitted:
        """Submit up to 1,000 jobs in one transaction: all of them, or none."""
        return await self._do(endpoints.submit_all(requests, key))

    async def job(self, job_id: int) -> JobView:
        """Return the job as it is now, with its steps, their specs and results."""
        return await self._do(endpoints.job(job_id))

    async def page(self, wanted: JobFilter) -> JobPage:
        """Return one page of jobs, newest first, without specs; at most 200 (`wanted.limit`)."""
        return await self._do(endpoints.page(wanted))

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

    async def tag(self, job_id: int, tags: Sequence[str]) -> JobView:
        """Replace the job's tags: at most 50, each of at most 100 characters."""
        return await self._do(endpoints.tag(job_id, tags))

    async def restart(self, job_id: int, from_step: int | None = None) -> JobView:
        """Run a finished job again."""
        return await self._do(endpoints.restart(job_id, from_step))

    async def abort(self, job_id: int) -> JobView:
        """End all unfinished steps of the job now."""
        return await self._do(endpoints.abort(job_id))

    async def abort_all(
        self, wanted: Sequence[int] | AbortFilter, expected: int | None = None
    ) -> Aborted:
        """End up to 1,000 jobs now."""
        return await self._do(endpoints.abort_all(wanted, expected))

    async def restart_all(self, wanted: RestartFilter, expected: int | None = None) -> Restarted:
        """Run up to 1,000 finished jobs again, each from its first step that did not succeed."""
        return await self._do(endpoints.restart_all(wanted, expected))

    async def count(self, wanted: JobConditions) -> JobCount:
        """Return how many jobs meet the conditions; at least so many, where `more` is true."""
        return await self._do(endpoints.count(wanted))

    async def wait(self, job_id: int) -> JobView:
        """Wait until the job has ended, then return it. There is no limit of time."""
        async for _ in self.events(job_id, (await self.job(job_id)).last_event or 0):
            pass
        return await self.job(job_id)

    async def log(self, job_id: int, step: int | None = None, attempt: int | None = None) -> str:
        """Return the log so far, of all steps and attempts unless you name some."""
        return await self._do(endpoints.log(job_id, step, attempt))

    async def log_after(
        self, job_id: int, step: int, attempt: int, *, after: int
    ) -> tuple[str, int]:
        """Return a part of what the attempt has logged after event `after`, and its last event.

        That is `after` once there is no more.
        """
        return await self._do(endpoints.log_after(job_id, step, attempt, after))

    async def read_log(
        self, job_id: int, step: int | None = None, attempt: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the same as `log`, in UTF-8, part by part: memory need not hold it."""
        async for part in self._read(endpoints.log(job_id, step, attempt)):
            yield part

    def events(self, job_id: int, last: int = 0) -> AsyncIterator[JobEvent]:
        """Yield the job's events as they happen, until the job has ended."""
        return self._follow(Feed(job_id, last))
