"""Whether a kernel can still tell of bugs is seen in its config and its commands."""

import pytest

from kgym.api.steps import Finding, Severity
from kgym_builder.evidence import lost_detectors
from tests.tables import json_rows

CONFIG = (
    "CONFIG_KASAN=y\nCONFIG_DEFAULT_HUNG_TASK_TIMEOUT=120\nCONFIG_FS=y\n# CONFIG_NET is not set\n"
)


def grave(findings: list[Finding]) -> set[str]:
    return {finding.reason for finding in findings if finding.severity is Severity.BLOCKING}


@pytest.mark.parametrize(("old", "new", "reason"), json_rows(__file__, "config_changes.jsonl"))
def test_a_config_that_changes_is_found(old: str, new: str, reason: str) -> None:
    (finding,) = lost_detectors.configs(CONFIG, CONFIG.replace(old, new))
    assert (finding.check, finding.reason) == ("detector", reason)
    assert (finding.severity is Severity.BLOCKING) == (reason == "config_weaker")


def test_the_same_config_is_not() -> None:
    assert list(lost_detectors.configs(CONFIG, CONFIG)) == []


def test_a_flag_less_is_found_and_an_object_less() -> None:
    whole = "gcc -O2 -fsanitize=kernel-address --param asan-stack=1 -c -o a.o a.c"
    for less in (
        whole.replace("-fsanitize=kernel-address ", ""),
        whole + " -fno-sanitize=all",
        whole.replace("--param asan-stack=1", ""),
    ):
        assert grave(list(lost_detectors.commands({"a.o": whole}, {"a.o": less}))) == {
            "flags_weaker"
        }
    (other,) = lost_detectors.commands({"a.o": whole}, {"a.o": f"{whole} -DX"})
    assert other.reason == "flags_changed"
    assert list(lost_detectors.commands({"a.o": whole}, {"a.o": whole, "b.o": "gcc"})) == []
    (gone,) = lost_detectors.linked({"a.o", "b.o"}, {"a.o", "c.o"})
    assert (gone.reason, "b.o" in gone.message) == ("object_dropped", True)
