"""Shipped bugs on kernels of other suites: 5.10 and 6.12, each through crash, fix and trace."""

import pytest

from kgym.bugs import bundle
from tests.conftest import kgym
from tests.kernel.test_bugs import assert_resolved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


# One of four a day: a day's run builds one kernel more.
@pytest.mark.in_turn(8, on=0)
@pytest.mark.parametrize("name", ["watch-queue-filter", "key-read-negative"])
@pytest.mark.parametrize("kernel", ["linux-5.10", "linux-6.12"])
def test_a_shipped_bug_is_resolved_and_traced_on_another_kernel(kernel: str, name: str) -> None:
    one = bundle.load(f"{name}@{kernel}")
    status, outcome = kgym("bug", "reproduce", name, "--kernel", kernel, "--trace")
    assert outcome["bug"] == f"{name}@{kernel}"
    assert_resolved(status, outcome, one.titles)
    assert outcome["trace"]["trace"] is not None, outcome["trace"]
    assert outcome["trace"]["trace"]["calls"]
