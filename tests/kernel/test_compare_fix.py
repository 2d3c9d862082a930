"""Patches compared with the developers' fix on real kernels."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import kgym

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]

BUG = "futex-op-shift"
# Serves the reproducer, whose operand is negative, and refuses all others, which the fix serves.
REFUSES = """\
--- a/kernel/futex/waitwake.c
+++ b/kernel/futex/waitwake.c
@@ -196,2 +196,5 @@
-\tif (encoded_op & (FUTEX_OP_OPARG_SHIFT << 28))
-\t\toparg = 1 << oparg;
+\tif (encoded_op & (FUTEX_OP_OPARG_SHIFT << 28)) {
+\t\tif (oparg >= 0)
+\t\t\treturn -EINVAL;
+\t\toparg = 1 << (oparg & 31);
+\t}
"""


def compared(*words: object) -> dict[str, Any]:
    """Return how a fix compares with the known one."""
    _, answer = kgym("bug", "reproduce", BUG, "--compare-fix", *words)
    alike: dict[str, Any] = answer["after"]["behavioural_equivalence"]
    return alike


def test_the_fix_is_equivalent_to_itself_and_refusing_is_not(tmp_path: Path) -> None:
    itself = compared()
    assert (itself["value"], itself["crashed"], itself["equivalent"]) == (1.0, 0, True), itself
    assert itself["compared"] >= 150
    patch = tmp_path / "refuses.diff"
    patch.write_text(REFUSES)
    refuses = compared("--fix", patch)
    ran = [each["compared"] + each["dropped"] for each in (itself, refuses)]
    assert ran[0] == ran[1]  # the same reference
    assert refuses["value"] < 1.0, refuses
