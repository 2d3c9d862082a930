"""Filter of the list of jobs, as in the address."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from kgym.api.jobs import JobFilter
from kgym_monitor.pages.bug_filter import ListQuery

# Jobs on a page: rendering more would exceed 50 ms.
PAGE = 30
# Cursors of earlier pages in an address; from the oldest of these, "newer" leads to the first page.
TRAIL = 40
_NAMES = {"kind": "Kind of step", "after": "From day", "before": "To day"}


class JobQuery(ListQuery[JobFilter]):
    """A query as typed by the reader; `filter` is the scheduler's form."""

    home = "/jobs"

    text: str | None = None
    state: str | None = None
    outcome: str | None = None
    kind: str | None = None
    bug: str | None = None
    entry: str | None = None
    tag: str | None = None
    group: str | None = None
    submitter: str | None = None
    after: str | None = None
    before: str | None = None
    mine: str | None = None
    trail: str | None = None
    """Cursors of earlier pages, except the first, which has none."""

    @property
    def is_filtered(self) -> bool:
        """Whether it excludes jobs."""
        return bool(self.conditions)

    @property
    def conditions(self) -> list[tuple[str, str]]:
        """Conditions with their names."""
        values = self.model_dump(exclude_none=True, exclude={"cursor", "trail"})
        return [(_NAMES.get(name, name.capitalize()), value) for name, value in values.items()]

    @property
    def newer_page(self) -> str | None:
        """Address of the page with newer jobs; None on the first page."""
        if self.cursor is None:
            return None
        before, _, last = (self.trail or "").rpartition(".")
        return self.address(cursor=last, trail=before)

    def older_page(self, cursor: str) -> str:
        """Return the address of the page with older jobs, which starts at the cursor."""
        behind = [*(self.trail or "").split("."), self.cursor or ""]
        trail = ".".join([cursor for cursor in behind if cursor][-TRAIL:])
        return self.address(cursor=cursor, trail=trail)

    def checked(self) -> JobFilter:
        """Return the scheduler's filter."""
        dates_and_own = {"after", "before", "mine", "trail"}
        conditions: dict[str, Any] = {
            **self.model_dump(exclude=dates_and_own),
            "mine": self.mine == "yes",
            "created_after": _day(self.after),
            "created_before": _day(self.before, timedelta(days=1)),
            "limit": PAGE,
            "brief": True,
        }
        return JobFilter.model_validate(conditions)


def _day(text: str | None, later: timedelta = timedelta()) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC) + later
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a day such as 2026-01-31") from None
