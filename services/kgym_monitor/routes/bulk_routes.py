"""Aborting or restarting many jobs: those selected in a list, or all that match a filter.

A page first shows their number and asks for confirmation.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import parse_qsl

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from kgym.api.bulk import AbortFilter, RestartFilter
from kgym.api.states import State
from kgym.client import AsyncClient, Refused
from kgym.errors import UserError
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.own_forms import back, own_form

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


def change_of(act: Act, query: JobQuery, *, everybody: bool) -> Change:
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


async def count_matching(client: AsyncClient, change: Change) -> int:
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


# Most selected jobs: the scheduler's limit of one call.
SELECTED = 1000
_AT_ONCE = 8

openers = APIRouter(dependencies=[needs(Scope.SUBMIT)])
submitters = APIRouter(dependencies=[needs(Scope.SUBMIT), own_form])


# --- by filter --------------------------------------------------------------------------------


@openers.get("/jobs/abort")
async def ask_to_abort(request: Request) -> HTMLResponse:
    """Show the number of unfinished jobs that match the filter, and ask whether to abort them."""
    return await _ask(request, "abort", JobQuery.read(request.query_params))


@openers.get("/jobs/restart")
async def ask_to_restart(request: Request) -> HTMLResponse:
    """Ask the same for finished jobs in the filter's state; without one, ask for the state."""
    query = JobQuery.read(request.query_params)
    # The scheduler restarts jobs of one state at a time, so the reader chooses it.
    if query.state in FINAL:
        return await _ask(request, "restart", query)
    counts = await asyncio.gather(
        *(
            _counted(request, "restart", query.model_copy(update={"state": state}))
            for state in FINAL
        )
    )
    choices = [
        (state, count, query.address("/jobs/restart", state=state))
        for state, count in zip(FINAL, counts, strict=True)
    ]
    return _page(request, "restart", query, None, choices=choices)


@submitters.post("/jobs/{act}/filtered", response_model=None)
async def change_filtered(
    request: Request,
    act: Act,
    expected: Annotated[int, Form(ge=1, le=MOST)],
    wanted: Annotated[str, Form(alias="filter", max_length=4000)] = "",
) -> HTMLResponse | RedirectResponse:
    """Change all jobs that match the filter, if their number is the confirmed one."""
    query = JobQuery.read(dict(parse_qsl(wanted)))
    change = change_of(act, query, everybody=_everybody(request, query))
    done = await carry_out(session_of(request).client, change, expected)
    report = f"{ACTS[act].done} {_jobs(done.jobs)}."
    if done.left is None:
        # The jobs have left that state, but still match the rest of the filter.
        return back(query.model_copy(update={"state": None}).address(), report)
    changed = f"{report if done.jobs else 'Nothing was done.'} The number of matching"
    changed += f" jobs has changed: {_many(done.left)}, not {expected - done.jobs:,}."
    return _page(request, act, query, done.left, changed=changed, status=409)


async def _ask(request: Request, act: Act, query: JobQuery) -> HTMLResponse:
    count = await _counted(request, act, query)
    return _page(request, act, query, count)


async def _counted(request: Request, act: Act, query: JobQuery) -> int:
    change = change_of(act, query, everybody=_everybody(request, query))
    return await count_matching(session_of(request).client, change)


def _everybody(request: Request, query: JobQuery) -> bool:
    """Return whether others' jobs are included: only admins may change them."""
    return session_of(request).caller.may(Scope.ADMIN) and query.mine != "yes"


def _page(
    request: Request,
    act: Act,
    query: JobQuery,
    count: int | None,
    *,
    choices: Sequence[tuple[str, int, str]] = (),
    changed: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    return state_of(request).rendering.page(
        request,
        "bulk_filter.html",
        title=f"{ACTS[act].verb} jobs",
        status=status,
        act=act,
        words=ACTS[act],
        query=query,
        own=not _everybody(request, query),
        count=count,
        too_many=count is not None and count > MOST,
        most=MOST,
        in_words=_many,
        choices=choices,
        changed=changed,
    )


def _jobs(count: int) -> str:
    return f"{count:,} {'job' if count == 1 else 'jobs'}"


def _many(count: int) -> str:
    return f"over {MOST:,}" if count > MOST else f"{count:,}"


# --- those selected ---------------------------------------------------------------------------


@submitters.post("/jobs/bulk", response_model=None)
async def change_selected(
    request: Request,
    act: Annotated[Literal["abort", "restart"], Form()],
    came_from: str = Form("/jobs", alias="back", max_length=2000),
    sure: str = Form("", max_length=3),
    jobs: str = Form("", max_length=20 * SELECTED, pattern="^[0-9 ]*$"),
) -> HTMLResponse | RedirectResponse:
    """Ask whether to abort or restart the selected jobs; do it once confirmed."""
    form = await request.form()
    picked = [str(number) for number in form.getlist("job")] + jobs.split()
    numbers = [int(number) for number in picked if number.isdecimal() and len(number) < 19]
    if sure != "yes":
        return state_of(request).rendering.page(
            request,
            "bulk.html",
            title=f"{ACTS[act].verb} jobs",
            act=act,
            words=ACTS[act],
            ids=sorted(set(numbers), reverse=True)[:SELECTED],
            back=came_from,
        )
    if not 0 < len(numbers) <= SELECTED:
        raise UserError("bad_request", f"select 1 to {SELECTED} jobs")
    if act == "restart":
        return back(came_from, await _restart(request, numbers))
    done = await session_of(request).client.abort_all(numbers)
    ended = f"; {len(done.finished)} had already ended" if done.finished else ""
    return back(came_from, f"Aborted {_jobs(len(done.aborted))}{ended}.")


async def _restart(request: Request, numbers: list[int]) -> str:
    client, refused = session_of(request).client, dict[int, str]()
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            try:
                await client.restart(number)
            except Refused as error:
                refused[number] = error.reason

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    not_done = f"; not {', '.join(f'{n} ({why})' for n, why in list(refused.items())[:5])}"
    return f"Restarted {_jobs(len(numbers) - len(refused))}{not_done if refused else ''}."
