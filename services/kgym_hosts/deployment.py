"""The deployment file: where a platform runs, on which hosts, within which limits."""

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from kgym.api import faults
from kgym.api.steps import StepKind, Strict
from kgym.errors import UserError
from kgym.toml_text import parse_toml

# Maximum size of a deployment file.
MOST_BYTES = 1 << 20
_NAME = r"^[a-z]([a-z0-9-]*[a-z0-9])?$"
PoolName = Annotated[str, Field(pattern=_NAME, max_length=16)]
Zone = Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$", max_length=40)]
MachineType = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)+$", max_length=60)]
Dollars = Annotated[float, Field(ge=0, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]


class Machine(Strict):
    """A kind of host: its machine type, disk and price."""

    machine_type: MachineType
    disk_gb: int = Field(100, ge=20, le=65536, description="GB of the boot disk")
    disk_type: str = Field("pd-balanced", pattern=r"^(pd|hyperdisk)-[a-z]+$", max_length=40)
    dollars_per_hour: Dollars | None = Field(
        None, description="price of a host; null: from the price table"
    )


class SchedulerHost(Machine):
    """The host with scheduler, database and monitor."""

    zone: Zone | None = Field(None, description="null: the first of the deployment's zones")


class Pool(Machine):
    """Equal hosts whose workers run the same kinds of steps."""

    kinds: list[StepKind] = Field(min_length=1, max_length=len(StepKind))
    slots: int = Field(1, ge=1, le=1000, description="steps that a host runs at the same time")
    least: int = Field(0, ge=0, le=1000, description="minimum number of hosts")
    most: int = Field(1, ge=0, le=1000, description="maximum number of hosts")
    spot: bool = Field(False, description="spot VMs: cheaper, and preempted at any time")
    nested: bool = Field(False, description="nested virtualisation: QEMU with KVM on the host")
    step_seconds: Seconds = Field(
        60.0, description="expected duration of a step, until enough have ended"
    )

    @field_validator("kinds")
    @classmethod
    def _each_once(cls, kinds: list[StepKind]) -> list[StepKind]:
        if len(set(kinds)) < len(kinds):
            raise ValueError("a kind is listed twice")
        return kinds

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least ({self.least}) is more than most ({self.most})")
        return self


class Scaling(Strict):
    """Settings of automatic scaling."""

    wait_seconds: Seconds = Field(120.0, description="intended waiting time of a step")
    idle_seconds: Seconds = Field(
        600.0, description="how long hosts are kept after they were last needed"
    )
    start_seconds: Seconds = Field(
        900.0, description="time for a host's worker to start, after which the host is removed"
    )
    most_dollars_per_hour: Dollars | None = Field(
        None, description="budget of all hosts together; no host is added beyond it"
    )


class Deployment(Strict):
    """A platform on many hosts."""

    name: str = Field(pattern=_NAME, max_length=20, description="prefix of names, and label")
    project: str = Field(pattern=r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$", description="project id")
    zones: list[Zone] = Field(min_length=1, max_length=10, description="all of one region")
    bucket: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]$", description="artifacts")
    keep_bucket: bool = Field(False, description="whether `down` keeps the bucket")
    subnetwork: IPv4Network = Field(
        IPv4Network("10.128.0.0/20"), description="addresses of the hosts"
    )
    clients: list[IPv4Network] = Field(
        min_length=1, max_length=100, description="networks that may reach the scheduler (TLS, SSH)"
    )
    domain: str | None = Field(
        None,
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$",
        max_length=253,
        description="the scheduler's DNS name: workers connect to https://DOMAIN; null: hosts of"
        " pools start no worker themselves, and are set up by the playbook",
    )
    image: str = Field(
        "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
        pattern=r"^projects/[a-z0-9-]+/global/images/(family/)?[a-z0-9-]+$",
        max_length=200,
        description="boot image of hosts",
    )
    program: str = Field(
        "/opt/kgym/venv/bin/kgym",
        pattern=r"^[\x21-\x7e]+( [\x21-\x7e]+)*$",
        max_length=400,
        description="command that starts kgym on a pool's host",
    )
    setup: str = Field(
        "",
        max_length=20_000,
        description="shell commands that install it, run by root at each start of a host; empty:"
        " the image contains it",
    )
    secret: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{1,255}$",
        description="Secret Manager's secret with the workers' token; null: workers have none",
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
        """The scheduler's URL; None without a domain."""
        return f"https://{self.domain}" if self.domain else None

    @property
    def storage(self) -> str:
        """The URL of the artifact storage."""
        return f"gs://{self.bucket}/kgym"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        zones = [*self.zones, *filter(None, [self.scheduler.zone])]
        if len({zone.rpartition("-")[0] for zone in zones}) > 1:
            raise ValueError(f"the zones are in several regions: {', '.join(zones)}")
        # Names and labels of hosts are made from the pool's name.
        if "scheduler" in self.pools:
            raise ValueError("no pool can be named scheduler: that is the scheduler's host")
        # 16 more: the scheduler, and addresses that Google reserves in each subnetwork.
        hosts = sum(pool.most for pool in self.pools.values())
        if hosts + 16 > self.subnetwork.num_addresses:
            raise ValueError(f"{self.subnetwork} has too few addresses for {hosts} hosts")
        return self


def read_deployment(path: Path) -> Deployment:
    """Read a deployment file; raise UserError `bad_deployment` with its faults."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise UserError("bad_deployment", f"{path} has more than {MOST_BYTES} bytes")
        return Deployment.model_validate(parse_toml(text.decode()))
    except OSError as error:
        raise UserError("bad_deployment", f"{path}: {error.strerror or error}") from error
    except ValidationError as error:
        wrong = faults.in_words(error, Deployment)
        raise UserError("bad_deployment", f"{path}: {wrong}") from error
    except ValueError as error:  # TOML's and UTF-8's errors are ValueErrors
        raise UserError("bad_deployment", f"{path} is not TOML: {error}") from error
