"""`kgym gcp`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import Field

from kgym.errors import UserError
from kgym_cli.commands.gcp_scale import public_key, scale, simulate
from kgym_cli.gcp import emulated_project
from kgym_cli.gcp.farm import Farm, farm, farm_options
from kgym_cli.lazy import reachable
from kgym_cli.output import json_option, people, print_json, print_table, results
from kgym_cli.output.answer import Answer
from kgym_cli.settings import settings
from kgym_hosts import prices
from kgym_hosts.deployment import Deployment, read_deployment

if TYPE_CHECKING:
    from kgym_hosts.gcp.instances import CloudHost
    from kgym_hosts.gcp.platform import Part

SCHEDULER = "scheduler"


class CloudPart(Answer):
    """A part of the deployment, and what became of it."""

    kind: str
    name: str
    done: str


class CloudHostAnswer(Answer):
    """A host; its version is what it told last, null before that."""

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

    emulated: bool
    scheduler: str | None = Field(description="its address; null: the file has no `domain`")
    parts: list[CloudPart]
    hosts: list[CloudHostAnswer]


class DownAnswer(Answer):
    """What was removed; what is still there is an error."""

    emulated: bool
    parts: list[CloudPart]


class StatusAnswer(Answer):
    """The hosts that there are."""

    emulated: bool
    scheduler: str | None
    hosts: list[CloudHostAnswer]


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

    emulated: bool
    pools: list[PoolCost]
    dollars_per_hour: float | None
    so_far: float | None
    most_per_hour: float | None
    prices_of: str
    """The region of the price table."""


@click.group()
def gcp() -> None:
    """Make, show, scale and remove the hosts of a platform on Google Cloud.

    DEPLOYMENT is a file that says what there shall be: docs/google-cloud.md.
    """


@gcp.command()
@farm_options
@click.option(
    "--ssh-key",
    type=click.Path(path_type=Path),
    help="File with the public key that may log in to the hosts, as the user kgym.",
)
@json_option(UpAnswer)
def up(
    deployment: Path, endpoint: str | None, emulated: bool, ssh_key: Path | None, as_json: bool
) -> None:
    """Make network, firewall, service accounts, bucket and hosts, as far as they are missing.

    What is there stays as it is. After a failure, the same command goes on. With --emulated all of
    it is on this machine, scheduler and workers run, and last until `down`.
    """
    if ssh_key is None and not emulated:
        raise UserError("bad_option", "--ssh-key: nobody could log in to the hosts without one")
    key = public_key(ssh_key) if ssh_key is not None else ""
    cloud = farm(deployment, endpoint, emulated, start=True)
    parts: list[CloudPart] = []
    hosts = cloud.platform(key).bring_up(lambda part: _tell(parts, part))
    if cloud.project is not None:
        cloud.project.await_scheduler()
    made = [_answer(host, {}) for host in hosts]
    if as_json:
        answer = UpAnswer(emulated=cloud.emulated, scheduler=cloud.server, parts=parts, hosts=made)
        print_json(answer)
        return
    _print_hosts(made)
    if cloud.server is not None:
        people.print(f"scheduler: {cloud.server}", markup=False)


@gcp.command()
@farm_options
@json_option(DownAnswer)
def down(deployment: Path, endpoint: str | None, emulated: bool, as_json: bool) -> None:
    """Remove all that is marked as the deployment's, with its artifacts, and see that it is gone.

    With `keep_bucket` in DEPLOYMENT the bucket and its objects stay.
    """
    parts: list[CloudPart] = []
    project, data = read_deployment(deployment).project, settings().data
    if emulated and emulated_project.find(data, project) is None:
        emulated_project.forget(data, project)
    else:
        cloud = farm(deployment, endpoint, emulated)
        cloud.platform().take_down(lambda part: _tell(parts, part))
        _end_project(cloud)
    if as_json:
        print_json(DownAnswer(emulated=emulated or endpoint is not None, parts=parts))
    else:
        results.print("nothing is left")


def _end_project(cloud: Farm) -> None:
    """End an emulated project once nothing is there; other deployments of it are told."""
    if cloud.project is None:
        return
    left = [name for name in cloud.project.end() if not _is_kept(cloud.deployment, name)]
    if left:
        people.print(f"others have things in the project: {', '.join(left)}", markup=False)


def _is_kept(deployment: Deployment, name: str) -> bool:
    return deployment.keep_bucket and name == f"bucket/{deployment.bucket}"


@gcp.command()
@farm_options
@json_option(StatusAnswer)
def status(deployment: Path, endpoint: str | None, emulated: bool, as_json: bool) -> None:
    """Show the hosts that there are, and which version of kGymSuite each of them told last."""
    cloud = farm(deployment, endpoint, emulated)
    instances = cloud.platform().instances
    hosts = instances.all()
    versions = instances.versions(hosts)
    shown = [_answer(host, versions) for host in hosts]
    if as_json:
        print_json(StatusAnswer(emulated=cloud.emulated, scheduler=cloud.server, hosts=shown))
    else:
        _print_hosts(shown)


@gcp.command()
@farm_options
@json_option(CostAnswer)
def cost(deployment: Path, endpoint: str | None, emulated: bool, as_json: bool) -> None:
    """Show what the hosts cost an hour, have cost since they were made, and would at most.

    Prices are those of DEPLOYMENT (`dollars_per_hour`), else of configs/cloud_prices.toml, which
    says when and where each was looked up. Removed hosts, disks, traffic and objects are not
    counted.
    """
    cloud = farm(deployment, endpoint, emulated)
    hosts = cloud.platform().instances.all()
    answer = _cost(cloud.deployment, hosts, emulated=cloud.emulated)
    if as_json:
        print_json(answer)
        return
    columns = ("pool", "hosts", "$/h each", "$/h now", "$ so far", "$/h at most")
    rows = [
        (
            pool.pool,
            str(pool.hosts),
            *map(
                _dollars,
                (
                    pool.dollars_per_hour_of_one,
                    pool.dollars_per_hour,
                    pool.so_far,
                    pool.most_per_hour,
                ),
            ),
        )
        for pool in answer.pools
    ]
    total = map(_dollars, (answer.dollars_per_hour, answer.so_far, answer.most_per_hour))
    print_table(
        *columns, rows=[*rows, ("all", str(sum(p.hosts for p in answer.pools)), "", *total)]
    )


for _command in (scale, simulate):  # of all commands here, they alone ask a scheduler
    reachable(_command)
    gcp.add_command(_command)


def _cost(deployment: Deployment, hosts: "list[CloudHost]", *, emulated: bool) -> CostAnswer:
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
        emulated=emulated,
        pools=pools,
        dollars_per_hour=_sum([pool.dollars_per_hour for pool in pools]),
        so_far=_sum([pool.so_far for pool in pools]),
        most_per_hour=_sum([pool.most_per_hour for pool in pools]),
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


def _tell(parts: list[CloudPart], part: "Part") -> None:
    parts.append(CloudPart(kind=part.kind, name=part.name, done=part.done))
    people.print(f"{part.done}: {part.kind} {part.name}", markup=False)


def _answer(host: "CloudHost", versions: dict[str, str]) -> CloudHostAnswer:
    return CloudHostAnswer(
        name=host.name,
        pool=host.pool,
        zone=host.zone,
        state=host.status,
        address=host.address,
        external_address=host.external,
        machine_type=host.machine_type,
        spot=host.spot,
        version=versions.get(host.name),
        created=host.created,
    )


def _print_hosts(hosts: list[CloudHostAnswer]) -> None:
    columns = ("host", "pool", "zone", "state", "address", "outside", "machine", "version")
    rows = [
        (
            *(host.name, host.pool, host.zone, host.state, host.address),
            host.external_address or "",
            host.machine_type + (" spot" if host.spot else ""),
            host.version or "",
        )
        for host in hosts
    ]
    print_table(*columns, rows=rows)
