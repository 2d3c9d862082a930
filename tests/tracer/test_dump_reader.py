"""A dump of the shipped kernel, taken by the hypervisor: what is read out of it. Minutes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import VmShape
from kgym.trace.records import Trace
from kgym.trace.trace_files import load
from kgym.trace.tracer_text import TextParser
from tests.conftest import DATA, kgym
from tests.kernel.machine import FILE, crash_and_dump, traced_kernel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

# Two writers, each on a CPU, in a buffer that is too small for what they write.
SCRIPT = Path(__file__).with_name("two_writers.sh").read_text()


@dataclass
class Crashed:
    """A guest that crashed, and where to find what is left of it."""

    dump: Path
    vmlinux: Path
    console: Path
    trace: Trace
    answer: dict[str, Any]

    def text(self, name: str) -> str:
        return Path(self.answer["folder"], name).read_text()


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    folder = tmp_path_factory.mktemp("crashed")
    traced_kernel(folder)
    guest = crash_and_dump(folder, DATA / "cache", script=SCRIPT, shape=VmShape(cpus=2, memory=512))
    console = folder / "console.log"
    words = ("--vmlinux", folder / "vmlinux", "--output", folder / "out")
    status, answer = kgym("trace", "extract", guest.dump, *words)
    assert status == 0, answer
    trace = load(folder / "out" / "trace.npz")
    return Crashed(guest.dump, folder / "vmlinux", console, trace, answer)


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    names = [trace.functions[n].name for n in trace.function.tolist()]
    columns = (trace.cpu.tolist(), trace.pid.tolist(), trace.counter.tolist())
    return list(zip(*columns, names, strict=True))


def test_the_records_are_those_that_the_kernel_itself_printed_before(crashed: Crashed) -> None:
    text = crashed.console.read_text()
    parser = TextParser()
    parser.feed(text.partition("trace: begin")[2].partition("trace: end")[0].encode())
    printed = parser.trace()
    added = [row for row in rows(crashed.trace) if row[3].startswith("watch_queue")]
    common = rows(crashed.trace)[: -len(added)]
    assert len(common) > 100
    assert common == rows(printed)[-len(common) :]
    apart = crashed.trace.time[: len(common)] // 1000 - printed.time[-len(common) :] // 1000
    assert abs(apart.astype(int)).max() <= 1  # the text rounds to microseconds
    assert crashed.trace.lost + len(crashed.trace) == 1200 + len(added)
    assert set(crashed.trace.cpu.tolist()) == {0, 1}


def test_the_minimal_trace_of_the_crash_has_its_anchor(crashed: Crashed) -> None:
    words = ("--vmlinux", crashed.vmlinux, "--report", crashed.console, "--files", FILE)
    status, minimal = kgym("trace", "minimize", crashed.dump, *words)
    assert (status, minimal["guessed"]) == (0, False)
    assert minimal["anchor"]["frames"] == ["watch_queue_set_filter"]
    names = [call["pattern"][0]["name"] for call in minimal["calls"]]
    assert names == ["watch_queue_init", "watch_queue_set_size", "watch_queue_set_filter"]
    assert minimal["task"] == "program"


def test_the_kernel_log_and_the_stack_with_its_variables_are_read(crashed: Crashed) -> None:
    assert "KASAN: slab-out-of-bounds" in crashed.text("dmesg.txt")
    stack = crashed.text("stack.txt")
    assert "(program)" in stack.partition("\n")[0]
    frame = stack[stack.index("watch_queue_set_filter at kernel/watch_queue.c:") :]
    assert "    filter = (struct watch_notification_filter){" in frame


def test_a_vmlinux_of_another_kernel_is_refused(crashed: Crashed, tmp_path: Path) -> None:
    other = tmp_path / "vmlinux"
    other.write_bytes(Path("/bin/true").read_bytes())
    status, answer = kgym("trace", "extract", crashed.dump, "--vmlinux", other)
    assert status == 2
    assert "does not fit the dump" in json.dumps(answer["parts"])
