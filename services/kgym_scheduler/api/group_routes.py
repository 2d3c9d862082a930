"""Groups of jobs: /v1/groups."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from kgym.api import csv_text
from kgym.api.bulk import Aborted
from kgym.api.groups import GroupFilter, GroupPage, GroupView
from kgym.api.jobs import GroupName, Submitter
from kgym.api.patch_rows import PatchFilter, PatchPage
from kgym.web.routing import as_json, described, router
from kgym.web.scopes import Scope
from kgym_scheduler.routing import Core, caller_of
from kgym_scheduler.scheduler import Scheduler

# Lines of CSV that are read and sent at a time.
LINES = 500

Named = Annotated[GroupName, Path(description="of the group")]
Whose = Annotated[
    Submitter | None, Query(description="the group's submitter; by default the caller")
]

readers = router(Scope.READ, "groups")
submitters = router(Scope.SUBMIT, "groups")


@readers.get("/groups", **described("List groups of jobs", GroupPage))
async def list_groups(
    http: Request, scheduler: Core, conditions: Annotated[GroupFilter, Query()]
) -> Response:
    """List groups, newest first. Pass `next` as `cursor` to get the next page.

    A group exists as long as one of its jobs does. If the groups of a page have tens of thousands
    of jobs, their counts may be up to ten seconds old.
    """
    return as_json(await scheduler.store.groups(conditions, caller_of(http).name))


@readers.get("/groups/{name}", **described("Show a group", GroupView, 404))
async def show_group(
    http: Request, scheduler: Core, name: Named, submitter: Whose = None
) -> Response:
    """Count the jobs of a group by outcome.

    Counts of tens of thousands of jobs may be up to ten seconds old.
    """
    return as_json(await scheduler.store.group(submitter or caller_of(http).name, name))


@readers.get(
    "/groups/{name}/patches",
    **described(
        "Show the patches of a group",
        PatchPage,
        404,
        answers={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
    ),
)
async def group_patches(
    http: Request, scheduler: Core, name: Named, part: Annotated[PatchFilter, Query()]
) -> Response:
    """Return a row for each patch, also of unfinished jobs; the oldest job comes first.

    A patch that was checked and then tried has the row of its trial. A job without a patch has a
    row as well. In CSV, a cell that a spreadsheet would take for a formula begins with an
    apostrophe.
    """
    submitter, after = part.submitter or caller_of(http).name, int(part.cursor or 0)
    if part.format == "json":
        return as_json(await scheduler.store.group_patches(submitter, name, after, part.limit))
    first = await scheduler.store.group_patches(submitter, name, after, LINES)
    return StreamingResponse(
        _lines(scheduler, submitter, name, first),
        media_type="text/csv; header=present",
        headers={"Content-Disposition": 'attachment; filename="patches.csv"'},
    )


async def _lines(
    scheduler: Scheduler, submitter: str, name: str, page: PatchPage
) -> AsyncIterator[str]:
    yield csv_text.header() + csv_text.lines(page.patches)
    while page.next is not None:
        page = await scheduler.store.group_patches(submitter, name, int(page.next), LINES)
        yield csv_text.lines(page.patches)


@submitters.post("/groups/{name}/abort", **described("Abort a group's jobs", Aborted, 404))
async def abort_group(
    http: Request, scheduler: Core, name: Named, submitter: Whose = None
) -> Response:
    """Abort the group's unfinished jobs, at most a thousand; `more` tells if there are others.

    Only the group's submitter and `admin` may do this.
    """
    caller = caller_of(http)
    return as_json(await scheduler.abort_group(submitter or caller.name, name, caller.owner))
