"""Hosts come and go by what waits: one round looks at scheduler and cloud, decides, and does it.

    scaler = Scaler(deployment, instances, client, prices)
    done = scaler.round()           # again at regular times

What is there is all that counts: a round that broke off, or another loop at the same time, does no
harm. What cannot be seen is not acted on: without the scheduler's answer no host comes or goes.
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

# Of this time attempts tell how long steps take.
_TYPICAL = timedelta(hours=1)
# Attempts that tell how long a step takes.
_ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Done:
    """What was done about a host, and why."""

    action: Literal["add", "drain", "remove"]
    pool: str
    host: str | None
    """None: none could be had."""
    why: str
    fault: InfrastructureError | None = None
    """What kept it from being done: the next round sees what is to be done then."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a round saw and did."""

    seen: Seen
    done: list[Done]


def limits_of(deployment: Deployment, table: prices.PriceTable) -> Limits:
    """Return a deployment's bounds.

    Raises UserError `bad_deployment` if there is a budget, and no price of the scheduler's host.
    """
    costs = prices.estimate(deployment, table)
    scaling, fixed = deployment.scaling, costs[SCHEDULER]
    if scaling.most_dollars_per_hour is not None and fixed is None:
        said = "scaling.most_dollars_per_hour: nobody knows what the scheduler's host costs: give"
        raise UserError("bad_deployment", f"{said} scheduler.dollars_per_hour")
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
    """Whether what is there at the first round is kept for `idle_seconds`, needed or not."""
    clock: Callable[[], float] = time.monotonic
    _memory: Memory = field(default_factory=Memory)
    _states: dict[tuple[str, datetime], tuple[HostState, float]] = field(default_factory=dict)
    """By host: how it was found last, and since when."""

    def __post_init__(self) -> None:
        self._limits = limits_of(self.deployment, self.table)

    def round(self) -> Round:
        """Look, decide, and act.

        Raises InfrastructureError where the cloud or the scheduler does not answer, UserError if
        they refuse you. A fault of one action is told in its `Done`, and keeps no other from it.
        """
        hosts = [one for one in self.instances.all() if one.pool in self.deployment.pools]
        workers = self.client.workers()
        seen = Seen(self.clock(), self._queues(), self._hosts(hosts, workers))
        if self.patient:
            self.patient = False
            for pool in self.deployment.pools:
                there = sum(one.pool == pool for one in seen.hosts)
                self._memory.peak(pool, seen.now, there, self._limits.idle_seconds)
        actions = decide(self._limits, seen, self._memory)
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
        found = {}
        for queue in self.client.queues():
            ended = [one for one in counts if one.kind == queue.kind and one.outcome == "succeeded"]
            attempts = sum(one.attempts for one in ended)
            seconds = sum(one.seconds for one in ended)
            mean = seconds / attempts if attempts >= _ENOUGH else None
            found[queue.kind] = Queue(queue.queued, queue.oldest_seconds or 0.0, mean)
        return found

    def _hosts(self, hosts: Sequence[CloudHost], workers: Sequence[WorkerView]) -> list[Host]:
        now, before, self._states = self.clock(), self._states, {}
        found = []
        for host in hosts:
            own = workers_of(host, workers)
            state = _state(host, own)
            key = host.name, host.created
            was, since = before.get(key, (state, now))
            self._states[key] = state, (since if was == state else now)
            running = sum(len(one.running) for one in own)
            found.append(Host(host.name, host.pool, state, running, self._states[key][1]))
        return found

    def _remove(self, actions: Sequence[Action], hosts: dict[str, CloudHost]) -> list[Done]:
        removed = [one for one in actions if isinstance(one, Remove)]
        if not removed:
            return []
        workers, done = self.client.workers(), []  # one may have come meanwhile
        for action in removed:
            host, fault = hosts[action.host], None
            own = workers_of(host, workers)
            if any(one.running or one.state == "live" for one in own) and not host.stopped:
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
            for one in workers_of(host, workers):
                if one.state == "live":
                    self.client.drain(one.id)
        except InfrastructureError as error:
            fault = error
        except Refused as error:
            if error.reason != "worker_not_found":  # it was drained by somebody else, and has ended
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
    """Return the workers that a host has: their names begin with its own.

    Those that were heard of last before it was made are of one that had its name earlier.
    """
    return [
        one
        for one in workers
        if one.state != "lost"
        and one.id.partition(":")[0] == host.name
        and one.seen_at >= host.created
    ]


def _state(host: CloudHost, own: Sequence[WorkerView]) -> HostState:
    if host.stopped:
        return "stopped"
    if any(one.state == "live" for one in own):
        return "ready"
    return "draining" if own else "starting"
