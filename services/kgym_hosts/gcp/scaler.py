"""Automatic scaling: each round reads scheduler and cloud, decides, and acts.

    scaler = Scaler(deployment, instances, client, prices)
    done = scaler.round()           # at regular intervals

The state is what scheduler and cloud report, so an interrupted round or a second loop does no
harm. Without the scheduler's answer, no host is added or removed.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from kgym.api.jobs import WorkerView
from kgym.api.statistics import StatisticsFilter
from kgym.api.steps import StepKind
from kgym.client import Client, Refused
from kgym.errors import InfrastructureError, UserError
from kgym_hosts import prices
from kgym_hosts.deployment import Deployment
from kgym_hosts.gcp.instances import SCHEDULER, CloudHost, Instances
from kgym_hosts.scaling.decisions import (
    Action,
    Add,
    Drain,
    Host,
    HostState,
    Limits,
    Memory,
    PoolLimits,
    Queue,
    Remove,
    Seen,
    decide,
)

# The duration of steps is the mean over this time, if at least _ENOUGH attempts have ended.
_TYPICAL = timedelta(hours=1)
_ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Done:
    """An action on a host, and its reason."""

    action: Literal["add", "drain", "remove"]
    pool: str
    host: str | None
    """None if no host could be made."""
    why: str
    fault: InfrastructureError | None = None
    """The error of a failed action; the next round decides anew."""


@dataclass(frozen=True, slots=True)
class Round:
    """The observations and the actions of a round."""

    seen: Seen
    done: list[Done]


def limits_of(deployment: Deployment, table: prices.PriceTable) -> Limits:
    """Return a deployment's limits.

    Raises UserError `bad_deployment` for a budget without a price of the scheduler's host.
    """
    costs = prices.estimate(deployment, table)
    scaling, fixed = deployment.scaling, costs[SCHEDULER]
    if scaling.most_dollars_per_hour is not None and fixed is None:
        message = "scaling.most_dollars_per_hour: the price of the scheduler's host is unknown: set"
        raise UserError("bad_deployment", f"{message} scheduler.dollars_per_hour")
    return Limits(
        pools=tuple(
            PoolLimits(
                name,
                tuple(pool.kinds),
                pool.slots,
                pool.least,
                pool.most,
                costs[name],
                pool.step_seconds,
            )
            for name, pool in deployment.pools.items()
        ),
        wait_seconds=scaling.wait_seconds,
        idle_seconds=scaling.idle_seconds,
        start_seconds=scaling.start_seconds,
        most_dollars_per_hour=scaling.most_dollars_per_hour,
        fixed_dollars_per_hour=fixed or 0.0,
    )


@dataclass
class Scaler:
    """Scales one deployment's pools."""

    deployment: Deployment
    instances: Instances
    client: Client
    table: prices.PriceTable
    patient: bool = True
    """Whether hosts that exist in the first round are kept for `idle_seconds`, needed or not."""
    clock: Callable[[], float] = time.monotonic
    _memory: Memory = field(default_factory=Memory)
    _states: dict[tuple[str, datetime], tuple[HostState, float]] = field(default_factory=dict)
    """By host: its last observed state, and the time of its beginning."""
    # By this loop's clock: after the scheduler was unreachable for an hour, no host is given up
    # because nothing was heard of its worker in that time.

    def __post_init__(self) -> None:
        self._limits = limits_of(self.deployment, self.table)

    def round(self) -> Round:
        """Observe, decide, and act.

        Raises InfrastructureError if the cloud or the scheduler does not answer, UserError if they
        refuse the credentials. A failed action is reported in its `Done`; the others are still run.
        """
        hosts = [host for host in self.instances.all() if host.pool in self.deployment.pools]
        workers = self.client.workers()
        seen = Seen(self.clock(), self._queues(), self._hosts(hosts, workers))
        # A restarted loop does not know what was needed before, and would drain every idle host.
        if self.patient:
            self.patient = False
            for pool in self.deployment.pools:
                there = sum(host.pool == pool for host in seen.hosts)
                self._memory.peak(pool, seen.now, there, self._limits.idle_seconds)
        actions = decide(self._limits, seen, self._memory)
        # Removals come first: they free quota and budget for new hosts.
        named = {host.name: host for host in hosts}
        done = self._remove(actions, named)
        for action in actions:
            if isinstance(action, Drain):
                done.append(self._drain(action, named[action.host], workers))
        for action in actions:
            if isinstance(action, Add):
                done += self._add(action, hosts, seen.now)
        return Round(seen, done)

    def _queues(self) -> dict[StepKind, Queue]:
        since = datetime.now(UTC) - _TYPICAL
        counts = self.client.statistics(StatisticsFilter(step="minute", since=since)).counts
        queues = {}
        for queue in self.client.queues():
            ended = [row for row in counts if row.kind == queue.kind and row.outcome == "succeeded"]
            attempts = sum(row.attempts for row in ended)
            seconds = sum(row.seconds for row in ended)
            mean = seconds / attempts if attempts >= _ENOUGH else None
            queues[queue.kind] = Queue(queue.queued, queue.oldest_seconds or 0.0, mean)
        return queues

    def _hosts(self, hosts: Sequence[CloudHost], workers: Sequence[WorkerView]) -> list[Host]:
        now, before, self._states = self.clock(), self._states, {}
        observed = []
        for host in hosts:
            own = workers_of(host, workers)
            state = _state(host, own)
            key = host.name, host.created
            was, since = before.get(key, (state, now))
            self._states[key] = state, (since if was == state else now)
            running = sum(len(worker.running) for worker in own)
            observed.append(Host(host.name, host.pool, state, running, self._states[key][1]))
        return observed

    def _remove(self, actions: Sequence[Action], hosts: dict[str, CloudHost]) -> list[Done]:
        removed = [action for action in actions if isinstance(action, Remove)]
        if not removed:
            return []
        workers, done = self.client.workers(), []  # a worker may have started meanwhile
        for action in removed:
            host, fault = hosts[action.host], None
            own = workers_of(host, workers)
            if any(worker.running or worker.state == "live" for worker in own) and not host.stopped:
                continue
            try:
                self.instances.remove([host])
            except InfrastructureError as error:
                fault = error
            done.append(Done("remove", host.pool, host.name, action.why, fault))
        return done

    def _drain(self, action: Drain, host: CloudHost, workers: Sequence[WorkerView]) -> Done:
        fault = None
        try:
            for worker in workers_of(host, workers):
                if worker.state == "live":
                    self.client.drain(worker.id)
        except InfrastructureError as error:
            fault = error
        except Refused as error:
            if error.reason != "worker_not_found":  # another loop drained it, and it has ended
                raise
        return Done("drain", host.pool, host.name, action.why, fault)

    def _add(self, action: Add, hosts: Iterable[CloudHost], now: float) -> list[Done]:
        own = [host for host in hosts if host.pool == action.pool]
        try:
            names = self.instances.make(action.pool, action.count, own)
        except InfrastructureError as error:
            self._memory.failed(action.pool, now)
            return [Done("add", action.pool, None, action.why, error)]
        if len(names) < action.count:
            self._memory.failed(action.pool, now)
        return [Done("add", action.pool, name, action.why) for name in names]


def workers_of(host: CloudHost, workers: Iterable[WorkerView]) -> list[WorkerView]:
    """Return the workers of a host: their names begin with the host's name."""
    # Workers last seen before the host was created belong to an earlier host of that name.
    return [
        worker
        for worker in workers
        if worker.state != "lost"
        and worker.id.partition(":")[0] == host.name
        and worker.seen_at >= host.created
    ]


def _state(host: CloudHost, own: Sequence[WorkerView]) -> HostState:
    if host.stopped:
        return "stopped"
    if any(worker.state == "live" for worker in own):
        return "ready"
    return "draining" if own else "starting"
