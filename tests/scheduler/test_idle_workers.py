"""Who is told that a step waits: a worker with room that is connected here; else the bus tells."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kgym.api.capabilities import Capabilities
from kgym.api.steps import BuildResult, StepKind
from kgym.api.worker_calls import Assignment, Claim, Claimed
from kgym.api.worker_requests import STEP_WAITS
from kgym.transport.bus import InProcessBus
from kgym.web.server import serve
from kgym.worker.context import StepContext
from kgym.worker.http_calls import HttpWorkerCalls
from kgym.worker.loop import Worker
from kgym_scheduler import idle_workers
from kgym_scheduler.api.app import create_app
from kgym_scheduler.idle_workers import HEARD_SECONDS, IdleWorkers
from tests.scheduler.parts import BUILD, BUILT, Platform, claim_of, job

pytestmark = pytest.mark.anyio
LIMIT = 30
BUILDS, CHECKS = StepKind.BUILD, StepKind.CHECK


class Room:
    """Idle workers, what they were told, and what the bus was left to tell."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.published: list[StepKind] = []
        self.sent: list[tuple[str, Assignment]] = []
        self.taken_back: list[uuid.UUID] = []
        self.listening = True
        self.workers = IdleWorkers(self.published.extend, self.taken_back.append)
        self._stack = contextlib.ExitStack()

    def connect(self, name: str) -> Callable[[], None]:
        """Let a worker come; return what ends its connection."""
        one = self._stack.enter_context(contextlib.ExitStack())

        def say(line: bytes) -> bool:
            if line == STEP_WAITS:
                self.told.append(name)
            else:
                self.sent.append((name, Assignment.model_validate_json(line)))
            return self.listening

        one.enter_context(self.workers.connected(name, say))
        return one.close

    def claim(self, claim: Claim, got: int = 0) -> list[uuid.UUID]:
        """A claim that gets so many steps; return the leases."""
        self.workers.asks(claim)
        want = self.workers.bounded(claim).want
        leases = [uuid.uuid4() for _ in range(got)]
        self.workers.answered(claim, want, Claimed(assignments=list(map(_assignment, leases))))
        return leases

    def hand(self) -> uuid.UUID | None:
        """Hand out a step, if somebody has room; return the lease."""
        if (place := self.workers.room(BUILD)) is None:
            return None
        self.workers.hand(place, _assignment(place.lease))
        return place.lease


def _assignment(lease: uuid.UUID) -> Assignment:
    return Assignment(step_id=1, job_id=1, number=0, attempt=1, lease=lease, spec=BUILD, inputs={})


async def test_a_worker_with_room_is_told_once_for_all_that_it_has_room_for() -> None:
    room = Room()
    room.connect("w")
    room.claim(claim_of("w", 2))
    assert [room.workers.ring(BUILDS) for _ in range(3)] == [True, True, False]
    assert room.told == ["w"]
    assert not room.workers.ring(CHECKS)


async def test_workers_take_turns() -> None:
    room = Room()
    for name in ("a", "b"):
        room.connect(name)
        room.claim(claim_of(name, 2))
    for _ in range(3):
        assert room.workers.ring(BUILDS)
    assert room.told == ["a", "b"]


async def test_a_worker_is_told_again_when_a_step_of_its_has_ended() -> None:
    room = Room()
    room.connect("w")
    [lease] = room.claim(claim_of("w", 1), got=1)
    assert not room.workers.ring(BUILDS)
    room.workers.ended(lease)
    room.workers.ended(lease)
    assert [room.workers.ring(BUILDS) for _ in range(2)] == [True, False]


async def test_who_does_not_claim_is_passed_over() -> None:
    room = Room()
    room.connect("paused")
    room.claim(claim_of("paused", 5))
    assert room.workers.ring(BUILDS)
    await asyncio.sleep(2 * HEARD_SECONDS)
    assert room.published == [BUILDS]
    assert not room.workers.ring(BUILDS)
    room.claim(claim_of("paused", 5))
    assert room.workers.ring(BUILDS)


async def test_what_a_worker_was_told_is_not_lost_with_its_connection() -> None:
    room = Room()
    leave = room.connect("w")
    room.claim(claim_of("w", 1))
    assert room.workers.ring(BUILDS)
    leave()
    assert room.published == [BUILDS]
    assert not room.workers.ring(BUILDS)


async def test_who_is_not_connected_or_drains_is_not_told() -> None:
    room = Room()
    room.claim(claim_of("elsewhere", 1))
    room.connect("drains")
    room.workers.answered(claim_of("drains", 1), 1, Claimed(draining=True))
    assert not room.workers.ring(BUILDS)


