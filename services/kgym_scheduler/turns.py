"""Fairness between submitters: start-time fair queueing of steps.

(Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996, with all costs and
weights 1.) A step that is queued gets a turn: one more than its submitter's
last, but no less than the turn that was claimed last. Of the steps of one kind
and rank the lowest turn is claimed first. So ten thousand steps of one
submitter have ten thousand turns, and another's single one comes next.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym_scheduler.bulk import Plan

Queue = tuple[str, str, int]
"""Submitter, step kind and rank."""
NOBODY = ""

# Raises a turn to `floor` if it is lower, then by `by`.
_RAISE = """
WITH given AS (SELECT CAST(:submitter AS varchar) AS submitter, CAST(:kind AS varchar) AS kind,
    CAST(:rank AS smallint) AS rank, CAST(:by AS bigint) AS by)
INSERT INTO turns (submitter, kind, rank, turn)
    SELECT submitter, kind, rank, {floor} + by FROM given WHERE true
ON CONFLICT (submitter, kind, rank) DO UPDATE SET turn = CAST(:by AS bigint) + CASE
    WHEN turns.turn > excluded.turn - CAST(:by AS bigint) THEN turns.turn
    ELSE excluded.turn - CAST(:by AS bigint) END
RETURNING turn
"""
_GIVE = text(
    _RAISE.format(
        floor="coalesce((SELECT turn - 1 FROM turns AS t"
        " WHERE t.submitter = '' AND t.kind = given.kind AND t.rank = given.rank), -1)"
    )
)
_CLAIM = _RAISE.format(floor="CAST(:turn AS bigint)")


async def give(connection: AsyncConnection, wanted: Sequence[Queue]) -> list[int]:
    """Return a turn for each, in order."""
    numbers: dict[Queue, Iterator[int]] = {}
    for queue, count in sorted(Counter(wanted).items()):
        last = await connection.scalar(_GIVE, _named(queue, count)) or 0
        numbers[queue] = iter(range(last - count + 1, last + 1))
    return [next(numbers[queue]) for queue in wanted]


def plan_claimed(plan: Plan, latest: Mapping[tuple[str, int], int]) -> None:
    """Note the highest turns that were claimed, by kind and rank."""
    for (kind, rank), turn in sorted(latest.items()):
        plan.also(_CLAIM, {**_named((NOBODY, kind, rank), 0), "turn": turn})


def _named(queue: Queue, by: int) -> dict[str, object]:
    submitter, kind, rank = queue
    return {"submitter": submitter, "kind": kind, "rank": rank, "by": by}
