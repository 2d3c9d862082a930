"""The workers, as they describe themselves; and whether one of them can run a job's steps."""

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice, product
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.capabilities import NO_COMPILER, NO_DUMP, NO_SYZKALLER, Capabilities, lacking
from kgym.api.jobs import JobRequest, WorkerState
from kgym.api.steps import Needs, StepKind
from kgym.api.suitecache import HeldEntry
from kgym.api.worker_calls import BEAT_SECONDS, WorkerInfo
from kgym.errors import UserError
from kgym_scheduler.database import views
from kgym_scheduler.database.tables import workers
from kgym_scheduler.queue.capability_lanes import Lane

# How long a silent worker counts as alive: two heartbeats may be lost.
LIVE = timedelta(seconds=2.5 * BEAT_SECONDS)
# How long a lost worker is shown.
REMEMBERED = timedelta(days=1)
# Maximum age of the capabilities of the only host: to detect them runs programs.
HOST_SECONDS = 2.0
# Maximum age of the list of live workers when a job is accepted. Reading it for every job took a
# seventh of the scheduler's processor time (`./run bench dispatch`).
LIVE_SECONDS = 1.0

# Detects the capabilities of a host.
Host = Callable[[], Awaitable[Capabilities]]


class _LastingNeed(NamedTuple):
    """A need that a host will not meet later, either: the step's field, and the error."""

    parts: tuple[str, ...]
    field: str
    reason: str
    advice: str


# Other needs, such as memory, may be met by a worker that starts later.
_LASTING = (
    _LastingNeed(("syzkaller",), "reproducer", "no_syzkaller", NO_SYZKALLER),
    _LastingNeed(("dump",), "dump", "no_dump_method", NO_DUMP),
    _LastingNeed(("compiler", "compilers"), "compiler", "no_compiler", NO_COMPILER),
)


async def seen(connection: AsyncConnection, now: datetime, worker: WorkerInfo) -> None:
    """Store that this worker lives, and its description."""
    statement = insert(workers).values(
        id=worker.id,
        kinds=json.dumps(worker.kinds),
        slots=worker.slots,
        capabilities=worker.capabilities and worker.capabilities.model_dump_json(),
        draining=False,
        seen_at=now,
    )
    names = ("kinds", "slots", "capabilities", "seen_at")
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["id"], set_={name: statement.excluded[name] for name in names}
        )
    )


async def keep_entries(
    connection: AsyncConnection, worker_id: str, entries: Sequence[HeldEntry]
) -> None:
    """Store which SuiteCache entries the worker's host keeps."""
    known = _ENTRIES.dump_json(list(entries)).decode()
    await connection.execute(_KEEP, {"worker": worker_id, "known": known})


async def held_entries(
    connection: AsyncConnection, now: datetime
) -> list[tuple[str, WorkerState, list[HeldEntry]]]:
    """Return each worker's name and state, and the SuiteCache entries that its host keeps."""
    held_by = []
    for row in (await connection.execute(_HELD)).all():
        try:
            held = _ENTRIES.validate_json(row.entries)
        except ValidationError:
            continue
        held_by.append((row.id, state(now, row.seen_at, draining=row.draining), held))
    return held_by


async def drain(connection: AsyncConnection, worker_id: str) -> bool:
    """Let the worker take no more steps; return whether it exists."""
    changed = update(workers).where(workers.c.id == worker_id).values(draining=True)
    return bool((await connection.execute(changed)).rowcount)


async def leave(connection: AsyncConnection, worker_id: str) -> None:
    """Forget a worker that has ended."""
    await connection.execute(delete(workers).where(workers.c.id == worker_id))


async def forget(connection: AsyncConnection, now: datetime) -> None:
    """Forget the workers that were lost long ago."""
    await connection.execute(delete(workers).where(workers.c.seen_at < now - REMEMBERED))


async def known(connection: AsyncConnection) -> list[tuple[WorkerInfo, datetime, bool]]:
    """Return all workers, each with the time of its last claim and whether it drains."""
    return [
        (
            WorkerInfo(
                id=row.id,
                kinds=json.loads(row.kinds),
                slots=row.slots,
                capabilities=row.capabilities and views.read(Capabilities, row.capabilities),
            ),
            row.seen_at,
            row.draining,
        )
        for row in await connection.execute(select(workers).order_by(workers.c.id))
    ]


