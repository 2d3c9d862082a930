"""An accelerator counts when something booted with it."""

import time
from pathlib import Path

import pytest

from kgym_vmmanager.vm.accelerator import Accelerator, best_accelerator, probe

pytestmark = pytest.mark.anyio


@pytest.mark.thorough
async def test_tcg_proves_itself(tmp_path: Path) -> None:
    assert await probe(Accelerator.TCG, tmp_path) == ""


@pytest.mark.thorough
async def test_the_answer_names_the_reason_and_the_clock(tmp_path: Path) -> None:
    answer = await best_accelerator(tmp_path)
    assert (answer.accelerator is Accelerator.KVM) == (answer.reason == "")
    assert answer.tsc_khz is None or 100_000 < answer.tsc_khz < 10_000_000


@pytest.mark.thorough
async def test_the_answer_is_remembered(tmp_path: Path) -> None:
    answer = await best_accelerator(tmp_path)
    stamp = (tmp_path / "accelerator.json").stat().st_mtime_ns
    begin = time.monotonic()
    assert await best_accelerator(tmp_path) == answer
    assert time.monotonic() - begin < 1
    assert (tmp_path / "accelerator.json").stat().st_mtime_ns == stamp


@pytest.mark.thorough
async def test_a_damaged_answer_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "accelerator.json").write_text("{")
    answer = await best_accelerator(tmp_path)
    assert (tmp_path / "accelerator.json").read_text() == answer.model_dump_json()
