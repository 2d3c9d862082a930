"""Bugs and SuiteCache entries."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from kgym.api.bugs import BugFilter
from kgym.api.jobs import JobFilter, JobView
from kgym.api.steps import ReproduceResult, Verdict
from kgym.api.suitecache import EntryHolder, EntryView
from kgym.bugs import shipped
from kgym.bugs.shipped import ShippedBug
from kgym.client import AsyncClient
from kgym.errors import NotFound
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import wording
from kgym_monitor.pages.bug_filter import BugQuery, EntryQuery
from kgym_monitor.pages.job_filter import JobQuery
from kgym_monitor.routes.live_pages import Newest, Part, Read, answer_poll, is_poll

readers = APIRouter(dependencies=[needs(Scope.READ)])


@readers.get("/bugs")
async def list_bugs(request: Request) -> Response:
    """Show the requested page of bugs."""
    query = BugQuery.read(request.query_params)
    return await _list(request, "bugs", "Bugs", query, partial(bugs, query=query))


@readers.get("/bugs/{name:path}")
async def show_bug(request: Request, name: str) -> Response:
    """Show a bug and its latest jobs."""
    latest, listed = jobs_of(name), JobQuery(bug=name)
    read = partial(bug, name=name)
    if is_poll(request):
        newest = Newest(listed, request.url.path)
        return await answer_poll(request, read, Part("bug-live", "bug_live.html"), newest=newest)
    client = session_of(request).client
    shown, page = await asyncio.gather(read(client), client.page(latest))
    return state_of(request).rendering.page(
        request,
        "bug.html",
        title=f"Bug {name}",
        live=True,
        jobs=page.jobs,
        pickable=False,
        all_jobs=listed.address(),
        **shown,
    )


@readers.get("/suitecache")
async def list_entries(request: Request) -> Response:
    """Show a page of the stored compiled kernels."""
    query = EntryQuery.read(request.query_params)
    read = partial(entries, query=query)
    return await _list(request, "suitecache", "SuiteCache", query, read)


async def _list(
    request: Request, name: str, title: str, query: BugQuery | EntryQuery, read: Read
) -> Response:
    if is_poll(request):
        return await answer_poll(request, read, Part(f"{name}-live", f"{name}_live.html"))
    shown = await read(session_of(request).client)
    return state_of(request).rendering.page(
        request,
        f"{name}.html",
        title=title,
        live=not shown["fault"],
        first_page=query.address(cursor=None),
        **shown,
    )


# Texts for the state of a bug's patches.
PATCHES = {"resolved": "resolved", "unresolved": "not resolved", "untried": "none tried"}
# Jobs on a bug's page.
JOBS = 20


async def bugs(client: AsyncClient, query: BugQuery) -> dict[str, Any]:
    """Return the contents of the list of bugs; raise KgymError as the client does."""
    wanted = query.filter
    page = await client.bugs(wanted) if wanted is not None else None
    following = query.address(cursor=page.next) if page and page.next else None
    # Shipped bugs without a job come last.
    last = wanted is not None and following is None
    return {
        "bugs": page.bugs if page else [],
        "without_jobs": await _without_jobs(client, wanted) if wanted and last else [],
        "query": query,
        "fault": query.fault,
        "next_page": following,
        "patch_words": PATCHES,
    }


async def _without_jobs(client: AsyncClient, wanted: BugFilter) -> list[ShippedBug]:
    """Return the shipped bugs that match, and that no job has yet."""
    if wanted.outcome is not None or wanted.patch not in (None, "untried"):
        return []
    text, subsystem = (wanted.text or "").casefold(), wanted.subsystem or ""
    matching = [
        bug
        for bug in shipped.by_name().values()
        if text in f"{bug.name} {bug.title}".casefold()
        and bug.title.startswith(wanted.crash_class or "")
        and (not bug.files or bug.files[0].startswith(subsystem))
    ]
    pages = await asyncio.gather(*(client.bugs(BugFilter(name=bug.name)) for bug in matching))
    return [bug for bug, page in zip(matching, pages, strict=True) if not page.bugs]


async def bug(client: AsyncClient, name: str) -> dict[str, Any]:
    """Return the contents of a bug's page; raise NotFound if it neither has jobs nor is shipped."""
    try:
        wanted = BugFilter(name=name)
    except ValueError:
        raise _no_bug(name) from None
    listed = (await client.bugs(wanted)).bugs
    known = shipped.by_name().get(name)
    if not listed and known is None:
        raise _no_bug(name)
    judged = listed[0].judged_job if listed else None
    return {
        "name": name,
        "bug": listed[0] if listed else None,
        "known": known,
        "patch_words": PATCHES,
        **_observed(await client.job(judged) if judged else None),
    }


# Artifacts of the last job that readers of a bug want, by the beginning of their name.
_WANTED = {"reproducer": "Reproducer", "config": "Config"}


def _observed(job: JobView | None) -> dict[str, Any]:
    """Return how often the bug first showed in a job, and links to its files."""
    shown, files = "", dict[str, str]()
    if job is None:
        return {"shown": shown, "files": files}
    for step in job.steps:
        result = step.result
        if isinstance(result, ReproduceResult) and result.verdict is Verdict.SAME_CRASH:
            shown = shown or wording.instances(result)
        for artifact in step.artifacts if not step.artifacts_gone_at else []:
            for beginning, words in _WANTED.items():
                if artifact.name.startswith(beginning) and words not in files:
                    folder = f"/jobs/{job.id}/steps/{step.number}/files"
                    files[words] = f"{folder}/{quote(artifact.name)}"
    return {"shown": shown, "files": files}


def jobs_of(name: str) -> JobFilter:
    """Return the filter for a bug's latest jobs; raise NotFound for an invalid name."""
    try:
        return JobFilter(bug=name, limit=JOBS, brief=True)
    except ValueError:
        raise _no_bug(name) from None


async def entries(client: AsyncClient, query: EntryQuery) -> dict[str, Any]:
    """Return the contents of the list of entries; raise KgymError as the client does."""
    wanted = query.filter
    page = await client.suitecache(wanted) if wanted is not None else None
    following = query.address(cursor=page.next) if page and page.next else None
    return {
        "entries": page.entries if page else [],
        "number": page.number if page else 0,
        "bytes": page.bytes if page else 0,
        "query": query,
        "fault": query.fault,
        "next_page": following,
        "hosts": hosts,
    }


def hosts(entry: EntryView) -> Mapping[str, Sequence[EntryHolder]]:
    """Return an entry's workers by host: workers of one host share a copy."""
    by_host = defaultdict[str, list[EntryHolder]](list)
    for holder in entry.holders:
        by_host[holder.worker.partition(":")[0]].append(holder)
    return by_host


def _no_bug(name: str) -> NotFound:
    return NotFound(
        "bug_not_found", f"no job has the bug {name!r}, and no shipped bug has this name"
    )
