"""From what waits and runs to which hosts are added, drained and removed. No I/O, no clock.

    memory = Memory()
    actions = decide(limits, seen, memory)      # again at regular times, with the same memory

A step that waits is given to the cheapest pool that does its kind and has room below its bound. A
pool gets as many slots as run now, and as are needed to work off what waits within `wait_seconds`.
It keeps the most that it needed within the last `idle_seconds`, so that it does not swing.
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
    """A pool, as far as decisions need it."""

    name: str
    kinds: tuple[StepKind, ...]
    slots: int
    least: int
    most: int
    dollars_per_hour: float | None
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """All bounds."""

    pools: tuple[PoolLimits, ...]
    wait_seconds: float = 120.0
    idle_seconds: float = 600.0
    start_seconds: float = 900.0
    most_dollars_per_hour: float | None = None
    fixed_dollars_per_hour: float = 0.0
    """What is always there: the scheduler's host."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host as it is seen."""

    name: str
    pool: str
    state: HostState
    """`starting`: no worker of it is heard of; `draining`: its workers take nothing more;
    `stopped`: the machine is off, as it is once its worker was drained."""
    running: int
    """Steps that its workers hold."""
    since: float
    """When it began to be in this state, or was made, in seconds."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The steps of one kind."""

    queued: int
    oldest_seconds: float = 0.0
    step_seconds: float | None = None
    """What one took of late; None if too few have ended."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The platform at one moment."""

    now: float
    """Seconds, of any clock that does not go back."""
    queues: Mapping[StepKind, Queue]
    hosts: Sequence[Host]


@dataclass(frozen=True, slots=True)
class Add:
    """Make so many hosts of a pool."""

    pool: str
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a host's workers finish what they run, and take nothing more."""

    host: str
    why: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a host, which runs nothing."""

    host: str
    why: str


Action = Add | Drain | Remove


@dataclass(slots=True)
class Memory:
    """What decisions remember from one to the next."""

    needed: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    """By pool: when how many hosts were needed; falling, so that the first is the most."""
    paused: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By pool: until when no host is added, and how often in a row none came."""

    def failed(self, pool: str, now: float) -> None:
        """Note that a host could not be had, or never came: wait before the next, ever longer."""
        until, times = self.paused.get(pool, (-inf, 0))
        if now >= until:  # of many that fail together, one counts
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**times)
            self.paused[pool] = now + pause, min(times + 1, 30)

    def peak(self, pool: str, now: float, needed: int, window: float) -> int:
        """Note what is needed now; return the most that was needed within the window."""
        known = self.needed.setdefault(pool, deque())
        while known and known[-1][1] <= needed:
            known.pop()
        known.append((now, needed))
        while known[0][0] < now - window:
            known.popleft()
        return known[0][1]


def decide(limits: Limits, seen: Seen, memory: Memory) -> list[Action]:
    """Return what is to be done now; it is safe to do it later, or only in part."""
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
        # Where a slot is free, what waits so long waits for something else than hosts.
        full = all(one.state == "ready" and one.running >= pool.slots for one in usable)
        if share.late and full and len(usable) == needed < pool.most:
            needed += 1
        peak = memory.peak(pool.name, seen.now, needed, limits.idle_seconds)
        if needed > len(usable):
            wanted = min(needed - len(usable), pool.most - len(hosts))
            count = _affordable(limits, pool, wanted, paid)
            if count > 0 and seen.now >= memory.paused.get(pool.name, (-inf, 0))[0]:
                paid += count * (pool.dollars_per_hour or 0.0)
                actions.append(Add(pool.name, count, f"{needed} are needed: {share.why}"))
        elif peak < len(usable):
            actions += _drains(pool, usable, peak)
    return actions


@dataclass(slots=True)
class _Share:
    """What waits for a pool."""

    slots: int = 0
    """That it needs besides those that run."""
    late: bool = False
    why: str = "nothing waits"


def _why_removed(host: Host, limits: Limits, now: float) -> str | None:
    if host.running:
        return None
    if host.state == "draining":
        return "it is drained"
    if host.state == "stopped":
        return "it has stopped"
    if host.state == "starting" and now - host.since >= limits.start_seconds:
        return f"no worker of it came within {limits.start_seconds:g} s"
    return None


def _forget_pauses(by_pool: Mapping[str, list[Host]], memory: Memory, now: float) -> None:
    """A host that came after a pause ends the row of those that did not."""
    for pool, (until, _) in list(memory.paused.items()):
        hosts = by_pool.get(pool, [])
        if now >= until and any(one.state == "ready" and one.since >= until for one in hosts):
            del memory.paused[pool]


def _cheapest_first(limits: Limits) -> list[PoolLimits]:
    def price(pool: PoolLimits) -> float:
        return inf if pool.dollars_per_hour is None else pool.dollars_per_hour / pool.slots

    return sorted(limits.pools, key=price)  # what is not known comes last


def _shares(limits: Limits, seen: Seen, by_pool: Mapping[str, list[Host]]) -> dict[str, _Share]:
    """Give what waits to pools: the cheapest first, up to its bound."""
    order = _cheapest_first(limits)
    shares = {pool.name: _Share() for pool in order}
    room = {}
    for pool in order:
        usable = [host for host in by_pool[pool.name] if host.state in _USABLE]
        room[pool.name] = pool.most * pool.slots - sum(host.running for host in usable)
    for kind, queue in sorted(seen.queues.items()):
        slots = 0
        for pool in (one for one in order if kind in one.kinds):
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
                f"{queue.queued} steps of {kind} wait, the first {queue.oldest_seconds:.0f} s"
            )
    return shares


def _ready(hosts: Sequence[Host]) -> list[Host]:
    return [host for host in hosts if host.state == "ready"]


def _paid(limits: Limits, hosts: Sequence[Host]) -> float:
    prices = {pool.name: pool.dollars_per_hour or 0.0 for pool in limits.pools}
    return limits.fixed_dollars_per_hour + sum(prices.get(host.pool, 0.0) for host in hosts)


def _affordable(limits: Limits, pool: PoolLimits, wanted: int, paid: float) -> int:
    """Return how many of the wanted hosts the budget allows; none whose price is not known."""
    if limits.most_dollars_per_hour is None:
        return wanted
    if pool.dollars_per_hour is None:
        return 0
    if pool.dollars_per_hour == 0:
        return wanted
    left = limits.most_dollars_per_hour - paid
    return max(0, min(wanted, int(left / pool.dollars_per_hour + 1e-9)))


def _drains(pool: PoolLimits, usable: list[Host], keep: int) -> list[Action]:
    """Drain those that run least, and of equals the newest: what is old has a warm cache.

    A host that starts has no worker yet that could be drained: it is looked at again as it comes.
    """
    order = sorted(_ready(usable), key=lambda host: (host.running, -host.since))
    return [
        Drain(host.name, f"{keep} hosts of {pool.name} are enough")
        for host in order[: len(usable) - keep]
    ]