_ENTRIES = TypeAdapter(list[HeldEntry])
_KEEP = (
    update(workers).where(workers.c.id == bindparam("worker")).values(entries=bindparam("known"))
)
_HELD = (
    select(workers.c.id, workers.c.seen_at, workers.c.draining, workers.c.entries)
    .where(workers.c.entries.is_not(None))
    .order_by(workers.c.id)
)
_SEEN = select(workers.c.id, workers.c.seen_at, workers.c.draining)


async def states(connection: AsyncConnection, now: datetime) -> dict[str, WorkerState]:
    """Return the workers' states by name."""
    rows = (await connection.execute(_SEEN)).all()
    return {row.id: state(now, row.seen_at, draining=row.draining) for row in rows}


def state(now: datetime, seen_at: datetime, *, draining: bool) -> WorkerState:
    """Return the state of a worker that claimed last at `seen_at`."""
    if now - seen_at > LIVE:
        return "lost"
    return "draining" if draining else "live"


class NeedsCheck:
    """Refuses steps that no worker will ever be able to run: they would wait for ever.

    Without any live worker, nothing is known: the step is accepted, and shows what it waits for.
    `live` returns the live workers. On a platform with a single host, `host` detects its
    capabilities, since its workers may not have claimed yet.
    """

    def __init__(self, live: Callable[[], Awaitable[list[WorkerInfo]]], host: Host | None) -> None:
        self._read = partial(_only, host) if host else live
        # Maximum ages in seconds of the list of workers: when a job is accepted, and when one is
        # refused. A refusal needs a newer list, as a worker that began since may meet the need.
        self._ages = (HOST_SECONDS, HOST_SECONDS) if host else (LIVE_SECONDS, 0.0)
        self._workers: list[WorkerInfo] = []
        self._read_at = 0.0

    async def check(self, requests: Sequence[JobRequest]) -> None:
        """Raise UserError `no_syzkaller`, `no_dump_method` or `no_compiler`."""
        steps = [
            (number, spec.kind, needs)
            for request in requests
            for number, spec in enumerate(request.steps)
            if (needs := spec.needs()).syzkaller or needs.dump or needs.compiler
        ]
        if not steps:
            return
        for most_seconds in self._ages:
            # An empty list is never kept: the platform's first workers may be about to begin.
            if not self._workers or time.monotonic() >= self._read_at + most_seconds:
                self._workers, self._read_at = await self._read(), time.monotonic()
            if not (first := list(islice(_refusals(steps, self._workers), 1))):
                return
        raise first[0]


async def _only(host: Host) -> list[WorkerInfo]:
    """Return the worker of the only host."""
    return [WorkerInfo(id="host", kinds=list(StepKind), slots=1, capabilities=await host())]


def _refusals(
    steps: Sequence[tuple[int, StepKind, Needs]], workers: Sequence[WorkerInfo]
) -> Iterator[UserError]:
    """Yield the errors of needs that none of these workers meets."""
    for (number, kind, needs), need in product(steps, _LASTING):
        able = [worker.capabilities for worker in workers if kind in worker.kinds]
        part = Needs().model_copy(update={name: getattr(needs, name) for name in need.parts})
        lacks = [lacking(part, has) for has in able]
        if lacks and all(lacks):
            nearest = min(lacks, key=len)
            message = f"step {number}: no worker has {', '.join(nearest)}; "
            if need.field == "compiler":
                there = sorted({name for has in able if has for name in has.compilers})
                message += f"there are {', '.join(there) or 'none'}; "
            message += need.advice
            error = {"location": f"body.steps.{number}.{need.field}", "message": message}
            yield UserError(need.reason, message, errors=[error])


def why(lane: Lane, live: Sequence[WorkerInfo]) -> str | None:
    """Return why no live worker can run the lane's steps; None if one can."""
    able = [worker for worker in live if lane.kind in worker.kinds]
    if not able:
        return f"no live worker does `{lane.kind}` steps (see `kgym worker list`)"
    lacks = [lacking(lane.needs, worker.capabilities) for worker in able]
    if not all(lacks):
        return None
    nearest = min(lacks, key=len)
    return f"none of the {len(able)} live `{lane.kind}` workers has {', '.join(nearest)}"
