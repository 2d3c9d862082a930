"""Shipped bugs on kernels of other suites and by other compilers: crash, fix and trace."""

import pytest

from kgym.bugs import bundle
from tests.conftest import chosen, kgym
from tests.kernel.test_bugs import assert_resolved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


CASES = [
    ("watch-queue-filter", "linux-5.10", "bullseye/gcc-10"),
    ("key-read-negative", "linux-5.10", "bullseye/gcc-10"),
    ("watch-queue-filter", "linux-6.12", "trixie/gcc-14"),
    ("key-read-negative", "linux-6.12", "trixie/gcc-14"),
    ("watch-queue-filter", "linux-6.1", "bookworm/clang-15"),
]


# A run builds one kernel more, and perhaps an image.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "kernel", "compiler"), chosen(CASES, 1))
def test_a_bug_on_another_kernel(name: str, kernel: str, compiler: str) -> None:
    asked = ("--kernel", kernel, "--compiler", compiler, "--trace")
    status, outcome = kgym("bug", "reproduce", "--no-variants", name, *asked)
    assert outcome["bug"] == f"{name}@{kernel}"
    assert_resolved(status, outcome, bundle.load(f"{name}@{kernel}").titles)
    assert outcome["trace"]["trace"] is not None, outcome["trace"]
    assert outcome["trace"]["trace"]["calls"]
