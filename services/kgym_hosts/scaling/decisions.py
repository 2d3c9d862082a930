"""Decisions of scaling: which hosts to add, drain and remove. No I/O, no clock.

    memory = Memory()
    actions = decide(limits, seen, memory)      # at regular intervals, with the same memory

A queued step is assigned to the cheapest pool that runs its kind and is below its maximum. A pool
needs the slots in use, and the slots that work off its queue within `wait_seconds`. It keeps the
maximum that it needed within the last `idle_seconds`: one rule instead of thresholds and pauses, by
which a steady load moves no host.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Literal

from kgym.api.steps import StepKind

HostState = Literal["starting", "ready", "draining", "stopped"]
_USABLE = {"starting", "ready"}
_LONGEST_PAUSE = 1800.0
_FIRST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The properties of a pool on which decisions depend."""

    name: str
    kinds: tuple[StepKind, ...]
    slots: int
    least: int
    most: int
    dollars_per_hour: float | None
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of all pools."""

    pools: tuple[PoolLimits, ...]
    wait_seconds: float = 120.0
    idle_seconds: float = 600.0
    start_seconds: float = 900.0
    most_dollars_per_hour: float | None = None
    fixed_dollars_per_hour: float = 0.0
    """The price of the scheduler's host."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host as observed."""

    name: str
    pool: str
    state: HostState
    """`starting`: no worker yet; `draining`: its workers claim no more steps; `stopped`: the
    machine is off. A drained host stops its machine, which any loop can see later."""
    running: int
    """Steps that its workers run."""
    since: float
    """Time in seconds at which this state was first observed."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The queued steps of one kind."""

    queued: int
    oldest_seconds: float = 0.0
    step_seconds: float | None = None
    """Recent mean duration; None if too few have ended."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The platform as observed at one moment."""

    now: float
    """Seconds of a monotonic clock."""
    queues: Mapping[StepKind, Queue]
    hosts: Sequence[Host]


@dataclass(frozen=True, slots=True)
class Add:
    """Make `count` hosts of a pool."""

    pool: str
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a host's workers finish their steps, and claim no more."""

    host: str
    why: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a host that runs no step."""

    host: str
    why: str


Action = Add | Drain | Remove


@dataclass(slots=True)
class Memory:
    """State that is kept between decisions."""

    needed: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    """By pool: (time, hosts needed), in falling order of need, so that the first is the maximum."""
    paused: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By pool: time until which no host is added, and number of consecutive failures."""

    def failed(self, pool: str, now: float) -> None:
        """Note that a host could not be made, or never started: back off exponentially.

        Otherwise an exhausted zone would be asked for a host in every round.
        """
        until, times = self.paused.get(pool, (-inf, 0))
        if now >= until:  # failures of the same round count once
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**times)
            self.paused[pool] = now + pause, min(times + 1, 30)

    def peak(self, pool: str, now: float, needed: int, window: float) -> int:
        """Note the current need; return the maximum within the window."""
        known = self.needed.setdefault(pool, deque())
        while known and known[-1][1] <= needed:
            known.pop()
        known.append((now, needed))
        while known[0][0] < now - window:
            known.popleft()
        return known[0][1]


def decide(limits: Limits, seen: Seen, memory: Memory) -> list[Action]:
    """Return the actions to take; taking them later, or only some of them, is safe."""
    actions: list[Action] = []
    gone: set[str] = set()
    for host in seen.hosts:
        if why := _why_removed(host, limits, seen.now):
            gone.add(host.name)
            actions.append(Remove(host.name, why))
            if host.state == "starting":
                memory.failed(host.pool, seen.now)
    kept = [host for host in seen.hosts if host.name not in gone]
    by_pool = {
        pool.name: [host for host in kept if host.pool == pool.name] for pool in limits.pools
    }
    _forget_pauses(by_pool, memory, seen.now)
    shares = _shares(limits, seen, by_pool)
    paid = _paid(limits, kept)
    for pool in _cheapest_first(limits):
        share, hosts = shares[pool.name], by_pool[pool.name]
        usable = [host for host in hosts if host.state in _USABLE]
        busy = sum(host.running for host in usable)
        slots = busy + share.slots
        needed = min(pool.most, max(pool.least, ceil(slots / pool.slots)))
        # If a slot is free, old steps wait for something else than hosts.
        full = all(host.state == "ready" and host.running >= pool.slots for host in usable)
        if share.late and full and len(usable) == needed < pool.most:
            needed += 1
        peak = memory.peak(pool.name, seen.now, needed, limits.idle_seconds)
        # Draining hosts still count for the maximum, and are still paid.
        if needed > len(usable):
            wanted = min(needed - len(usable), pool.most - len(hosts))
            count = _affordable(limits, pool, wanted, paid)
            if count > 0 and seen.now >= memory.paused.get(pool.name, (-inf, 0))[0]:
                paid += count * (pool.dollars_per_hour or 0.0)
                actions.append(Add(pool.name, count, f"{needed} hosts needed: {share.why}"))
        elif peak < len(usable):
            actions += _drains(pool, usable, peak)
    return actions