class _Deaf(InProcessBus):
    """A bus of another host's: what is sent here arrives there."""

    @property
    def notifies(self) -> bool:
        return True


@contextlib.asynccontextmanager
async def _working(url: str, folder: Path, done: Callable[[int], None]) -> AsyncIterator[None]:
    async def build(run: StepContext) -> BuildResult:
        done(run.assignment.job_id)
        return BUILT

    async with HttpWorkerCalls(url) as calls:
        worker = Worker(calls, _Deaf(), None, {BUILDS: build}, folder, 100)  # type: ignore[arg-type]
        task = asyncio.create_task(worker.serve())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_steps_begin_at_once_without_a_bus(platform: Platform, tmp_path: Path) -> None:
    begun = asyncio.Queue[int]()
    async with (
        platform.scheduler() as scheduler,
        serve(create_app(scheduler)) as address,
        _working(address.url, tmp_path / "work", begun.put_nowait),
    ):
        async with asyncio.timeout(LIMIT):
            while not scheduler.dead_workers.connected:
                await asyncio.sleep(0.02)
        clock = asyncio.get_running_loop().time
        start = clock()
        for _ in range(5):  # it always has room; by itself it would ask every ten seconds
            view, _ = await scheduler.submit(job())
            async with asyncio.timeout(LIMIT):
                assert await begun.get() == view.id
        assert clock() - start < 15


async def test_a_worker_may_claim_before_it_connects() -> None:
    room = Room()
    room.claim(claim_of("w", 1))
    room.connect("w")
    assert room.workers.ring(BUILDS)


async def test_a_step_is_handed_to_who_has_room_and_can_do_it() -> None:
    room = Room()
    assert room.hand() is None
    room.connect("checks")
    room.claim(claim_of("checks", 1, [CHECKS]))
    room.connect("small")
    room.claim(claim_of("small", 1, capabilities=Capabilities(compilers=[])))
    assert room.hand() is None
    room.connect("w")
    claim = claim_of("w", 3)
    room.claim(claim, got=1)
    handed = [room.hand() for _ in range(3)]
    assert handed == [claim.lease(3), claim.lease(4), None]
    assert [name for name, _ in room.sent] == ["w", "w"]
    room.workers.ended(claim.lease(3))
    assert room.hand() == claim.lease(5)


async def test_no_lease_is_given_twice() -> None:
    room = Room()
    room.connect("w")
    claim = claim_of("w", 2)
    room.claim(claim)
    first, second = room.workers.room(BUILD), room.workers.room(BUILD)
    assert first is not None
    assert second is not None
    room.workers.leave(second)
    assert room.workers.room(BUILD) == second
    newer = claim_of("w", 2)
    room.claim(newer)  # while both are kept: there is no room
    assert room.workers.room(BUILD) is None
    room.workers.leave(first)
    room.workers.leave(second)
    assert [room.hand() for _ in range(3)] == [newer.lease(2), newer.lease(3), None]
    room.workers.ended(newer.lease(2))
    room.claim(newer.model_copy(update={"again": True}))
    assert room.hand() is None


async def test_what_is_not_heard_of_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_workers, "HANDED_SECONDS", 0.2)
    room = Room()
    room.connect("w")
    room.claim(claim_of("w", 3))
    heard, missed = room.hand(), room.hand()
    assert heard is not None
    room.workers.heard(heard)
    await asyncio.sleep(0.4)
    assert room.taken_back == [missed]
    assert room.hand() is None  # until it is heard of
    room.claim(claim_of("w", 1))
    assert room.hand() is not None


async def test_what_was_sent_on_a_connection_that_ends_is_taken_back() -> None:
    room = Room()
    leave = room.connect("w")
    room.claim(claim_of("w", 3))
    sent, kept = room.hand(), room.workers.room(BUILD)
    assert kept is not None
    leave()
    assert room.taken_back == [sent]
    room.workers.hand(kept, _assignment(kept.lease))  # it was stored meanwhile
    assert room.taken_back == [sent, kept.lease]


async def test_who_does_not_read_gets_nothing() -> None:
    room = Room()
    room.connect("w")
    room.claim(claim_of("w", 2))
    room.listening = False
    lease = room.hand()
    assert room.taken_back == [lease]
    assert room.hand() is None


async def test_who_gives_a_step_back_at_once_has_no_room() -> None:
    room = Room()
    room.connect("w")
    room.claim(claim_of("w", 2))
    lease = room.hand()
    assert lease is not None
    room.workers.refused(lease)
    assert room.hand() is None
