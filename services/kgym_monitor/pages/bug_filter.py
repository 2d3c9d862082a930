"""The filters of the lists of bugs and of SuiteCache's entries, as they stand in the address."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, ValidationError

from kgym.api.bugs import BugFilter
from kgym.api.steps import Strict
from kgym.api.suitecache import EntryFilter

# Rows on a page.
PAGE = 50
Filter = TypeVar("Filter", bound=Strict)


class Typed(BaseModel):
    """The filter as a reader typed it; empty fields of a form are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cursor: str | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether it leaves rows out."""
        return bool(self.model_dump(exclude_none=True, exclude={"cursor"}))

    def query(self, **changed: str | None) -> str:
        """Return it as the query of an address, some of it changed."""
        values = self.model_dump(exclude_none=True) | changed
        return urlencode({name: value for name, value in values.items() if value})

    def address(self, path: str, **changed: str | None) -> str:
        """Return the address of the list with it, some of it changed."""
        query = self.query(**changed)
        return f"{path}?{query}" if query else path

    def checked(self, kind: type[Filter]) -> tuple[Filter | None, str | None]:
        """Return what the scheduler takes, or None and what is wrong, for the reader."""
        try:
            return kind.model_validate({**self.model_dump(), "limit": PAGE}), None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return None, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


class BugQuery(Typed):
    """What the list of bugs is asked for."""

    text: str | None = None
    crash_class: str | None = None
    subsystem: str | None = None
    verdict: str | None = None
    patch: str | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "BugQuery":
        """Return what the address says."""
        return cls(**_typed(query))

    @property
    def filter(self) -> tuple[BugFilter | None, str | None]:
        """What the scheduler takes, or what is wrong with it."""
        return self.checked(BugFilter)


class EntryQuery(Typed):
    """What the list of entries is asked for."""

    text: str | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "EntryQuery":
        """Return what the address says."""
        return cls(**_typed(query))

    @property
    def filter(self) -> tuple[EntryFilter | None, str | None]:
        """What the scheduler takes, or what is wrong with it."""
        return self.checked(EntryFilter)


def _typed(query: Mapping[str, str]) -> dict[str, Any]:
    return {name: value.strip() for name, value in query.items() if value.strip()}
