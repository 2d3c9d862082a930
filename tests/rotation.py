"""Tests that take turns, so that a whole run stays under an hour.

Each case of a test that is marked `@pytest.mark.in_turn(days)` runs on one of so many days. With
`on=DAY`, the first case runs on that day of them, the next one on the day after: so tests that
build a kernel or a compiler's image of their own come on different days. Cases of tests that are
`thorough` run every other day, but for attacks.
`KGYM_TEST_ALL=1` lets all of them run, and so does naming the test or its file.
"""

import os
from collections import Counter
from datetime import UTC, datetime
from zlib import crc32

import pytest

EVERY_OTHER_DAY = pytest.mark.in_turn(2).mark


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "in_turn(days, on=None): each case runs on one of the days")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what has its turn on another day; the cases that take turns with each other in order."""
    if os.environ.get("KGYM_TEST_ALL") or any(".py" in one for one in config.args):
        return
    today = datetime.now(UTC).toordinal()
    cases = Counter[str]()
    for item in items:
        mark = item.get_closest_marker("in_turn")
        if mark is None and item.get_closest_marker("thorough"):
            mark = None if item.get_closest_marker("attack") else EVERY_OTHER_DAY
        if mark is None:
            continue
        (days,) = mark.args
        test, _, _ = item.nodeid.partition("[")
        begin = mark.kwargs.get("on", -crc32(test.encode()))
        if (today - begin - cases[test]) % days:
            item.add_marker(pytest.mark.skip(f"one day of {days}; KGYM_TEST_ALL=1 runs it today"))
        cases[test] += 1
