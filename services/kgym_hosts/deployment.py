"""A deployment: the file that says where a platform runs, on which hosts, within which bounds."""

import tomllib
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from kgym.api.steps import StepKind, Strict
from kgym.errors import UserError

# Of a deployment file.
MOST_BYTES = 1 << 20
_NAME = r"^[a-z]([a-z0-9-]*[a-z0-9])?$"
PoolName = Annotated[str, Field(pattern=_NAME, max_length=16)]
Zone = Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$", max_length=40)]
MachineType = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)+$", max_length=60)]
Dollars = Annotated[float, Field(ge=0, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]


class Machine(Strict):
    """What kind of host: its machine type, disk and price."""

    machine_type: MachineType
    disk_gb: int = Field(100, ge=20, le=65536, description="GB of the boot disk")
    disk_type: str = Field("pd-balanced", pattern=r"^(pd|hyperdisk)-[a-z]+$", max_length=40)
    dollars_per_hour: Dollars | None = Field(
        None, description="what a host costs; null: what the price table says"
    )


class SchedulerHost(Machine):
    """The host with scheduler, database and monitor."""

    zone: Zone | None = Field(None, description="null: the first of the deployment's zones")


class Pool(Machine):
    """Hosts of one shape whose workers do the same kinds of steps."""

    kinds: list[StepKind] = Field(min_length=1, max_length=len(StepKind))
    slots: int = Field(1, ge=1, le=1000, description="steps that a host does at the same time")
    least: int = Field(0, ge=0, le=1000, description="hosts that are always there")
    most: int = Field(1, ge=0, le=1000, description="hosts at most")
    spot: bool = Field(False, description="spot VMs: cheaper, and taken away at any time")
    nested: bool = Field(False, description="nested virtualisation: QEMU with KVM on the host")
    step_seconds: Seconds = Field(
        60.0, description="how long a step takes, until enough have been seen"
    )

    @field_validator("kinds")
    @classmethod
    def _each_once(cls, kinds: list[StepKind]) -> list[StepKind]:
        if len(set(kinds)) < len(kinds):
            raise ValueError("a kind stands twice")
        return kinds

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least ({self.least}) is more than most ({self.most})")
        return self


class Scaling(Strict):
    """When hosts come and go."""

    wait_seconds: Seconds = Field(120.0, description="how long a step shall wait, about")
    idle_seconds: Seconds = Field(
        600.0, description="how long hosts are kept that were needed last before that"
    )
    start_seconds: Seconds = Field(
        900.0, description="after which a host whose worker has not come is given up"
    )
    most_dollars_per_hour: Dollars | None = Field(
        None, description="of all hosts together; no host is added above"
    )


class Deployment(Strict):
    """A platform on many hosts."""

    name: str = Field(pattern=_NAME, max_length=20, description="names and labels all of it")
    project: str = Field(pattern=r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$", description="project id")
    zones: list[Zone] = Field(min_length=1, max_length=10, description="all of one region")
    bucket: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]$", description="artifacts")
    keep_bucket: bool = Field(False, description="whether `down` leaves the bucket and its objects")
    subnetwork: IPv4Network = Field(
        IPv4Network("10.128.0.0/20"), description="addresses of the hosts"
    )
    clients: list[IPv4Network] = Field(
        min_length=1, max_length=100, description="networks that reach the scheduler (TLS), and SSH"
    )
    domain: str | None = Field(
        None,
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$",
        max_length=253,
        description="the scheduler's name in DNS: workers reach it as https://DOMAIN; null: hosts"
        " of pools start nothing by themselves, and are set up by the playbook",
    )
    image: str = Field(
        "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
        pattern=r"^projects/[a-z0-9-]+/global/images/(family/)?[a-z0-9-]+$",
        max_length=200,
        description="what hosts boot",
    )
    program: str = Field(
        "/opt/kgym/venv/bin/kgym",
        pattern=r"^[\x21-\x7e]+( [\x21-\x7e]+)*$",
        max_length=400,
        description="how a host of a pool starts kgym",
    )
    setup: str = Field(
        "",
        max_length=20_000,
        description="shell commands that put it there, by root, at each start of a host; empty:"
        " the image has it",
    )
    secret: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{1,255}$",
        description="of Secret Manager, with the workers' token; null: workers have none",
    )
    scheduler: SchedulerHost
    pools: dict[PoolName, Pool] = Field(min_length=1, max_length=20)
    scaling: Scaling = Scaling()

    @property
    def region(self) -> str:
        """The region of all zones."""
        return self.zones[0].rpartition("-")[0]

    @property
    def server(self) -> str | None:
        """The scheduler's address; None if the file does not say."""
        return f"https://{self.domain}" if self.domain else None

    @property
    def storage(self) -> str:
        """Where scheduler and workers keep artifacts."""
        return f"gs://{self.bucket}/kgym"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        zones = [*self.zones, *filter(None, [self.scheduler.zone])]
        if len({zone.rpartition("-")[0] for zone in zones}) > 1:
            raise ValueError(f"the zones are of several regions: {', '.join(zones)}")
        if "scheduler" in self.pools:
            raise ValueError("no pool can be called scheduler: that is the scheduler's host")
        hosts = sum(pool.most for pool in self.pools.values())
        if hosts + 16 > self.subnetwork.num_addresses:
            raise ValueError(f"{self.subnetwork} has too few addresses for {hosts} hosts")
        return self


def read_deployment(path: Path) -> Deployment:
    """Read a deployment file; raise UserError `bad_deployment` with what is wrong in it."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise UserError("bad_deployment", f"{path} has more than {MOST_BYTES} bytes")
        return Deployment.model_validate(tomllib.loads(text.decode()))
    except OSError as error:
        raise UserError("bad_deployment", f"{path}: {error.strerror or error}") from error
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}"
            for one in error.errors()[:5]
        )
        raise UserError("bad_deployment", f"{path}: {wrong}") from error
    except (ValueError, RecursionError) as error:  # TOML's and UTF-8's errors are ValueErrors
        raise UserError("bad_deployment", f"{path} is no TOML: {error}") from error
