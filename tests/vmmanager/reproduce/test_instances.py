"""Instances of a real kernel: each mechanism once. All else is in test_reproduce_step.py.

That a guest hangs is in ../dump/test_dump_methods.py, which takes its dump, too.
"""

import asyncio
import dataclasses
import json
import time
from pathlib import Path

import pytest

from kgym.api.steps import InstanceOutcome, Reproducer, Verdict
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from kgym_vmmanager.vm.qemu_provider import LIMITS, Qemu
from tests.vmmanager.conftest import NewStep, Perform

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]

FUNCTIONS = Path(__file__).with_name("program.c").read_text()
IMPATIENT = {
    accelerator: dataclasses.replace(limits, silence=6, watchdog=6, reconnect=4)
    for accelerator, limits in LIMITS.items()
}


def program(body: str) -> str:
    return f"{FUNCTIONS}int main(void) {{ {body}\n}}\n"


async def test_a_guest_has_what_programs_need(perform: Perform) -> None:
    """CPUs, file systems, devices, a network that commands set up, all that the smoke test asks."""
    result = await perform(program("check_guest();"), cpus=2, smoke=True)
    assert result.verdict is Verdict.NO_CRASH, result.reason
    assert result.findings == []
    assert result.instances[0].runs > 1


async def test_a_crash_is_recognised_soon(new_step: NewStep, cache: Path) -> None:
    """The call that crashes the kernel is named; reports that the program prints hide nothing."""
    body = "forge(); getppid(); sleep(1); crash(); sleep(60); return 0;"
    run = await new_step(program(body), time=60, evidence=True)
    result = await Reproduce(cache)(run)
    (instance,) = result.instances
    assert (result.verdict, instance.outcome) == (Verdict.SAME_CRASH, InstanceOutcome.CRASH)
    assert result.title is not None
    assert "forged" not in result.title
    assert instance.verdict_lag is not None
    assert instance.verdict_lag < 10  # a report without a recognised end is waited for longer
    assert instance.run_seconds is not None
    assert 1 <= instance.run_seconds < 50
    kept = {artifact.name: artifact for artifact in run.artifacts}
    assert {"reproducer.c", "qemu-command.txt", "console-0.log", "report-0.txt"} <= set(kept)
    path = run.folder / "report.json"
    await run.storage.get(kept["report-0.json"].key, path)
    assert json.loads(path.read_text())["title"] == result.title
    assert result.evidence is not None
    work = result.evidence.work
    assert work is not None, result.evidence.missing
    assert work.unfinished == "write"  # to /proc/sysrq-trigger
    assert {"getppid", "openat"} <= {call.name for call in work.calls if call.result == "ok"}


@pytest.mark.attack
async def test_a_leak_counts_and_reports_that_the_program_prints_do_not(perform: Perform) -> None:
    """A forged report would end the instance at once; the leak shows when the time is over."""
    title, forged = "memory leak in kgym_control_lose", "memory leak in forged_function"
    titles = [title, forged, "KASAN: use-after-free Write in forged_function"]
    body = 'forge(); raise_fault("leak"); sleep(60);'
    result = await perform(program(body), time=8, titles=titles, append="kmemleak=on")
    (instance,) = result.instances
    assert (instance.outcome, instance.title) == (InstanceOutcome.CRASH, title), result.reason


@pytest.mark.exhaustive
async def test_both_kinds_take_turns(new_step: NewStep, cache: Path, syzkaller: Path) -> None:
    text = '#{"threaded":true,"repeat":true,"procs":3,"sandbox":"none"}\ngetpid()\ncrash()\n'
    others = [Reproducer(kind="syz", text=text)]
    run = await new_step(
        program("sleep(30); return 0;"),
        time=8,
        instances=2,
        others=others,
        stop_at_first_crash=False,
    )
    result = await Reproduce(cache, syzkaller=syzkaller)(run)
    assert [instance.reproducer for instance in result.instances] == [0, 1]
    assert [instance.outcome for instance in result.instances] == [
        InstanceOutcome.SURVIVED,
        InstanceOutcome.CRASH,
    ]
    kept = {artifact.name: artifact for artifact in run.artifacts}
    assert {"reproducer.c", "reproducer-1.syz"} <= set(kept)
    path = run.folder / "output"
    await run.storage.get(kept["reproducer-1.log"].key, path)
    assert "-procs=1 -repeat=1 -threaded=true -enable=close_fds -vv=1 getpid()" in path.read_text()


async def test_a_reboot_is_no_verdict(perform: Perform) -> None:
    result = await perform(program("sleep(1); reboot(RB_AUTOBOOT);"))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.REBOOTED


@pytest.mark.exhaustive
async def test_a_fork_bomb_survives(perform: Perform) -> None:
    result = await perform(program("for (;;) fork();"), time=10)
    assert result.verdict is Verdict.NO_CRASH, result.reason


@pytest.mark.exhaustive
async def test_killing_everything_does_not_end_the_run(perform: Perform) -> None:
    body = "sleep(2); kill(-1, SIGKILL); return 0;"
    result = await perform(program(body), time=6)
    assert result.verdict is Verdict.NO_CRASH, result.reason
    assert result.instances[0].runs > 1


async def test_cancelled_it_leaves_nothing(new_step: NewStep, cache: Path) -> None:
    run = await new_step(program("for (;;) pause();"), time=300, instances=2)
    others = asyncio.all_tasks()
    task = asyncio.create_task(Reproduce(cache)(run))
    while not (progress := run.take_news()[1]) or progress.stage != "reproduce":
        assert not task.done()
        await asyncio.sleep(0.1)
    assert list(run.folder.glob("reproduce/vm-*"))
    begin = time.monotonic()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert time.monotonic() - begin < 10  # 2 where nothing else runs
    assert not list(run.folder.glob("reproduce/vm-*"))
    assert asyncio.all_tasks() == others


@pytest.mark.exhaustive
async def test_an_emulated_guests_clock_is_right(perform: Perform) -> None:
    """A program that sleeps for two seconds runs about as often as nine of the host's allow."""
    result = await perform(program("sleep(2); return 0;"), time=9)
    assert result.verdict is Verdict.NO_CRASH
    # Five runs begin on a quiet host; a busy one ends the last late. A clock that is 2.8 times too
    # fast, as was seen, would begin 13.
    assert 3 <= result.instances[0].runs <= 8


@pytest.mark.exhaustive
async def test_a_guest_without_network_is_lost(new_step: NewStep, cache: Path) -> None:
    run = await new_step(program("take_network_down();"))
    result = await Reproduce(cache, provider=Qemu(IMPATIENT))(run)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.SSH_LOST
