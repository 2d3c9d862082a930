"""The simulated study: equal seeds give equal figures; every strategy can be simulated."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kgym_crashfixer import strategies
from tests.bench import study
from tests.conftest import ROOT
from tests.crashfixer.skill import Bug, Prices, Simulation, Skill


@pytest.mark.parametrize("name", study.names())
def test_a_simulation_is_told_by_its_seed(name: str) -> None:
    first, second = (study.searched(3, Skill(), Prices(), name) for _ in range(2))
    assert first == second
    assert first["dollars"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", study.COMPARED)
def test_a_model_that_is_always_right_resolves_every_bug_and_one_without_insight_none(
    name: str,
) -> None:
    able = Skill(insight=0.999, spread=1000, elsewhere=0, carries_out=1, compiles=1, applies=1)
    able = replace(able, reflects=1, weighs=1)
    lost = Skill(insight=1e-9, spread=1000, silencers=0, misses=0)
    for seed in range(5):
        for skill, right in ((able, True), (lost, None)):
            simulation = Simulation(Bug(seed, skill), Prices(), strategies.load(name))
            simulation.search(limit=100.0)
            assert simulation.right is right, (seed, skill)


def test_a_limit_in_dollars_is_kept_but_for_the_work_that_was_begun() -> None:
    simulation = Simulation(Bug(1, Skill(insight=0.01)), Prices(), strategies.load("forest"))
    simulation.search(limit=1.0)
    assert 1.0 < simulation.dollars < 2.0


def test_the_strategy_on_the_page_can_be_loaded(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "strategies.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "mine.toml"
    file.write_text(text)
    assert strategies.load(str(file)).kind == "forest"
    assert all(f"`{name}`" in page for name in strategies.names() if not name.startswith("table2"))
