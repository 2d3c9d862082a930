"""The filter of the list of jobs, as it stands in the address."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, ValidationError

from kgym.api.jobs import JobFilter

# Jobs on a page.
PAGE = 30

# Pages back that the address of a page leads to; from there on, to the newest.
TRAIL = 40
_NAMES = {"kind": "Kind of step", "after": "From day", "before": "To day"}


class JobQuery(BaseModel):
    """What the reader has asked for, as it was typed; `filter` is what the scheduler takes."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    text: str | None = None
    state: str | None = None
    verdict: str | None = None
    kind: str | None = None
    bug: str | None = None
    entry: str | None = None
    tag: str | None = None
    group: str | None = None
    submitter: str | None = None
    after: str | None = None
    before: str | None = None
    mine: str | None = None
    cursor: str | None = None
    trail: str | None = None
    """The cursors of the pages before this one but the first's, which has none."""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "JobQuery":
        """Return what the address says; empty fields of a form say nothing."""
        return cls(**{name: value.strip() for name, value in query.items() if value.strip()})

    @property
    def fault(self) -> str | None:
        """What is wrong with it, for the reader."""
        try:
            self._read()
        except (ValidationError, ValueError) as error:
            return _words(error)
        return None

    @property
    def filter(self) -> JobFilter | None:
        """The same for the scheduler; None if something is wrong with it."""
        return None if self.fault else self._read()

    @property
    def is_filtered(self) -> bool:
        """Whether it leaves jobs out."""
        return bool(self.conditions)

    @property
    def conditions(self) -> list[tuple[str, str]]:
        """What it asks for, each condition with its name."""
        values = self.model_dump(exclude_none=True, exclude={"cursor", "trail"})
        return [(_NAMES.get(name, name.capitalize()), value) for name, value in values.items()]

    def address(self, path: str = "/jobs", **changed: str | None) -> str:
        """Return the address of the list with this query, some of it changed."""
        values = self.model_dump(exclude_none=True) | changed
        query = urlencode({name: value for name, value in values.items() if value})
        return f"{path}?{query}" if query else path

    @property
    def newer_page(self) -> str | None:
        """The address of the page before this one; None of the first."""
        if self.cursor is None:
            return None
        before, _, last = (self.trail or "").rpartition(".")
        return self.address(cursor=last, trail=before)

    def older_page(self, cursor: str) -> str:
        """Return the address of the page after this one, which begins at the cursor."""
        behind = [*(self.trail or "").split("."), self.cursor or ""]
        trail = ".".join([cursor for cursor in behind if cursor][-TRAIL:])
        return self.address(cursor=cursor, trail=trail)

    def _read(self) -> JobFilter:
        typed = {
            "text",
            "state",
            "verdict",
            "kind",
            "bug",
            "entry",
            "tag",
            "group",
            "submitter",
            "cursor",
        }
        conditions: dict[str, Any] = {
            **self.model_dump(include=typed | {"cursor"}),
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
        raise ValueError(f"{text!r} is no day; write e.g. 2026-01-31") from None


def _words(error: ValidationError | ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
