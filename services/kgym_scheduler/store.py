"""The store: the one class that talks to the database.

Each method is one transaction. Those that change something return, as
`Changed`, what others have to be told now that it is committed.
"""

import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import ScalarSelect, bindparam, delete, insert, literal, select, update

from kgym.bus import Message
from kgym.jobs import (
    Artifact,
    JobEvent,
    JobFilter,
    JobPage,
    JobRequest,
    JobView,
    Progress,
    QueueView,
    RunningStep,
)
from kgym.states import Event, State
from kgym.steps import Failure, StepKind
from kgym.worker import LEASE_SECONDS, Assignment, Ending
from kgym_scheduler import queries, references, rules, submission, views
from kgym_scheduler.change import REPUBLISH, Changed, JobChange, Step, news
from kgym_scheduler.database import Database
from kgym_scheduler.refusals import Conflict, no_job, no_step
from kgym_scheduler.tables import PROGRESS, QUEUED, RUNNING, attempts, events, facets, jobs, steps

BATCH = 500
"""Rows that a sweep handles in one transaction."""


class Store:
    """Jobs and their steps in a database whose tables `database.upgrade` has made."""

    def __init__(
        self,
        url: str,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.lease = timedelta(seconds=lease_seconds)
        self._database = Database(url)
        self._clock = clock

    async def close(self) -> None:
        """Close the connections."""
        await self._database.close()

    # --- for users ------------------------------------------------------------------------

    async def submit(
        self, request: JobRequest, key: str | None = None
    ) -> tuple[JobView, Changed | None]:
        """Add a job; return it as it stands.

        A key that was used before gives the job it was used for and no change.
        Raises UserError `key_reused` if that one was another request, and
        `bad_reference` if the request names a step that cannot be used.
        """
        async with self._database.write() as connection:
            known = await submission.known(connection, request, key) if key else None
            if known is None:
                return await submission.add(connection, self._clock(), request, key)
        return await self.get(known), None

    async def get(self, job_id: int) -> JobView:
        """Return the job; raise NotFound if there is none."""
        async with self._database.read() as connection:
            job = await connection.execute(select(*queries.JOB_COLUMNS).where(jobs.c.id == job_id))
            if (row := job.first()) is None:
                raise no_job(job_id)
            found = await connection.execute(queries.steps_of([job_id], specs=True))
            return views.job_view(row, found.all())

    async def state(self, job_id: int) -> State:
        """Return the job's state; raise NotFound if there is no such job."""
        async with self._database.read() as connection:
            state = await connection.scalar(select(jobs.c.state).where(jobs.c.id == job_id))
        if state is None:
            raise no_job(job_id)
        return State(state)

    async def artifacts(self, job_id: int, number: int) -> list[Artifact]:
        """Return the artifacts of a step; raise NotFound if there is no such step."""
        async with self._database.read() as connection:
            text = await connection.scalar(
                select(steps.c.artifacts).where(steps.c.job_id == job_id, steps.c.number == number)
            )
        if text is None:
            await self.state(job_id)
            raise no_step(job_id, number)
        return views.ARTIFACTS.validate_json(text)

    async def page(self, wanted: JobFilter) -> JobPage:
        """Return one page of the jobs that are wanted, newest first."""
        async with self._database.read() as connection:
            rows = (await connection.execute(queries.page(wanted))).all()
            shown = rows[: wanted.limit]
            found = await connection.execute(queries.steps_of(job.id for job in shown))
            more = len(rows) > wanted.limit
            return JobPage(
                jobs=views.job_views(shown, found.all()),
                next=views.cursor(shown[-1]) if more else None,
            )

    async def abort(self, job_id: int) -> Changed:
        """Abort what is unfinished; raise Conflict if the job has finished otherwise."""
        async with self._change(job_id) as change:
            if change is None:
                raise no_job(job_id)
            if change.state is State.ABORTED:
                return Changed(job_id)
            if change.state.final:
                raise Conflict("job_finished", f"job {job_id} has {change.state} already")
            active = next(step for step in change.steps if not step.state.final)
            if active.state is State.RUNNING:
                await change.end(active, Event.ABORT, "aborted")
            rest = [step for step in change.steps if not step.state.final]
            await change.move(rest, Event.ABORT, finished_at=change.now)
            return await change.close()

    async def restart(self, job_id: int, from_step: int | None = None) -> Changed:
        """Run `from_step` and all after it again; without it, from the first that did not succeed.

        Raises Conflict while the job is unfinished, or if a step before has not succeeded.
        """
        async with self._change(job_id) as change:
            if change is None:
                raise no_job(job_id)
            first = rules.first_again(change, from_step)
            await change.move(
                change.steps[first:],
                Event.RESTART,
                tries=0,
                worker=None,
                failure=None,
                result=None,
                artifacts="[]",
                queued_at=None,
                started_at=None,
                finished_at=None,
            )
            await change.enqueue(change.steps[first])
            return await change.close()

    async def tag(self, job_id: int, tags: Sequence[str]) -> JobView:
        """Replace the job's tags."""
        async with self._database.write() as connection:
            created_at = await connection.scalar(
                update(jobs)
                .where(jobs.c.id == job_id)
                .values(tags=json.dumps(list(tags)))
                .returning(jobs.c.created_at)
            )
            if created_at is None:
                raise no_job(job_id)
            await connection.execute(
                delete(facets).where(facets.c.job_id == job_id, facets.c.facet.startswith("tag:"))
            )
            rows = [
                {"job_id": job_id, "facet": f"tag:{tag}", "created_at": created_at}
                for tag in set(tags)
            ]
            if rows:
                await connection.execute(insert(facets), rows)
        return await self.get(job_id)

    async def events(
        self, job_id: int, last: int, limit: int = BATCH
    ) -> tuple[bool, list[JobEvent]]:
        """Return whether the job is in a final state, and its events after number `last`.

        The state is read first: no event follows those that are read after a final one.
        """
        async with self._database.read() as connection:
            state = await connection.scalar(select(jobs.c.state).where(jobs.c.id == job_id))
            if state is None:
                raise no_job(job_id)
            rows = await connection.execute(queries.events_after(job_id, last, limit))
            return State(state).final, [views.job_event(row) for row in rows.all()]

    async def log(
        self, job_id: int, last: int, step: int | None = None, attempt: int | None = None
    ) -> list[JobEvent]:
        """Return the next log events after number `last`, at most BATCH."""
        async with self._database.read() as connection:
            rows = await connection.execute(queries.log_after(job_id, last, BATCH, step, attempt))
            return [views.job_event(row) for row in rows.all()]

    async def queues(self) -> list[QueueView]:
        """Return how many steps of each kind wait and run."""
        async with self._database.read() as connection:
            waiting = {row.kind: row for row in (await connection.execute(queries.waiting())).all()}
            busy = [row.kind for row in (await connection.execute(queries.running())).all()]
        now = self._clock()
        return [
            QueueView(
                kind=kind,
                queued=waiting[kind].steps if kind in waiting else 0,
                running=busy.count(kind),
                oldest_seconds=(now - waiting[kind].since).total_seconds()
                if kind in waiting
                else None,
            )
            for kind in StepKind
        ]

    async def running(self) -> dict[str, tuple[datetime, list[RunningStep]]]:
        """Return, by worker, when it was last heard of, and what it runs now."""
        async with self._database.read() as connection:
            rows = (await connection.execute(queries.running())).all()
        workers: dict[str, tuple[datetime, list[RunningStep]]] = {}
        for row in rows:
            seen, own = workers.get(row.worker, (row.started_at, []))
            step = RunningStep(
                job=row.job_id,
                step=row.number,
                kind=StepKind(row.kind),
                attempt=row.attempt,
                started_at=row.started_at,
            )
            workers[row.worker] = (max(seen, row.lease_until - self.lease), [*own, step])
        return workers

    async def ping(self) -> None:
        """Raise InfrastructureError if the database does not answer."""
        async with self._database.read() as connection:
            await connection.execute(select(literal(1)))

    # --- for workers ----------------------------------------------------------------------

    async def claim(self, step_id: int, worker: str) -> tuple[Assignment | None, Changed | None]:
        """Lease the step to the worker; no assignment if it is not queued, or not yet due."""
        async with self._step(_job_of_step(step_id), lambda step: step.id == step_id) as found:
            if found is None or not rules.claimable(found[1], found[0].now):
                return None, None
            change, step = found
            lease = uuid.uuid4()
            text = await change.claim(step, lease, worker, change.now + self.lease)
            spec = views.SPEC.validate_json(text)
            inputs = await references.resolve(change.connection, change.job_id, spec)
            if isinstance(inputs, Failure):
                await rules.fail(change, step, "failed", inputs)
                return None, await change.close()
            assignment = Assignment(
                step_id=step_id,
                job_id=change.job_id,
                number=step.number,
                attempt=step.attempt,
                lease=lease,
                spec=spec,
                inputs=inputs,
            )
            return assignment, await change.close()

    async def report(self, lease: uuid.UUID, log: str, progress: Progress | None) -> Changed | None:
        """Extend the lease and keep what is new; None if the lease is stale."""
        now = self._clock()
        async with self._database.write() as connection:
            values: dict[str, object] = {"lease_until": now + self.lease}
            if progress:
                values["progress"] = progress.model_dump_json()
            found = await connection.execute(
                update(steps)
                .where(steps.c.id == _step_of_lease(lease), steps.c.lease == lease)
                .where(steps.c.state == State.RUNNING)
                .values(values)
                .returning(steps.c.job_id, steps.c.number, steps.c.attempt)
            )
            if (step := found.first()) is None:
                return None
            if progress:  # the latest word counts: a late reader gets one, not thousands
                await connection.execute(
                    delete(events).where(
                        PROGRESS, events.c.job_id == step.job_id, events.c.step == step.number
                    )
                )
            if rows := news(step, now, log, progress):
                await connection.execute(insert(events), rows)
            return Changed(step.job_id)

    async def finish(self, lease: uuid.UUID, ending: Ending) -> Changed | None:
        """End the attempt: go on with the next step, try again, or fail; None if it is stale."""
        async with self._held(lease) as held:
            if held is not None:
                change, step = held
                await rules.finish(change, step, ending)
                return await change.close()
        return await self._repeated(lease, "succeeded", "failed")

    async def release(self, lease: uuid.UUID) -> Changed | None:
        """Queue the step again without counting the attempt; None if the lease is stale."""
        async with self._held(lease) as held:
            if held is not None:
                change, step = held
                await change.requeue(step, "released", tries=step.tries - 1)
                return await change.close()
        return await self._repeated(lease, "released")

    # --- for the sweeper ------------------------------------------------------------------

    async def due(self) -> list[Message]:
        """Return the messages that have to be sent, and note when to send them again.

        That is after as long as the step has waited already, so that a step
        that waits for hours costs a dozen messages.
        """
        now = self._clock()
        async with self._database.write() as connection:
            found = (await connection.execute(queries.due(now, BATCH))).all()
            if found:
                await connection.execute(
                    update(steps)
                    .where(steps.c.id == bindparam("step"), steps.c.state == State.QUEUED)
                    .values(publish_at=bindparam("again")),
                    [
                        {"step": row.id, "again": now + max(REPUBLISH, now - row.queued_at)}
                        for row in found
                    ],
                )
        return [Message(row.id, StepKind(row.kind), row.priority) for row in found]

    async def expire(self) -> list[Changed]:
        """End the attempts whose lease has run out: each is repeated, or the step fails."""
        async with self._database.read() as connection:
            leases = (await connection.scalars(queries.expired(self._clock(), BATCH))).all()
        return [changed for lease in leases if (changed := await self._expire(lease))]

    async def orphan(self) -> None:
        """Note that no worker and no message is left: all leases have run out, all is due."""
        now = self._clock()
        async with self._database.write() as connection:
            await connection.execute(
                update(steps).where(RUNNING).values(lease_until=now - self.lease)
            )
            await connection.execute(
                update(steps).where(QUEUED, steps.c.not_before <= now).values(publish_at=now)
            )

    # --- within ---------------------------------------------------------------------------

    @asynccontextmanager
    async def _change(self, job: "int | ScalarSelect[int]") -> AsyncIterator[JobChange | None]:
        async with self._database.write() as connection:
            yield await JobChange.load(connection, self._clock(), job)

    @asynccontextmanager
    async def _step(
        self, job: ScalarSelect[int], wanted: Callable[[Step], bool]
    ) -> AsyncIterator[tuple[JobChange, Step] | None]:
        async with self._change(job) as change:
            step = next(filter(wanted, change.steps), None) if change else None
            yield (change, step) if change and step else None

    def _held(self, lease: uuid.UUID) -> AbstractAsyncContextManager[tuple[JobChange, Step] | None]:
        """Change the step that runs under this lease; None if the lease is stale."""
        return self._step(_job_of_lease(lease), lambda step: step.lease == lease)

    async def _expire(self, lease: uuid.UUID) -> Changed | None:
        async with self._held(lease) as held:
            if held is None:
                return None
            change, step = held
            if step.lease_until is None or step.lease_until >= change.now:
                return None
            await rules.expire(change, step)
            return await change.close()

    async def _repeated(self, lease: uuid.UUID, *outcomes: str) -> Changed | None:
        """Return an empty change if the attempt has ended so already: the call came twice."""
        async with self._database.read() as connection:
            job_id = await connection.scalar(
                select(steps.c.job_id)
                .join(attempts, attempts.c.step_id == steps.c.id)
                .where(attempts.c.lease == lease, attempts.c.outcome.in_(outcomes))
            )
        return None if job_id is None else Changed(job_id)


def _job_of_step(step_id: int) -> ScalarSelect[int]:
    return select(steps.c.job_id).where(steps.c.id == step_id).scalar_subquery()


def _step_of_lease(lease: uuid.UUID) -> ScalarSelect[int]:
    return select(attempts.c.step_id).where(attempts.c.lease == lease).scalar_subquery()


def _job_of_lease(lease: uuid.UUID) -> ScalarSelect[int]:
    return (
        select(steps.c.job_id)
        .join(attempts, attempts.c.step_id == steps.c.id)
        .where(attempts.c.lease == lease)
        .scalar_subquery()
    )
