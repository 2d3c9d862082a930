"""A reproduce step, and every way in which its instances end, in guests that behave by script."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import VmProgress
from kgym.api.steps import (
    Calibration,
    Call,
    Evidence,
    InstanceOutcome,
    InstanceResult,
    Measure,
    Reproducer,
    StepRef,
    Verdict,
    Work,
)
from kgym.api.worker_calls import Input
from kgym.errors import InfrastructureError
from kgym.host.budget import Budget
from kgym_vmmanager.guest.paths import PROGRAM, TRACER
from kgym_vmmanager.reproduce import instance_group
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from kgym_vmmanager.vm.provider import VmLost
from tests.results import ran
from tests.vmmanager.conftest import NewStep, Perform
from tests.vmmanager.scripted_vms import (
    CRASH,
    CRASH_TITLE,
    IMPATIENT,
    Crashing,
    Guest,
    Runner,
    ScriptedVms,
)

pytestmark = pytest.mark.anyio


class NeverEnding(Guest):
    """Its program runs until it is killed."""

    words = b""

    def runs(self, runner: Runner) -> None:
        runner.program_prints(self.words)
        while runner.goes_on():
            pass


class Failing(Guest):
    """Each run of its program ends with status 1, after so many milliseconds."""

    status, ms = 1, 1300

    def runs(self, runner: Runner) -> None:
        runner.program_prints(b"no such thing\n")
        while runner.goes_on():
            runner.ends("exit", self.status, self.ms)


class ReportsAtTheEnd(NeverEnding):
    """Its kernel begins a report at the end of the program's time, and takes a while for it."""

    report = Path(__file__).with_name("late_report.console").read_bytes()
    begin, *rest = report.splitlines(keepends=True)

    def runs(self, runner: Runner) -> None:
        super().runs(runner)
        self.say(self.begin)
        threading.Thread(target=self._report, daemon=True).start()

    def _report(self) -> None:
        for line in self.rest:
            self.say(line)
            self.over.wait(0.02)


class KillingEverything(Guest):
    """Its program kills the first of the runners that are started in the guest."""

    listens = True
    runners = 0

    def runs(self, runner: Runner) -> None:
        self.runners += 1
        if self.runners == 1:
            runner.goes_on()
            runner.ends("exit", 0)
            runner.dies()
        super().runs(runner)

    def answers_ssh(self) -> bool:
        return self.listens


class Chatty(Guest):
    """Its program floods its output."""

    def runs(self, runner: Runner) -> None:
        while runner.goes_on():
            runner.program_prints(b"all work and no play\n" * 1000)


class CrashingAtBoot(Guest):
    def boots(self) -> None:
        self.say(CRASH)


class Resetting(Guest):
    def boots(self) -> None:
        self.say(b"[    0.0] Linux version 6.1.0\n")
        self.stopped("guest-reset")


class WithoutSsh(Guest):
    def answers_ssh(self) -> bool:
        return False


class WithoutKmemleak(Guest):
    def answers(self, command: str) -> tuple[int, bytes]:
        return int("scan" in command), b"sh: write error: Operation not permitted\n"


class Printing(NeverEnding):
    """Its runner prints one line after the program's time."""

    line = b""

    def runs(self, runner: Runner) -> None:
        if not self.line.startswith(b"failed"):
            super().runs(runner)
        runner.prints(self.line)


def like(kind: type[Guest], **changes: object) -> type[Guest]:
    return type(kind.__name__, (kind,), changes)


