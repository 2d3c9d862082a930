"""The feed of all jobs' changes: /v1/changes."""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Query, Request, Response

from kgym.api.changes import ChangeFilter, ChangePage, Cursor
from kgym.errors import InfrastructureError
from kgym.web.event_stream import EventStream
from kgym.web.routing import as_json, described, router
from kgym.web.scopes import Scope
from kgym_scheduler.change_feed import ChangeFeed
from kgym_scheduler.routing import Core, caller_of

readers = router(Scope.READ, "jobs")

_STREAM = {
    "description": "One event of the stream, its fields as an object",
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "for `Last-Event-ID`; may come alone"},
        "event": {"enum": ["begin", "reset", "state", "tags", "worker"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/Change"},
        },
    },
}


@readers.get(
    "/changes",
    **described(
        "Follow all jobs",
        ChangePage,
        answers={200: {"content": {"text/event-stream": {"schema": _STREAM}}}},
    ),
)
async def changes(
    request: Request,
    scheduler: Core,
    page: Annotated[ChangeFilter, Query()],
    accept: Annotated[
        str,
        Header(
            max_length=1000,
            description="`text/event-stream` for the stream, which takes no `limit`",
        ),
    ] = "",
    last_event_id: Annotated[
        Cursor | None, Header(description="overrides `after`; browsers send it by themselves")
    ] = None,
) -> Response:
    """Return the changes of all jobs, as a page or as an endless stream.

    They are complete and in ascending order of their cursors; a job's changes are in the order in
    which they happened. A client that goes on from a cursor misses nothing; a cursor that is too
    old gives `reset`.
    """
    if "text/event-stream" not in accept:
        after = None if page.after is None else int(page.after)
        return as_json(await scheduler.changes.page(after, page.limit))
    since = last_event_id or page.after
    with contextlib.ExitStack() as slot:
        slot.enter_context(request.app.streams.opened(caller_of(request).name))
        changes = _sent(scheduler.changes, None if since is None else int(since))
        return EventStream(changes, slot.pop_all())


async def _sent(feed: ChangeFeed, after: int | None) -> AsyncIterator[bytes]:
    with contextlib.suppress(InfrastructureError):  # the stream ends, and clients reconnect
        async for text in feed.follow(after):
            yield text
