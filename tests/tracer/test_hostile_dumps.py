"""Attacks by a guest's memory: sizes, counts and lists of its trace buffer that are forged."""

import time
from collections.abc import Callable

import pytest

from kgym_tracer.dumped_ring_buffer import read_trace
from tests.tracer.fake_dump import NOWHERE, FakeCpu, FakeDump

pytestmark = pytest.mark.attack

_COMMIT = 8
_NR_PAGES, _READER, _HEAD = 0, 16, 24
_PAGE = 40


def _endless(dump: FakeDump, cpu: FakeCpu) -> None:
    """Claim 2^63 pages, in a ring that never leads to the last one."""
    dump.write(cpu.address + _NR_PAGES, 1 << 63)
    cpu.link(4, 3)


def _without_head(dump: FakeDump, cpu: FakeCpu) -> None:
    dump.write(cpu.address + _NR_PAGES, 1 << 63)
    for number in range(5):
        cpu.link(number, 1 if number in {0, 4} else number + 1)


def _all_cpus(dump: FakeDump, cpu: FakeCpu) -> None:
    _endless(dump, cpu)
    for number in (3, 4):
        dump.write(cpu.pages[number] + _PAGE, NOWHERE)
    dump.cpus[:] = [cpu.address] * 63


def _order(order: int) -> Callable[[FakeDump, FakeCpu], None]:
    def forge(dump: FakeDump, _: FakeCpu) -> None:
        dump.order = order

    return forge


Forge = Callable[[FakeDump, FakeCpu], None]
FORGED: dict[str, Forge] = {
    "all CPUs": _all_cpus,
    "no head": _without_head,
    "no pages": lambda dump, cpu: dump.write(cpu.address + _NR_PAGES, 0),
    "read too much": lambda _, cpu: cpu.read_before((1 << 31) - 1),
    "read less than nothing": lambda _, cpu: cpu.read_before((1 << 32) - 4),
    "read half a word": lambda _, cpu: cpu.read_before(3),
    "commit beyond the page": lambda dump, cpu: dump.write(cpu.data[3] + _COMMIT, (1 << 64) - 1),
    "no reader page": lambda dump, cpu: dump.write(cpu.address + _READER, 0),
    "head nowhere": lambda dump, cpu: dump.write(cpu.address + _HEAD, NOWHERE),
    "a page is its own list": lambda dump, cpu: dump.write(cpu.pages[3] + _PAGE, cpu.pages[3]),
    "a list of one page": lambda _, cpu: cpu.link(3, 3),
    "negative order": _order(-1),
    "huge order": _order((1 << 31) - 1),
    "lost": lambda _, cpu: cpu.count(overrun=(1 << 63) - 1, dropped_events=(1 << 63) - 1),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("order", [pytest.param(0, marks=pytest.mark.thorough), 6])
def test_a_forged_buffer_is_read_within_limits(forge: Forge, order: int) -> None:
    dump = FakeDump(order)
    cpu = dump.cpu(pages=4)
    for number, first in ((0, 1), (3, 11), (4, 21), (1, 31), (2, 41)):
        cpu.fill(number, first, first + 1)
    cpu.head(3)
    cpu.point(head=3, commit=2, tail=2)
    forge(dump, cpu)
    begin = time.process_time()
    trace = read_trace(dump.program())
    assert time.process_time() - begin < 60
    assert len(trace) <= 20 * len(dump.cpus)
    assert 0 <= trace.lost < 1 << 63