NO_CRASH, INCONCLUSIVE = Verdict.NO_CRASH, Verdict.INCONCLUSIVE
SURVIVED, BOOT_FAILED = InstanceOutcome.SURVIVED, InstanceOutcome.BOOT_FAILED
STARTED_NOT = InstanceOutcome.START_FAILED
LEAK, OTHER = "memory leak in some_function", "WARNING in nothing"
AT_ONCE = r"all \d+ runs failed at once; the last: exit status 3.*no such thing"
ENDS = {
    "never ends": (NeverEnding, {}, NO_CRASH, SURVIVED, "^$"),
    "last words": (like(NeverEnding, words=b"no tun\n"), {}, NO_CRASH, SURVIVED, "words: no tun$"),
    "other status": (Failing, {"completed": ["exit 1"]}, NO_CRASH, SURVIVED, ""),
    "kills all": (KillingEverything, {}, NO_CRASH, SURVIVED, ""),
    "late report": (ReportsAtTheEnd, {}, Verdict.SAME_CRASH, InstanceOutcome.CRASH, "late_check"),
    "other title": (
        *(Crashing, {"titles": [OTHER]}),
        *(Verdict.OTHER_CRASH, InstanceOutcome.CRASH, CRASH_TITLE),
    ),
    "no kmemleak": (
        *(WithoutKmemleak, {"titles": [LEAK]}),
        *(INCONCLUSIVE, InstanceOutcome.NOT_DONE, "kmemleak is not at work"),
    ),
    "syzkaller gives up": (
        *(like(NeverEnding, words=b"SYZFAIL: mmap of data segment failed\n"), {"time": 60}),
        *(INCONCLUSIVE, InstanceOutcome.CRASH, "SYZFAIL"),
    ),
    "crash at boot": (CrashingAtBoot, {}, INCONCLUSIVE, BOOT_FAILED, "crashed while booting"),
    "no SSH": (
        *(WithoutSsh, {"limits": IMPATIENT}),
        *(INCONCLUSIVE, BOOT_FAILED, "booted, but SSH did not answer within 2 s"),
    ),
    "fails at once": (
        *(like(Failing, status=3, ms=5), {"time": 60}),
        *(INCONCLUSIVE, InstanceOutcome.ENDED_EARLY, AT_ONCE),
    ),
    "fails slowly": (
        *(Failing, {}, INCONCLUSIVE, InstanceOutcome.NOT_DONE),
        r"none of (\d+) runs did its work: \1 x exit status 1",
    ),
    "no memory": (
        *(like(Printing, line=b"failed 11\n"), {}),
        *(INCONCLUSIVE, STARTED_NOT, "Resource temporarily unavailable"),
    ),
    "not executable": (
        *(like(Printing, line=b"failed 13\n"), {}),
        *(INCONCLUSIVE, STARTED_NOT, "Permission denied"),
    ),
    "stuck": (
        *(like(Printing, line=b"stuck 2\n"), {}, INCONCLUSIVE, InstanceOutcome.HUNG),
        "2 processes of the reproducer cannot be killed",
    ),
}


@pytest.mark.parametrize(("kind", "spec", "verdict", "outcome", "detail"), ENDS.values(), ids=ENDS)
@pytest.mark.thorough
async def test_each_end_of_an_instance_has_its_verdict(
    perform_scripted: Perform,
    kind: type[Guest],
    spec: dict[str, Any],
    verdict: Verdict,
    outcome: InstanceOutcome,
    detail: str,
) -> None:
    result = await perform_scripted(kind, **spec)
    (instance,) = result.instances
    assert (result.verdict, instance.outcome) == (verdict, outcome), result.reason
    assert re.search(detail, instance.detail), instance.detail
    assert result.seconds["total"] < 50


@pytest.mark.thorough
async def test_a_reset_while_booting_is_tried_again(perform_scripted: Perform) -> None:
    assert (await perform_scripted(Resetting, Guest)).verdict is Verdict.NO_CRASH


@pytest.mark.thorough
async def test_a_program_that_ends_well_survives(perform_scripted: Perform) -> None:
    result = await perform_scripted(Guest, instances=2, dump="hypervisor")
    assert result.verdict is Verdict.NO_CRASH
    assert [instance.outcome for instance in result.instances] == [InstanceOutcome.SURVIVED] * 2
    for instance in result.instances:
        assert instance.runs > 1
        assert instance.run_seconds is not None
        assert instance.run_seconds >= 0.3
        assert instance.dump is None


