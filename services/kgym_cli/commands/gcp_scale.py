"""`kgym gcp scale` and `kgym gcp simulate`."""

import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from pydantic import Field

from kgym.api.jobs import JobFilter
from kgym.errors import InfrastructureError, UserError, file_errors
from kgym_cli.gcp.farm import farm, farm_options
from kgym_cli.inputs.parameters import PATH
from kgym_cli.output import json_option, people, print_table, printed_json
from kgym_cli.output.answer import Answer
from kgym_hosts import prices
from kgym_hosts.scaling.recording import recorded
from kgym_hosts.scaling.simulation import Outcome, Simulation

if TYPE_CHECKING:
    from kgym_hosts.gcp.scaler import Round

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


@click.command()
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
                answer = _answer(scaler.round(), emulated=cloud.emulated)
            # A loop outlives outages of scheduler and cloud; with --once, the caller decides about
            # a retry.
            except InfrastructureError as error:
                if once:
                    raise
                answer = _failed(error, emulated=cloud.emulated)
            if not printed_json(answer, as_json):
                _tell(answer)
            if once:
                return
            time.sleep(every)


@click.command()
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


def public_key(file: Path) -> str:
    """Read a public key; raise UserError `bad_option` if the file holds none."""
    key = file.expanduser()
    with file_errors(f"--ssh-key {file}", "bad_option"), key.open(errors="replace") as opened:
        text = opened.read(10_000).strip()
    if not text.startswith(("ssh-", "ecdsa-", "sk-")) or "\n" in text:
        raise UserError("bad_option", f"--ssh-key {file} is not an SSH public key")
    return text


def _answer(made: "Round", *, emulated: bool) -> ScaleAnswer:
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


def _tell(answer: ScaleAnswer) -> None:
    at = answer.at.astimezone().strftime("%H:%M:%S")
    if answer.fault is not None:
        people.print(f"{at} {answer.fault.reason}: {answer.fault.message}")
    for action in answer.actions:
        what = f"{at} {action.action} {action.host or action.pool}: {action.why}"
        fault = (
            f" ({action.fault.reason}: {action.fault.message})" if action.fault is not None else ""
        )
        people.print(what + fault)
