"""The instances of one step: run side by side, stopped, measured and repeated."""

import asyncio
import functools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kgym import tasks
from kgym.api.steps import (
    BuildArtifact,
    Control,
    DumpFailure,
    Evidence,
    Finding,
    InstanceArtifact,
    InstanceOutcome,
    InstanceResult,
    ReproduceArtifact,
    ReproduceSpec,
    Verdict,
)
from kgym.bugs.verdict import judge
from kgym.crash.report import CrashReport
from kgym.crash.symbolize import symbolize
from kgym.errors import KgymError
from kgym.host.budget import Budget, Use
from kgym.worker.context import StepContext
from kgym_vmmanager.evidence import call_profile, control_set, smoke
from kgym_vmmanager.evidence.control_set import ControlSet
from kgym_vmmanager.evidence.controls import Idle, Share
from kgym_vmmanager.evidence.kernel_tests import KernelTestSession
from kgym_vmmanager.reproduce.instance import Instance
from kgym_vmmanager.reproduce.instance_plan import InstancePlan
from kgym_vmmanager.variants.variant_session import VariantSession
from kgym_vmmanager.vm.instance_ending import InstanceEnding
from kgym_vmmanager.vm.provider import VmHost, VmLost

# Retries of an instance, if its ending allows them.
_RETRIES = 2
# VMs of one instance that may be lost to preemption or to failing machines.
_LOSSES = 5
# Innermost functions of a crash's stack that a result names; the outer ones are those of system
# calls and interrupts.
_STACK = 64
# VMs whose progress is shown, and how often.
_LANES, _SHOW_SECONDS = 16, 1.0