@pytest.mark.thorough
async def test_a_chatty_program_survives(scripted_step: NewStep, cache: Path) -> None:
    run = await scripted_step(time=0.3)
    result = await Reproduce(cache, provider=ScriptedVms(Chatty))(run)
    assert result.verdict is Verdict.NO_CRASH
    (log,) = [artifact for artifact in run.artifacts if artifact.name == "reproducer-0.log"]
    assert log.size > 10_000


@pytest.mark.thorough
async def test_untraced(scripted_step: NewStep, perform_scripted: Perform, cache: Path) -> None:
    """Work that was not traced before is reported as not compared."""
    before = await perform_scripted(Crashing)
    run = await scripted_step(time=0.3, evidence=True, baseline=StepRef(step=1))
    run.assignment.inputs["baseline"] = Input(result=before, artifacts=[])
    after = await Reproduce(cache, provider=ScriptedVms(Guest))(run)
    assert after.verdict is Verdict.NO_CRASH
    assert "work_not_compared" in {finding.reason for finding in after.findings}


class Slow(Guest):
    """Its tracer's time is over before the program begins, except in the last of `talks`."""

    talks: tuple[bytes, ...] = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.left = list(self.talks)
        self.seconds: list[int] = []

    def answers(self, command: str) -> tuple[int, bytes]:
        if not command.startswith(f"{TRACER} "):
            return super().answers(command)
        self.seconds.append(int(command.split()[1]))
        return 0, self.left.pop(0)


CUT = b"total 59 0 1\nover 1\n"
FAILS = b"total 250 1 1\nover 1\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("talks", "verdict", "reason"),
    [
        ((CUT, b"total 250 0 1\nover 1\n"), Verdict.NO_CRASH, "without a crash"),
        ((b"over 0\n", CUT, CUT), Verdict.INCONCLUSIVE, "not known: its trace ended before"),
        ((FAILS,), Verdict.INCONCLUSIVE, "keyctl is refused (1 x EPERM), and succeeded before"),
        (
            (b"total 39 0 1\nend exit 0 9\nover 1\n",),
            Verdict.INCONCLUSIVE,
            "keyctl is never called",
        ),
    ],
)
async def test_a_trace_that_was_cut_off_proves_nothing_and_is_repeated(
    scripted_step: NewStep, cache: Path, talks: tuple[bytes, ...], verdict: Verdict, reason: str
) -> None:
    work = Work(calls=[Call(name="keyctl", result="ok", count=1)])
    before = ran(Verdict.SAME_CRASH, CRASH_TITLE, evidence=Evidence(work=work))
    run = await scripted_step(time=0.3, evidence=True, baseline=StepRef(step=1))
    run.assignment.inputs["baseline"] = Input(result=before, artifacts=[])
    guests = ScriptedVms(like(Slow, talks=talks))
    result = await Reproduce(cache, provider=guests)(run)
    assert (result.verdict, reason in result.reason) == (verdict, True)
    assert guests.guests[0].seconds == [4, 16, 64][: len(talks)]


@pytest.mark.thorough
async def test_the_first_crash_stops_the_others(perform_scripted: Perform) -> None:
    result = await perform_scripted(Crashing, Guest, time=100, instances=2)
    assert result.verdict is Verdict.SAME_CRASH
    assert result.title == CRASH_TITLE
    outcomes = [instance.outcome for instance in result.instances]
    assert outcomes == [InstanceOutcome.CRASH, InstanceOutcome.STOPPED]
    assert result.seconds["total"] < 90


@pytest.mark.thorough
async def test_all_run_on_where_asked_to(perform_scripted: Perform) -> None:
    result = await perform_scripted(Crashing, time=20, instances=2, stop_at_first_crash=False)
    assert (result.crashed, result.completed) == (2, 2)


