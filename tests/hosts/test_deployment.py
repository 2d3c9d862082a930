"""Deployment files: what is read, and what is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kgym.errors import UserError
from kgym_hosts import prices
from kgym_hosts.deployment import read_deployment
from tests.hosts.deployments import TEXT, deployment
from tests.refused import refused

# What the deployment has, what takes its place, and the fault that this is.
WRONG = [
    line.split("\t")
    for line in Path(__file__).with_name("bad_deployments.tsv").read_text().splitlines()
]


def test_a_deployment_is_read(tmp_path: Path) -> None:
    farm = deployment(tmp_path)
    assert farm.region == "us-central1"
    assert farm.pools["build"].most == 4
    assert farm.scaling.wait_seconds == 120


@pytest.mark.parametrize(("before", "after", "fault"), WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, before: str, after: str, fault: str) -> None:
    assert before in TEXT
    with refused("bad_deployment", kind=UserError) as error:
        deployment(tmp_path, TEXT.replace(before, after))
    assert fault in error.value.message
    assert "farm.toml" in error.value.message


@pytest.mark.attack
def test_a_file_is_bounded(tmp_path: Path) -> None:
    for text in ("#" * (2 << 20), "a = " + "[" * 100_000, "\x00\xff"):
        with pytest.raises(UserError, match="farm"):
            deployment(tmp_path, text)
    with pytest.raises(UserError, match="No such file"):
        read_deployment(tmp_path / "nothing.toml")


def test_the_operators_price_counts_then_the_table_and_else_none(tmp_path: Path) -> None:
    costs = prices.estimate(deployment(tmp_path), prices.shipped_prices())
    assert costs["build"] == 0.2
    assert costs["vms"] == pytest.approx(8 * 0.048559)
    assert costs["scheduler"] is None  # an E2, which nobody looked up


def test_spot_has_its_own_price_and_other_regions_none(tmp_path: Path) -> None:
    table = prices.shipped_prices()
    unpriced = TEXT.replace("dollars_per_hour = 0.2\n", "")
    assert prices.estimate(deployment(tmp_path, unpriced), table)["build"] == pytest.approx(
        8 * 0.015876
    )
    elsewhere = deployment(tmp_path, unpriced.replace("us-central1", "europe-west1"))
    assert set(prices.estimate(elsewhere, table).values()) == {None}


def test_what_a_host_has_cost_goes_by_its_age() -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    assert prices.so_far(2.0, now - timedelta(hours=3), now) == 6.0
    assert prices.so_far(2.0, now + timedelta(hours=3), now) == 0.0
    assert prices.so_far(None, now, now) is None


def test_every_price_says_where_it_is_from() -> None:
    for price in prices.shipped_prices().families.values():
        assert "commit" in price.source or "https://" in price.source
