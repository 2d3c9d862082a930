"""`kgym gcp`."""

import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from pydantic import Field

from kgym.api.jobs import JobFilter
from kgym.errors import InfrastructureError, UserError, file_errors
from kgym_cli.gcp import emulated_project
from kgym_cli.gcp.farm import Farm, farm, farm_options
from kgym_cli.inputs.parameters import PATH
from kgym_cli.lazy import reachable
from kgym_cli.output import json_option, people, print_json, print_table, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.settings import settings
from kgym_hosts import prices
from kgym_hosts.deployment import Deployment, read_deployment
from kgym_hosts.scaling.recording import recorded
from kgym_hosts.scaling.simulation import Outcome, Simulation

if TYPE_CHECKING:
    from kgym_hosts.gcp.instances import CloudHost
    from kgym_hosts.gcp.platform import Part
    from kgym_hosts.gcp.scaler import Round

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


# Most jobs in a simulation: the latest ones.
MOST_JOBS = 200_000


class Fault(Answer):
    """Reason for which something was not done."""

    reason: str
    message: str


class PoolState(Answer):
    """Hosts of a pool before the round's actions."""

    pool: str
    starting: int
    ready: int
    draining: int
    stopped: int
    running: int = Field(description="running steps")


class ScaleAction(Answer):
    """An action on a host."""

    action: Literal["add", "drain", "remove"]
    pool: str
    host: str | None = Field(description="null if no host was available")
    why: str
    fault: Fault | None = Field(description="why it failed; the next round retries")


class ScaleAnswer(Answer):
    """A round of scaling."""

    at: datetime
    emulated: bool
    queued: int = Field(description="waiting steps of all kinds")
    pools: list[PoolState]
    actions: list[ScaleAction]
    fault: Fault | None = Field(description="why the round failed")


class SimulationAnswer(Outcome):
    """Cost of the scheduler's latest jobs within the deployment's bounds."""

    emulated: bool
    since: datetime
    jobs: int
    cut: bool = Field(description="whether the earliest jobs were left out")


@gcp.command()
@farm_options
@click.option("--once", is_flag=True, help="Run one round, without knowledge of earlier demand.")
@click.option(
    "--every", type=click.FloatRange(0.1, 3600), default=30.0, help="Seconds between rounds."
)
@click.option("--ssh-key", type=PATH, help="Public key that may log in to added hosts.")
@json_option(ScaleAnswer)
def scale(
    deployment: Path,
    endpoint: str | None,
    emulated: bool,
    once: bool,
    every: float,
    ssh_key: Path | None,
    as_json: bool,
) -> None:
    """Add hosts for waiting steps; drain and remove hosts that are not needed.

    Each round compares queues, workers and hosts with the bounds in DEPLOYMENT (`least`, `most`,
    `[scaling]`). A host is removed once its workers are drained, if it has stopped, or if it never
    came up. A round in which scheduler or cloud do not answer does nothing. With --json, each round
    is one line.
    """
    from kgym_hosts.gcp.scaler import Scaler  # noqa: PLC0415 - Google's libraries take seconds

    cloud = farm(deployment, endpoint, emulated)
    if cloud.server is None:
        raise UserError(
            "bad_deployment", f"{deployment}: scaling needs `domain`, as workers connect to it"
        )
    key = public_key(ssh_key) if ssh_key is not None else ""
    with cloud.scheduler() as client:
        instances, table = cloud.platform(key).instances, prices.shipped_prices()
        scaler = Scaler(cloud.deployment, instances, client, table, patient=not once)
        while True:
            try:
                answer = _scaled(scaler.round(), emulated=cloud.emulated)
            # A loop outlives outages of scheduler and cloud; with --once, the caller decides about
            # a retry.
            except InfrastructureError as error:
                if once:
                    raise
                answer = _failed(error, emulated=cloud.emulated)
            if not printed_json(answer, as_json):
                _tell_round(answer)
            if once:
                return
            time.sleep(every)