@dataclass
class InstanceGroup:
    """The instances of one step."""

    run: StepContext
    spec: ReproduceSpec
    plan: InstancePlan
    host: VmHost
    budget: Budget
    findings: list[Finding] = field(default_factory=list)
    evidence: Evidence = field(default_factory=Evidence)
    controls: ControlSet | None = field(init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _further: list[asyncio.Task[InstanceResult]] = field(default_factory=list)
    _times: dict[int, float] = field(default_factory=dict)
    _alive: dict[int, Instance] = field(default_factory=dict)
    """Instances that run now, by number."""
    _command_kept: bool = False
    _symbolizer: "_ReportSymbolizer" = field(init=False)

    def __post_init__(self) -> None:
        self._symbolizer = _ReportSymbolizer(self.run, self.plan.folder)
        known = self.plan.detectors
        self.controls = ControlSet(known, self.spec.instances) if known else None

    async def run_all(self) -> list[InstanceResult]:
        """Run all instances, and the smoke test if the plan has one; return the instances' results.

        The first crash with a wanted title stops the others unless the spec says otherwise. If the
        bug is to be measured, an early first crash adds instances instead.
        """
        # A crash with another title stops nothing: the wanted bug may still show.
        showing = asyncio.create_task(self._show_progress())
        runs = [asyncio.create_task(self._run_one(n)) for n in range(self.spec.instances)]
        aside: list[asyncio.Task[None]] = []
        if self.plan.smoke is not None:
            runs.append(asyncio.create_task(self._run_one(self.spec.instances, smoke_test=True)))
        if self.spec.evidence and self.spec.baseline is None:
            aside.append(asyncio.create_task(self._profile()))
        try:
            results = (await asyncio.gather(*runs))[: self.spec.instances]
            results += await asyncio.gather(*self._further)
            await asyncio.gather(*aside)
            if all(result.outcome is InstanceOutcome.SURVIVED for result in results):
                await self._keep_controls()
            return results
        finally:
            for task in (*runs, *self._further, *aside, showing):
                # gather raises the first error; a second cancellation would interrupt the cleanup
                # of tasks that are already being cancelled.
                if not task.cancelling():
                    task.cancel()
            over = (*runs, *self._further, *aside, showing)
            await asyncio.gather(*over, return_exceptions=True)

    @property
    def requested(self) -> int:
        """Number of instances of the step, further ones included."""
        return self.spec.instances + len(self._further)

    @property
    def sample(self) -> list[int]:
        """The instances that measure how often the bug shows."""
        # If a crash may stop the first instances, counting them would bias the rate.
        first = self.spec.instances if self.spec.stop_at_first_crash else 0
        return list(range(first, self.requested))

    async def run_variants(
        self, plan: InstancePlan, name: str, session: VariantSession | KernelTestSession
    ) -> InstanceResult:
        """Run variants, or the kernel's own tests, in a guest of `plan`.

        Its console and report are kept if it did not survive.
        """
        async with self.budget.share(Use.VM, *self.host.room(plan.shape)):
            instance = Instance(plan, self.host, 0, name, lambda _: None, session=session)
            ending = await instance.live(lambda _: None)
        result = instance.result(ending)
        self.run.log(_summary(name, result))
        if ending.outcome is InstanceOutcome.SURVIVED:
            return result
        try:
            return await self._keep(instance, result, name)
        except (KgymError, OSError) as error:  # a crash counts without its report
            self.run.log(f"instance {name}: its files are not stored: {error}")
            return result

    async def _run_one(
        self, number: int, *, smoke_test: bool = False, clean: Share | None = None
    ) -> InstanceResult:
        """Run an instance, with retries where the ending allows them.

        The smoke test and `clean` guests for controls do not count among the instances.
        """
        kind = "smoke" if smoke_test else "clean" if clean else ""
        share = self.controls.share(number) if self.controls and not kind else clean
        async with self.budget.share(Use.VM, *self.host.room(self.spec.vm)):
            result = InstanceResult(
                number=number, outcome=InstanceOutcome.STOPPED, detail="not started"
            )
            attempt = losses = 0
            # A crash whose dump was lost with its VM. The crash counts in any case; the instance
            # runs again only to get the dump.
            crashed: InstanceResult | None = None
            while attempt - losses <= _RETRIES and losses <= _LOSSES:
                if (self._stop.is_set() and crashed is None) or self.plan.boots.hopeless:
                    break
                name = "smoke" if smoke_test else "-".join(filter(None, (kind, str(number))))
                name = f"{name}-retry-{attempt}" if attempt else name
                on_time = functools.partial(self._times.__setitem__, number)
                instance = Instance(
                    self.plan,
                    self.host,
                    number,
                    name,
                    on_time,
                    smoke=smoke_test,
                    share=share,
                    session=Idle() if clean else None,
                )
                attempt += 1
                try:
                    ending = await self._live(instance, counts=not kind, again=crashed is not None)
                except VmLost as error:
                    # No outcome: the guest did nothing wrong. The instance starts over.
                    losses += 1
                    if losses > _LOSSES and crashed is None:
                        raise
                    self.run.log(f"instance {name}: {error.reason}: {error.message}; once more")
                    await self.run.keep(instance.console.close())
                    continue
                result = await self._keep_dump(instance.result(ending))
                self.run.log(_summary(name, result))
                if self.plan.profiled and number == 0 and not kind and not ending.retry:
                    self._keep_work(instance, ending)
                if self.controls is not None and instance.controls is not None:
                    self.controls.add(instance.controls, instance.evidence_seconds)
                    self.run.log(f"instance {name}: {control_set.summary(instance.controls)}")
                if smoke_test and not ending.retry:
                    self.findings += smoke.findings(result, instance.smoke_output)
                result = await self._keep(instance, result, name)
                lost_dump = result.dump and result.dump.failure is DumpFailure.VM_LOST
                if lost_dump:
                    losses, crashed = losses + 1, crashed or result
                elif not ending.retry:
                    break
                else:
                    self._distrust_accelerator(instance)
        return _with_dump(result, crashed)

    async def _keep_controls(self) -> None:
        """Add the outcomes of all controls to the evidence.

        Faults that the instances could not raise are raised in clean guests of the same kernel.
        """
        if self.controls is None:
            if self.spec.evidence:
                self._know(missing=["what its kernel detects: the build does not tell"])
            return
        begin = time.monotonic()
        left = [self._run_one(n, clean=share) for n, share in enumerate(self.controls.left())]
        async with asyncio.TaskGroup() as group:
            for run in left:
                group.create_task(run)
        self._know(
            controls=self.controls.controls(),
            missing=self.controls.missing,
            seconds=self.controls.seconds + time.monotonic() - begin,
        )

    async def _profile(self) -> None:
        """Trace the program on an instance of its own."""
        # Tracing changes timing, so the runs that decide the verdict are never traced.
        async with self.budget.share(Use.VM, *self.host.room(self.spec.vm)):
            begin = time.monotonic()
            tracing = call_profile.Profiling()
            instance = Instance(self.plan, self.host, 0, "traced", lambda _: None, session=tracing)
            try:
                ending = await instance.live(lambda _: None)
                self.run.log(_summary("traced", instance.result(ending)))
                await self.run.keep(instance.console.close())
            except (KgymError, OSError) as error:  # the verdict does not need the trace
                ending = InstanceEnding(InstanceOutcome.START_FAILED, str(error))
            self._keep_work(instance, ending)
            self._know(seconds=time.monotonic() - begin)

    def _keep_work(self, instance: Instance, ending: InstanceEnding) -> None:
        """Add the program's system calls to the evidence, or the reason why they are unknown."""
        self.evidence = self.evidence.model_copy(update={"work": instance.work})
        if instance.work is None:
            self._know(missing=[f"what the program does: {call_profile.why_unknown(ending)}"])
        if instance.unwatched:
            self._know(missing=[f"which functions are reached: {instance.unwatched}"])

    def _know(
        self, *, controls: Sequence[Control] = (), missing: Sequence[str] = (), seconds: float = 0
    ) -> None:
        """Add to the step's evidence."""
        known = self.evidence
        more = {
            "controls": [*known.controls, *controls],
            "missing": [*known.missing, *missing],
            "seconds": round(known.seconds + seconds, 2),
        }
        self.evidence = known.model_copy(update=more)

    async def _live(
        self, instance: Instance, *, counts: bool, again: bool = False
    ) -> InstanceEnding:
        """Run the instance until it ends, or until another one crashes.

        A run `again` for a lost dump is not stopped: the crash that stops others may be its own.
        """

        def on_end(ending: InstanceEnding) -> None:
            result = instance.result(ending)
            is_wanted = judge([result], self.spec.titles, 1).verdict is Verdict.SAME_CRASH
            if counts and is_wanted and self.spec.stop_at_first_crash:
                self._stop_or_measure(result)

        if counts:
            self._alive[instance.number] = instance
        life = asyncio.create_task(instance.live(on_end))
        stop = asyncio.create_task((asyncio.Event() if again else self._stop).wait())
        try:
            await asyncio.wait({life, stop}, return_when=asyncio.FIRST_COMPLETED)
            ended = instance.ending
            if life.done() or (ended and ended.outcome is not InstanceOutcome.SURVIVED):
                ending = await life  # it has ended by itself; its dump is being taken
            else:
                ending = ended or InstanceEnding(InstanceOutcome.STOPPED, "another crashed")
        finally:
            self._alive.pop(instance.number, None)
            await tasks.end((life, stop))
        return ending

    def _stop_or_measure(self, crashed: InstanceResult) -> None:
        """Stop the other instances; after an early crash, start those that measure the bug."""
        measure = self.spec.measure
        if self._further or self._stop.is_set():
            return  # not the first crash
        if measure is None or (crashed.run_seconds or 0) > measure.time:
            self._stop.set()
            return
        self.plan.time.cut(measure.time)
        begin = self.spec.instances
        self.run.log(f"it crashed soon: {measure.more} more instances tell how often it does")
        for number in range(begin, begin + measure.more):
            self._further.append(asyncio.create_task(self._run_one(number)))

    async def _show_progress(self) -> None:
        while True:
            vms = []
            for number, instance in sorted(self._alive.items())[:_LANES]:
                vm = instance.progress
                if vm.state == "running":
                    left = self.plan.time.seconds - self._times.get(number, 0)
                    vm = vm.model_copy(update={"left": round(max(0, left), 1)})
                vms.append(vm)
            if self._times:
                done, whole = sum(self._times.values()), self.plan.time.seconds * self.requested
                self.run.progress("reproduce", round(done, 1), whole, "s", vms)
            else:
                self.run.progress("boot", 0, self.spec.instances, "instances", vms)
            await asyncio.sleep(_SHOW_SECONDS)

    def _distrust_accelerator(self, instance: Instance) -> None:
        """Switch to a slower accelerator if a guest hung before it printed anything."""
        # KVM can pass the probe and still hang a kernel, e.g. nested on some clouds.
        slower = self.host.instead() if instance.console.size == 0 else None
        if slower is not None:
            what = f"under {self.host.accelerator.upper()}; going on with {slower.accelerator}"
            self.run.log(f"the guest printed nothing {what}")
            self.host = slower
            self.plan.boots.begin_anew()

    async def _keep_dump(self, result: InstanceResult) -> InstanceResult:
        """Store the dump if there is one; a failure is only logged: no verdict needs the dump."""
        dump = result.dump
        if dump is None:
            return result
        if dump.artifact is not None:
            try:
                await self.run.keep(self.plan.folder / dump.artifact, move=True)
            except (KgymError, OSError) as error:
                lost = {"artifact": None, "size": 0, "message": f"cannot be stored: {error}"}
                dump = dump.model_copy(update={**lost, "failure": DumpFailure.DISK})
        summary = dump.artifact or f"no dump ({dump.failure}): {dump.message}"
        size = f", {dump.size >> 20} MiB in {dump.seconds:.1f} s" * bool(dump.artifact)
        self.run.log(f"instance {result.number}: {summary}{size}")
        return result.model_copy(update={"dump": dump})

    async def _keep(self, instance: Instance, result: InstanceResult, name: str) -> InstanceResult:
        """Store the instance's files; return its result, with the stack and file of its report."""
        folder = self.plan.folder
        if not self._command_kept:
            self._command_kept = True
            command = folder / ReproduceArtifact.COMMAND
            command.write_text(instance.command + "\n")
            await self.run.keep(command)
        await self.run.keep(instance.console.close())
        if instance.output.size:
            await self.run.keep(instance.output.close())
        if instance.report is not None:
            report = await self._symbolizer.add_to(instance.report)
            functions = [frame.function[:200] for frame in report.frames if frame.function]
            about = {"guilty_file": report.guilty_file, "stack": functions[:_STACK]}
            result = result.model_copy(update=about)
            values = {**report.as_dict(), "instance": result.number}
            texts = {
                InstanceArtifact.REPORT: report.text,
                InstanceArtifact.REPORT_JSON: json.dumps(values, indent=1),
            }
            for artifact, text in texts.items():
                path = folder / artifact.of(name)
                path.write_text(text)
                await self.run.keep(path)
        return result


def _with_dump(last: InstanceResult, crashed: InstanceResult | None) -> InstanceResult:
    """Return the result that counts: a crash whose dump was lost, unless `last` has a dump."""
    dumped = last.dump is not None and last.dump.artifact is not None
    return last if crashed is None or dumped else crashed


def _summary(name: str, result: InstanceResult) -> str:
    booted = f", booted in {result.boot_seconds:.1f} s" if result.boot_seconds else ""
    ran = f", {result.runs} runs in {result.run_seconds:.0f} s" if result.run_seconds else ""
    detail = f": {result.detail}" if result.detail else ""
    return f"instance {name}: {result.outcome}{detail}{booted}{ran}"


class _ReportSymbolizer:
    """Source lines for crash reports, from the kernel's vmlinux; fetched for the first crash."""

    def __init__(self, run: StepContext, folder: Path) -> None:
        self._run = run
        self._vmlinux = folder / "vmlinux"
        self._fetching = asyncio.Lock()

    async def add_to(self, report: CrashReport) -> CrashReport:
        """Return the report with its source lines; a failure is only logged."""
        try:
            async with self._fetching:
                if not self._vmlinux.exists():
                    await self._run.fetch("build", BuildArtifact.VMLINUX, self._vmlinux)
            return (await symbolize([report], self._vmlinux))[0]
        except (KgymError, OSError) as error:
            self._run.log(f"no source lines in the report: {error}")
            return report
