"""What is done with all jobs that meet a filter: how many they are, and then exactly those.

The scheduler does it only if the jobs are as many as the caller expects, and a thousand in a call.
"""

from dataclasses import dataclass
from typing import Literal

from kgym.api.bulk import AbortFilter, RestartFilter
from kgym.api.states import State
from kgym.client import AsyncClient, Refused
from kgym.errors import UserError
from kgym_monitor.pages.job_filter import JobQuery

# Jobs that the scheduler counts; what is over that is no number that one could agree to.
MOST = 10_000
FINAL = (State.FAILED, State.ABORTED, State.SUCCEEDED)

Act = Literal["abort", "restart"]
Change = AbortFilter | RestartFilter


@dataclass(frozen=True, slots=True)
class ActWords:
    """How pages name something that is done with jobs."""

    verb: str
    done: str
    follows: str
    """What becomes of the jobs: `will be …`."""
    nothing: str
    """Why there is nothing to do."""


ACTS: dict[Act, ActWords] = {
    "abort": ActWords(
        "Abort",
        "Aborted",
        "aborted: what they run is killed",
        "No unfinished job is selected, or meets the filter.",
    ),
    "restart": ActWords(
        "Restart",
        "Restarted",
        "run again, from the first step that did not succeed",
        "No finished job is selected, or meets the filter.",
    ),
}


@dataclass(frozen=True, slots=True)
class Done:
    """What was done; `left` is how many jobs meet the filter, where that was not as expected."""

    jobs: int
    left: int | None = None


def of(act: Act, query: JobQuery, *, everybody: bool) -> Change:
    """Return the change of all jobs that the query asks for: one's own, or everybody's.

    Raises UserError `bad_filter`: something is wrong with the query, or, of a restart, it names
    no state in which jobs have ended.
    """
    wanted = query.filter
    if wanted is None:
        raise UserError("bad_filter", query.fault or "")
    conditions = wanted.model_dump(exclude={"cursor", "limit", "brief"}) | {"mine": not everybody}
    if act == "abort":
        return AbortFilter.model_validate(conditions)
    if wanted.state not in FINAL:
        raise UserError("bad_filter", f"name the jobs' state: {', '.join(FINAL)}")
    return RestartFilter.model_validate(conditions)


async def count(client: AsyncClient, change: Change) -> int:
    """Return how many jobs there are to change; MOST + 1 where they are more, or too many to see.

    To expect none of them changes nothing, and the refusal tells the number as the change itself
    counts it: `/v1/jobs/count` tests other conditions on so many jobs at most.
    """
    try:
        await _change(client, change, 0)
    except Refused as error:
        return _matching(error)
    return 0


async def carry_out(client: AsyncClient, change: Change, expected: int) -> Done:
    """Change so many jobs, if they are as many before each thousand of them."""
    done = 0
    while done < expected:
        try:
            now = await _change(client, change, expected - done)
        except Refused as error:
            return Done(done, _matching(error))
        if not now:  # others have changed them at the same moment
            break
        done += now
    return Done(done)


async def _change(client: AsyncClient, change: Change, expected: int) -> int:
    if isinstance(change, AbortFilter):
        return len((await client.abort_all(change, expected)).aborted)
    return len((await client.restart_all(change, expected)).restarted)


def _matching(error: Refused) -> int:
    """Return how many jobs match, as the scheduler's refusal says; raise other refusals."""
    count = error.details.get("jobs")
    if error.reason == "count_differs" and isinstance(count, int):
        return count
    if error.reason == "filter_too_wide":
        return MOST + 1
    raise error
