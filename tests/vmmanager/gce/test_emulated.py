"""The demo bug on an emulated cloud: bucket and VMs behind servers, with a real kernel."""

from typing import Any

import pytest

from tests.conftest import kgym

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

EMULATED = ("--provider", "gce", "--emulated")


def resolved(answer: dict[str, Any]) -> None:
    """Check that the bug showed and the fix held, on VMs of the emulated cloud."""
    assert answer["resolved"], answer
    before, after = answer["before"], answer["after"]
    assert (before["verdict"], after["verdict"]) == ("same_crash", "no_crash")
    assert before["accelerator"] == after["accelerator"] == "gce-emulated"


@pytest.mark.exhaustive
def test_the_demo_bug_is_resolved() -> None:
    status, answer = kgym("demo", *EMULATED)
    assert status == 0, answer
    resolved(answer)


@pytest.mark.exhaustive
def test_kdump_gives_the_minimal_trace() -> None:
    words = (
        "bug",
        "reproduce",
        "watch-queue-filter",
        "--no-variants",
        "--trace",
        "--dump",
        "kdump",
    )
    status, answer = kgym(*words, *EMULATED)
    assert status == 0, answer
    resolved(answer)
    assert answer["trace"]["trace"], answer["trace"]
