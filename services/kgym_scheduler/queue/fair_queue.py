"""Fairness between submitters: start-time fair queueing of steps.

(Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996, with all costs and
weights 1.) A step that is queued gets a turn: one more than its submitter's
last, but no less than the turn that was claimed last. Of the steps of one kind
and rank the lowest turn is claimed first. So ten thousand steps of one
submitter have ten thousand turns, and another's single one comes next.
"""

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# Submitter, step kind and rank.
Queue = tuple[str, str, int]
# In place of a submitter: the row of the turn that was claimed last.
NOBODY = ""

# Raises a turn to `floor` if it is lower, then by `by`. Others wait for the row until the end of
# the transaction: so this comes late in it.
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
    """Give each queue so many turns; return the turn before the first of them."""
    before = {}
    for queue in sorted(wanted):  # in one order, so that no two transactions wait for each other
        given = wanted[queue]
        before[queue] = await connection.scalar(_GIVE, _parameters(queue, given)) - given
    return before


async def claim_turns(connection: AsyncConnection, latest: Mapping[tuple[str, int], int]) -> None:
    """Note the highest turns that were claimed, by kind and rank."""
    for (kind, rank), turn in sorted(latest.items()):
        queue = NOBODY, kind, rank
        await connection.execute(_CLAIM, {**_parameters(queue, 0), "turn": turn})


def _parameters(queue: Queue, by: int) -> dict[str, object]:
    submitter, kind, rank = queue
    return {"submitter": submitter, "kind": kind, "rank": rank, "by": by}
