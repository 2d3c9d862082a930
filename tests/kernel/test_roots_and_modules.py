"""Real kernels whose guests start from a disk, or load a module. Minutes each."""

from pathlib import Path

import pytest

from tests.conftest import kgym

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

MODULE = Path(__file__).parent / "packet-module"


@pytest.mark.exhaustive
def test_a_bug_is_resolved_on_guests_that_start_from_a_disk() -> None:
    status, outcome = kgym("bug", "reproduce", "watch-queue-filter", "--root", "disk", "--validate")
    before, after = outcome["before"], outcome["after"]
    assert (before["verdict"], after["verdict"]) == ("same_crash", "no_crash"), outcome
    assert (status, outcome["resolved"]) == (0, True)


@pytest.mark.exhaustive
def test_a_bug_in_a_module_shows_once_the_module_is_loaded() -> None:
    status, outcome = kgym("bug", "reproduce", MODULE)
    before, after = outcome["before"], outcome["after"]
    assert before["title"] == "WARNING in packet_create", outcome
    assert (before["verdict"], after["verdict"]) == ("same_crash", "no_crash"), outcome
    assert (status, outcome["resolved"]) == (0, True)
