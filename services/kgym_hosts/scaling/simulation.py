"""Simulation of scaling: cost and waiting times of a recorded queue within given limits.

Time advances from event to event, so a day of 100,000 jobs on 1,000 hosts takes 3 s of a core
(`./run bench scaling`). Steps of a kind start in order of arrival, with their recorded durations.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from pydantic import Field

from kgym.api.steps import StepKind, Strict
from kgym_hosts.scaling.decisions import (
    Action,
    Add,
    Drain,
    Host,
    HostState,
    Limits,
    Memory,
    Queue,
    Remove,
    Seen,
    decide,
)
from kgym_hosts.scaling.recording import RecordedStep

# Minimum charge of a host: Compute Engine bills by the second, after the first minute.
LEAST_CHARGED_SECONDS = 60.0


class Outcome(Strict):
    """The result of a simulation."""

    steps: int
    unfinished: int
    dollars: float | None = Field(
        description="cost of the pools' hosts; null if a price is unknown"
    )
    host_hours: float
    busy_share: float = Field(description="used share of the paid slots")
    wait_mean_seconds: float
    wait_median_seconds: float
    wait_95_seconds: float
    wait_most_seconds: float
    most_hosts: int
    added: int
    drained: int
    never_came: int
    hours: float = Field(
        description="from the first step until the last has ended and the hosts are removed"
    )


@dataclass(slots=True)
class _SimulatedHost:
    name: str
    pool: str
    slots: int
    since: float
    state: HostState = "starting"
    running: int = 0
    # The observation is kept until something changes: most hosts are the same in most decisions.
    seen: Host | None = None

    def snapshot(self) -> Host:
        if self.seen is None:
            self.seen = Host(self.name, self.pool, self.state, self.running, self.since)
        return self.seen


@dataclass(slots=True)
class Simulation:
    """One simulation; call `run` once."""

    limits: Limits
    start_seconds: float = 120.0
    """Time from making a host until its worker claims steps."""
    every: float = 30.0
    """Interval of decisions in seconds."""
    comes: Callable[[str, float], bool] = lambda _pool, _now: True
    """Whether a host of this pool can be made at this time."""
    watch: Callable[[Seen, Sequence[Action]], None] = lambda _seen, _actions: None
    """Called with each decision."""
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: "count[int]" = field(default_factory=count)
    _now: float = 0.0
    _hosts: dict[str, _SimulatedHost] = field(default_factory=dict)
    _free: dict[str, deque[_SimulatedHost]] = field(default_factory=dict)
    _queues: dict[StepKind, deque[RecordedStep]] = field(default_factory=dict)
    _took: dict[StepKind, deque[float]] = field(default_factory=dict)
    _waits: list[float] = field(default_factory=list)
    _paid: Counter[str] = field(default_factory=Counter)
    _done: Counter[str] = field(default_factory=Counter)
    _busy: float = 0.0
    _most: int = 0
    _finished: int = 0
    _coming: int = 0

    def run(self, steps: Sequence[RecordedStep], most_seconds: float = 30 * 24 * 3600.0) -> Outcome:
        """Simulate until all steps have ended and hosts are removed, or the time is over."""
        self._free = {pool.name: deque() for pool in self.limits.pools}
        for kind in StepKind:
            # Recent durations only, as `kgym gcp scale` reads those of the last hour.
            self._queues[kind], self._took[kind] = deque(), deque(maxlen=50)
        self._coming = len(steps)
        memory = Memory()
        least = sum(pool.least for pool in self.limits.pools)
        arrivals = iter(sorted(steps, key=lambda step: step.at))
        step, decided = next(arrivals, None), 0.0
        while self._now <= most_seconds:
            times = [
                decided,
                *([step.at] if step else []),
                *(event[0] for event in self._events[:1]),
            ]
            self._now = min(times)
            if self._events and self._events[0][0] == self._now:
                heapq.heappop(self._events)[2]()
            elif step is not None and step.at == self._now:
                self._coming -= 1
                self._queues[step.kind].append(step)
                self._begin(step.kind)
                step = next(arrivals, None)
            else:
                self._decide(memory)
                decided += self.every
            if self._finished == len(steps) and len(self._hosts) <= least:
                break
        return self._outcome(len(steps))

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._number), event))

    def _decide(self, memory: Memory) -> None:
        hosts = [host.snapshot() for host in self._hosts.values()]
        queues = {
            kind: Queue(len(queue), self._now - queue[0].at if queue else 0.0, self._mean(kind))
            for kind, queue in self._queues.items()
        }
        seen = Seen(self._now, queues, hosts)
        actions = decide(self.limits, seen, memory)
        self.watch(seen, actions)
        for action in actions:
            match action:
                case Add():
                    self._add(action, memory)
                case Drain():
                    host = self._hosts[action.host]
                    host.state, host.seen = "draining", None
                    self._done["drained"] += 1
                case Remove():
                    self._remove(self._hosts[action.host])

    def _mean(self, kind: StepKind) -> float | None:
        took = self._took[kind]
        return sum(took) / len(took) if len(took) >= 5 else None

    def _add(self, action: Add, memory: Memory) -> None:
        slots = next(pool.slots for pool in self.limits.pools if pool.name == action.pool)
        for _ in range(action.count):
            if not self.comes(action.pool, self._now):
                memory.failed(action.pool, self._now)
                self._done["never_came"] += 1
                return
            name = f"{action.pool}-{next(self._number)}"
            host = self._hosts[name] = _SimulatedHost(name, action.pool, slots, self._now)
            self._done["added"] += 1
            self._most = max(self._most, len(self._hosts))
            self._at(self.start_seconds, lambda h=host: self._ready(h))  # type: ignore[misc]

    def _ready(self, host: _SimulatedHost) -> None:
        if host.name not in self._hosts:
            return
        host.state, host.seen = "ready", None
        self._free[host.pool].extend([host] * host.slots)
        for kind in next(pool.kinds for pool in self.limits.pools if pool.name == host.pool):
            self._begin(kind)

    def _remove(self, host: _SimulatedHost) -> None:
        assert not host.running
        del self._hosts[host.name]
        self._paid[host.pool] += round(max(self._now - host.since, LEAST_CHARGED_SECONDS))

    def _begin(self, kind: StepKind) -> None:
        """Start queued steps of this kind on free slots."""
        queue = self._queues[kind]
        for pool in self.limits.pools:
            free = self._free[pool.name]
            while queue and free and kind in pool.kinds:
                host = free.popleft()
                if host.state != "ready":
                    continue
                step = queue.popleft()
                self._waits.append(self._now - step.at)
                host.running, host.seen = host.running + 1, None
                self._at(step.seconds, lambda h=host, s=step: self._finish(h, s))  # type: ignore[misc]

    def _finish(self, host: _SimulatedHost, step: RecordedStep) -> None:
        host.running, host.seen = host.running - 1, None
        self._busy += step.seconds
        self._took[step.kind].append(step.seconds)
        self._finished += 1
        if host.state == "ready":
            self._free[host.pool].append(host)
            for kind in next(pool.kinds for pool in self.limits.pools if pool.name == host.pool):
                self._begin(kind)

    def _outcome(self, steps: int) -> Outcome:
        for host in self._hosts.values():
            self._paid[host.pool] += round(self._now - host.since)
        prices = {pool.name: pool.dollars_per_hour for pool in self.limits.pools}
        slots = {pool.name: pool.slots for pool in self.limits.pools}
        dollars = 0.0
        known = True
        for pool, seconds in self._paid.items():
            price = prices[pool]
            known &= price is not None
            dollars += seconds / 3600 * (price or 0.0)
        waits = sorted(self._waits) or [0.0]
        slot_seconds = sum(slots[pool] * seconds for pool, seconds in self._paid.items())
        return Outcome(
            steps=steps,
            unfinished=steps - self._finished,
            dollars=round(dollars, 2) if known else None,
            host_hours=round(sum(self._paid.values()) / 3600, 2),
            busy_share=round(self._busy / slot_seconds, 3) if slot_seconds else 0.0,
            wait_mean_seconds=round(sum(waits) / len(waits), 1),
            wait_median_seconds=round(waits[len(waits) // 2], 1),
            wait_95_seconds=round(waits[int(len(waits) * 0.95)], 1),
            wait_most_seconds=round(waits[-1], 1),
            most_hosts=self._most,
            added=self._done["added"],
            drained=self._done["drained"],
            never_came=self._done["never_came"],
            hours=round(self._now / 3600, 2),
        )
