"""The datasets of `configs/datasets`: their bundles load, whole or up to the programs they name."""

from pathlib import Path

import pytest

from kgym.bench import bug_bundles, dataset
from kgym.bench.bug_bundles import read_bundles
from kgym.bugs import bundle
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym_benchmark.campaign import adapters, subjects
from tests.conftest import ROOT

PROGRAMS = ROOT.parent / "shared" / "data" / "kbenchsyz_repros"
KERNELS = sorted((CONFIGS / "datasets" / "kbenchsyz").iterdir())
BUNDLES = [folder for kernel in KERNELS for folder in sorted(kernel.iterdir())]
needs_programs = pytest.mark.skipif(
    not PROGRAMS.is_dir(), reason="kBenchSyz's programs are not here: shared/data/kbenchsyz_repros"
)


def _name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def test_there_are_bugs_on_each_kernel() -> None:
    assert [kernel.name for kernel in KERNELS] == [f"campaign-{v}" for v in ("5.10", "6.1", "6.12")]
    assert all(any(kernel.iterdir()) for kernel in KERNELS)


@pytest.mark.parametrize("folder", BUNDLES, ids=_name)
def test_a_bundle_only_lacks_the_program_that_it_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KGYM_PROGRAMS", raising=False)
    with pytest.raises(UserError) as refused:
        bundle.load(str(folder))
    assert refused.value.reason == "no_program", refused.value
    assert {path.name for path in folder.iterdir()} == {"bug.toml", "regress.patch"}


@needs_programs
@pytest.mark.parametrize("folder", BUNDLES, ids=_name)
def test_a_bundle_is_a_bug_with_its_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGYM_PROGRAMS", str(PROGRAMS))
    bug = bundle.load(str(folder))
    assert bug.file.kernel.use == folder.parent.name
    assert bug.fix is not None
    assert bug.reproducers[0].text.strip()


@needs_programs
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_kernels_bugs_are_a_dataset_for_agents(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGYM_PROGRAMS", str(PROGRAMS))
    bugs = bug_bundles.read_bundles(kernel).bugs
    assert [bug.id for bug in bugs] == [folder.name for folder in sorted(kernel.iterdir())]
    assert all(bug.patch is not None for bug in bugs)


def test_the_first_public_dataset_is_what_its_bundles_make() -> None:
    """It never changes: once a bundle does, the new ones are another dataset."""
    folder = CONFIGS / "datasets" / "kgymsuite-1"
    bugs = dataset.load(folder).bugs
    assert all(bug.validation is not None for bug in bugs)
    unvalidated = [bug.model_copy(update={"validation": None}) for bug in bugs]
    assert unvalidated == list(read_bundles(CONFIGS / "bugs").bugs)
    path = CONFIGS / "benchmarks" / "kgymsuite-1.toml"
    campaign = subjects.read(path)
    chosen = subjects.load(campaign, path.parent)
    assert (len(chosen.bugs), chosen.unbundled) == (8, 0)
    for entry in campaign.agents:
        adapters.command(entry, path.parent)
    assert all(bug.bug.fix for bug in chosen.bugs)