@gcp.command()
@farm_options
@click.option(
    "--hours",
    type=click.FloatRange(0.01, 24 * 366),
    default=24.0,
    help="Simulate the jobs of the last N hours.",
)
@json_option(SimulationAnswer)
def simulate(
    deployment: Path, endpoint: str | None, emulated: bool, hours: float, as_json: bool
) -> None:
    """Simulate cost and waiting times of the scheduler's latest jobs.

    The jobs are those of the scheduler (--server, or DEPLOYMENT's). Hosts come and go within
    DEPLOYMENT's bounds, in simulation only.
    """
    from kgym_hosts.gcp.scaler import limits_of  # noqa: PLC0415 - as above

    cloud = farm(deployment, endpoint, emulated)
    limits = limits_of(cloud.deployment, prices.shipped_prices())
    since = datetime.now(UTC) - timedelta(hours=hours)
    wanted = JobFilter(created_after=since, brief=True, limit=200)
    with cloud.scheduler() as client:
        # One more than needed tells whether earlier jobs were cut off.
        jobs = list(islice(client.jobs(wanted), MOST_JOBS + 1))
    outcome = Simulation(limits).run(recorded(jobs[:MOST_JOBS], since))
    answer = SimulationAnswer(
        emulated=cloud.emulated,
        since=since,
        jobs=min(len(jobs), MOST_JOBS),
        cut=len(jobs) > MOST_JOBS,
        **dict(outcome),
    )
    if printed_json(answer, as_json):
        return
    rows = [(name, str(value)) for name, value in answer.model_dump(mode="json").items()]
    print_table("what", "value", rows=rows)


# Only these two commands here take --server and --token.
for _command in (scale, simulate):
    reachable(_command)


def public_key(file: Path) -> str:
    """Read a public key; raise UserError `bad_option` if the file holds none."""
    key = file.expanduser()
    with file_errors(f"--ssh-key {file}", "bad_option"), key.open(errors="replace") as opened:
        text = opened.read(10_000).strip()
    if not text.startswith(("ssh-", "ecdsa-", "sk-")) or "\n" in text:
        raise UserError("bad_option", f"--ssh-key {file} is not an SSH public key")
    return text


def _scaled(made: "Round", *, emulated: bool) -> ScaleAnswer:
    hosts = made.seen.hosts
    pools = []
    for pool in sorted({host.pool for host in hosts}):
        own = [host for host in hosts if host.pool == pool]
        counts = {
            state: sum(host.state == state for host in own)
            for state in ("starting", "ready", "draining", "stopped")
        }
        pools.append(PoolState(pool=pool, running=sum(host.running for host in own), **counts))
    actions = [
        ScaleAction(
            action=action.action,
            pool=action.pool,
            host=action.host,
            why=action.why,
            fault=_fault(action.fault) if action.fault is not None else None,
        )
        for action in made.done
    ]
    return ScaleAnswer(
        at=datetime.now(UTC),
        emulated=emulated,
        queued=sum(queue.queued for queue in made.seen.queues.values()),
        pools=pools,
        actions=actions,
        fault=None,
    )


def _failed(error: InfrastructureError, *, emulated: bool) -> ScaleAnswer:
    now = datetime.now(UTC)
    return ScaleAnswer(
        at=now, emulated=emulated, queued=0, pools=[], actions=[], fault=_fault(error)
    )


def _fault(error: InfrastructureError) -> Fault:
    return Fault(reason=error.reason, message=error.message)


def _tell_round(answer: ScaleAnswer) -> None:
    at = answer.at.astimezone().strftime("%H:%M:%S")
    if answer.fault is not None:
        people.print(f"{at} {answer.fault.reason}: {answer.fault.message}")
    for action in answer.actions:
        what = f"{at} {action.action} {action.host or action.pool}: {action.why}"
        fault = (
            f" ({action.fault.reason}: {action.fault.message})" if action.fault is not None else ""
        )
        people.print(what + fault)
