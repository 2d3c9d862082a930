"""Prices of hosts: from the operator's deployment file, or the table in `configs/`."""

import tomllib
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from kgym.api.steps import Strict
from kgym.configs import CONFIGS
from kgym_hosts.deployment import Deployment, Machine, Pool

Price = Annotated[float, Field(gt=0, le=10_000)]


class FamilyPrice(Strict):
    """Prices of machine types with a price per vCPU, such as n2-standard-8."""

    dollars_per_vcpu_hour: Price
    spot_dollars_per_vcpu_hour: Price | None = Field(None, description="null: not looked up")
    source: str = Field(min_length=10, max_length=300)
    looked_up: date


class PriceTable(Strict):
    """Prices of one region, each with its source and date."""

    region: str = Field(max_length=40)
    families: dict[Annotated[str, Field(max_length=60)], FamilyPrice]


def shipped_prices(file: Path = CONFIGS / "cloud_prices.toml") -> PriceTable:
    """Read the shipped price table."""
    return PriceTable.model_validate(tomllib.loads(file.read_text()))


def dollars_per_hour(machine: Machine, region: str, table: PriceTable) -> float | None:
    """Return a host's price per hour; None if it is unknown."""
    if machine.dollars_per_hour is not None:
        return machine.dollars_per_hour
    family, _, cores = machine.machine_type.rpartition("-")
    # An unknown price is never counted as 0: it would allow any number of hosts within a budget.
    price = table.families.get(family)
    if price is None or not cores.isdecimal() or region != table.region:
        return None
    spot = isinstance(machine, Pool) and machine.spot
    per_vcpu = price.spot_dollars_per_vcpu_hour if spot else price.dollars_per_vcpu_hour
    return None if per_vcpu is None else per_vcpu * int(cores)


def so_far(dollars: float | None, created: datetime, now: datetime) -> float | None:
    """Return the cost of a host since its creation."""
    hours = (now - created).total_seconds() / 3600
    return None if dollars is None else dollars * max(0.0, hours)


def estimate(deployment: Deployment, table: PriceTable) -> dict[str, float | None]:
    """Return dollars per hour of one host of each pool, and of the scheduler's host."""
    machines: dict[str, Machine] = {"scheduler": deployment.scheduler, **deployment.pools}
    return {
        name: dollars_per_hour(machine, deployment.region, table)
        for name, machine in machines.items()
    }
