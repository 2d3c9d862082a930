"""Decisions about hosts: their bounds, and what they come to on recorded queues."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgym.api.jobs import JobView, StepView
from kgym.api.steps import StepKind
from kgym_hosts.scaling.decisions import (
    Action,
    Add,
    Drain,
    Host,
    Limits,
    Memory,
    PoolLimits,
    Queue,
    Remove,
    Seen,
    decide,
)
from kgym_hosts.scaling.recording import RecordedStep, recorded
from kgym_hosts.scaling.simulation import Simulation
from tests.hosts.recorded_days import DAY, day, farm

BUILD, RUN = StepKind.BUILD, StepKind.REPRODUCE


def one_pool(**other: object) -> Limits:
    pool = PoolLimits("build", (BUILD,), 2, 0, 10, 1.0, 60.0)
    return replace(Limits(pools=(pool,)), **other)  # type: ignore[arg-type]


def seen(now: float, queued: int, *hosts: Host, oldest: float = 1.0) -> Seen:
    return Seen(now, {BUILD: Queue(queued, oldest, 600.0)}, hosts)


def host(name: str, running: int, state: str = "ready", since: float = 0.0) -> Host:
    return Host(name, "build", state, running, since)  # type: ignore[arg-type]


def test_hosts_come_for_what_waits_and_go_when_it_is_done() -> None:
    memory, limits = Memory(), one_pool()
    assert decide(limits, seen(0, 5), memory) == [
        Add("build", 3, "3 hosts needed: 5 build steps queued, the oldest for 1 s")
    ]
    coming = [host(f"h{n}", 0, "starting") for n in range(3)]
    assert decide(limits, seen(30, 5, *coming), memory) == []
    busy = [host("h0", 2), host("h1", 2), host("h2", 1)]
    assert decide(limits, seen(200, 0, *busy), memory) == []
    idle = [host("h0", 1), host("h1", 0), host("h2", 0)]
    assert decide(limits, seen(300, 0, *idle), memory) == []  # they were needed just now
    assert decide(limits, seen(850, 0, *idle), memory) == [
        Drain("h1", "1 hosts of build are enough"),
        Drain("h2", "1 hosts of build are enough"),
    ]
    drained = [host("h0", 1), host("h1", 0, "draining"), host("h2", 1, "draining")]
    assert decide(limits, seen(880, 0, *drained), memory) == [Remove("h1", "drained")]


def test_what_waits_too_long_while_all_are_busy_gets_a_host_more() -> None:
    quick = Queue(1, 300.0, 0.001)
    busy, half = [host("h0", 2)], [host("h0", 1)]
    (added,) = decide(one_pool(), Seen(0, {BUILD: quick}, busy), Memory())
    assert isinstance(added, Add)
    assert added.count == 1
    # A slot is free, and the step does not take it: it waits for something else.
    assert decide(one_pool(), Seen(0, {BUILD: quick}, half), Memory()) == []


def test_a_host_that_never_came_is_given_up_and_the_next_ones_wait_ever_longer() -> None:
    memory, limits = Memory(), one_pool(start_seconds=900.0)
    tried = []
    hosts: list[Host] = []
    for now in range(0, 6 * 3600, 30):
        actions = decide(limits, Seen(now, {BUILD: Queue(1, now, 60.0)}, hosts), memory)
        for action in actions:
            if isinstance(action, Add):
                tried.append(now)
                hosts = [host(f"h{now}", 0, "starting", now)]
            elif isinstance(action, Remove):
                hosts = []
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[0] < 1000 < gaps[-1] <= 900 + 1800 + 30
    assert len(tried) < 15


def test_the_budget_bounds_hosts_and_what_has_no_price_is_not_free() -> None:
    limits = one_pool(most_dollars_per_hour=4.5, fixed_dollars_per_hour=1.0)
    (added,) = decide(limits, seen(0, 100), Memory())
    assert isinstance(added, Add)
    assert added.count == 3
    unpriced = replace(limits, pools=(replace(limits.pools[0], dollars_per_hour=None),))
    assert decide(unpriced, seen(0, 100), Memory()) == []


def test_the_cheaper_pool_is_filled_first() -> None:
    cheap = PoolLimits("cheap", (BUILD,), 2, 0, 2, 0.1, 60.0)
    dear = PoolLimits("dear", (BUILD,), 2, 0, 10, 1.0, 60.0)
    actions = decide(Limits(pools=(dear, cheap)), seen(0, 10), Memory())
    assert [(add.pool, add.count) for add in actions if isinstance(add, Add)] == [
        ("cheap", 2),
        ("dear", 3),
    ]


HOSTS = st.lists(
    st.builds(
        Host,
        name=st.uuids().map(str),
        pool=st.sampled_from(["build", "vms"]),
        state=st.sampled_from(["starting", "ready", "draining", "stopped"]),
        running=st.integers(0, 6),
        since=st.floats(0, 5000),
    ),
    max_size=30,
)
QUEUES = st.dictionaries(
    st.sampled_from([BUILD, RUN, StepKind.CHECK, StepKind.MINIMIZE]),
    st.builds(
        Queue,
        queued=st.integers(0, 10**6),
        oldest_seconds=st.floats(0, 1e6),
        step_seconds=st.none() | st.floats(0.001, 1e5),
    ),
)


@pytest.mark.thorough
@given(st.lists(st.tuples(QUEUES, HOSTS), min_size=1, max_size=4), st.none() | st.floats(0, 20))
def test_no_decision_leaves_the_bounds_or_touches_what_runs(
    looks: list[tuple[dict[StepKind, Queue], list[Host]]], dollars: float | None
) -> None:
    limits, memory = farm(20, dollars), Memory()
    for number, (queues, hosts) in enumerate(looks):
        actions = decide(limits, Seen(5000.0 + 30 * number, queues, hosts), memory)
        check(limits, Seen(0, queues, hosts), actions)


def check(limits: Limits, look: Seen, actions: Sequence[Action]) -> None:
    """What holds for every decision."""
    by_name = {host.name: host for host in look.hosts}
    removed = {action.host for action in actions if isinstance(action, Remove)}
    drained = {action.host for action in actions if isinstance(action, Drain)}
    adds = [action for action in actions if isinstance(action, Add)]
    assert not removed & drained
    for name in removed:
        assert by_name[name].running == 0
        assert by_name[name].state != "ready"
    assert all(by_name[name].state == "ready" for name in drained)
    paid = 0.0
    for pool in limits.pools:
        own = [host for host in look.hosts if host.pool == pool.name]
        added = sum(add.count for add in adds if add.pool == pool.name)
        kept = [host for host in own if host.name not in removed]
        on = [host for host in kept if host.state in {"starting", "ready"}]
        usable = [host for host in on if host.name not in drained]
        assert not added or not drained & {host.name for host in own}
        assert added == 0 or len(kept) + added <= pool.most
        if drained & {host.name for host in own}:
            busy = sum(host.running for host in on)
            assert len(usable) >= min(pool.most, max(pool.least, -(-busy // pool.slots)))
        paid += (len(kept) + added) * (pool.dollars_per_hour or 0)
    if limits.most_dollars_per_hour is not None and adds:
        assert paid <= limits.most_dollars_per_hour + 1e-6


STEPS = st.lists(
    st.builds(
        RecordedStep,
        at=st.floats(0, 20_000),
        kind=st.sampled_from([BUILD, RUN]),
        seconds=st.floats(0, 3000),
    ),
    max_size=60,
)


@pytest.mark.thorough
@settings(max_examples=60)
@given(STEPS, st.sampled_from([4, 40]), st.floats(0, 1000))
def test_every_recorded_queue_is_worked_off_and_its_hosts_go(
    steps: list[RecordedStep], most: int, start: float
) -> None:
    limits = farm(most)
    simulation = Simulation(limits, start, watch=lambda look, actions: check(limits, look, actions))
    # Of 60 steps on one host, the last has ended after a day and a half.
    outcome = simulation.run(steps, 3 * DAY)
    # Hosts that take longer to start than the limits allow never come.
    assert outcome.unfinished == 0 or start >= limits.start_seconds
    assert outcome.most_hosts <= most
    if not outcome.unfinished:
        assert outcome.added - outcome.drained <= sum(pool.least for pool in limits.pools)


@pytest.mark.thorough
def test_a_steady_load_moves_no_host() -> None:
    """Once as many hosts are there as are needed, none comes or goes: no flapping."""
    steps = [RecordedStep(2.0 * number, BUILD, 100.0) for number in range(20_000)]
    moves: list[float] = []
    Simulation(farm(), watch=lambda look, actions: moves.extend([look.now] * len(actions))).run(
        steps
    )
    assert [at for at in moves if 3600 < at < 39_000] == []


def test_bursts_at_short_distances_keep_their_hosts() -> None:
    steps = [
        RecordedStep(300.0 * burst + number, BUILD, 60.0)
        for burst in range(40)
        for number in range(20)
    ]
    outcome = Simulation(farm()).run(steps)
    assert outcome.added <= 1.5 * outcome.most_hosts
    assert outcome.wait_median_seconds < 30


@pytest.mark.thorough
def test_a_day_of_20_000_jobs_on_200_hosts_takes_seconds() -> None:
    began = time.process_time()
    outcome = Simulation(farm(200)).run(day(20_000))
    assert time.process_time() - began < 10
    assert outcome.steps == 40_000
    assert outcome.unfinished == 0
    assert 180 <= outcome.most_hosts <= 200
    # All hosts for the whole day would cost 1,200 dollars.
    assert outcome.dollars is not None
    assert outcome.dollars < 220
    assert outcome.wait_median_seconds < 60
    assert outcome.wait_95_seconds < 300


@pytest.mark.thorough
def test_less_money_means_longer_waiting() -> None:
    recording = day(5_000)
    rich, poor = Simulation(farm()).run(recording), Simulation(farm(dollars=3.0)).run(recording)
    assert rich.dollars is not None
    assert poor.dollars is not None
    assert poor.unfinished == 0
    assert poor.dollars < rich.dollars
    assert poor.wait_mean_seconds > 2 * rich.wait_mean_seconds


def test_an_exhausted_zone_is_asked_ever_less_often_and_all_goes_on_when_it_ends() -> None:
    asked: list[float] = []

    def comes(_: str, now: float) -> bool:
        asked.append(now)
        return now > DAY / 2

    steps = [RecordedStep(60.0 * number, BUILD, 60.0) for number in range(100)]
    outcome = Simulation(farm(), comes=comes).run(steps)
    assert outcome.unfinished == 0
    before = [at for at in asked if at <= DAY / 2]
    assert 10 < len(before) < 80  # of 1,440 decisions, in two pools


def test_a_recording_is_what_the_platform_has_done() -> None:
    began = datetime(2026, 5, 1, tzinfo=UTC)
    step = StepView.model_construct(
        kind=BUILD,
        queued_at=began + timedelta(seconds=5),
        started_at=began + timedelta(seconds=7),
        finished_at=began + timedelta(seconds=17),
    )
    waiting = step.model_copy(update={"started_at": None, "finished_at": None})
    before = step.model_copy(update={"queued_at": began - timedelta(seconds=1)})
    job = JobView.model_construct(steps=[step, waiting, before])
    assert recorded([job], began) == [RecordedStep(5.0, BUILD, 10.0)]


@pytest.mark.parametrize("price", [None, 0.5])
def test_what_is_not_known_of_a_price_is_not_counted_as_0(price: float | None) -> None:
    limits = one_pool()
    limits = replace(limits, pools=(replace(limits.pools[0], dollars_per_hour=price),))
    outcome = Simulation(limits).run([RecordedStep(0, BUILD, 3600.0)])
    assert (outcome.dollars is None) == (price is None)
