"""Variants on real kernels."""

from typing import Any

import pytest

from kgym.api.steps import Edit, Patch
from kgym.bugs import bundle
from kgym.bugs.bug import TrialOptions
from tests.conftest import kgym

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]

BUG = bundle.load("futex-op-shift")
BOUND = "\tif (encoded_op & (FUTEX_OP_OPARG_SHIFT << 28))\n\t\toparg = 1 << oparg;\n"
FIXED = """\
	if (encoded_op & (FUTEX_OP_OPARG_SHIFT << 28)) {
		if (oparg < 0 || oparg > %d)
			oparg &= 31;
		oparg = 1 << oparg;
	}
"""


def tried(largest: int) -> dict[str, Any]:
    """Try a fix that allows operands up to `largest`; return the result with the fix."""
    edit = Edit(file="kernel/futex/waitwake.c", original=BOUND, replacement=FIXED % largest)
    request = BUG.job(Patch(name="fix", edits=[edit]), TrialOptions(variants=True))
    _, job = kgym("job", "submit", "-", "--wait", stdin=request)
    result: dict[str, Any] = job["steps"][-1]["result"]
    assert result["verdict"] == "no_crash", result  # of the program itself
    return result


def test_a_bound_that_is_off_by_one_is_found() -> None:
    result = tried(32)
    blocking = [finding for finding in result["findings"] if finding["severity"] == "blocking"]
    assert [finding["reason"] for finding in blocking] == ["variant_crashes"], result
    # The field of 12 bits is 32 where it was -1.
    assert "20000 instead of 0x" in blocking[0]["message"]


def test_the_right_bound_survives() -> None:
    result = tried(31)
    assert [finding for finding in result["findings"] if finding["severity"] == "blocking"] == [], (
        result
    )
    assert result["variants"]["ran"] > 1000
