"""Fairness between submitters: start-time fair queueing of steps.

(Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996, with all costs and
weights 1.) A step that is queued gets a turn: one more than its submitter's
last, but no less than the turn that was claimed last. Of the steps of one kind
and rank the lowest turn is claimed first. So ten thousand steps of one
submitter have ten thousand turns, and another's single one comes next.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym_scheduler.tables import turns

Queue = tuple[str, str, int]
"""Submitter, step kind and rank."""
NOBODY = ""


async def give(connection: AsyncConnection, wanted: Sequence[Queue]) -> list[int]:
    """Return a turn for each, in order."""
    numbers: dict[Queue, Iterator[int]] = {}
    for queue, count in sorted(Counter(wanted).items()):
        _, kind, rank = queue
        claimed = select(turns.c.turn - 1).where(
            turns.c.submitter == NOBODY, turns.c.kind == kind, turns.c.rank == rank
        )
        floor = func.coalesce(claimed.scalar_subquery(), -1)
        last = await _raise(connection, queue, floor, count)
        numbers[queue] = iter(range(last - count + 1, last + 1))
    return [next(numbers[queue]) for queue in wanted]


async def claimed(connection: AsyncConnection, latest: Mapping[tuple[str, int], int]) -> None:
    """Note the highest turns that were claimed, by kind and rank."""
    for (kind, rank), turn in sorted(latest.items()):
        await _raise(connection, (NOBODY, kind, rank), turn, 0)


async def _raise(
    connection: AsyncConnection, queue: Queue, floor: int | ColumnElement[int], by: int
) -> int:
    """Raise a turn to `floor` if it is lower, then by `by`; return it."""
    submitter, kind, rank = queue
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    row = {"submitter": submitter, "kind": kind, "rank": rank, "turn": floor + by}
    statement = insert(turns).values(row)
    floor = statement.excluded.turn - by
    raised = statement.on_conflict_do_update(
        index_elements=["submitter", "kind", "rank"],
        set_={"turn": case((turns.c.turn > floor, turns.c.turn), else_=floor) + by},
    )
    return int((await connection.execute(raised.returning(turns.c.turn))).scalar_one())
