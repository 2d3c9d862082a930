"""From a shipped bug to its minimal trace, by both ways of taking dumps. Minutes each."""

import re

import pytest

from kgym.bugs import bundle
from tests.conftest import kgym

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

DEMO = "watch-queue-filter"


@pytest.mark.parametrize(
    "method", ["hypervisor", pytest.param("kdump", marks=pytest.mark.exhaustive)]
)
def test_a_crash_comes_with_its_minimal_trace(method: str) -> None:
    status, outcome = kgym("bug", "reproduce", DEMO, "--no-fix", "--trace", "--dump", method)
    assert (status, outcome["before"]["verdict"]) == (0, "same_crash"), outcome
    (dump,) = [dump for dump in outcome["trace"]["dumps"] if dump["artifact"]]
    assert (dump["method"], dump["failure"]) == (method, None)
    assert outcome["trace"]["title"] == bundle.load(DEMO).file.title
    trace = outcome["trace"]["trace"]
    assert trace["anchor"]["frames"][0] == "watch_queue_set_filter"
    (anchor,) = [call for call in trace["calls"] if call["anchor"]]
    assert anchor["pattern"] == [{"file": "kernel/watch_queue.c", "name": "watch_queue_set_filter"}]
    # a name of its own for each run: no patch can tell the program by it
    assert re.fullmatch(r"[a-z]{8}", trace["task"])
