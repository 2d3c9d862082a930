"""Who is told first that a step waits: a worker with room that is connected to this scheduler.

Each worker keeps a request open; the word on it takes no broker, and nothing waits for a disk.
A step that waits is only named: the worker claims it, as after any notification. One that does
not, because it is paused or cut off, is passed over after a moment, and the bus is used. A job
that comes when nothing waits is stored with its first step leased to such a worker, in the room
that its last claim has left, and the step itself is sent. What does not arrive is taken back.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from kgym.api.capabilities import lacking
from kgym.api.steps import StepKind, StepSpec
from kgym.api.worker_calls import Assignment, Claim, Claimed
from kgym.api.worker_requests import STEP_WAITS
from kgym_scheduler.queue.handed_steps import Room

HEARD_SECONDS = 0.25
"""How long a worker may take to claim once it was told."""
HANDED_SECONDS = 5.0
"""How long nothing may be heard of a step that was handed out, before it is taken back."""
LEASES = 10_000
"""Leases of which it is known who holds them; of more, the newest."""
WORKERS = 10_000
"""Workers that have claimed here, and may yet connect, or have; of more, the newest."""


Line = Callable[[bytes], bool]
"""Says something to a worker; False where it does not listen."""


@dataclass(slots=True)
class _Worker:
    kinds: list[StepKind] = field(default_factory=list)
    slots: int = 0
    free: int = 0
    """Slots that its last claim left free, and those that have become so since."""
    claim: Claim | None = None
    """The last that was answered; None while one is, and for one that was answered twice."""
    handed: int = 0
    """Steps that it was handed since."""
    spare: list[int] = field(default_factory=list)
    """Numbers of places that were kept for steps, and left."""
    told: list[StepKind] = field(default_factory=list)
    """What it was told of since its last claim."""
    late: asyncio.TimerHandle | None = None

    def lease(self, claim: Claim) -> tuple[int, UUID]:
        """Return the number and lease of the next step that it is handed after this claim."""
        if self.spare:
            number = self.spare.pop()
        else:
            number, self.handed = claim.want + self.handed, self.handed + 1
        return number, claim.lease(number)


@dataclass(slots=True)
class _Handed:
    """A step that a worker is handed: its place is kept, and then the step was sent."""

    worker: str
    claim: Claim
    number: int
    missed: asyncio.TimerHandle | None = None
    """Since it was sent."""


class IdleWorkers:
    """The workers that are connected here, with the room that they have."""

    def __init__(
        self, publish: Callable[[Iterable[StepKind]], None], take_back: Callable[[UUID], None]
    ) -> None:
        self._publish = publish
        self._take_back = take_back
        self._lines: dict[str, Line] = {}
        self._workers: dict[str, _Worker] = {}
        self._idle: dict[str, None] = {}
        """Those with room for more than they were told of; who was told last comes last."""
        self._leases: dict[UUID, str] = {}
        self._handed: dict[UUID, _Handed] = {}
        """By lease; until something is heard of it."""

    @contextlib.contextmanager
    def connected(self, worker: str, line: Line) -> Iterator[None]:
        """Tell the worker by this line as long as the context lasts."""
        self._lines[worker] = line
        if worker in self._workers:
            self._sort(worker)
        try:
            yield
        finally:
            if self._lines.get(worker) == line:
                del self._lines[worker]
                self._forget(worker)
                for lease, one in list(self._handed.items()):
                    if one.worker == worker and one.missed is not None:
                        self._miss(lease)

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
            self._lines[name](STEP_WAITS)
        self._sort(name)
        return True

    def room(self, spec: StepSpec) -> Room | None:
        """Keep a place for this step at a worker that can do it; None if there is none.

        It has to be given to `hand`, `leave` or `doubt`.
        """
        needs = spec.needs()
        for name in self._idle:
            worker = self._workers[name]
            if (claim := worker.claim) and spec.kind in worker.kinds:
                if lacking(needs, claim.worker.capabilities):
                    continue
                worker.free -= 1
                self._sort(name)
                number, lease = worker.lease(claim)
                self._handed[lease] = _Handed(name, claim, number)
                return Room(name, lease)
        return None

    def leave(self, room: Room) -> None:
        """Let others have a place that was kept."""
        kept = self._handed.pop(room.lease)
        worker = self._workers.get(room.worker)
        if worker is not None and worker.claim is kept.claim:
            worker.spare.append(kept.number)
        self._free(room.worker)

    def doubt(self, room: Room) -> None:
        """Take back what may have been leased in this place: nobody knows."""
        self._miss(room.lease)

    def hand(self, room: Room, step: Assignment) -> None:
        """Send the worker a step that was leased to it in this place."""
        self._leases[room.lease] = room.worker
        line = self._lines.get(room.worker)
        if line is None or not line(step.model_dump_json().encode()):
            self._miss(room.lease)
            return
        loop = asyncio.get_running_loop()
        missed = loop.call_later(HANDED_SECONDS, self._miss, room.lease)
        self._handed[room.lease].missed = missed

    def heard(self, lease: UUID) -> None:
        """Note that a worker has what it was handed."""
        handed = self._handed.pop(lease, None)
        if handed is not None and handed.missed is not None:
            handed.missed.cancel()

    def asks(self, claim: Claim) -> list[StepKind]:
        """Note that a worker claims; return what it was told of."""
        worker = self._workers.get(claim.worker.id)
        if worker is None:
            return []
        worker.claim = None
        return self._heard(worker)

    def bounded(self, claim: Claim) -> Claim:
        """Return a claim that leaves room for what the worker was handed and may not know of."""
        coming = sum(one.worker == claim.worker.id for one in self._handed.values())
        if not coming or claim.again:
            return claim
        return claim.model_copy(update={"want": max(0, claim.want - coming)})

    def answered(self, claim: Claim, want: int, claimed: Claimed) -> None:
        """Note what room the worker has now, of whose claim so many slots were `bounded`."""
        name = claim.worker.id
        free = 0 if claimed.draining else want - len(claimed.assignments)
        worker = self._workers.setdefault(name, _Worker())
        worker.kinds, worker.slots, worker.free = claim.worker.kinds, claim.worker.slots, free
        # By one that comes again, leases may have been handed out before, by others even.
        worker.claim = None if claim.again else claim
        worker.handed, worker.spare = 0, []
        self._leases |= {one.lease: name for one in claimed.assignments}
        while len(self._leases) > LEASES:
            del self._leases[next(iter(self._leases))]
        while len(self._workers) > WORKERS:
            self._forget(next(iter(self._workers)))
        self._sort(name)

    def ended(self, lease: UUID) -> None:
        """Note that a worker has a slot more."""
        self.heard(lease)
        self._free(self._leases.pop(lease, ""))

    def refused(self, lease: UUID) -> None:
        """Note that a worker has given a step back; if at once, it had no room for it."""
        full = lease in self._handed
        name = self._leases.get(lease, "")
        self.ended(lease)
        if full:
            self._fill(name)

    def _sort(self, name: str) -> None:
        self._idle.pop(name, None)
        worker = self._workers[name]
        if name in self._lines and len(worker.told) < worker.free:
            self._idle[name] = None

    def _pass_over(self, name: str) -> None:
        """Let others know what a worker was told of that has not asked for it."""
        self._fill(name)
        if worker := self._workers.get(name):
            self._publish(self._heard(worker))

    def _free(self, name: str) -> None:
        """Let a worker have a slot more."""
        if worker := self._workers.get(name):
            worker.free = min(worker.free + 1, worker.slots)
            self._sort(name)

    def _fill(self, name: str) -> None:
        """Let a worker have no room until it claims."""
        self._idle.pop(name, None)
        if worker := self._workers.get(name):
            worker.free = 0

    def _miss(self, lease: UUID) -> None:
        """Take back what does not seem to have arrived."""
        if handed := self._handed.get(lease):
            self.heard(lease)
            self._fill(handed.worker)
            self._take_back(lease)

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
