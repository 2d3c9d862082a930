"""Readiness: whether the scheduler's dependencies answer, and its disks have room for a job."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import Storage
from kgym_scheduler.database.connection import Database

ANSWER_SECONDS = 3.0
# How long an answer is kept: anybody may ask, and each check sends a message on the bus.
FRESH_SECONDS = 1.0

# For each part, what is wrong with it, if anything.
_Answers = dict[str, str | None]

# Bytes for one more job: the artifacts of a trial (two kernels and their runs), and its rows.
MIN_FREE = 512 << 20


async def enough_room(storage: Storage, database: Database) -> None:
    """Raise InfrastructureError `disk_full` unless all disks have room for one more job."""
    try:
        rooms = {"storage": await storage.room(), "the database": await database.room()}
    except OSError as error:
        raise InfrastructureError("storage_failed", f"no disk: {error.strerror}") from error
    for name, room in rooms.items():
        if room is not None and room[0] < MIN_FREE:
            raise InfrastructureError(
                "disk_full",
                f"the disk of {name} has {room[0] >> 20} MiB left, and a job needs "
                f"{MIN_FREE >> 20}: see `kgym du`, remove with `kgym gc`, or choose "
                "a smaller --disk-budget",
            )


class Readiness:
    """Checks all parts concurrently, at most once in FRESH_SECONDS."""

    def __init__(self, parts: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        self._parts = parts
        self._checking: asyncio.Task[_Answers] | None = None
        self._checked_at = 0.0

    async def check(self) -> None:
        """Raise InfrastructureError `not_ready` if a part does not answer, or is full.

        Its detail `dependencies` lists all parts: `name`, `ready`, and a `detail` if not ready.
        """
        answers = await self._answers()
        if missing := [name for name, complaint in answers.items() if complaint]:
            raise InfrastructureError(
                "not_ready",
                f"not ready: {', '.join(missing)}",
                dependencies=[
                    {"name": name, "ready": complaint is None, "detail": complaint}
                    for name, complaint in answers.items()
                ],
            )

    async def complaint(self) -> str:
        """Return what is wrong with the first part that is not ready; empty if all are ready."""
        return next(filter(None, (await self._answers()).values()), "")

    async def _answers(self) -> _Answers:
        """Return the complaint about each part, checked a moment ago at most."""
        now = time.monotonic()
        if self._checking is None or (
            self._checking.done() and now >= self._checked_at + FRESH_SECONDS
        ):
            self._checking, self._checked_at = asyncio.create_task(self._check_all()), now
        return await asyncio.shield(self._checking)

    async def _check_all(self) -> _Answers:
        complaints = await asyncio.gather(*map(_complaint, self._parts.values()))
        return dict(zip(self._parts, complaints, strict=True))


async def _complaint(ask: Callable[[], Awaitable[None]]) -> str | None:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await ask()
    except InfrastructureError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {ANSWER_SECONDS:g} s"
    return None
