"""Where the next VM is tried: zones in their order, and the lower price first. Pure."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

EMPTY_SECONDS = 300.0
"""How long a zone that had no room is left out."""


@dataclass(frozen=True, slots=True)
class Place:
    """A zone, and whether a VM there can be taken back at any time."""

    zone: str
    spot: bool

    def __str__(self) -> str:
        """Tell people."""
        return f"{self.zone} ({'spot' if self.spot else 'standard'})"


class Zones:
    """The places, less those that have said lately that they have no room."""

    def __init__(
        self, names: tuple[str, ...], *, spot: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._places = [
            Place(name, kind) for kind in ((True, False) if spot else (False,)) for name in names
        ]
        self._clock = clock
        self._until: dict[Place, float] = {}

    def choices(self) -> Iterator[Place]:
        """Yield where to try: if no place has room, each once more, the longest left out first."""
        now = self._clock()
        with_room = [place for place in self._places if self._until.get(place, 0) <= now]
        yield from with_room or sorted(self._places, key=lambda place: self._until[place])

    def exhausted(self, place: Place) -> None:
        """Leave a place out for a while."""
        self._until[place] = self._clock() + EMPTY_SECONDS
