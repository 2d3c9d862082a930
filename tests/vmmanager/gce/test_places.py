"""What is decided without the service: where a VM is tried, what it is called, and when."""

import asyncio
import time
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import VmShape
from kgym_vmmanager.cloud.labels import instance_name, is_over, labels
from kgym_vmmanager.cloud.zones import EMPTY_SECONDS, Zones
from kgym_vmmanager.gce.calls import RateGate
from kgym_vmmanager.gce.provider import machine_type

LEASE = UUID(int=7)


def order(zones: Zones) -> list[str]:
    return [str(place) for place in zones.choices()]


def test_the_lower_price_is_tried_in_all_zones_before_the_higher() -> None:
    expected = ["a (spot)", "b (spot)", "a (standard)", "b (standard)"]
    assert order(Zones(("a", "b"), spot=True)) == expected
    assert order(Zones(("a", "b"), spot=False)) == ["a (standard)", "b (standard)"]


def test_a_place_without_room_is_left_out_for_a_while() -> None:
    now = [100.0]
    zones = Zones(("a", "b"), spot=True, clock=lambda: now[0])
    zones.exhausted(next(zones.choices()))
    assert order(zones) == ["b (spot)", "a (standard)", "b (standard)"]
    now[0] += EMPTY_SECONDS
    assert order(zones)[0] == "a (spot)"


def test_where_no_place_has_room_all_are_tried_once_more() -> None:
    now = [100.0]
    zones = Zones(("a", "b"), spot=False, clock=lambda: now[0])
    for place in reversed(list(zones.choices())):
        zones.exhausted(place)
        now[0] += 1
    assert order(zones) == ["b (standard)", "a (standard)"]


@given(st.text(max_size=200))
def test_a_name_is_one_that_the_service_takes(words: str) -> None:
    name = instance_name(uuid4(), words)
    assert len(name) <= 63
    assert name.isascii()
    assert name == name.lower()
    assert name[0].isalpha()
    assert name[-1].isalnum()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_instances_of_one_lease_have_different_names() -> None:
    names = [instance_name(LEASE, name) for name in ("0", "1", "0-retry-1", "clean-0", "smoke")]
    assert len(set(names)) == 5
    assert instance_name(LEASE, "0") == names[0]


def test_a_vm_is_over_after_its_deadline_and_the_clocks_differences() -> None:
    marks = labels("kgym", LEASE, uuid4(), 1000.0)
    assert not is_over(marks, 1299, 300)
    assert is_over(marks, 1301, 300)
    assert is_over({"kgym": "kgym"}, 0, 300)


@pytest.mark.parametrize(
    ("cpus", "memory", "kind"),
    [(1, 512, "2-1024"), (2, 2048, "2-2048"), (3, 5000, "4-5120"), (1, 32768, "4-32768")],
)
def test_a_machine_is_large_enough_and_one_that_there_is(cpus: int, memory: int, kind: str) -> None:
    assert machine_type("n2-custom", VmShape(cpus=cpus, memory=memory)) == f"n2-custom-{kind}"


@pytest.mark.thorough
@pytest.mark.anyio
async def test_the_gate_keeps_calls_apart_whoever_makes_them() -> None:
    gate, begin = RateGate(100), time.monotonic()
    await asyncio.gather(*(gate.turn() for _ in range(31)))
    assert time.monotonic() - begin >= 0.3
    assert gate.calls == 31


@pytest.mark.anyio
async def test_a_gate_that_was_held_lets_nobody_through() -> None:
    gate, begin = RateGate(1000), time.monotonic()
    gate.hold(0.1)
    await gate.turn()
    assert time.monotonic() - begin >= 0.1
