"""Search for a job id, bug, title, function, tag, group or submitter."""

import asyncio
import re
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from kgym.api.jobs import JobPage
from kgym.bugs import shipped
from kgym.bugs.shipped import ShippedBug
from kgym.client import AsyncClient
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.live_pages import answer_poll, is_poll, nothing

# Most jobs shown beside matching bugs.
JOBS = 20
# Characters of the search that are used; the rest is ignored.
LONGEST = 200
_BUGS = 20
# Least characters for a search in titles of bugs.
_SHORTEST = 3
_FRAME = re.compile(r"([A-Za-z_][\w.]{0,150})\+0x[0-9a-f]{1,16}\b")
_CALL = re.compile(r"([A-Za-z_][\w.]{0,150})\(\)")

readers = APIRouter(dependencies=[needs(Scope.READ)])


def plain(typed: str) -> str:
    """Return the search text; of a stack trace's line or `name()`, the function's name."""
    asked = " ".join(typed[:LONGEST].split())
    match = _FRAME.search(asked) or _CALL.fullmatch(asked)
    return match[1] if match else asked


def job_number(asked: str) -> int | None:
    """Return the job id of `12`, `#12` or `job 12`, None for anything else."""
    number = asked.casefold().removeprefix("job").strip().removeprefix("#")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 19 else None


def bugs(asked: str) -> list[ShippedBug]:
    """Return the shipped bugs whose name or titles contain the text, ignoring case."""
    # A job that proves a fix ends without a crash, so it has no title by which it could be found.
    if len(asked) < _SHORTEST:
        return []
    wanted = asked.casefold()
    return [
        bug
        for bug in shipped.by_name().values()
        if any(wanted in text.casefold() for text in (bug.name, bug.title, *bug.alt_titles))
    ][:_BUGS]


@readers.get("/search", response_model=None)
async def search(request: Request, q: str = "") -> Response:
    """Redirect to the only match, or show a list of matches."""
    if is_poll(request):
        return await answer_poll(request, nothing)
    state, client = state_of(request), session_of(request).client
    asked = plain(q)
    if (number := job_number(asked)) is not None:
        return RedirectResponse(f"/jobs/{number}", 303)
    if not asked:
        return RedirectResponse("/jobs", 303)
    bug, text = JobQuery(bug=asked), JobQuery(text=asked)
    named = bugs(asked)
    # Both at once: a page must come in under 50 ms.
    known, page = await asyncio.gather(_first(client, bug, 1), _first(client, text, JOBS))
    if known is not None and known.jobs:
        return RedirectResponse(f"/bugs/{quote(asked)}", 303)
    # A page with `next` may be short or empty because older jobs are not searched yet.
    if page is None or ((page.jobs or page.next) and not named):
        return RedirectResponse(text.address(), 303)
    return state.rendering.page(
        request,
        "search.html",
        title="Search",
        live=True,
        asked=asked,
        bugs=named,
        jobs=page.jobs,
        pickable=False,
        all_jobs=text.address() if page.next else None,
    )


async def _first(client: AsyncClient, query: JobQuery, count: int) -> JobPage | None:
    """Return the first jobs of a list; None for an invalid query."""
    if query.filter is None:
        return None
    return await client.page(query.filter.model_copy(update={"limit": count}))
