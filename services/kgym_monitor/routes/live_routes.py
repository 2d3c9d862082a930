"""What open pages hear: `/live`, an event stream."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from kgym.errors import UserError
from kgym.web.access import needs
from kgym.web.callers import caller_of
from kgym.web.event_stream import EventStream, SendNow
from kgym.web.scopes import Scope
from kgym_monitor.live import live_parts
from kgym_monitor.live.fragments import Key, sent
from kgym_monitor.monitor_state import MonitorState, state_of

BEAT_SECONDS = 5.0
"""How often a page hears that all is well; after three times as long it says that it is stale."""
ROWS = 200

readers = APIRouter(dependencies=[needs(Scope.READ)])


def address(
    since: int,
    *,
    rows: Iterable[int] = (),
    pickable: bool = False,
    job: int | None = None,
    step: int | None = None,
    attempt: int | None = None,
    summary: str | None = None,
    of: str | None = None,
    newest: str | None = None,
    runs: str | None = None,
) -> str:
    """Return from where a page hears of changes since `since` (`Changes.position`).

    Args:
        since: Before the page was read.
        rows: Jobs of a list on it.
        pickable: Whether these may be selected.
        job: The job that it is about.
        step: The step that the reader has chosen of that; None: what `job_page.focus` says.
        attempt: The attempt that the reader has chosen of that step.
        summary: `overview`, `workers`, `history-RANGE`, or one of `live_parts.SUBJECTS`; several
            with dots between them.
        of: What that is of: a list's query, or a bug.
        newest: The query of the list of which it counts newer jobs; `all` without one.
        runs: The query of the list of runs that it shows; `all` without one.
    """
    said: dict[str, object] = {"since": since, "rows": ".".join(map(str, rows)), "job": job}
    said |= {"pickable": "yes" if pickable else None, "step": step, "attempt": attempt}
    said |= {"summary": summary, "of": of, "newest": newest, "runs": runs}
    return "/live?" + urlencode(
        {name: value for name, value in said.items() if value not in ("", None)}
    )


@readers.get("/live")
async def live(
    request: Request,
    since: Annotated[int, Query(ge=0, lt=1 << 63)] = 0,
    rows: Annotated[str, Query(max_length=4000, pattern=r"^[0-9.]*$")] = "",
    pickable: Annotated[str, Query(max_length=3)] = "",
    job: Annotated[int | None, Query(ge=1, lt=1 << 63)] = None,
    step: Annotated[int | None, Query(ge=0, lt=100)] = None,
    attempt: Annotated[int | None, Query(ge=1, lt=1 << 31)] = None,
    summary: Annotated[str | None, Query(max_length=100)] = None,
    of: Annotated[str, Query(max_length=1000)] = "",
    newest: Annotated[str | None, Query(max_length=1000)] = None,
    runs: Annotated[str | None, Query(max_length=2000)] = None,
) -> Response:
    """Send what changes on a page, from when it was read; after a break, from there."""
    state = state_of(request)
    keys: list[Key] = []
    for number in rows.split(".")[:ROWS]:
        if number and len(number) < 19:
            keys.append(live_parts.row(int(number), pickable=pickable == "yes"))
    if job is not None:
        keys += [live_parts.job_part(job, step, attempt), live_parts.place(job)]
    if summary is not None:
        keys += [_summary(name, of) for name in summary.split(".")[:8]]
    if newest is not None:
        keys.append(live_parts.newest("" if newest == "all" else newest))
    if runs is not None:
        keys.append(live_parts.runs("" if runs == "all" else runs))
    told = request.headers.get("last-event-id", "")
    position = int(told) if told.isdecimal() and len(told) < 19 else since
    with contextlib.ExitStack() as slot:
        slot.enter_context(request.app.streams.opened(caller_of(request).name))

        def events(_: SendNow | None) -> AsyncIterator[bytes]:
            return _sent(state, keys, position, job)

        return EventStream(events, slot.pop_all())


async def _sent(
    state: MonitorState, keys: list[Key], position: int, job: int | None
) -> AsyncIterator[bytes]:
    async with contextlib.AsyncExitStack() as stack:
        page = stack.enter_context(state.fragments.open(keys, position))
        if job is not None and not (await state.client.job(job)).state.final:
            await stack.enter_async_context(state.tails.watched(job))
        async for text in sent(page, state.changes, BEAT_SECONDS):
            yield text


def _summary(name: str, of: str) -> Key:
    known = {"overview": live_parts.OVERVIEW, "workers": live_parts.WORKERS, **live_parts.HISTORIES}
    known |= {one: live_parts.subject(one, of) for one in live_parts.SUBJECTS}
    if name not in known:
        raise UserError("unknown_part", f"there is no part {name!r}; known are {', '.join(known)}")
    return known[name]
