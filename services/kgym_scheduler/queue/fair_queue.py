"""Fairness between submitters: start-time fair queueing of steps.

(Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996, with all costs and
weights 1.) A step that is queued gets a turn: one more than its submitter's
last, but no less than the turn that was claimed last. Of the steps of one kind
and rank the lowest turn is claimed first. So ten thousand steps of one
submitter have ten thousand turns, and another's single one comes next.
"""

from collections.abc import Iterator, Mapping

Queue = tuple[str, str, int]
"""Submitter, step kind and rank."""
NOBODY = ""
ALWAYS = "WHERE true"
"""Where in a statement its condition stands."""

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
GIVE = _RAISE.format(
    floor="coalesce((SELECT turn - 1 FROM turns AS t"
    " WHERE t.submitter = '' AND t.kind = given.kind AND t.rank = given.rank), -1)"
)
"""Returns the last of `by` turns that a queue is given."""
CLAIM = _RAISE.format(floor="CAST(:turn AS bigint)")
"""Notes that a turn was claimed."""


def named(queue: Queue, by: int) -> dict[str, object]:
    """Return the parameters of GIVE for `by` turns of a queue."""
    submitter, kind, rank = queue
    return {"submitter": submitter, "kind": kind, "rank": rank, "by": by}


def claimed(latest: Mapping[tuple[str, int], int]) -> Iterator[dict[str, object]]:
    """Yield what CLAIM takes, for the highest turns that were claimed by kind and rank."""
    for (kind, rank), turn in sorted(latest.items()):
        yield {**named((NOBODY, kind, rank), 0), "turn": turn}