class CrashingIfEven(Crashing):
    """Crashes at once in the instances 0, 2, 4; survives in the others."""

    after = 0

    def runs(self, runner: Runner) -> None:
        if int(self.boot.name) % 2:
            Guest.runs(self, runner)
        else:
            super().runs(runner)


@pytest.mark.thorough
async def test_a_bug_that_shows_soon_is_measured(perform_scripted: Perform) -> None:
    """The first of two crashes; three more run, and whatever survives is not run to the end."""
    others = [Reproducer(text="int main(void) { return 1; }")]  # the instances take turns
    measure = Measure(more=3, time=2)
    result = await perform_scripted(
        CrashingIfEven, others=others, time=100, instances=2, measure=measure
    )
    assert result.verdict is Verdict.SAME_CRASH
    assert (result.requested, result.crashed, result.completed, result.time) == (5, 3, 5, 2)
    assert result.sample == [2, 3, 4]
    survivors = [
        instance for instance in result.instances if instance.outcome is InstanceOutcome.SURVIVED
    ]
    assert [instance.number for instance in survivors] == [1, 3]
    assert [instance.reproducer for instance in result.instances] == [0, 1, 0, 1, 0]
    assert all(2 <= (instance.run_seconds or 0) < 50 for instance in survivors)


@pytest.mark.thorough
async def test_a_crash_that_came_late_stops_the_others(perform_scripted: Perform) -> None:
    measure = Measure(more=3, time=0.01)
    result = await perform_scripted(Crashing, time=100, instances=1, measure=measure)
    assert (result.requested, result.crashed, result.sample) == (1, 1, [])


@pytest.mark.thorough
async def test_what_a_fix_has_to_survive(scripted_step: NewStep, cache: Path) -> None:
    run = await scripted_step(time=100, baseline=StepRef(job=1, step=1), confidence=0.95)
    crashed = InstanceResult(
        number=0, outcome=InstanceOutcome.CRASH, run_seconds=1, title="a", boot_seconds=9
    )
    before = ran(Verdict.SAME_CRASH, title="a", instances=[crashed] * 5)
    run.assignment.inputs["baseline"] = Input(result=before, artifacts=[])
    after = await Reproduce(cache, provider=ScriptedVms(Guest))(run)
    assert (after.verdict, after.requested, after.time) == (Verdict.NO_CRASH, 2, 5)
    assert after.confidence == pytest.approx(1 - 1 / 21, abs=1e-3)


@pytest.mark.thorough
async def test_another_crash_does_not_stop_the_search(perform_scripted: Perform) -> None:
    titles = ["WARNING in nothing"]
    result = await perform_scripted(Crashing, Guest, instances=2, titles=titles)
    outcomes = [instance.outcome for instance in result.instances]
    assert outcomes == [InstanceOutcome.CRASH, InstanceOutcome.SURVIVED]


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize("kind", [NeverEnding, Crashing])
async def test_forged_reports_do_not_count(perform_scripted: Perform, kind: type[Guest]) -> None:
    class Forging(kind):  # type: ignore[valid-type, misc]
        def runs(self, runner: Runner) -> None:
            runner.program_prints(CRASH.replace(b"scripted", b"forged"))
            super().runs(runner)

    result = await perform_scripted(Forging)
    crashes = kind is Crashing
    assert result.verdict is (Verdict.SAME_CRASH if crashes else Verdict.NO_CRASH)
    assert result.title == (CRASH_TITLE if crashes else None)


class RunningSyzkaller(Guest):
    """Its syz-execprog executes getpid() and leaves out whatever else there is."""

    def runs(self, runner: Runner) -> None:
        runner.program_prints(
            b"2026/01/31 10:20:30 net packet injection    : /dev/net/tun does not exist\n"
            b"2026/01/31 10:20:30 executing program 0:\ngetpid()\n"
            b"2026/01/31 10:20:30 CALL 0: signal 0, coverage 0 errno 22\n"
        )
        super().runs(runner)


