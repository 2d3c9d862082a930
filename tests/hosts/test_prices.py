"""What hosts cost: the operator's word, else a table with sources and dates, else not known."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kgym_hosts import prices
from tests.hosts.deployments import TEXT, deployment


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
