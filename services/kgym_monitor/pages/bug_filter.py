"""Filters of lists, as in the address: what all have in common, and those of bugs and entries."""

from collections.abc import Mapping
from typing import ClassVar, Generic, Self, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict

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
    # Address of the list.
    home: ClassVar[str] = ""

    cursor: str | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """Return the query of an address."""
        return cls(**{name: value.strip() for name, value in query.items() if value.strip()})

    @property
    def is_filtered(self) -> bool:
        """Whether it excludes rows."""
        return bool(self.model_dump(exclude_none=True, exclude={"cursor"}))

    def address(self, path: str | None = None, **changed: str | None) -> str:
        """Return the address with this query, some values changed; by default of the list."""
        values = self.model_dump(exclude_none=True) | changed
        query = urlencode({name: value for name, value in values.items() if value})
        path = self.home if path is None else path
        return f"{path}?{query}" if query else path


class ListQuery(Typed, Generic[Filter]):
    """A filter that a service applies, in the form `Filter`."""

    def checked(self) -> Filter:
        """Return the service's filter; raise ValueError if the query is invalid."""
        raise NotImplementedError

    @property
    def fault(self) -> str | None:
        """Error for the reader, if any."""
        try:
            self.checked()
        except ValueError as error:  # pydantic's ValidationError is one, too
            return wording.fault(error)
        return None

    @property
    def filter(self) -> Filter | None:
        """The service's filter; None if the query is invalid."""
        return None if self.fault else self.checked()


class BugQuery(ListQuery[BugFilter]):
    """Query of the list of bugs."""

    home = "/bugs"

    text: str | None = None
    crash_class: str | None = None
    subsystem: str | None = None
    outcome: str | None = None
    patch: str | None = None

    def checked(self) -> BugFilter:
        """Return the scheduler's filter."""
        return BugFilter.model_validate({**self.model_dump(), "limit": PAGE})


class EntryQuery(ListQuery[EntryFilter]):
    """Query of the list of entries."""

    home = "/suitecache"

    text: str | None = None

    def checked(self) -> EntryFilter:
        """Return the scheduler's filter."""
        return EntryFilter.model_validate({**self.model_dump(), "limit": PAGE})
