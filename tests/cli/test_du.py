"""`kgym du`, and a budget of disk."""

import pytest

from tests.cli.conftest import Kgym

pytestmark = pytest.mark.thorough


def test_what_takes_disk_is_told_and_a_warning_beyond_the_budget(
    kgym: Kgym, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = kgym("du")
    assert shown.status == 0
    assert "KGYM_DISK_BUDGET" not in shown.err  # the machine's own disk may be nearly full
    for words in ("database", "cache/suitecache", "MB stored, budget", "MB free"):
        assert words in shown.out
    monkeypatch.setenv("KGYM_DISK_BUDGET", "1K")
    warned = kgym("du")
    assert warned.status == 0
    assert "(KGYM_DISK_BUDGET): finished jobs' artifacts go" in warned.err
    assert kgym("du", "--json").json["storage"]["warning"] in warned.err
