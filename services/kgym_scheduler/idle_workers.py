"""Who is told first that a step waits: a worker with room that is connected to this scheduler.

Each worker keeps a request open; the word on it takes no broker, and nothing waits for a disk.
It is only a word: the worker claims, as after any notification. One that does not, because it is
paused or cut off, is passed over after a moment, and the bus is used.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from kgym.api.steps import StepKind
from kgym.api.worker_calls import Claim, Claimed

HEARD_SECONDS = 0.25
"""How long a worker may take to claim once it was told."""
LEASES = 10_000
"""Leases of which it is known who holds them; of more, the newest."""
WORKERS = 10_000
"""Workers that have claimed here, and may yet connect, or have; of more, the newest."""


@dataclass(slots=True)
class _Worker:
    kinds: list[StepKind]
    slots: int
    free: int
    """Slots that its last claim left free, and those that have become so since."""
    told: list[StepKind] = field(default_factory=list)
    """What it was told of since its last claim."""
    late: asyncio.TimerHandle | None = None


class IdleWorkers:
    """The workers that are connected here, with the room that they have."""

    def __init__(self, publish: Callable[[Iterable[StepKind]], None]) -> None:
        self._publish = publish
        self._lines: dict[str, Callable[[], None]] = {}
        self._workers: dict[str, _Worker] = {}
        self._idle: dict[str, None] = {}
        """Those with room for more than they were told of; who was told last comes last."""
        self._leases: dict[UUID, str] = {}

    @contextlib.contextmanager
    def connected(self, worker: str, tell: Callable[[], None]) -> Iterator[None]:
        """Tell the worker by this call as long as the context lasts."""
        self._lines[worker] = tell
        if worker in self._workers:
            self._sort(worker)
        try:
            yield
        finally:
            if self._lines.get(worker) == tell:
                del self._lines[worker]
                self._forget(worker)

    def ring(self, kind: StepKind) -> bool:
        """Tell a worker with room that a step of this kind waits; False if there is none."""
        name = next((name for name in self._idle if kind in self._workers[name].kinds), None)
        if name is None:
            return False
        worker = self._workers[name]
        worker.told.append(kind)
        if worker.late is None:  # else it has yet to claim, and will find this step, too
            loop = asyncio.get_running_loop()
            worker.late = loop.call_later(HEARD_SECONDS, self._pass_over, name)
            self._lines[name]()
        self._sort(name)
        return True

    def asks(self, claim: Claim) -> list[StepKind]:
        """Note that a worker claims; return what it was told of."""
        worker = self._workers.get(claim.worker.id)
        return [] if worker is None else self._heard(worker)

    def answered(self, claim: Claim, claimed: Claimed) -> None:
        """Note what room the worker has now."""
        name = claim.worker.id
        free = 0 if claimed.draining else claim.want - len(claimed.assignments)
        worker = self._workers.setdefault(name, _Worker([], 0, 0))
        worker.kinds, worker.slots, worker.free = claim.worker.kinds, claim.worker.slots, free
        self._leases |= {one.lease: name for one in claimed.assignments}
        while len(self._leases) > LEASES:
            del self._leases[next(iter(self._leases))]
        while len(self._workers) > WORKERS:
            self._forget(next(iter(self._workers)))
        self._sort(name)

    def ended(self, lease: UUID) -> None:
        """Note that a worker has a slot more."""
        name = self._leases.pop(lease, "")
        if worker := self._workers.get(name):
            worker.free = min(worker.free + 1, worker.slots)
            self._sort(name)

    def _sort(self, name: str) -> None:
        self._idle.pop(name, None)
        worker = self._workers[name]
        if name in self._lines and len(worker.told) < worker.free:
            self._idle[name] = None

    def _pass_over(self, name: str) -> None:
        """Let others know what a worker was told of that has not asked for it."""
        self._idle.pop(name, None)
        if worker := self._workers.get(name):
            worker.free = 0  # until it is heard of
            self._publish(self._heard(worker))

    def _forget(self, name: str) -> None:
        self._pass_over(name)
        self._workers.pop(name, None)

    @staticmethod
    def _heard(worker: _Worker) -> list[StepKind]:
        told, worker.told = worker.told, []
        if worker.late is not None:
            worker.late.cancel()
            worker.late = None
        return told
