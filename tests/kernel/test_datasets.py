"""A bug of `configs/datasets` comes back on its kernel."""

import pytest

from kgym.bugs import bundle
from kgym.configs import CONFIGS
from tests.bugs.test_datasets import PROGRAMS, needs_programs
from tests.conftest import kgym
from tests.kernel.test_bugs import assert_resolved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@needs_programs
@pytest.mark.exhaustive
def test_a_bug_of_kbenchsyz_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGYM_PROGRAMS", str(PROGRAMS))
    (folder,) = (CONFIGS / "datasets" / "kbenchsyz" / "campaign-6.1").glob("e93dddbf164f*")
    status, outcome = kgym("bug", "reproduce", "--no-variants", folder)
    assert_resolved(status, outcome, bundle.load(str(folder)).titles)
