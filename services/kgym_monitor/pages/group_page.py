"""Contents of a group's page: its patches, filtered, sorted and counted; and two of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kgym.api.groups import GroupView
from kgym.api.jobs import JobView
from kgym.api.outcomes import Outcome
from kgym.api.patch_rows import PatchRow
from kgym.api.steps import CheckSpec, ReproduceResult
from kgym.bugs.checklist import Item
from kgym.bugs.conclusion import check_outcome, check_reason, conclusion
from kgym.client import AsyncClient
from kgym.errors import NotFound, UserError
from kgym_monitor.pages import check_results
from kgym_monitor.pages.bug_filter import Typed
from kgym_monitor.pages.check_results import CheckedPatch

# Rows that are read: sorting needs all of them.
MOST = 1000
# Rows that are sent again as soon as one of them changes.
PART = 50

# Columns by which rows are sorted, with the value of a row; None comes last.
_VALUES: dict[str, Callable[[PatchRow], Any]] = {
    "job": lambda row: row.job,
    "patch": lambda row: (row.bug or "", row.patch or ""),
    "outcome": lambda row: list(Outcome).index(row.outcome),
    "confidence": lambda row: row.confidence,
    "size": lambda row: None if row.added is None else row.added + (row.removed or 0),
    "files": lambda row: row.files,
    "seconds": lambda row: row.seconds,
}


class PatchQuery(Typed):
    """Which patches of a group are shown, and in which order."""

    submitter: str | None = None
    outcome: str | None = None
    text: str | None = None
    sort: str | None = None
    down: str | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether it leaves out patches."""
        return self.outcome is not None or self.text is not None

    def order(self, column: str) -> dict[str, str | None]:
        """Return the changes to the address that sort by a column, or reverse its order."""
        turned = self.sort == column and not self.down
        return {"sort": column, "down": "yes" if turned else None}

    def chosen(self, rows: Sequence[PatchRow]) -> list[PatchRow]:
        """Return the matching rows in the wanted order; raise UserError for an unknown column."""
        text = (self.text or "").lower()
        rows = [
            row
            for row in rows
            if self.outcome in (None, row.outcome)
            and text in " ".join([row.bug or "", row.patch or "", *row.tags]).lower()
        ]
        if self.sort is None:
            return rows
        if (value := _VALUES.get(self.sort)) is None:
            raise UserError("bad_request", f"sort: one of {', '.join(_VALUES)}")
        known = [row for row in rows if value(row) is not None]
        rest = [row for row in rows if value(row) is None]
        return sorted(known, key=value, reverse=self.down is not None) + rest


async def shown(client: AsyncClient, name: str, query: PatchQuery) -> dict[str, Any]:
    """Return the contents of a group's page; raise KgymError as the client does."""
    group: GroupView = await client.group(name, query.submitter)
    rows: list[PatchRow] = []
    async for row in client.group_patches(name, group.submitter):
        rows.append(row)
        if len(rows) > MOST:
            break
    cut = len(rows) > MOST
    rows = rows[:MOST]
    counts = Counter(row.outcome for row in rows)
    chosen = query.chosen(rows)
    return {
        "group": group,
        "query": query,
        "rows": chosen,
        # The number of parts does not depend on the rows: an open page cannot add any.
        "parts": [chosen[first : first + PART] for first in range(0, MOST, PART)],
        "counts": [(outcome, counts[outcome]) for outcome in Outcome if counts[outcome]],
        "total": len(rows),
        "cut": cut,
        "same": _copies(rows),
    }


def key(row: PatchRow) -> str:
    """Return a patch's key in addresses: its job, and its name, since a job may check several."""
    return f"{row.job}:{row.patch or ''}"


def _copies(rows: Sequence[PatchRow]) -> dict[str, PatchRow]:
    """Return, by key, the first patch on the same bug with the same content."""
    first: dict[tuple[str | None, str], PatchRow] = {}
    copies = {}
    for row in rows:
        if row.change is not None:
            original = first.setdefault((row.bug, row.change), row)
            # A patch that was checked and then tried is no copy of itself.
            if original is not row and original.patch != row.patch:
                copies[key(row)] = original
    return copies


@dataclass(frozen=True, slots=True)
class Side:
    """One of two patches that are compared."""

    name: str
    job: JobView
    outcome: Outcome
    reason: str | None
    patches: Sequence[CheckedPatch]
    evidence: Sequence[Item] = ()
    title: str | None = None
    report: str | None = None
    """The address of the step with the crash report, if the kernel with the patch crashed."""


async def side(client: AsyncClient, named: str) -> Side:
    """Return a patch that is named as `key` does; raise NotFound if there is none."""
    number, _, name = named.partition(":")
    if not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise NotFound("patch_not_found", f"{named[:100]!r} is not JOB:PATCH")
    job = await client.job(int(number))
    for step in job.steps:
        if isinstance(step.spec, CheckSpec):
            asked = [patch.name for patch in step.spec.patches]
            # The only patch of a job may have another name in the job's tag.
            places = [place for place, own in enumerate(asked) if own == name or len(asked) == 1]
            patch = check_results.patch(step, places[0]) if len(places) == 1 else None
            if patch is None:
                count = f"{len(places)} patches" if places else "no patch"
                message = f"job {job.id} checks {count} named {name[:100]!r}"
                raise NotFound("patch_not_found", message)
            return _checked(job, patch)
    return _tried(name, job)


def _checked(job: JobView, patch: CheckedPatch) -> Side:
    if (check := patch.check) is None:
        return Side(patch.name, job, job.outcome, job.reason, [patch])
    return Side(patch.name, job, check_outcome(check.outcome), check_reason(check), [patch])


def _tried(name: str, job: JobView) -> Side:
    patches, last = check_results.on_trial(job), job.steps[-1]
    title = last.result.title if isinstance(last.result, ReproduceResult) else None
    report = f"/jobs/{job.id}?step={last.number}" if title else None
    name = name or (patches[0].name if patches else f"job {job.id}")
    evidence = conclusion(job).evidence
    return Side(name, job, job.outcome, job.reason, patches, evidence, title, report)
