"""Filters of the lists of bugs and SuiteCache entries, as in the address."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, ValidationError

from kgym.api.bugs import BugFilter
from kgym.api.steps import Strict
from kgym.api.suitecache import EntryFilter
from kgym_monitor.pages import wording

# Most rows on a page.
PAGE = 50
Filter = TypeVar("Filter", bound=Strict)


class Typed(BaseModel):
    """A filter as typed by the reader; empty form fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cursor: str | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether it excludes rows."""
        return bool(self.model_dump(exclude_none=True, exclude={"cursor"}))

    def query(self, **changed: str | None) -> str:
        """Return the URL query, with some values changed."""
        values = self.model_dump(exclude_none=True) | changed
        return urlencode({name: value for name, value in values.items() if value})

    def address(self, path: str, **changed: str | None) -> str:
        """Return the address with this query, some values changed."""
        query = self.query(**changed)
        return f"{path}?{query}" if query else path

    def checked(self, kind: type[Filter]) -> tuple[Filter | None, str | None]:
        """Return the scheduler's filter, or None and the error for the reader."""
        try:
            return kind.model_validate({**self.model_dump(), "limit": PAGE}), None
        except ValidationError as error:
            return None, wording.fault(error)


class BugQuery(Typed):
    """Query of the list of bugs."""

    text: str | None = None
    crash_class: str | None = None
    subsystem: str | None = None
    verdict: str | None = None
    patch: str | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "BugQuery":
        """Return the query of an address."""
        return cls(**_typed(query))

    @property
    def filter(self) -> tuple[BugFilter | None, str | None]:
        """The scheduler's filter, or the error."""
        return self.checked(BugFilter)


class EntryQuery(Typed):
    """Query of the list of entries."""

    text: str | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "EntryQuery":
        """Return the query of an address."""
        return cls(**_typed(query))

    @property
    def filter(self) -> tuple[EntryFilter | None, str | None]:
        """The scheduler's filter, or the error."""
        return self.checked(EntryFilter)


def _typed(query: Mapping[str, str]) -> dict[str, Any]:
    return {name: value.strip() for name, value in query.items() if value.strip()}
