"""Where the parts of a benchmark are: in the monitor, by address."""

from typing import Protocol
from urllib.parse import quote

from kgym_monitor.benchmarks.board_query import BoardQuery


class Links(Protocol):
    """Addresses of a benchmark's pages; None where there is no such page."""

    is_static: bool
    """Whether nobody can be asked for another choice."""

    def board(self, **changed: str | None) -> str | None:
        """Return the leaderboard, something of its choice changed."""

    def bugs(self, **changed: str | None) -> str | None:
        """Return the list of bugs."""

    def bug(self, name: str) -> str | None:
        """Return the page of a bug."""

    def compare(self, one: int | None = None, other: int | None = None) -> str | None:
        """Return the comparison of two setups, by their numbers."""

    def attempt(self, bug: str, setup: int, run: int) -> str | None:
        """Return the page of an attempt."""


class LiveLinks:
    """Addresses in the monitor; the choice of bugs and setups goes with them."""

    is_static = False

    def __init__(self, name: str, query: BoardQuery) -> None:
        self._path = f"/benchmarks/{quote(name)}"
        self._query = query

    def board(self, **changed: str | None) -> str:
        """Return the leaderboard, something of its choice changed."""
        return self._query.address(self._path, **{"cursor": None, **changed})

    def bugs(self, **changed: str | None) -> str:
        """Return the list of bugs."""
        return self._query.address(f"{self._path}/bugs", **{"cursor": None, **changed})

    def bug(self, name: str) -> str:
        """Return the page of a bug."""
        return f"{self._path}/bugs/{quote(name, safe='')}"

    def compare(self, one: int | None = None, other: int | None = None) -> str:
        """Return the comparison of two setups, by their numbers."""
        given = {"one": None if one is None else str(one)}
        given["other"] = None if other is None else str(other)
        return self._query.address(f"{self._path}/compare", **{"cursor": None, **given})

    def attempt(self, bug: str, setup: int, run: int) -> str:
        """Return the page of an attempt."""
        return f"{self.bug(bug)}/attempts/{setup}/{run}"
