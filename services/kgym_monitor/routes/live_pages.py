"""Live pages: a browser polls their parts every two seconds.

A page and its polls share an address; a poll adds `poll=yes` and, in `rows`, the listed jobs. The
answer only has changed parts. No page keeps a connection open: HTTP/1.1 browsers allow six per
host, so a few windows would block all others.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response

from kgym.api.jobs import JobFilter
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, UserError
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages.job_filter import PAGE, JobQuery

# How long equal polls share an answer: any number of watchers costs the scheduler one query.
SHARED_SECONDS = 1.5
# How long a poll may wait for the scheduler; after that, the page shows that it is stale.
READ_SECONDS = 5.0
ROWS = 200

# Returns the variables of the templates of a page's parts; raises KgymError.
Read = Callable[[AsyncClient], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page: id of its element, template, and htmx swap method."""

    target: str
    template: str
    swap: str = "outerMorph"
    given: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template beside those that are read for all parts."""


@dataclass(frozen=True, slots=True)
class Newest:
    """List whose newer jobs a page counts, and the link to it."""

    query: JobQuery
    href: str


@dataclass(frozen=True, slots=True)
class _Answer:
    parts: dict[str, str]
    """Parts for htmx, by hash."""
    reload: bool

    @property
    def etag(self) -> str:
        return f'"{".".join(self.parts)}"'


def is_poll(request: Request) -> bool:
    """Return whether the request is a page's poll."""
    return request.query_params.get("poll") == "yes"


async def nothing(_: AsyncClient) -> dict[str, Any]:
    """Read nothing: only rows of jobs change on this page."""
    return {}


async def live_page(
    request: Request, read: Read, template: str, title: str, *parts: Part, private: bool = False
) -> Response:
    """Show a page with the contents that `read` returns, or answer its poll."""
    if is_poll(request):
        return await answer_poll(request, read, *parts, private=private)
    shown = await read(session_of(request).client)
    return state_of(request).rendering.page(request, template, title=title, live=True, **shown)


async def answer_poll(
    request: Request,
    read: Read,
    *parts: Part,
    newest: Newest | None = None,
    pickable: bool = False,
    private: bool = False,
) -> Response:
    """Answer a poll with the changed parts, or 304.

    Args:
        request: Request of the page, with `poll`.
        read: Reads the contents of the parts.
        parts: Parts of the page.
        newest: List whose newer jobs are counted.
        pickable: Whether the page's jobs can be selected.
        private: Whether the answer depends on the reader, so that it is not shared.
    """
    state, session = state_of(request), session_of(request)
    client = session.client if private else state.client
    rows = _rows(request)

    async def ask() -> _Answer:
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await _read(request, client, rows, read, parts, newest, pickable)
        except TimeoutError:
            message = f"no answer from the scheduler within {READ_SECONDS:g} s"
            raise InfrastructureError("scheduler_away", message) from None

    # Shared answers differ only by whether jobs can be selected.
    whose = session.caller.name if private else session.caller.may(Scope.SUBMIT)
    key = (request.url.path, request.url.query, whose)
    answer = await state.shared.get(key, SHARED_SECONDS, ask)
    headers = {"ETag": answer.etag} | ({"HX-Refresh": "true"} if answer.reload else {})
    # The ETag lists the hashes of all parts, so only parts that the page lacks are sent.
    known = set(request.headers.get("if-none-match", "").strip('"').split("."))
    changed = [html for name, html in answer.parts.items() if name not in known]
    if not changed and not answer.reload:
        return Response(status_code=304, headers=headers)
    return Response("".join(changed), headers=headers, media_type="text/html; charset=utf-8")


async def _read(
    request: Request,
    client: AsyncClient,
    rows: list[int],
    read: Read,
    parts: tuple[Part, ...],
    newest: Newest | None,
    pickable: bool,
) -> _Answer:
    rendering = state_of(request).rendering
    shown, listed, newer = await asyncio.gather(
        read(client), _jobs(client, rows), _newer(client, rows, newest)
    )
    made = [(part, rendering.fragment(part.template, {**shown, **part.given})) for part in parts]
    for job in listed:
        part = Part(f"job-{job.id}", "job_table.html")
        html = rendering.fragment(part.template, {"polled": job, "pickable": pickable})
        made.append((part, html))
    if newest is not None:
        part = Part("newer", "newer.html")
        shown = {"newer": newer, "newer_href": newest.href}
        made.append((part, rendering.fragment(part.template, shown)))
    texts = [
        f'<hx-partial hx-target="#{part.target}" hx-swap="{part.swap}">{html}</hx-partial>'
        for part, html in made
    ]
    # A page without rows has no table into which a row could be inserted.
    reload = newest is not None and not rows and newer > 0 and newest.query.cursor is None
    return _Answer({hashlib.sha256(text.encode()).hexdigest()[:10]: text for text in texts}, reload)


async def _jobs(client: AsyncClient, rows: list[int]) -> list[Any]:
    if not rows:
        return []
    ids = ",".join(map(str, rows))
    return list((await client.page(JobFilter(ids=ids, limit=len(rows), brief=True))).jobs)


async def _newer(client: AsyncClient, rows: list[int], newest: Newest | None) -> int:
    """Count the jobs that are newer than all rows, up to PAGE + 1."""
    if newest is None or newest.query.filter is None:
        return 0
    wanted = newest.query.filter.model_copy(
        update={"cursor": None, "limit": PAGE + 1, "brief": True}
    )
    page = await client.page(wanted)
    return sum(job.id > max(rows, default=0) for job in page.jobs)


def _rows(request: Request) -> list[int]:
    numbers = [number for number in request.query_params.get("rows", "").split(",") if number]
    if len(numbers) > ROWS or not all(
        number.isascii() and number.isdecimal() and len(number) < 19 for number in numbers
    ):
        raise UserError("bad_request", f"rows: at most {ROWS} comma-separated job ids")
    return [int(number) for number in numbers]
