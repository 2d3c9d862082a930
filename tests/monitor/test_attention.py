"""What the overview says first: what is stuck, late, failed by the platform, or full."""

from datetime import UTC, datetime, timedelta

import pytest

from kgym.api.jobs import QueueView, RunningStep, WorkerView
from kgym.api.statistics import AttemptCount
from kgym.api.steps import StepKind
from kgym.api.storage import StorageView
from kgym_monitor.pages import attention
from kgym_monitor.pages.attention import Pace

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def worker(state: str, *seconds: float) -> WorkerView:
    running = [
        RunningStep(
            job=job, step=0, kind=StepKind.BUILD, attempt=1, started_at=NOW - timedelta(seconds=age)
        )
        for job, age in enumerate(seconds, 1)
    ]
    return WorkerView.model_validate(
        {
            "id": "vm:1:a",
            "kinds": ["build"],
            "slots": 2,
            "capabilities": None,
            "state": state,
            "seen_at": NOW,
            "running": running,
        }
    )


def words(
    *workers: WorkerView,
    queues: list[QueueView] | None = None,
    storage: StorageView | None = None,
    hour: list[AttemptCount] | None = None,
) -> list[str]:
    paces = attention.paces(workers, {StepKind.BUILD: 60.0}, NOW)
    listed = attention.notices(queues or [], workers, storage, hour or [], paces)
    return [notice.words for notice in listed]


@pytest.mark.parametrize(
    ("seconds", "usual", "look"),
    [
        *((30, 60, "running"), (119, 60, "running"), (130, 60, "queued"), (301, 60, "failed")),
        *((5, 0.1, "running"), (61, 0.1, "failed"), (9999, None, "running")),
    ],
)
def test_a_step_that_takes_far_longer_than_usual_is_marked(
    seconds: float, usual: float | None, look: str
) -> None:
    pace = Pace(seconds, usual)
    assert (pace.look, bool(pace.words)) == (look, look != "running")


def test_what_is_stuck_is_named_with_how_long_it_usually_takes() -> None:
    assert words(worker("live", 20, 1200)) == ["Job 2: Build has run for 20 min, usually 1 min"]
    assert words(worker("live", 20)) == []


def test_steps_that_nobody_can_run_are_named() -> None:
    queue = QueueView(
        kind=StepKind.BUILD, queued=3, running=0, oldest_seconds=9, unmet=["gcc 7 or older"]
    )
    assert words(worker("lost"), queues=[queue]) == [
        "Build steps wait: gcc 7 or older",
        "3 steps wait, and no worker is live",
        "1 worker lost within a day",
    ]


def test_failures_of_the_platform_are_counted_but_not_those_of_users() -> None:
    def count(cause: str, reason: str) -> AttemptCount:
        return AttemptCount.model_validate(
            {
                "at": NOW,
                "kind": "build",
                "outcome": "failed",
                "cause": cause,
                "reason": reason,
                "cached": None,
                "attempts": 2,
                "seconds": 1,
            }
        )

    hour = [count("infrastructure", "no_space"), count("user", "does_not_compile")]
    assert words(hour=hour) == ["The platform failed 2 steps within the hour: no_space"]
