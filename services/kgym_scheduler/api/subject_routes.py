"""What jobs are about: /v1/bugs, and the entries of SuiteCache, /v1/suitecache."""

from typing import Annotated

from fastapi import Path, Query, Response

from kgym.api.bugs import BugFilter, BugPage
from kgym.api.suitecache import ENTRY, DroppedEntry, EntryFilter, EntryPage, EntryView
from kgym.web.problems import documented
from kgym.web.routing import as_json, router
from kgym.web.scopes import Scope
from kgym_scheduler.api.routing import Core

EntryPath = Annotated[str, Path(max_length=64, pattern=f"^{ENTRY.pattern}$")]

readers = router(Scope.READ)
admins = router(Scope.ADMIN)


@readers.get(
    "/bugs",
    summary="List bugs",
    tags=["scheduler"],
    response_model=BugPage,
    responses=documented(),
)
async def list_bugs(scheduler: Core, wanted: Annotated[BugFilter, Query()]) -> Response:
    """Show bugs, those active last first, counted over all jobs that name them.

    A bug is there as long as a job has the tag `bug=` and its name. Where there are tens of
    thousands of jobs, the counts may be up to ten seconds old. Give `next` as
    `cursor` to see the page that follows.
    """
    return as_json(await scheduler.counts.bugs(wanted))


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


@readers.get(
    "/suitecache/{name}",
    summary="Show an entry of SuiteCache",
    tags=["scheduler"],
    response_model=EntryView,
    responses=documented(404),
)
async def entry(scheduler: Core, name: EntryPath) -> Response:
    """Show a compiled kernel: where it is kept, what jobs on it came to, and how it was made."""
    return as_json(await scheduler.suitecache_entry(name))


@admins.delete(
    "/suitecache/{name}",
    summary="Drop an entry of SuiteCache",
    tags=["scheduler"],
    response_model=DroppedEntry,
    responses=documented(404, 409),
)
async def drop(scheduler: Core, name: EntryPath) -> Response:
    """Remove a compiled kernel from storage; workers remove their copies when nobody uses them.

    It is refused while a step makes it, or jobs on it have not finished. Who needs it next makes
    it again.
    """
    return as_json(await scheduler.drop_entry(name))
