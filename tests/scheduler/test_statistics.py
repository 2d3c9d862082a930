"""How many attempts ended in each minute, hour and day, and how."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from kgym.api.statistics import Statistics, StatisticsFilter
from kgym.api.steps import Failure
from kgym.api.worker_calls import AttemptEnding
from kgym_scheduler.database import counts
from kgym_scheduler.job_store import JobStore
from tests.scheduler.parts import WELL, Clock, Platform, badly, claim_of, end, job, take

pytestmark = pytest.mark.anyio

MINUTES, HOURS = StatisticsFilter(step="minute"), StatisticsFilter(step="hour")
DAYS = StatisticsFilter(step="day")
PLACE = tuple[str, str | None, str | None, bool | None]


async def run(store: JobStore, ending: AttemptEnding) -> None:
    await store.submit(job())
    await end(store, ending)


def counted(report: Statistics) -> Counter[PLACE]:
    counts: Counter[PLACE] = Counter()
    for row in report.counts:
        assert row.kind == "build"
        assert report.since <= row.at < report.until
        counts[row.outcome, row.cause, row.reason, row.cached] += row.attempts
    return counts


@pytest.mark.thorough
async def test_attempts_are_counted_by_how_they_ended(store: JobStore, clock: Clock) -> None:
    await run(store, WELL)
    await run(store, WELL)
    await run(store, badly("user"))
    await run(store, badly("infrastructure"))
    view, _ = await store.submit(job())
    clock.advance(10)
    await store.claim(claim_of(want=2))  # the one that is tried again, and the new one
    await store.abort(view.id)
    expected = Counter[PLACE](
        [
            *[("succeeded", None, None, False)] * 2,
            *(("failed", cause, "broke", None) for cause in ("user", "infrastructure")),
            ("aborted", None, None, None),
        ]
    )
    assert (await store.statistics(MINUTES)).counts == []  # the minute is not over
    clock.advance(240)
    report = await store.statistics(MINUTES)
    assert counted(report) == expected
    assert counted(await store.statistics(HOURS)) == expected  # of the hour that goes on
    assert sum(row.seconds for row in report.counts) < 60
    clock.advance(3 * 3600)
    await run(store, WELL)
    clock.advance(240)
    expected["succeeded", None, None, False] += 1
    assert counted(await store.statistics(MINUTES)) == expected
    report = await store.statistics(HOURS)
    assert counted(report) == expected
    assert all(row.at.minute == 0 for row in report.counts)
    assert [row.at for row in report.counts] == sorted(row.at for row in report.counts)


async def test_a_kind_of_step_has_its_median_time(
    store: JobStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "NEWEST", 5)
    for seconds, ending in ((900, WELL), (1200, WELL), (10, WELL), (70, badly("user")), (30, WELL)):
        await store.submit(job())
        lease = (await take(store)).lease
        clock.advance(seconds)
        await store.finish(lease, ending)
    assert (await store.statistics(MINUTES)).median_seconds == {"build": pytest.approx(465, abs=5)}
    await run(store, WELL)  # the first one is not among the newest any more
    assert (await store.statistics(MINUTES)).median_seconds == {"build": pytest.approx(20, abs=5)}


async def test_minutes_go_and_their_hours_stay(platform: Platform, clock: Clock) -> None:
    store, other = platform.store(), platform.store()
    for _ in range(3):
        await run(store, WELL)
        clock.advance(7 * 3600)
    clock.advance(3 * 86400)
    await run(other, WELL)
    clock.advance(240)
    assert sum(counted(await store.statistics(MINUTES)).values()) == 1
    assert sum(counted(await store.statistics(HOURS)).values()) == 4
    now = clock()
    wanted = StatisticsFilter(step="hour", since=now - timedelta(hours=3))
    assert sum(counted(await store.statistics(wanted)).values()) == 1
    beyond = StatisticsFilter(step="hour", since=datetime(2001, 1, 1, tzinfo=UTC))
    assert (await store.statistics(beyond)).since > now - timedelta(days=15)
    await store.close()
    await other.close()


@pytest.mark.thorough
async def test_days_are_the_sum_of_their_hours(store: JobStore, clock: Clock) -> None:
    """The last day also has the hour that is not over."""
    for _ in range(5):
        await run(store, WELL)
        await run(store, badly("user"))
        clock.advance(16 * 3600)
    await run(store, WELL)
    clock.advance(240)
    hours, report = await store.statistics(HOURS), await store.statistics(DAYS)
    assert counted(report) == counted(hours)
    assert sum(counted(report).values()) == 11
    for day in report.counts:
        assert (day.at.hour, day.at.minute) == (0, 0)
        of_day = [
            (hour.attempts, hour.seconds)
            for hour in hours.counts
            if hour.at.date() == day.at.date() and hour.reason == day.reason
        ]
        assert day.attempts == sum(attempts for attempts, _ in of_day)
        assert day.seconds == pytest.approx(sum(seconds for _, seconds in of_day))
    assert len({day.at for day in report.counts}) > 3


async def test_no_reason_breaks_an_ending_or_a_count(store: JobStore, clock: Clock) -> None:
    reason = "a\x00b\x1b[31m" + "x" * 90
    failure = Failure(cause="user", reason=reason, message="m")
    await run(store, AttemptEnding(failure=failure))
    clock.advance(240)
    [row] = (await store.statistics(MINUTES)).counts
    assert (row.attempts, row.cause) == (1, "user")


async def test_an_answer_has_a_bounded_number_of_rows(
    store: JobStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "ROWS", 2)
    for number in range(3):
        failure = Failure(cause="user", reason=f"r{number}", message="m")
        await run(store, AttemptEnding(failure=failure))
    clock.advance(240)
    report = await store.statistics(MINUTES)
    assert (len(report.counts), report.cut) == (2, True)
