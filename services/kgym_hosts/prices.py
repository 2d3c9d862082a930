"""What hosts cost: the table in `configs/`, and what the operator's file says."""

import tomllib
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from kgym.api.steps import Strict
from kgym.configs import CONFIGS
from kgym_hosts.deployment import Deployment, Machine, MachineType, Pool

_HOURS_OF_A_MONTH = 730.0
Price = Annotated[float, Field(gt=0, le=10_000)]


class MachinePrice(Strict):
    """Of one machine type."""

    dollars_per_hour: Price
    spot_dollars_per_hour: Price | None = Field(None, description="null: not looked up")
    source: str = Field(max_length=300)
    looked_up: date


class DiskPrice(Strict):
    """Of one kind of disk."""

    dollars_per_gb_month: Price
    source: str = Field(max_length=300)
    looked_up: date


class PriceTable(Strict):
    """Prices of one region, each with its source and date."""

    region: str = Field(max_length=40)
    machines: dict[MachineType, MachinePrice]
    disks: dict[str, DiskPrice]

    @property
    def oldest(self) -> date:
        """When the price that was looked up first was."""
        known = [one.looked_up for one in self.machines.values()]
        return min([*known, *(one.looked_up for one in self.disks.values())])


def shipped_prices(file: Path = CONFIGS / "cloud_prices.toml") -> PriceTable:
    """Read the table."""
    return PriceTable.model_validate(tomllib.loads(file.read_text()))


def dollars_per_hour(machine: Machine, region: str, table: PriceTable) -> float | None:
    """Return what a host costs with its disk; None if that is not known."""
    if machine.dollars_per_hour is not None:
        return machine.dollars_per_hour
    price, disk = table.machines.get(machine.machine_type), table.disks.get(machine.disk_type)
    if price is None or disk is None or region != table.region:
        return None
    spot = isinstance(machine, Pool) and machine.spot
    own = price.spot_dollars_per_hour if spot else price.dollars_per_hour
    if own is None:
        return None
    return own + machine.disk_gb * disk.dollars_per_gb_month / _HOURS_OF_A_MONTH


def so_far(dollars: float | None, created: datetime, now: datetime) -> float | None:
    """Return what a host that was made then has cost."""
    hours = (now - created).total_seconds() / 3600
    return None if dollars is None else dollars * max(0.0, hours)


def estimate(deployment: Deployment, table: PriceTable) -> dict[str, float | None]:
    """Return dollars an hour of one host of each pool, and of the scheduler's."""
    machines: dict[str, Machine] = {"scheduler": deployment.scheduler, **deployment.pools}
    return {name: dollars_per_hour(one, deployment.region, table) for name, one in machines.items()}
