"""Whether the parts that the scheduler needs answer, and can take what jobs bring."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import Storage
from kgym_scheduler.database.connection import Database

ANSWER_SECONDS = 3.0
# How long an answer counts: anybody may ask, and asking costs a message on the bus.
FRESH_SECONDS = 1.0

# The state of each part, and what is wrong with it.
_Answers = dict[str, str | None]

# Bytes: what a trial leaves (two kernels and their runs), with what the database writes of it.
LEAST_FREE = 512 << 20


async def enough_room(storage: Storage, database: Database) -> None:
    """Raise InfrastructureError `disk_full` if a disk could not take what a job brings."""
    try:
        rooms = {"storage": await storage.room(), "the database": await database.room()}
    except OSError as error:
        raise InfrastructureError("storage_failed", f"no disk: {error.strerror}") from error
    for name, room in rooms.items():
        if room is not None and room[0] < LEAST_FREE:
            raise InfrastructureError(
                "disk_full",
                f"the disk of {name} has {room[0] >> 20} MiB left, and a job needs "
                f"{LEAST_FREE >> 20}: see `kgym du`, remove with `kgym gc`, or choose "
                "a smaller --disk-budget",
            )


class Readiness:
    """Asks the parts, all at once, and at most once a second, whoever asks how often."""

    def __init__(self, parts: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        self._parts = parts
        self._asking: asyncio.Task[_Answers] | None = None
        self._asked_at = 0.0

    async def check(self) -> None:
        """Raise InfrastructureError `not_ready` if one does not answer as it should, or is full.

        Its detail `dependencies` lists, for each, the `name`, whether it is
        `ready`, and a `detail` if it is not.
        """
        now = time.monotonic()
        if self._asking is None or (self._asking.done() and now >= self._asked_at + FRESH_SECONDS):
            self._asking, self._asked_at = asyncio.create_task(self._ask()), now
        answers = await asyncio.shield(self._asking)
        if missing := [name for name, complaint in answers.items() if complaint]:
            raise InfrastructureError(
                "not_ready",
                f"these are not ready: {', '.join(missing)}",
                dependencies=[
                    {"name": name, "ready": complaint is None, "detail": complaint}
                    for name, complaint in answers.items()
                ],
            )

    async def _ask(self) -> _Answers:
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
