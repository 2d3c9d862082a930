"""What the pages of bugs and of SuiteCache show, and their live parts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from kgym.api.bugs import BugFilter, BugView
from kgym.api.jobs import JobFilter
from kgym.api.states import State
from kgym.api.suitecache import EntryHolder, EntryView
from kgym.bugs import shipped
from kgym.bugs.shipped import ShippedBug
from kgym.client import AsyncClient
from kgym.errors import NotFound, UserError
from kgym_monitor.pages.bug_filter import BugQuery, EntryQuery

# What is known of patches for a bug, in words.
PATCHES = {
    "resolved": "resolved",
    "unresolved": "not resolved",
    "untried": "none tried",
}
_STATES = (State.RUNNING, State.QUEUED, State.SUCCEEDED, State.FAILED, State.ABORTED, State.PENDING)
# Jobs on the page of a bug.
JOBS = 20


async def bugs(client: AsyncClient, query: BugQuery) -> dict[str, Any]:
    """Return what the list of bugs shows; raises KgymError as the client does."""
    wanted, fault = query.filter
    page = await client.bugs(wanted) if wanted is not None else None
    following = query.address("/bugs", cursor=page.next) if page and page.next else None
    return {
        "bugs": page.bugs if page else [],
        "query": query,
        "fault": fault,
        "next_page": following,
        "patch_words": PATCHES,
        "in_states": in_states,
    }


async def bug(client: AsyncClient, name: str) -> dict[str, Any]:
    """Return what the page of a bug shows; raises NotFound if no job names it and none ships it."""
    try:
        wanted = BugFilter(name=name)
    except ValueError:
        raise _no_bug(name) from None
    listed = (await client.bugs(wanted)).bugs
    known = _shipped().get(name)
    if not listed and known is None:
        raise _no_bug(name)
    return {
        "name": name,
        "bug": listed[0] if listed else None,
        "known": known,
        "patch_words": PATCHES,
        "in_states": in_states,
    }


def jobs_of(name: str) -> JobFilter:
    """Return the filter of the latest jobs on a bug; raises NotFound for what names none."""
    try:
        return JobFilter(bug=name, limit=JOBS, brief=True)
    except ValueError:
        raise _no_bug(name) from None


async def entries(client: AsyncClient, query: EntryQuery) -> dict[str, Any]:
    """Return what the list of entries shows; raises KgymError as the client does."""
    wanted, fault = query.filter
    page = await client.suitecache(wanted) if wanted is not None else None
    following = query.address("/suitecache", cursor=page.next) if page and page.next else None
    return {
        "entries": page.entries if page else [],
        "number": page.number if page else 0,
        "bytes": page.bytes if page else 0,
        "query": query,
        "fault": fault,
        "next_page": following,
        "in_states": in_states,
        "hosts": hosts,
    }


def in_states(subject: BugView | EntryView) -> list[tuple[State, int]]:
    """Return how many of its jobs have each state, those that go on first."""
    return [(state, subject.states[state]) for state in _STATES if subject.states.get(state)]


def hosts(entry: EntryView) -> Mapping[str, Sequence[EntryHolder]]:
    """Return the workers that hold an entry by their hosts: those of one host share its copy."""
    by_host = defaultdict[str, list[EntryHolder]](list)
    for holder in entry.holders:
        by_host[holder.worker.partition(":")[0]].append(holder)
    return by_host


def _no_bug(name: str) -> NotFound:
    return NotFound("bug_not_found", f"no job is on a bug {name!r}, and none of this name ships")


@cache
def _shipped() -> Mapping[str, ShippedBug]:
    try:
        return {bug.name: bug for bug in shipped.shipped()}
    except UserError:
        return {}