@pytest.mark.thorough
@pytest.mark.attack
async def test_left_out_calls(scripted_step: NewStep, cache: Path, syzkaller: Path) -> None:
    """A program of which calls were left out proves nothing."""
    text = '#{"threaded":true,"sandbox":"none"}\ngetpid()\nunknown$call(0x1)\n'
    run = await scripted_step(Reproducer(kind="syz", text=text), time=0.3)
    step = Reproduce(cache, syzkaller=syzkaller, provider=ScriptedVms(RunningSyzkaller))
    result = await step(run)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "left out 1 of the program's calls: unknown$call" in result.reason


@pytest.mark.thorough
async def test_a_feature_that_is_missing(
    scripted_step: NewStep, cache: Path, syzkaller: Path
) -> None:
    """A program whose header requires what this kernel lacks proves nothing."""
    text = '#{"threaded":true,"procs":1,"tun":true}\ngetpid()\n'
    run = await scripted_step(Reproducer(kind="syz", text=text), time=0.3)
    step = Reproduce(cache, syzkaller=syzkaller, provider=ScriptedVms(RunningSyzkaller))
    result = await step(run)
    assert (result.verdict, result.instances[0].outcome) == (
        Verdict.INCONCLUSIVE,
        InstanceOutcome.NOT_DONE,
    )
    assert "net packet injection (/dev/net/tun does not exist)" in result.instances[0].detail


@pytest.mark.thorough
async def test_ends_of_calls(scripted_step: NewStep, cache: Path, syzkaller: Path) -> None:
    """A syzkaller program tells how its calls ended."""
    program = Reproducer(kind="syz", text="#{}\ngetpid()\n")
    step = Reproduce(cache, syzkaller=syzkaller, provider=ScriptedVms(RunningSyzkaller))
    result = await step(await scripted_step(program, time=0.3))
    assert result.verdict is Verdict.NO_CRASH
    assert result.instances[0].detail == (
        "1 of 1 calls came back at first; not well: getpid errno 22; the kernel lacks:"
        " net packet injection (/dev/net/tun does not exist)"
    )


class WithSmokeTest(Guest):
    """Passes the smoke test."""

    def answers(self, command: str) -> tuple[int, bytes]:
        return 0, b"ok files\ndone\n" if command == PROGRAM else b""


@pytest.mark.thorough
async def test_a_calibrated_bug_tells_how_sure_the_verdict_is(perform_scripted: Perform) -> None:
    known = Calibration(runs=10, crashed=10, time=0.2, accelerator="tcg")
    result = await perform_scripted(WithSmokeTest, instances=2, calibration=known, smoke=True)
    assert result.verdict is Verdict.NO_CRASH
    assert result.confidence == pytest.approx(1 - 1 / 66, abs=1e-3)
    assert "at most 1.52%" in result.reason
    assert result.findings == []
    assert len(result.instances) == 2


@pytest.mark.thorough
async def test_a_step_shows_what_each_of_its_vms_does(
    scripted_step: NewStep, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_group, "_SHOW_SECONDS", 0.01)
    run = await scripted_step(time=1, instances=2)
    working = asyncio.create_task(Reproduce(cache, provider=ScriptedVms(NeverEnding))(run))
    lanes: list[VmProgress] = []
    while not working.done():
        await asyncio.sleep(0.01)
        _, news = run.take_news()
        lanes += news.vms if news else []
    await working
    assert {lane.name for lane in lanes} == {"0", "1"}
    states = list(dict.fromkeys(lane.state for lane in lanes if lane.name == "0"))
    assert states[:2] == ["booting", "running"]
    left = [lane.left for lane in lanes if lane.name == "0" and lane.left is not None]
    assert left == sorted(left, reverse=True)
    assert any(lane.line for lane in lanes)


@pytest.mark.thorough
async def test_a_failed_smoke_test_is_a_finding(perform_scripted: Perform) -> None:
    result = await perform_scripted(Guest, smoke=True)  # which prints nothing for it
    assert result.verdict is Verdict.NO_CRASH
    assert [finding.reason for finding in result.findings] == ["broke_off"]


