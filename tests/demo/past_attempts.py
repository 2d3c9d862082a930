"""A past for a demo's platform: attempts that ended within a month."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import create_engine, func, insert, select

from kgym_scheduler.database.tables import attempts


@dataclass(frozen=True, slots=True)
class Past:
    """Attempts that ended alike in one minute or hour."""

    at: datetime
    seconds: int = 3600
    """How long the time is in which they are counted: 60 or 3600."""
    kind: str = "build"
    outcome: str = "succeeded"
    cause: str = ""
    reason: str = ""
    cached: str = ""
    attempts: int = 1
    took: float = 60.0


def add(data: Path, past: Iterable[Past]) -> None:
    """Add these attempts to the database of the platform on this folder.

    They are of no job: nothing but statistics reads them, and SQLite checks no foreign key unless
    a connection asks for it.
    """
    rows: list[dict[str, Any]] = []
    for ended in past:
        for number in range(ended.attempts):
            ended_at = ended.at + timedelta(milliseconds=number)
            rows.append(
                {
                    "lease": uuid4(),
                    "step_id": 0,
                    "kind": ended.kind,
                    "worker": "demo",
                    "started_at": ended_at - timedelta(seconds=ended.took / ended.attempts),
                    "ended_at": ended_at,
                    "outcome": ended.outcome,
                    "cause": ended.cause or None,
                    "reason": ended.reason or None,
                    "cached": {"true": True, "false": False}.get(ended.cached),
                }
            )
    engine = create_engine(f"sqlite:///{data / 'kgym.db'}")
    with engine.begin() as connection:
        # Numbers are unique in a step, and a test may add to a past that is there.
        taken = connection.scalar(
            select(func.max(attempts.c.number)).where(attempts.c.step_id == 0)
        )
        numbered = [row | {"number": n} for n, row in enumerate(rows, (taken or 0) + 1)]
        connection.execute(insert(attempts), numbered)
    engine.dispose()


def month(now: datetime) -> Iterator[Past]:
    """Yield a month in which most went well: by hours, and the last one by minutes."""
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    for back in range(1, 30 * 24):
        yield from _some(hour - timedelta(hours=back), 3600, back)
    minute = now.astimezone(UTC).replace(second=0, microsecond=0) - timedelta(minutes=3)
    for back in range(0, 57, 6):
        yield from _some(minute - timedelta(minutes=back), 60, back)


USER_FAULTS = (
    *("patch_does_not_apply", "does_not_compile", "config_not_met", "kernel_does_not_boot"),
    *("unknown_commit", "reproducer_does_not_compile", "bad_config", "patch_too_large"),
)
MACHINE_FAULTS = ("lease_expired", "disk_full", "out_of_memory")


def _some(at: datetime, seconds: int, number: int) -> Iterator[Past]:
    """Yield what ended at a time; `number` makes times differ."""
    few = 1 if seconds == 60 else 2 + (number * 7) % 11
    yield Past(at, seconds, cached="true", attempts=few * 3, took=few * 70.0)
    yield Past(at, seconds, cached="false", attempts=1 + number % 3, took=900.0)
    yield Past(at, seconds, kind="reproduce", attempts=few * 2, took=few * 120.0)
    reason = USER_FAULTS[number % len(USER_FAULTS)]
    yield Past(at, seconds, "build", "failed", "user", reason, attempts=1 + number % 4)
    if number % 9 == 0:
        fault = MACHINE_FAULTS[number // 9 % len(MACHINE_FAULTS)]
        outcome = "expired" if fault == "lease_expired" else "failed"
        yield Past(at, seconds, "reproduce", outcome, "infrastructure", fault)
    if number % 13 == 0:
        yield Past(at, seconds, "reproduce", "aborted", attempts=2)
