"""The workers that there are, as they say themselves: any scheduler can tell."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.capabilities import NO_COMPILER, NO_DUMP, NO_SYZKALLER, Capabilities, lacking
from kgym.api.jobs import WorkerState
from kgym.api.steps import Needs, StepSpec
from kgym.api.suitecache import HeldEntry
from kgym.api.worker_calls import BEAT_SECONDS, WorkerInfo
from kgym.errors import UserError
from kgym_scheduler.database import views
from kgym_scheduler.database.tables import workers
from kgym_scheduler.queue.capability_lanes import Lane

# How long a worker that is not heard of counts as alive.
LIVE = timedelta(seconds=2.5 * BEAT_SECONDS)
# How long a lost worker is shown.
REMEMBERED = timedelta(days=1)


async def seen(connection: AsyncConnection, now: datetime, worker: WorkerInfo) -> None:
    """Note that this worker lives, and what it is."""
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
    """Note which entries of SuiteCache the host of this worker keeps."""
    known = _ENTRIES.dump_json(list(entries)).decode()
    await connection.execute(_KEEP, {"worker": worker_id, "known": known})


async def held_entries(
    connection: AsyncConnection, now: datetime
) -> list[tuple[str, WorkerState, list[HeldEntry]]]:
    """Return, by worker, what has become of it, and which entries its host keeps."""
    found = []
    for row in (await connection.execute(_HELD)).all():
        try:
            held = _ENTRIES.validate_json(row.entries)
        except ValidationError:
            continue
        found.append((row.id, state(now, row.seen_at, draining=row.draining), held))
    return found


async def drain(connection: AsyncConnection, worker_id: str) -> bool:
    """Let the worker take no more; return whether there is such a worker."""
    changed = update(workers).where(workers.c.id == worker_id).values(draining=True)
    return bool((await connection.execute(changed)).rowcount)


async def leave(connection: AsyncConnection, worker_id: str) -> None:
    """Forget a worker that has ended."""
    await connection.execute(delete(workers).where(workers.c.id == worker_id))


async def forget(connection: AsyncConnection, now: datetime) -> None:
    """Forget the workers that were lost long ago."""
    await connection.execute(delete(workers).where(workers.c.seen_at < now - REMEMBERED))


async def known(connection: AsyncConnection) -> list[tuple[WorkerInfo, datetime, bool]]:
    """Return all workers: what they are, when they were heard of, whether they drain."""
    rows = await connection.execute(select(workers).order_by(workers.c.id))
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
        for row in rows.all()
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
    """Return, by name, what has become of each worker."""
    rows = (await connection.execute(_SEEN)).all()
    return {row.id: state(now, row.seen_at, draining=row.draining) for row in rows}


def state(now: datetime, seen_at: datetime, *, draining: bool) -> WorkerState:
    """Return what has become of a worker."""
    if now - seen_at > LIVE:
        return "lost"
    return "draining" if draining else "live"


def check_syzkaller(specs: Sequence[StepSpec], live: Sequence[Capabilities | None]) -> None:
    """Raise UserError `no_syzkaller` for a `syz` program that none of these workers can run.

    They do `reproduce` steps. Unlike more memory or another compiler, the binaries come to no
    host by themselves: waiting for them would be waiting for ever. Without any worker nothing is
    known, and the step waits, saying for what.
    """
    for number, spec in enumerate(specs):
        lacks = [lacking(Needs(syzkaller=spec.needs().syzkaller), has) for has in live]
        if lacks and all(lacks):
            nearest = min(lacks, key=len)
            message = f"step {number}: no worker has {', '.join(nearest)}; {NO_SYZKALLER}"
            error = {"location": f"body.steps.{number}.reproducer", "message": message}
            raise UserError("no_syzkaller", message, errors=[error])


def check_dumps(specs: Sequence[StepSpec], live: Sequence[Capabilities | None]) -> None:
    """Raise UserError `no_dump_method` for a dump that none of these workers' VMs allow."""
    for number, spec in enumerate(specs):
        wanted = Needs(dump=spec.needs().dump)
        if live and all(lacking(wanted, has) for has in live):
            message = f"step {number}: no worker takes dumps by `{wanted.dump}`; {NO_DUMP}"
            error = {"location": f"body.steps.{number}.dump", "message": message}
            raise UserError("no_dump_method", message, errors=[error])


def check_compiler(number: int, spec: StepSpec, live: Sequence[Capabilities | None]) -> bool:
    """Raise UserError `no_compiler` if none of these workers has, or can get, the step's compiler.

    They do steps of its kind. Return whether one was found: without any worker nothing is known.
    """
    needs = spec.needs()
    wanted = Needs(compiler=needs.compiler, compilers=needs.compilers)
    lacks = [lacking(wanted, has) for has in live]
    if lacks and all(lacks):
        there = sorted({name for has in live if has for name in has.compilers})
        message = (
            f"step {number}: no worker has {needs.compiler}; there are"
            f" {', '.join(there) or 'none'}; {NO_COMPILER}"
        )
        error = {"location": f"body.steps.{number}.compiler", "message": message}
        raise UserError("no_compiler", message, errors=[error])
    return bool(lacks)


def why(lane: Lane, live: Sequence[WorkerInfo]) -> str | None:
    """Return why no step of the lane can begin, whatever the time; None if one can."""
    able = [worker for worker in live if lane.kind in worker.kinds]
    if not able:
        return f"no live worker does `{lane.kind}` steps (see `kgym worker list`)"
    lacks = [lacking(lane.needs, worker.capabilities) for worker in able]
    if not all(lacks):
        return None
    nearest = min(lacks, key=len)
    return f"none of the {len(able)} live `{lane.kind}` workers has {', '.join(nearest)}"
