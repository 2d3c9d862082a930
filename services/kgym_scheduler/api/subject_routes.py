"""What jobs are about: /v1/bugs, and the entries of SuiteCache, /v1/suitecache."""

from typing import Annotated

from fastapi import Query, Response

from kgym.api.bugs import BugFilter, BugPage
from kgym.api.suitecache import EntryFilter, EntryPage
from kgym.web.problems import documented
from kgym.web.routing import as_json, router
from kgym.web.scopes import Scope
from kgym_scheduler.api.routing import Core

readers = router(Scope.READ)


@readers.get(
    "/bugs",
    summary="List bugs",
    tags=["scheduler"],
    response_model=BugPage,
    responses=documented(),
)
async def list_bugs(scheduler: Core, wanted: Annotated[BugFilter, Query()]) -> Response:
    """Show bugs, those active last first, counted over all jobs that name them.

    A bug is there as long as a job has the tag `bug=` and its name. The counts are a few seconds
    old. Give `next` as `cursor` to see the page that follows.
    """
    return as_json(await scheduler.bugs(wanted))


@readers.get(
    "/suitecache",
    summary="List SuiteCache's entries",
    tags=["scheduler"],
    response_model=EntryPage,
    responses=documented(),
)
async def list_entries(scheduler: Core, wanted: Annotated[EntryFilter, Query()]) -> Response:
    """Show the compiled kernels that are kept, where, and what jobs on them came to.

    Those used last come first. `GET /v1/jobs?entry=NAME` lists the jobs of one.
    """
    return as_json(await scheduler.suitecache(wanted))
