"""The kernel's own tests on real kernels."""

from typing import Any

import pytest

from kgym.api.steps import Edit, Patch
from kgym.bugs.bug import TrialOptions
from tests.conftest import kgym
from tests.kernel.test_variants import BOUND, BUG, FIXED

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]

FIX = Edit(file="kernel/futex/waitwake.c", original=BOUND, replacement=FIXED % 31)
# FUTEX_WAIT fails with another error if the value is not the expected one.
BREAKS = Edit(
    file="kernel/futex/waitwake.c",
    original="\tif (uval != val) {\n\t\tfutex_q_unlock(*hb);\n\t\tret = -EWOULDBLOCK;\n\t}\n",
    replacement="\tif (uval != val) {\n\t\tfutex_q_unlock(*hb);\n\t\tret = -ETIMEDOUT;\n\t}\n",
)
HIDES = Edit(
    file="tools/testing/selftests/futex/functional/futex_wait_wouldblock.c",
    original="return ret;",
    replacement="return 0;",
)


def tried(*edits: Edit) -> dict[str, Any]:
    """Try a patch on the futex bug; return the result with the fix."""
    request = BUG.job(Patch(name="fix", edits=list(edits)), TrialOptions(variants=True))
    _, job = kgym("job", "submit", "-", "--wait", stdin=request)
    result: dict[str, Any] = job["steps"][-1]["result"]
    assert result["verdict"] == "no_crash", result
    return result


def test_a_right_fix_passes_the_kernels_own_tests() -> None:
    result = tried(FIX)
    assert [each for each in result["findings"] if each["severity"] == "blocking"] == [], result
    assert result["kernel_tests"]["failed"] == []
    assert result["kernel_tests"]["passed"] >= 8, result["kernel_tests"]


def test_a_patch_that_breaks_a_test_is_found_though_it_changes_the_test() -> None:
    result = tried(FIX, BREAKS, HIDES)
    (finding,) = [each for each in result["findings"] if each["check"] == "tests"]
    assert (finding["reason"], finding["severity"]) == ("kernel_tests_fail", "blocking")
    assert "futex_wait_wouldblock" in finding["message"]
    assert result["kernel_tests"]["failed"]