@dataclass(slots=True)
class _Share:
    """The part of the queues that is assigned to a pool."""

    slots: int = 0
    """Slots needed besides those in use."""
    late: bool = False
    why: str = "no queued steps"


def _why_removed(host: Host, limits: Limits, now: float) -> str | None:
    if host.running:
        return None
    if host.state == "draining":
        return "drained"
    if host.state == "stopped":
        return "stopped"
    if host.state == "starting" and now - host.since >= limits.start_seconds:
        return f"no worker started within {limits.start_seconds:g} s"
    return None


def _forget_pauses(by_pool: Mapping[str, list[Host]], memory: Memory, now: float) -> None:
    """Reset a pool's back-off once a host of it has started."""
    for pool, (until, _) in list(memory.paused.items()):
        hosts = by_pool.get(pool, [])
        if now >= until and any(host.state == "ready" and host.since >= until for host in hosts):
            del memory.paused[pool]


def _cheapest_first(limits: Limits) -> list[PoolLimits]:
    def price(pool: PoolLimits) -> float:
        return inf if pool.dollars_per_hour is None else pool.dollars_per_hour / pool.slots

    return sorted(limits.pools, key=price)  # unknown prices come last


def _shares(limits: Limits, seen: Seen, by_pool: Mapping[str, list[Host]]) -> dict[str, _Share]:
    """Assign queued steps to pools: the cheapest first, up to its maximum."""
    order = _cheapest_first(limits)
    shares = {pool.name: _Share() for pool in order}
    room = {}
    for pool in order:
        usable = [host for host in by_pool[pool.name] if host.state in _USABLE]
        room[pool.name] = pool.most * pool.slots - sum(host.running for host in usable)
    for kind, queue in sorted(seen.queues.items()):
        slots = 0
        for pool in (candidate for candidate in order if kind in candidate.kinds):
            seconds = queue.step_seconds or pool.step_seconds
            whole = min(queue.queued, ceil(queue.queued * seconds / limits.wait_seconds))
            given = max(0, min(whole - slots, room[pool.name]))
            if not given:
                continue
            slots += given
            room[pool.name] -= given
            share = shares[pool.name]
            share.slots += given
            share.late |= queue.oldest_seconds > limits.wait_seconds
            share.why = (
                f"{queue.queued} {kind} steps queued, the oldest for {queue.oldest_seconds:.0f} s"
            )
    return shares


def _ready(hosts: Sequence[Host]) -> list[Host]:
    return [host for host in hosts if host.state == "ready"]


def _paid(limits: Limits, hosts: Sequence[Host]) -> float:
    prices = {pool.name: pool.dollars_per_hour or 0.0 for pool in limits.pools}
    return limits.fixed_dollars_per_hour + sum(prices.get(host.pool, 0.0) for host in hosts)


def _affordable(limits: Limits, pool: PoolLimits, wanted: int, paid: float) -> int:
    """Return how many of the wanted hosts the budget allows; none with an unknown price."""
    if limits.most_dollars_per_hour is None:
        return wanted
    if pool.dollars_per_hour is None:
        return 0
    if pool.dollars_per_hour == 0:
        return wanted
    left = limits.most_dollars_per_hour - paid
    # 1e-9: a budget for exactly n hosts must not lose one to rounding.
    return max(0, min(wanted, int(left / pool.dollars_per_hour + 1e-9)))


def _drains(pool: PoolLimits, usable: list[Host], keep: int) -> list[Action]:
    """Drain the hosts with the fewest steps; of equals, the newest: old ones have warm caches."""
    # A starting host has no worker yet that could be drained; it is decided on once it is ready.
    # A drained host cannot be taken back: it ends.
    order = sorted(_ready(usable), key=lambda host: (host.running, -host.since))
    return [
        Drain(host.name, f"{keep} hosts of {pool.name} are enough")
        for host in order[: len(usable) - keep]
    ]
