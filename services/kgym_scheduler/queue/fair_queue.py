"""Fairness between submitters: start-time fair queueing of steps.

A queued step gets a turn: one more than its submitter's last, but at least the turn that was
claimed last. The lowest turn of a kind and rank is claimed first. So ten thousand steps of one
submitter have ten thousand turns, and another's single step comes next.
"""

# Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996; here all costs and weights are 1.

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# Submitter, step kind and rank.
Queue = tuple[str, str, int]
# The submitter in the rows of the turns that were claimed last.
NOBODY = ""

# Raises a turn to `floor` if it is lower, then by `by`. The row stays locked until the end of the
# transaction, so this comes late in it. CASE, as SQLite's max() is PostgreSQL's greatest().
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
_CLAIM = text(_RAISE.format(floor="CAST(:turn AS bigint)"))


async def give_turns(connection: AsyncConnection, wanted: Counter[Queue]) -> dict[Queue, int]:
    """Give each queue that many turns; return the turn before its first."""
    before = {}
    # In one order, so that transactions cannot deadlock.
    for queue, given in sorted(wanted.items()):
        before[queue] = await connection.scalar(_GIVE, _parameters(queue, given)) - given
    return before


async def claim_turns(connection: AsyncConnection, latest: Mapping[tuple[str, int], int]) -> None:
    """Store the highest claimed turns, by kind and rank."""
    for (kind, rank), turn in sorted(latest.items()):
        queue = NOBODY, kind, rank
        await connection.execute(_CLAIM, {**_parameters(queue, 0), "turn": turn})


def _parameters(queue: Queue, by: int) -> dict[str, object]:
    submitter, kind, rank = queue
    return {"submitter": submitter, "kind": kind, "rank": rank, "by": by}
