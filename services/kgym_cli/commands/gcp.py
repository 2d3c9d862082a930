"""`kgym gcp`."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import Field

from kgym.errors import UserError
from kgym_cli.commands.gcp_scale import public_key, scale, simulate
from kgym_cli.gcp import emulated_project
from kgym_cli.gcp.farm import Farm, farm, farm_options
from kgym_cli.inputs.parameters import PATH
from kgym_cli.lazy import reachable
from kgym_cli.output import json_option, people, print_json, print_table, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.settings import settings
from kgym_hosts import prices
from kgym_hosts.deployment import Deployment, read_deployment

if TYPE_CHECKING:
    from kgym_hosts.gcp.instances import CloudHost
    from kgym_hosts.gcp.platform import Part

SCHEDULER = "scheduler"


class CloudPart(Answer):
    """A part of the deployment, and what was done about it."""

    kind: str
    name: str
    done: str


class CloudHostAnswer(Answer):
    """A host; `version` is the one it last reported, null before that."""

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
    """Parts that were made or existed, and the hosts."""

    emulated: bool
    scheduler: str | None = Field(description="URL; null if the file has no `domain`")
    parts: list[CloudPart]
    hosts: list[CloudHostAnswer]


class DownAnswer(Answer):
    """Removed parts; a part that remains is an error."""

    emulated: bool
    parts: list[CloudPart]


class StatusAnswer(Answer):
    """The deployment's hosts."""

    emulated: bool
    scheduler: str | None
    hosts: list[CloudHostAnswer]


class PoolCost(Answer):
    """Cost of a pool's hosts in dollars; null if unknown."""

    pool: str
    dollars_per_hour_of_one: float | None
    hosts: int
    dollars_per_hour: float | None
    so_far: float | None
    most_per_hour: float | None


class CostAnswer(Answer):
    """Cost of a deployment's hosts; nothing else is counted."""

    emulated: bool
    pools: list[PoolCost]
    dollars_per_hour: float | None
    so_far: float | None
    most_per_hour: float | None
    prices_of: str
    """Region of the price table."""


@click.group()
def gcp() -> None:
    """Make, show, scale and remove the hosts of a platform on Google Cloud.

    DEPLOYMENT is a file that describes the platform: docs/google-cloud.md.
    """


@gcp.command()
@farm_options
@click.option("--ssh-key", type=PATH, help="Public key that may log in to the hosts as user kgym.")
@json_option(UpAnswer)
def up(
    deployment: Path, endpoint: str | None, emulated: bool, ssh_key: Path | None, as_json: bool
) -> None:
    """Make missing parts: network, firewall, service accounts, bucket and hosts.

    Existing parts are left alone. Repeat the command after a failure. With --emulated, everything
    is on this machine: scheduler and workers run until `down`.
    """
    if ssh_key is None and not emulated:
        raise UserError(
            "bad_option", "--ssh-key is needed: otherwise nobody could log in to the hosts"
        )
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
        people.print(f"scheduler: {cloud.server}")


@gcp.command()
@farm_options
@json_option(DownAnswer)
def down(deployment: Path, endpoint: str | None, emulated: bool, as_json: bool) -> None:
    """Remove all parts marked as the deployment's, including artifacts, and verify that.

    With `keep_bucket` in DEPLOYMENT, the bucket and its objects stay.
    """
    parts: list[CloudPart] = []
    project, data = read_deployment(deployment).project, settings().data
    # `down` must succeed after the emulated server was killed: there is nothing left but its
    # folder.
    if emulated and emulated_project.find(data, project) is None:
        emulated_project.forget(data, project)
    else:
        cloud = farm(deployment, endpoint, emulated)
        cloud.platform().take_down(lambda part: _tell(parts, part))
        _end_project(cloud)
    if not printed_json(
        DownAnswer(emulated=emulated or endpoint is not None, parts=parts), as_json
    ):
        results.print("nothing is left")


def _end_project(cloud: Farm) -> None:
    """End an emulated project if it is empty; otherwise print what other deployments have in it."""
    if cloud.project is None:
        return
    left = [name for name in cloud.project.end() if not _is_kept(cloud.deployment, name)]
    if left:
        people.print(f"other deployments still use the project: {', '.join(left)}")


def _is_kept(deployment: Deployment, name: str) -> bool:
    return deployment.keep_bucket and name == f"bucket/{deployment.bucket}"


@gcp.command()
@farm_options
@json_option(StatusAnswer)
def status(deployment: Path, endpoint: str | None, emulated: bool, as_json: bool) -> None:
    """Show the hosts, and the version of kGymSuite that each last reported."""
    cloud = farm(deployment, endpoint, emulated)
    instances = cloud.platform().instances
    hosts = instances.all()
    versions = instances.versions(hosts)
    shown = [_answer(host, versions) for host in hosts]
    if not printed_json(
        StatusAnswer(emulated=cloud.emulated, scheduler=cloud.server, hosts=shown), as_json
    ):
        _print_hosts(shown)


@gcp.command()
@farm_options
@json_option(CostAnswer)
def cost(deployment: Path, endpoint: str | None, emulated: bool, as_json: bool) -> None:
    """Show the hosts' cost per hour, since they were made, and at most.

    Prices come from DEPLOYMENT (`dollars_per_hour`) or else configs/cloud_prices.toml, which names
    date and source of each. Removed hosts, disks, traffic and objects are not counted.
    """
    cloud = farm(deployment, endpoint, emulated)
    hosts = cloud.platform().instances.all()
    answer = _cost(cloud.deployment, hosts, emulated=cloud.emulated)
    if printed_json(answer, as_json):
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


# Only these two commands here take --server and --token.
for _command in (scale, simulate):
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
    # An unknown price makes the sum unknown: counted as 0, it would look cheap.
    return round(sum(known), 4) if len(known) == len(parts) else None


def _dollars(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def _tell(parts: list[CloudPart], part: "Part") -> None:
    parts.append(CloudPart(kind=part.kind, name=part.name, done=part.done))
    people.print(f"{part.done}: {part.kind} {part.name}")


def _answer(host: "CloudHost", versions: dict[str, str]) -> CloudHostAnswer:
    return CloudHostAnswer(**asdict(host), version=versions.get(host.name))


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
