"""Aborting or restarting all jobs that match a filter: first the count, then exactly those.

The scheduler refuses if the number of matching jobs is not the expected one, and changes at most
1,000 jobs per call.
"""

from dataclasses import dataclass
from typing import Literal

from kgym.api.bulk import AbortFilter, RestartFilter
from kgym.api.states import State
from kgym.client import AsyncClient, Refused
from kgym.errors import UserError
from kgym_monitor.pages.job_filter import JobQuery

# Most jobs that the scheduler counts. Beyond it, there is no number for the reader to confirm.
MOST = 10_000
FINAL = (State.FAILED, State.ABORTED, State.SUCCEEDED)

Act = Literal["abort", "restart"]
Change = AbortFilter | RestartFilter


@dataclass(frozen=True, slots=True)
class ActWords:
    """Texts of an action on jobs."""

    verb: str
    done: str
    follows: str
    """Continues "the jobs will be …"."""
    nothing: str
    """Shown if no job matches."""


ACTS: dict[Act, ActWords] = {
    "abort": ActWords(
        "Abort",
        "Aborted",
        "aborted: running steps are killed",
        "No unfinished job is selected or matches the filter.",
    ),
    "restart": ActWords(
        "Restart",
        "Restarted",
        "run again, from the first step that did not succeed",
        "No finished job is selected or matches the filter.",
    ),
}


@dataclass(frozen=True, slots=True)
class Done:
    """Result; `left` is the number of matching jobs if it was not the expected one."""

    jobs: int
    left: int | None = None


def of(act: Act, query: JobQuery, *, everybody: bool) -> Change:
    """Return the change of all matching jobs: the caller's own, or everybody's.

    Raises UserError `bad_filter` for an invalid query, or a restart without a final state.
    """
    wanted = query.filter
    if wanted is None:
        raise UserError("bad_filter", query.fault or "")
    conditions = wanted.model_dump(exclude={"cursor", "limit", "brief"}) | {"mine": not everybody}
    if act == "abort":
        return AbortFilter.model_validate(conditions)
    if wanted.state not in FINAL:
        raise UserError("bad_filter", f"choose the jobs' state: {', '.join(FINAL)}")
    return RestartFilter.model_validate(conditions)


async def count(client: AsyncClient, change: Change) -> int:
    """Return the number of jobs to change; MOST + 1 if there are more, or too many to count."""
    # Expecting 0 changes nothing, and the refusal has the number as the change itself counts it.
    # `/v1/jobs/count` would not do: it is capped, and counts under other conditions.
    try:
        await _change(client, change, 0)
    except Refused as error:
        return _matching(error)
    return 0


async def carry_out(client: AsyncClient, change: Change, expected: int) -> Done:
    """Change `expected` jobs; stop if another number matches before one of the calls."""
    done = 0
    while done < expected:
        try:
            now = await _change(client, change, expected - done)
        except Refused as error:
            return Done(done, _matching(error))
        if not now:  # changed by somebody else at the same time
            break
        done += now
    return Done(done)


async def _change(client: AsyncClient, change: Change, expected: int) -> int:
    if isinstance(change, AbortFilter):
        return len((await client.abort_all(change, expected)).aborted)
    return len((await client.restart_all(change, expected)).restarted)


def _matching(error: Refused) -> int:
    """Return the number of matching jobs from a refusal; raise other refusals."""
    count = error.details.get("jobs")
    if error.reason == "count_differs" and isinstance(count, int):
        return count
    if error.reason == "filter_too_wide":
        return MOST + 1
    raise error
