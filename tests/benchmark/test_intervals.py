"""How often the intervals hold the truth: by simulation, as their level says."""

import numpy as np
import pytest

from kgym.bench.intervals import LEVEL, Bootstrap

TRIES = 2000


def share_of(shares: np.ndarray, bugs: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((bugs, TRIES)) < shares).astype(float)


@pytest.mark.thorough
@pytest.mark.parametrize("bugs", [10, 20, 50, 200])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5, 0.8, 0.95])
def test_the_interval_of_a_share_holds_it_at_its_level(bugs: int, share: float) -> None:
    spans = Bootstrap(bugs).means(share_of(np.full(TRIES, share), bugs, seed=1))
    held = np.mean([span.low - 1e-12 <= share <= span.high + 1e-12 for span in spans])
    assert held >= LEVEL - 0.025


@pytest.mark.parametrize("bugs", [10, 50, 200])
@pytest.mark.parametrize("more", [0.0, 0.2, 0.5])
def test_the_interval_of_a_paired_difference_holds_it(bugs: int, more: float) -> None:
    values = share_of(np.full(TRIES, 0.3 + more), bugs, seed=2)
    others = share_of(np.full(TRIES, 0.3), bugs, seed=3)
    spans = Bootstrap(bugs).paired(values, others)
    held = np.mean([span.low - 1e-12 <= more <= span.high + 1e-12 for span in spans])
    assert held >= LEVEL - 0.025


def test_the_interval_of_a_difference_of_two_kinds_of_bugs_holds_it() -> None:
    values = share_of(np.full(TRIES, 0.8), 100, seed=4)
    others = share_of(np.full(TRIES, 0.5), 60, seed=5)
    spans = Bootstrap(100).difference(values, Bootstrap(60, seed=9), others)
    held = np.mean([span.low <= 0.3 <= span.high for span in spans])
    assert held >= LEVEL - 0.025


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_bugs_that_are_all_alike_prove_nothing_for_certain(value: float) -> None:
    (interval,) = Bootstrap(10).means(np.full((10, 1), value))
    assert interval.value == value
    assert interval.low < interval.high


def test_without_bugs_there_is_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Bootstrap(0)
