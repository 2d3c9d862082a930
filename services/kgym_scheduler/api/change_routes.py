"""The feed of all jobs' changes: /v1/changes."""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Query, Request, Response

from kgym.api.changes import ChangeFilter, ChangePage, Cursor
from kgym.errors import InfrastructureError
from kgym.web.event_stream import EventStream
from kgym.web.problems import documented
from kgym.web.routing import as_json, router
from kgym.web.scopes import Scope
from kgym_scheduler.api.routing import Core, caller_of
from kgym_scheduler.change_feed import ChangeFeed

readers = router(Scope.READ)

_STREAM = {
    "description": "One event of the stream, its fields as an object",
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "what `Last-Event-ID` takes; may come alone"},
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
    summary="Follow all jobs",
    tags=["jobs"],
    response_model=ChangePage,
    responses=documented(answers={200: {"content": {"text/event-stream": {"schema": _STREAM}}}}),
)
async def changes(
    request: Request,
    scheduler: Core,
    wanted: Annotated[ChangeFilter, Query()],
    accept: Annotated[
        str,
        Header(
            max_length=1000,
            description="`text/event-stream` for the stream, which takes no `limit`",
        ),
    ] = "",
    last_event_id: Annotated[
        Cursor | None, Header(description="before `after`, as browsers send it by themselves")
    ] = None,
) -> Response:
    """Show what has changed in any job: as a page, or as a stream that goes on.

    Nothing is left out, and all is in the order in which the cursors ascend: within a job, the
    order in which it happened. Whoever goes on from a cursor misses nothing; one that is too old
    gives `reset`.
    """
    if "text/event-stream" not in accept:
        after = None if wanted.after is None else int(wanted.after)
        return as_json(await scheduler.changes.page(after, wanted.limit))
    since = last_event_id or wanted.after
    with contextlib.ExitStack() as slot:
        slot.enter_context(request.app.streams.opened(caller_of(request).name))
        changes = _sent(scheduler.changes, None if since is None else int(since))
        return EventStream(changes, slot.pop_all())


async def _sent(feed: ChangeFeed, after: int | None) -> AsyncIterator[bytes]:
    with contextlib.suppress(InfrastructureError):  # the stream ends, and clients come back
        async for text in feed.follow(after):
            yield text
