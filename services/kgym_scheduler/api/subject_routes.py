"""Bugs, /v1/bugs, and SuiteCache's entries, /v1/suitecache."""

from typing import Annotated

from fastapi import Path, Query, Response

from kgym.api.bugs import BugFilter, BugPage
from kgym.api.suitecache import ENTRY, DroppedEntry, EntryFilter, EntryPage, EntryView
from kgym.web.routing import as_json, described, router
from kgym.web.scopes import Scope
from kgym_scheduler.routing import Core

EntryPath = Annotated[str, Path(max_length=64, pattern=f"^{ENTRY.pattern}$")]

readers = router(Scope.READ, "scheduler")
admins = router(Scope.ADMIN, "scheduler")


@readers.get("/bugs", **described("List bugs", BugPage))
async def list_bugs(scheduler: Core, conditions: Annotated[BugFilter, Query()]) -> Response:
    """List bugs, the last active ones first, with the counts of all jobs that name them.

    A bug exists as long as a job has the tag `bug=NAME`. If there are tens of thousands of jobs,
    the counts may be up to ten seconds old. Pass `next` as `cursor` to get the next page.
    """
    return as_json(await scheduler.store.counts.bugs(conditions))


@readers.get("/suitecache", **described("List SuiteCache's entries", EntryPage))
async def list_entries(scheduler: Core, conditions: Annotated[EntryFilter, Query()]) -> Response:
    """List the compiled kernels, where they are stored, and the results of jobs on them.

    The last used ones come first. `GET /v1/jobs?entry=NAME` lists the jobs of one.
    """
    return as_json(await scheduler.entries.page(conditions))


@readers.get("/suitecache/{name}", **described("Show an entry of SuiteCache", EntryView, 404))
async def entry(scheduler: Core, name: EntryPath) -> Response:
    """Return a compiled kernel: where it is stored, the results of its jobs, how it was made."""
    return as_json(await scheduler.entries.get(name))


@admins.delete(
    "/suitecache/{name}", **described("Drop an entry of SuiteCache", DroppedEntry, 404, 409)
)
async def drop(scheduler: Core, name: EntryPath) -> Response:
    """Remove a compiled kernel from storage; workers remove unused copies.

    Refused while a step makes it, or while jobs on it have not finished. The next step that needs
    it makes it again.
    """
    return as_json(await scheduler.entries.drop(name))
