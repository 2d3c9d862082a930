"""Groups: the patches of one, and two patches side by side."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from kgym.api import csv_text
from kgym.api.patch_rows import PatchRow
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import group_page
from kgym_monitor.pages.group_page import PatchQuery
from kgym_monitor.routes.live_pages import Part, live_page

readers = APIRouter(dependencies=[needs(Scope.READ)])


@readers.get("/groups/{name}")
async def show_group(request: Request, name: str) -> Response:
    """Show the patches of a group."""
    query = PatchQuery.read(request.query_params)
    read = partial(group_page.shown, name=name, query=query)
    # Without a submitter in the address, the group is the reader's own.
    private = query.submitter is None
    count = len(range(0, group_page.MOST, group_page.PART))
    each = ((f"patches-{n}", {"number": n}) for n in range(count))
    rows = (Part(target, "group_rows.html", given=given) for target, given in each)
    parts = Part("group-live", "group_live.html"), *rows
    return await live_page(request, read, "group.html", f"Group {name}", *parts, private=private)


@readers.get("/groups/{name}/patches.csv")
async def download(request: Request, name: str, submitter: str | None = None) -> Response:
    """Send the patches of a group as CSV."""
    rows = session_of(request).client.group_patches(name, submitter)
    # A group may have a million patches, and an error must occur before the status line is sent.
    first = await anext(rows, None)
    headers = {"Content-Disposition": 'attachment; filename="patches.csv"'}
    content = _lines([] if first is None else [first], rows)
    return StreamingResponse(content, headers=headers, media_type="text/csv; header=present")


async def _lines(first: Sequence[PatchRow], rows: AsyncIterator[PatchRow]) -> AsyncIterator[str]:
    yield csv_text.header() + csv_text.lines(first)
    async for row in rows:
        yield csv_text.lines([row])


@readers.get("/patches/compare")
async def compare(
    request: Request, named: Annotated[list[str], Query(alias="with", max_length=2)]
) -> Response:
    """Show two patches side by side."""
    client = session_of(request).client
    sides = await asyncio.gather(*(group_page.side(client, key) for key in named))
    return state_of(request).rendering.page(
        request, "patch_compare.html", title="Compare patches", sides=sides
    )
