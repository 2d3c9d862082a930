"""`kgym gcp`."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.answer import Answer
from kgym_cli.output import json_option, people, print_json, print_table, results
from kgym_hosts import prices
from kgym_hosts.deployment import Deployment, read_deployment

if TYPE_CHECKING:
    from kgym_hosts.gcp.instances import CloudHost
    from kgym_hosts.gcp.platform import CloudPlatform, Part

SCHEDULER = "scheduler"
_Command = TypeVar("_Command", bound=Callable[..., object])


class CloudPart(Answer):
    """A part of the deployment, and what became of it."""

    kind: str
    name: str
    done: str


class CloudHostAnswer(Answer):
    """A host."""

    name: str
    pool: str
    zone: str
    state: str
    address: str
    external_address: str | None
    machine_type: str
    spot: bool
    version: str | None
    created: datetime


class UpAnswer(Answer):
    """What was made, or was there, and the hosts."""

    parts: list[CloudPart]
    hosts: list[CloudHostAnswer]


class DownAnswer(Answer):
    """What was removed; what is still there is an error."""

    parts: list[CloudPart]


class PoolCost(Answer):
    """What the hosts of a pool cost, in dollars; null: not known."""

    pool: str
    dollars_per_hour_of_one: float | None
    hosts: int
    dollars_per_hour: float | None
    so_far: float | None
    most_per_hour: float | None


class CostAnswer(Answer):
    """What a deployment costs by its hosts: nothing else is counted."""

    pools: list[PoolCost]
    dollars_per_hour: float | None
    so_far: float | None
    most_per_hour: float | None
    prices_of: str
    """The region of the price table."""


def _deployment(command: _Command) -> _Command:
    """Add what all commands take: the deployment, and another server that stands for the cloud."""
    file = click.argument("deployment", type=click.Path(path_type=Path))
    server = click.option(
        "--endpoint",
        metavar="URL",
        help="A server that stands for the cloud: `kgym_dev.cloud_project` in a checkout.",
    )
    return file(server(command))


@click.group()
def gcp() -> None:
    """Make, show and remove the hosts of a platform on Google Cloud.

    DEPLOYMENT is a file that says what there shall be: docs/google-cloud.md.
    """


@gcp.command()
@_deployment
@click.option(
    "--ssh-key",
    type=click.Path(path_type=Path),
    required=True,
    help="File with the public key that may log in to the hosts, as the user kgym.",
)
@json_option(UpAnswer)
def up(deployment: Path, endpoint: str | None, ssh_key: Path, as_json: bool) -> None:
    """Make network, firewall, service accounts, bucket and hosts, as far as they are missing.

    What is there stays as it is. After a failure, the same command goes on.
    """
    platform = _platform(read_deployment(deployment), endpoint, _key(ssh_key))
    parts: list[CloudPart] = []
    hosts = platform.bring_up(lambda part: _tell(parts, part))
    if as_json:
        print_json(UpAnswer(parts=parts, hosts=[_answer(host) for host in hosts]))
    else:
        _print_hosts(hosts)


@gcp.command()
@_deployment
@json_option(DownAnswer)
def down(deployment: Path, endpoint: str | None, as_json: bool) -> None:
    """Remove all that is marked as the deployment's, with its artifacts, and see that it is gone.

    With `keep_bucket` in DEPLOYMENT the bucket and its objects stay.
    """
    platform = _platform(read_deployment(deployment), endpoint)
    parts: list[CloudPart] = []
    platform.take_down(lambda part: _tell(parts, part))
    if as_json:
        print_json(DownAnswer(parts=parts))
    else:
        results.print("nothing is left")


@gcp.command()
@_deployment
@json_option(list[CloudHostAnswer])
def status(deployment: Path, endpoint: str | None, as_json: bool) -> None:
    """Show the hosts that there are."""
    hosts = _platform(read_deployment(deployment), endpoint).instances.all()
    if as_json:
        print_json([_answer(host) for host in hosts])
    else:
        _print_hosts(hosts)


@gcp.command()
@_deployment
@json_option(CostAnswer)
def cost(deployment: Path, endpoint: str | None, as_json: bool) -> None:
    """Show what the hosts cost an hour, have cost since they were made, and would at most.

    Prices are those of DEPLOYMENT (`dollars_per_hour`), else of configs/cloud_prices.toml, which
    says when and where each was looked up. Removed hosts, disks, traffic and objects are not
    counted.
    """
    told = read_deployment(deployment)
    answer = _cost(told, _platform(told, endpoint).instances.all())
    if as_json:
        print_json(answer)
        return
    columns = ("pool", "hosts", "$/h each", "$/h now", "$ so far", "$/h at most")
    rows = [
        (
            one.pool,
            str(one.hosts),
            *map(
                _dollars,
                (one.dollars_per_hour_of_one, one.dollars_per_hour, one.so_far, one.most_per_hour),
            ),
        )
        for one in answer.pools
    ]
    total = map(_dollars, (answer.dollars_per_hour, answer.so_far, answer.most_per_hour))
    print_table(
        *columns, rows=[*rows, ("all", str(sum(p.hosts for p in answer.pools)), "", *total)]
    )


def _cost(deployment: Deployment, hosts: "list[CloudHost]") -> CostAnswer:
    table, now = prices.shipped_prices(), datetime.now(UTC)
    most = {SCHEDULER: 1} | {name: pool.most for name, pool in deployment.pools.items()}
    pools = []
    for name, price in prices.estimate(deployment, table).items():
        own = [host for host in hosts if host.pool == name]
        pools.append(
            PoolCost(
                pool=name,
                dollars_per_hour_of_one=price,
                hosts=len(own),
                dollars_per_hour=_times(price, len(own)),
                so_far=_sum([prices.so_far(price, host.created, now) for host in own]),
                most_per_hour=_times(price, most[name]),
            )
        )
    return CostAnswer(
        pools=pools,
        dollars_per_hour=_sum([one.dollars_per_hour for one in pools]),
        so_far=_sum([one.so_far for one in pools]),
        most_per_hour=_sum([one.most_per_hour for one in pools]),
        prices_of=table.region,
    )


def _times(price: float | None, hosts: int) -> float | None:
    if not hosts:
        return 0.0
    return None if price is None else round(price * hosts, 4)


def _sum(parts: list[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return round(sum(known), 4) if len(known) == len(parts) else None


def _dollars(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def _platform(deployment: Deployment, endpoint: str | None, key: str = "") -> "CloudPlatform":
    extras.require("gcp")
    # Google's libraries take seconds.
    from kgym_hosts.gcp.connection import Cloud  # noqa: PLC0415
    from kgym_hosts.gcp.platform import CloudPlatform  # noqa: PLC0415

    return CloudPlatform(Cloud(deployment.project, endpoint), deployment, key)


def _key(file: Path) -> str:
    try:
        with file.expanduser().open(errors="replace") as opened:
            text = opened.read(10_000).strip()
    except OSError as error:
        raise UserError("bad_option", f"--ssh-key {file}: {error.strerror or error}") from error
    if not text.startswith(("ssh-", "ecdsa-", "sk-")) or "\n" in text:
        raise UserError("bad_option", f"--ssh-key {file}: this is no public key of SSH")
    return text


def _tell(parts: list[CloudPart], part: "Part") -> None:
    parts.append(CloudPart(kind=part.kind, name=part.name, done=part.done))
    people.print(f"{part.done}: {part.kind} {part.name}", markup=False)


def _answer(host: "CloudHost") -> CloudHostAnswer:
    return CloudHostAnswer(
        name=host.name,
        pool=host.pool,
        zone=host.zone,
        state=host.status,
        address=host.address,
        external_address=host.external,
        machine_type=host.machine_type,
        spot=host.spot,
        version=host.version,
        created=host.created,
    )


def _print_hosts(hosts: "list[CloudHost]") -> None:
    columns = ("host", "pool", "zone", "state", "address", "outside", "machine", "version")
    rows = [
        (
            *(host.name, host.pool, host.zone, host.status, host.address, host.external or ""),
            host.machine_type + (" spot" if host.spot else ""),
            host.version or "",
        )
        for host in hosts
    ]
    print_table(*columns, rows=rows)