@pytest.mark.thorough
async def test_a_run_shorter_than_the_bug_takes_proves_nothing(perform_scripted: Perform) -> None:
    known = Calibration(runs=3, crashed=3, time=60, accelerator="tcg")
    result = await perform_scripted(Guest, calibration=known, bundle="none")
    assert (result.verdict, result.confidence) == (Verdict.NO_CRASH, 0)
    assert "proves nothing" in result.reason


class HangingAtBoot(Guest):
    """Prints its first line, and no other."""

    def boots(self) -> None:
        self.say(b"[    0.0] Linux version 6.1.0\n")


@pytest.mark.thorough
async def test_hanging_guests_leave_the_host(scripted_step: NewStep, cache: Path) -> None:
    vms = ScriptedVms(HangingAtBoot, limits=IMPATIENT)
    run = await scripted_step(instances=4)
    result = await Reproduce(cache, Budget(2, 4096), provider=vms)(run)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "not booted after 2 s; its last words: [ 0.0] Linux version" in result.reason
    assert len(vms.guests) <= 3  # of four instances, two began, and one may have begun again


@pytest.mark.thorough
async def test_a_lost_connection_is_no_verdict(scripted_step: NewStep, cache: Path) -> None:
    class KillingSsh(KillingEverything):
        def runs(self, runner: Runner) -> None:
            self.listens = False
            super().runs(runner)

    run = await scripted_step(time=60)
    vms = ScriptedVms(KillingSsh, limits=IMPATIENT)
    result = await Reproduce(cache, provider=vms)(run)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.SSH_LOST
    assert "console-0-retry-2.log" in {artifact.name for artifact in run.artifacts}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("idle", "outcome", "boots"),
    [
        (True, InstanceOutcome.SSH_LOST, 1),
        (None, InstanceOutcome.SSH_LOST, 3),  # it may be the network
        (False, InstanceOutcome.HUNG, 1),
    ],
)
async def test_a_silent_guest_is_lost_or_hung_by_what_its_cpus_do(
    scripted_step: NewStep, cache: Path, idle: bool | None, outcome: InstanceOutcome, boots: int
) -> None:
    class Silent(Guest):
        cpus_idle = idle

        def runs(self, runner: Runner) -> None:
            runner.hangs()

    vms = ScriptedVms(Silent, limits=IMPATIENT)
    result = await Reproduce(cache, provider=vms)(await scripted_step())
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is outcome
    assert len(vms.guests) == boots


class Dying(Guest):
    """Its VM is taken away in the middle of the run."""

    why: InfrastructureError = VmLost("preempted", "the zone has taken the VM back")

    def runs(self, runner: Runner) -> None:
        self.lost(self.why)
        super().runs(runner)


@pytest.mark.thorough
async def test_a_vm_that_is_taken_away_is_replaced(scripted_step: NewStep, cache: Path) -> None:
    run = await scripted_step(time=0.3)
    result = await Reproduce(cache, provider=ScriptedVms(Dying, Dying, Guest))(run)
    assert result.verdict is Verdict.NO_CRASH
    log = (run.folder / "step.log").read_text()
    assert log.count("preempted: the zone has taken the VM back; once more") == 2


@pytest.mark.thorough
async def test_vms_that_are_taken_away_for_ever_fail_the_step(perform_scripted: Perform) -> None:
    with pytest.raises(VmLost, match="taken the VM back"):
        await perform_scripted(Dying)


@pytest.mark.thorough
async def test_a_vm_that_breaks_fails_the_step(perform_scripted: Perform) -> None:
    broken = InfrastructureError("qemu_died", "QEMU ended with status 1")
    with pytest.raises(InfrastructureError, match="QEMU ended"):
        await perform_scripted(type("Breaking", (Dying,), {"why": broken}), Guest)
