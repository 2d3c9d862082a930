"""Groups of jobs: /v1/groups."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from kgym.api import result_csv
from kgym.api.bulk import Aborted
from kgym.api.groups import (
    GroupFilter,
    GroupPage,
    GroupResultFilter,
    GroupResultPage,
    GroupView,
)
from kgym.api.jobs import GroupName, Submitter
from kgym.web.problems import documented
from kgym.web.routing import as_json, router
from kgym.web.scopes import Scope
from kgym_scheduler.api.routing import Core, caller_of
from kgym_scheduler.scheduler import Scheduler

# Of CSV that are read, and sent, at a time.
LINES = 500

Named = Annotated[GroupName, Path(description="of the group")]
Whose = Annotated[Submitter | None, Query(description="whose group; the caller's without it")]

readers = router(Scope.READ)
submitters = router(Scope.SUBMIT)


@readers.get(
    "/groups",
    summary="List groups of jobs",
    tags=["groups"],
    response_model=GroupPage,
    responses=documented(),
)
async def list_groups(
    http: Request, scheduler: Core, wanted: Annotated[GroupFilter, Query()]
) -> Response:
    """Show groups, newest first. Give `next` as `cursor` to see the page that follows.

    A group is there as long as one of its jobs is. Where the groups of a page have tens of
    thousands of jobs, their counts may be up to ten seconds old.
    """
    return as_json(await scheduler.groups(wanted, caller_of(http).name))


@readers.get(
    "/groups/{name}",
    summary="Show a group",
    tags=["groups"],
    response_model=GroupView,
    responses=documented(404),
)
async def show_group(
    http: Request, scheduler: Core, name: Named, submitter: Whose = None
) -> Response:
    """Count the jobs of a group, as they stand and by what they came to.

    Counts of tens of thousands of jobs may be up to ten seconds old.
    """
    return as_json(await scheduler.group(submitter or caller_of(http).name, name))


@readers.get(
    "/groups/{name}/results",
    summary="Show what a group's jobs came to",
    tags=["groups"],
    response_model=GroupResultPage,
    responses=documented(
        404, answers={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}
    ),
)
async def group_results(
    http: Request,
    scheduler: Core,
    name: Named,
    wanted: Annotated[GroupResultFilter, Query()],
) -> Response:
    """Show a row for each job, oldest first, whether it has ended or not.

    As CSV, a cell that a spreadsheet would take for a formula begins with an apostrophe.
    """
    submitter, after = wanted.submitter or caller_of(http).name, int(wanted.cursor or 0)
    if wanted.format == "json":
        return as_json(await scheduler.group_results(submitter, name, after, wanted.limit))
    first = await scheduler.group_results(submitter, name, after, LINES)
    return StreamingResponse(
        _lines(scheduler, submitter, name, first),
        media_type="text/csv; header=present",
        headers={"Content-Disposition": 'attachment; filename="results.csv"'},
    )


async def _lines(
    scheduler: Scheduler, submitter: str, name: str, page: GroupResultPage
) -> AsyncIterator[str]:
    yield result_csv.header() + result_csv.lines(page.results)
    while page.next is not None:
        page = await scheduler.group_results(submitter, name, int(page.next), LINES)
        yield result_csv.lines(page.results)


@submitters.post(
    "/groups/{name}/abort",
    summary="Abort a group's jobs",
    tags=["groups"],
    response_model=Aborted,
    responses=documented(404),
)
async def abort_group(
    http: Request, scheduler: Core, name: Named, submitter: Whose = None
) -> Response:
    """End all unfinished jobs of the group now, or the first thousand: `more` says so.

    Only the group's submitter may, and `admin`.
    """
    caller = caller_of(http)
    done = await scheduler.abort_group(submitter or caller.name, name, caller.owner)
    return as_json(done)
