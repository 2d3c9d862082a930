"""The handler of `reproduce` steps: N instances side by side, and the verdict."""

import asyncio
import functools
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kgym.errors import InfrastructureError
from kgym.steps import InstanceResult, Outcome, ReproduceResult, ReproduceSpec
from kgym.verdict import judge, unseen_chance
from kgym.worker import StepRun
from kgym_vmmanager.accelerator import Accelerator, Probed, best_accelerator
from kgym_vmmanager.budget import Budget
from kgym_vmmanager.compiler import compile_reproducer
from kgym_vmmanager.instance import Instance
from kgym_vmmanager.plan import LIMITS, Ending, Limits, Plan
from kgym_vmmanager.rootfs import guest_image

_RETRIES = 2


class Reproduce:
    """Performs `reproduce` steps with what is kept in the folder `cache` (guest image, …).

    Steps that run at the same time share the `budget`, the whole host by default.
    """

    def __init__(
        self,
        cache: Path,
        budget: Budget | None = None,
        limits: Mapping[Accelerator, Limits] = LIMITS,
    ) -> None:
        self._cache = cache
        self._limits = limits
        self._budget = budget or Budget.of_host()

    async def __call__(self, run: StepRun) -> ReproduceResult:
        """Perform one step.

        Raises UserError for a reproducer that does not compile, and
        InfrastructureError if QEMU, the disk or a tool fails.
        """
        with ExitStack() as held:
            return await self._perform(run, held)

    async def _perform(self, run: StepRun, held: ExitStack) -> ReproduceResult:
        spec = run.assignment.spec
        if not isinstance(spec, ReproduceSpec):
            raise InfrastructureError("wrong_kind", f"not a reproduce step: {spec.kind}")
        begin = time.monotonic()
        run.progress("prepare")
        self._cache.mkdir(parents=True, exist_ok=True)
        plan, probed = await self._prepare(run, spec, held)
        prepared = time.monotonic()
        group = _Group(run, spec, plan, probed, self._budget)
        results = await group.run_all()
        judgement = judge(results, spec.titles, spec.instances)
        run.log(f"{judgement.verdict}: {judgement.reason}")
        return ReproduceResult(
            verdict=judgement.verdict,
            reason=judgement.reason,
            title=judgement.title,
            crashed=judgement.crashed,
            completed=judgement.completed,
            requested=spec.instances,
            unseen_chance=_unseen_chance(run, judgement.completed),
            accelerator=group.probed.accelerator,
            instances=results,
            seconds={
                "prepare": round(prepared - begin, 2),
                "boot": max((one.boot_seconds or 0 for one in results), default=0),
                "run": max((one.run_seconds or 0 for one in results), default=0),
                "total": round(time.monotonic() - begin, 2),
            },
        )

    async def _prepare(
        self, run: StepRun, spec: ReproduceSpec, held: ExitStack
    ) -> tuple[Plan, Probed]:
        folder = run.folder / "reproduce"
        (folder / "source").mkdir(parents=True)
        source = folder / "source" / "reproducer.c"
        source.write_text(spec.reproducer.text)
        await run.keep(source)
        program = await compile_reproducer(source, folder / "program")
        probed = await best_accelerator(self._cache)
        run.log(
            f"accelerator: {probed.accelerator}" + (f" ({probed.reason})" * bool(probed.reason))
        )
        image = await guest_image(self._cache, held)
        kernel = folder / "bzImage"
        await run.storage.get(run.assignment.inputs["build"].artifact("bzImage").key, kernel)
        plan = Plan(
            folder=folder,
            image=image,
            kernel=kernel,
            program=program,
            shape=spec.vm,
            seconds=spec.time,
            titles=tuple(spec.titles),
            limits=self._limits,
        )
        return plan, probed


