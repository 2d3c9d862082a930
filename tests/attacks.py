"""Counts the attacks that a test run has tried, and tells how many of them failed.

Every test in `tests/security`, and every one marked `attack`, tries one; a test that tries more
says so: `record_property("attack", 7)` for seven further ones.
"""

import pytest

_PROPERTY = "attack"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every attack a property, which reaches the end of the run from any process."""
    for item in items:
        if "security" in item.path.parts or item.get_closest_marker("attack"):
            item.user_properties.append((_PROPERTY, 1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many attacks were tried, if any were."""
    tried = {name: _attacks(terminalreporter, name) for name in ("passed", "failed")}
    if total := sum(tried.values()):
        words = f"attacks tried: {total}, held: {tried['passed']}"
        terminalreporter.write_line(words, red=bool(tried["failed"]), green=not tried["failed"])


def _attacks(reporter: pytest.TerminalReporter, outcome: str) -> int:
    return sum(
        int(value)
        for report in reporter.stats.get(outcome, ())
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == _PROPERTY
    )
