"""The order in which zones are tried for the next VM: the lower price first. Pure."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# How long a zone without capacity is skipped.
EMPTY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Place:
    """A zone and a price: a spot VM is cheaper, and can be preempted at any time."""

    zone: str
    spot: bool

    def __str__(self) -> str:
        """Name it in messages."""
        return f"{self.zone} ({'spot' if self.spot else 'standard'})"


class Zones:
    """The places for new VMs, and which of them had no capacity lately."""

    def __init__(
        self, names: tuple[str, ...], *, spot: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._places = [
            Place(name, kind) for kind in ((True, False) if spot else (False,)) for name in names
        ]
        self._clock = clock
        self._skipped_until: dict[Place, float] = {}

    def choices(self) -> Iterator[Place]:
        """Yield the places to try; if all are skipped, each once more, longest skipped first."""
        now = self._clock()
        with_room = [place for place in self._places if self._skipped_until.get(place, 0) <= now]
        yield from with_room or sorted(self._places, key=lambda place: self._skipped_until[place])

    def exhausted(self, place: Place) -> None:
        """Skip a place for a while."""
        self._skipped_until[place] = self._clock() + EMPTY_SECONDS