@dataclass
class _Group:
    """The instances of one step."""

    run: StepRun
    spec: ReproduceSpec
    plan: Plan
    probed: Probed
    budget: Budget
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _times: dict[int, float] = field(default_factory=dict)
    _command_kept: bool = False

    async def run_all(self) -> list[InstanceResult]:
        """Run the instances; the first crash stops the others, unless the spec says otherwise."""
        self.run.progress("boot", 0, self.spec.instances, "instances")
        tasks = [asyncio.create_task(self._run_one(n)) for n in range(self.spec.instances)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                # gather returns with the first that ends; a second cancellation would break
                # into the cleaning up of the others.
                if not task.cancelling():
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_one(self, number: int) -> InstanceResult:
        async with self.budget.share(self.spec.vm.cpus, self.spec.vm.memory):
            result = InstanceResult(number=number, outcome=Outcome.STOPPED, detail="not started")
            for attempt in range(_RETRIES + 1):
                if self._stop.is_set():
                    break
                name = f"{number}-retry-{attempt}" if attempt else str(number)
                on_time = functools.partial(self._on_time, number)
                instance = Instance(self.plan, self.probed, number, name, on_time)
                ending = await self._live(instance)
                result = instance.result(ending)
                self.run.log(_summary(result))
                await self._keep(instance, result, name)
                if not ending.retry:
                    break
                self._distrust_accelerator(instance)
        return result

    async def _live(self, instance: Instance) -> Ending:
        """Lead the instance's life until its end, or until another one crashes."""
        life = asyncio.create_task(instance.live())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({life, stop}, return_when=asyncio.FIRST_COMPLETED)
            ending = life.result() if life.done() else Ending(Outcome.STOPPED, "another crashed")
        finally:
            for task in (life, stop):
                task.cancel()
            await asyncio.gather(life, stop, return_exceptions=True)
        if ending.outcome is Outcome.CRASH and self.spec.stop_at_first_crash:
            self._stop.set()
        return ending

    def _on_time(self, number: int, seconds: float) -> None:
        self._times[number] = seconds
        whole = self.spec.time * self.spec.instances
        self.run.progress("reproduce", round(sum(self._times.values()), 1), whole, "s")

    def _distrust_accelerator(self, instance: Instance) -> None:
        """Take the next guest to TCG if this one hung before its first word under KVM."""
        if self.probed.accelerator is Accelerator.KVM and instance.console.size == 0:
            self.run.log("the guest printed nothing under KVM; going on with TCG")
            self.probed = self.probed.model_copy(update={"accelerator": Accelerator.TCG})

    async def _keep(self, instance: Instance, result: InstanceResult, name: str) -> None:
        folder = self.plan.folder
        if not self._command_kept:
            self._command_kept = True
            command = folder / "qemu-command.txt"
            command.write_text(instance.command + "\n")
            await self.run.keep(command)
        await self.run.keep(instance.console.close())
        if instance.output.size:
            await self.run.keep(instance.output.close())
        if instance.report is not None:
            (folder / f"report-{name}.txt").write_text(instance.report.text)
            values = {**instance.report.as_dict(), "instance": result.number}
            (folder / f"report-{name}.json").write_text(json.dumps(values, indent=1))
            for suffix in ("txt", "json"):
                await self.run.keep(folder / f"report-{name}.{suffix}")


def _summary(result: InstanceResult) -> str:
    booted = f", booted in {result.boot_seconds:.1f} s" if result.boot_seconds else ""
    ran = f", {result.runs} runs in {result.run_seconds:.0f} s" if result.run_seconds else ""
    detail = f": {result.detail}" if result.detail else ""
    return f"instance {result.number}: {result.outcome}{detail}{booted}{ran}"


def _unseen_chance(run: StepRun, completed: int) -> float | None:
    baseline = run.assignment.inputs.get("baseline")
    if baseline is None or not isinstance(baseline.result, ReproduceResult):
        return None
    return unseen_chance(baseline.result.crashed, baseline.result.completed, completed)
