"""The parts of pages that are rendered again when something changes, each by its key."""

import json
from typing import Any
from urllib.parse import parse_qsl

from kgym.api.jobs import JobFilter
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, NotFound
from kgym_monitor.live import running_agents, runs_list
from kgym_monitor.live.agent_link import AgentLink
from kgym_monitor.live.fragments import SUMMARY_SECONDS, Key, event, partial
from kgym_monitor.live.shared_answers import SharedAnswer
from kgym_monitor.live.step_counts import StepCounts
from kgym_monitor.pages import job_page, subject_pages
from kgym_monitor.pages.bug_filter import BugQuery, EntryQuery
from kgym_monitor.pages.job_filter import PAGE, JobQuery
from kgym_monitor.pages.rendering import Rendering
from kgym_monitor.pages.run_page import RunQuery
from kgym_monitor.pages.step_history import SPANS, StepHistory

NEWEST = PAGE + 1
"""Jobs of a list that are looked at for newer ones."""


def row(job: int, *, pickable: bool) -> Key:
    """Return the key of a row in a list of jobs, in which they may be selected or not."""
    return Key("row", job, "pickable" if pickable else "")


def job_part(job: int, step: int | None, attempt: int | None) -> Key:
    """Return the key of a job's page: of what it shows, where a step is chosen."""
    return Key("job", job, f"{'' if step is None else step},{'' if attempt is None else attempt}")


def place(job: int) -> Key:
    """Return the key of why a job waits: that changes as other jobs do."""
    return Key("place", job, ages=True)


def newest(query: str) -> Key:
    """Return the key of the numbers of the newest jobs of a list with this query."""
    return Key("newest", None, query)


def runs(query: str) -> Key:
    """Return the key of the table of runs of a list with this query."""
    return Key("runs", None, query, quiet_seconds=SUMMARY_SECONDS)


OVERVIEW = Key("overview")
WORKERS = Key("workers")
HISTORIES = {f"history-{name}": Key("history", detail=name) for name in SPANS}
"""What steps came to, by range."""


SUBJECTS = ("bugs", "bug", "suitecache")
"""Summaries of what a page asks for: of a list by its query, of a bug by its name."""
SUBJECT_SECONDS = 4.0
"""How often they are rendered where nothing changes: they are counted behind the changes."""


def subject(kind: str, of: str) -> Key:
    """Return the key of one of these: of a list's query, or of a bug."""
    return Key(kind, None, of, quiet_seconds=SUBJECT_SECONDS)


class LiveParts:
    """Renders them from what the scheduler says."""

    def __init__(
        self,
        client: AsyncClient,
        agent: AgentLink,
        rendering: Rendering,
        step_counts: StepCounts,
        platform: SharedAnswer[dict[str, Any]],
    ) -> None:
        self._client = client
        self._platform = platform
        self._agent = agent
        self._rendering = rendering
        self._step_counts = step_counts
        self._histories: dict[str, tuple[StepHistory, str]] = {}
        """By range: the one that was rendered last, and the event that it is."""

    async def render(self, key: Key) -> str:
        """Return the event that brings the part to pages; raises KgymError as the client does."""
        match key.kind:
            case "row" | "job" | "place" if key.job is not None:
                return await self._of_job(key, key.job)
            case "newest":
                return await self._newest(key.detail)
            case "history":
                return await self._history(key.detail)
            case "bugs" | "bug" | "suitecache" | "runs":
                return await self._subject(key)
        return await self._scheduler_s(key)

    async def _scheduler_s(self, key: Key) -> str:
        match key.kind:
            case "overview":
                shown = await self._platform.read() | await running_agents.read(self._agent)
                return partial("overview-live", self._fragment("overview_live.html", shown))
            case "workers":
                shown = {"workers": await self._client.workers()}
                return partial("workers-live", self._fragment("workers_live.html", shown))
        raise InfrastructureError("unknown_part", f"no page has a part {key}")

    async def _of_job(self, key: Key, number: int) -> str:
        match key.kind:
            case "row":
                return await self._row(number, pickable=bool(key.detail))
            case "place":
                return await self._place(number)
        return await self._job(number, key.detail)

    async def _subject(self, key: Key) -> str:
        of, asked = self._client, dict(parse_qsl(key.detail))
        if key.kind == "bug":
            shown = await subject_pages.bug(of, key.detail)
        elif key.kind == "bugs":
            shown = await subject_pages.bugs(of, BugQuery.read(asked))
        elif key.kind == "runs":
            shown = await runs_list.read(self._agent, RunQuery.read(asked))
        else:
            shown = await subject_pages.entries(of, EntryQuery.read(asked))
        return partial(f"{key.kind}-live", self._fragment(f"{key.kind}_live.html", shown))

    async def _row(self, number: int, *, pickable: bool) -> str:
        page = await self._client.page(JobFilter(ids=str(number), brief=True))
        if not page.jobs:
            raise NotFound("job_not_found", f"there is no job {number}")
        shown = {"job": page.jobs[0], "pickable": pickable}
        return partial(f"job-{number}", self._fragment("job_row.html", shown))

    async def _job(self, number: int, detail: str) -> str:
        step, attempt = (int(part) if part else None for part in detail.split(","))
        job = await self._client.job(number)
        shown = job_page.shown(job, step, attempt) | await job_page.place(self._client, job)
        return partial("job-live", self._fragment("job_live.html", shown))

    async def _history(self, name: str) -> str:
        history = await self._step_counts.of(SPANS[name])
        known = self._histories.get(name)
        if known is None or known[0] is not history:
            html = self._fragment("overview_history.html", {"history": history})
            known = self._histories[name] = history, partial("history-live", html)
        return known[1]

    async def _place(self, number: int) -> str:
        shown = await job_page.place(self._client, await self._client.job(number))
        return partial("job-place", self._fragment("job_place.html", shown)) * bool(shown["queued"])

    async def _newest(self, query: str) -> str:
        wanted = JobQuery.read(dict(parse_qsl(query))).filter or JobFilter()
        wanted = wanted.model_copy(update={"cursor": None, "limit": NEWEST, "brief": True})
        page = await self._client.page(wanted)
        return event("newest", json.dumps([job.id for job in page.jobs]))

    def _fragment(self, template: str, shown: dict[str, object]) -> str:
        return self._rendering.fragment(template, shown)
