"""Validation on a real kernel: a shipped bug is accepted, and the same line runs nothing again."""

import uuid
from pathlib import Path

import pytest

from kgym.bench import dataset
from tests.conftest import ROOT, kgym

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.exhaustive]


def test_the_demos_bug_is_accepted(tmp_path: Path) -> None:
    bundle = ROOT / "configs" / "bugs" / "watch-queue-filter"
    kgym("bench", "import", "bundles", bundle, "--into", tmp_path / "bugs")
    words = ("bench", "validate", tmp_path / "bugs", "--into", tmp_path / "v", "--time", "20")
    line = (*words, "--name", f"validate-{uuid.uuid4().hex[:8]}")
    status, summary = kgym(*line)
    assert (status, summary["accepted"], summary["unknown"]) == (0, 1, 0)
    (bug,) = dataset.load(Path(summary["folder"])).bugs
    assert bug.validation is not None
    assert not bug.validation.racy
    assert kgym(*line) == (0, summary)
