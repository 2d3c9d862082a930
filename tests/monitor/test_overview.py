"""The overview's charts: the numbers that they are drawn from, and their pages."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.statistics import AttemptCount, Statistics
from kgym.api.steps import StepKind
from kgym.errors import UserError
from kgym_cli.platforms.embedded_platform import Platform
from kgym_monitor.pages.step_history import SPANS, StepHistory, begin, history, span_of
from tests.demo import past_attempts
from tests.demo.monitored import monitored

NOW = datetime(2026, 3, 5, 14, 37, tzinfo=UTC)


# --- the numbers --------------------------------------------------------------------------


def count(
    hours_ago: float, outcome: str = "succeeded", attempts: int = 1, **more: object
) -> AttemptCount:
    at = begin(NOW - timedelta(hours=hours_ago), timedelta(hours=1))
    given = {"kind": "build", "cause": None, "reason": None, "cached": None, "seconds": 0.0}
    fields = {**given, "at": at, "outcome": outcome, "attempts": attempts, **more}
    return AttemptCount.model_validate(fields)


def history_of(*counts: AttemptCount, name: str = "day") -> StepHistory:
    span = SPANS[name]
    since = span.wanted(NOW).since
    assert since is not None
    until = NOW - timedelta(minutes=2)
    answer = Statistics(
        since=since, until=until, step=span.asked, counts=[*counts], cut=False, median_seconds={}
    )
    return history(span, answer)


def columns(shown: StepHistory, chart: str) -> dict[str, int]:
    [chart_] = [drawn for drawn in shown.charts if drawn.name == chart]
    return {column.label: column.total for column in chart_.columns}


def test_infrastructure_is_apart_from_what_failed_of_itself() -> None:
    shown = history_of(
        count(1, attempts=5),
        count(1, "failed", 2, cause="user", reason="does_not_compile"),
        count(2, "failed", 1, cause="user", reason="bad_config"),
        count(2, "failed", 4, cause="infrastructure", reason="disk_full"),
        count(3, "expired", 1, cause="infrastructure", reason="lease_expired"),
        count(3, "aborted", 1),
        count(3, "released", 1),
    )
    assert columns(shown, "throughput") == {
        "Succeeded": 5,
        "Failed": 3,
        "Infrastructure": 5,
        "Aborted or returned": 2,
    }
    assert columns(shown, "failed") == {"does_not_compile": 2, "bad_config": 1}
    assert columns(shown, "infrastructure") == {"disk_full": 4, "lease_expired": 1}


def test_rare_reasons_are_added_up() -> None:
    reasons = [count(1, "failed", 20 - n, cause="user", reason=f"r{n}") for n in range(12)]
    failed = columns(history_of(*reasons), "failed")
    assert list(failed.items())[:2] == [("r0", 20), ("r1", 19)]
    assert len(failed) == 7
    assert failed["6 other reasons"] == sum(20 - n for n in range(6, 12))


def test_the_cache_s_share_is_of_builds_alone() -> None:
    shown = history_of(
        count(1, attempts=3, cached=True),
        count(1, attempts=1, cached=False),
        count(1, attempts=50, kind="reproduce"),
        count(5, attempts=2, cached=False),
    )
    [chart] = [drawn for drawn in shown.charts if drawn.name == "cache"]
    assert chart.summary == "50 % of 6 builds"
    assert [values for _, values in shown.rows(chart)] == [[75.0, 3, 4], [0.0, 0, 2]]


def test_kinds_have_their_mean_time() -> None:
    shown = history_of(
        count(1, attempts=4, seconds=200.0),
        count(1, "failed", cause="user", reason="bad_config", seconds=900.0),
        count(1, "expired", kind="reproduce", cause="infrastructure", reason="lease_expired"),
    )
    kinds = [(kind.kind, kind.succeeded, kind.failed, kind.infrastructure) for kind in shown.kinds]
    assert kinds == [(StepKind.BUILD, 4, 1, 0), (StepKind.REPRODUCE, 0, 0, 1)]
    assert [kind.mean_seconds for kind in shown.kinds] == [50.0, None]


@pytest.mark.thorough
@given(
    name=st.sampled_from([*SPANS]),
    ago=st.lists(st.floats(0, 40 * 24), max_size=20),
    slow=st.floats(-1e6, 1e6),
)
def test_what_is_in_the_span_is_in_a_piece(name: str, ago: list[float], slow: float) -> None:
    """Also where the monitor's clock is not the scheduler's."""
    span, until = SPANS[name], NOW + timedelta(seconds=slow)
    since = span.wanted(NOW).since
    assert since is not None
    answer = Statistics(
        since=since,
        until=until,
        step=span.asked,
        counts=[count(moment) for moment in ago],
        cut=False,
        median_seconds={},
    )
    shown = history(span, answer)
    assert 1 <= len(shown.starts) <= span.length / span.piece + 1
    assert shown.starts[-1] <= until
    pieces = [(at, at + span.piece) for at in shown.starts]
    inside = [counted for counted in answer.counts if any(a <= counted.at < b for a, b in pieces)]
    assert shown.attempts == len(inside)
    assert columns(shown, "throughput")["Succeeded"] == len(inside)


def test_a_range_that_there_is_not_is_told() -> None:
    with pytest.raises(UserError, match="known: hour, day, week, month"):
        span_of("<b>")


# --- the page -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Busy:
    """A monitor of a platform with a past."""

    url: str
    data: Path


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    data = tmp_path_factory.mktemp("busy")
    with Platform(data, work=False) as platform, monitored(platform.url) as url:
        past_attempts.add(data, past_attempts.month(datetime.now(UTC)))
        yield Busy(url, data)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    data = tmp_path_factory.mktemp("idle")
    with Platform(data, work=False) as platform, monitored(platform.url) as url:
        yield Busy(url, data)


def get(url: str, path: str) -> httpx.Response:
    return httpx.get(f"{url}{path}", trust_env=False, timeout=60)


@pytest.mark.thorough
def test_each_range_has_its_address(busy: Busy) -> None:
    pieces = {}
    for name in SPANS:
        text = get(busy.url, f"/?range={name}").text
        assert re.search(f'href="/\\?range={name}#history" aria-current="true"', text)
        polled = get(busy.url, f"/?range={name}&poll=yes").text
        pieces[name] = re.findall('data-piece="([0-9]+)" data-pieces="([0-9]+)"', polled)[0]
        assert pieces[name] == re.findall('data-piece="([0-9]+)" data-pieces="([0-9]+)"', text)[0]
        assert "data-colour" in text
    assert pieces == {
        "hour": ("60", pieces["hour"][1]),
        "day": ("3600", pieces["day"][1]),
        "week": ("10800", pieces["week"][1]),
        "month": ("86400", pieces["month"][1]),
    }
    assert all(24 <= int(number) <= 61 for _, number in pieces.values())
    assert get(busy.url, "/").text.count('data-piece="3600"') == 4


@pytest.mark.parametrize("path", ["/?range=year", "/?range=%3Cb%3E", "/?poll=yes&range=year"])
def test_a_range_that_is_wrong_is_a_page_that_says_so(busy: Busy, path: str) -> None:
    answer = get(busy.url, path)
    assert (answer.status_code, "known: hour" in answer.text) == (422, True)
    assert "<b>" not in answer.text


def test_without_a_past_it_says_so(idle: Busy) -> None:
    text = get(idle.url, "/?range=week").text
    assert "No step has ended in the last 7 days" in text
    assert "<figure" not in text
