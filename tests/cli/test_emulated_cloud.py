"""Commands that try bugs on an emulated cloud, up to the first VM."""

import pytest

from tests.cli.conftest import Kgym

pytestmark = pytest.mark.thorough


def test_a_dump_from_outside_is_refused_when_it_is_asked_for(kgym: Kgym) -> None:
    words = ("--trace", "--provider", "gce", "--emulated", "--json")
    done = kgym("bug", "reproduce", "watch-queue-filter", *words)
    assert (done.status, done.json["reason"]) == (2, "no_dump_method")
    assert "--dump kdump" in done.json["detail"]
