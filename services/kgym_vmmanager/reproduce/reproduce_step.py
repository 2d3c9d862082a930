"""The handler of `reproduce` steps: its stages in order, the verdict, and its confidence."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from kgym import tasks
from kgym.api.steps import (
    Calibration,
    Evidence,
    Finding,
    InstanceOutcome,
    InstanceResult,
    ReproduceResult,
    ReproduceSpec,
    UsedRoot,
    VariantRun,
    Verdict,
)
from kgym.bugs import calibration
from kgym.bugs.trial_sides import other_root
from kgym.bugs.verdict import Judgement, judge, unseen_chance
from kgym.host.budget import Budget
from kgym.worker.context import StepContext
from kgym_vmmanager.evidence import compared_work, control_set, kernel_tests
from kgym_vmmanager.reproduce import kernel_test_stage, variant_stage
from kgym_vmmanager.reproduce.instance_group import InstanceGroup
from kgym_vmmanager.reproduce.preparation import keep_bundle, prepare, work_before
from kgym_vmmanager.reproduce.variant_stage import VariantStage
from kgym_vmmanager.root.image_file import Fetch, fetch_nothing
from kgym_vmmanager.vm.provider import Provider, VmHost
from kgym_vmmanager.vm.qemu_provider import Qemu


class Reproduce:
    """Performs `reproduce` steps; keeps guest images, disks and the accelerator in `cache`.

    Concurrent steps share the `budget`, by default the whole host. `syzkaller` is the folder of
    the binaries for `syz` programs (`capabilities.syzkallers`); `fetch` gets root disks from
    elsewhere; `provider` runs the VMs, by default this host.
    """

    def __init__(
        self,
        cache: Path,
        budget: Budget | None = None,
        syzkaller: Path | None = None,
        fetch: Fetch = fetch_nothing,
        provider: Provider | None = None,
    ) -> None:
        self._cache = cache
        self._fetch = fetch
        self._syzkaller = syzkaller
        self._provider = provider or Qemu()
        self._budget = budget or Budget.of_host()
        # Seconds of the slowest boot of any kernel, by accelerator.
        self._slowest_boots: dict[str, float] = {}

    async def __call__(self, run: StepContext) -> ReproduceResult:
        """Perform one step.

        Raises UserError for a reproducer that does not compile, and
        InfrastructureError if a VM, the disk or a tool fails.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        async with self._provider.host(run, self._cache) as host:
            return await self._perform(run, host)

    async def _perform(self, run: StepContext, host: VmHost) -> ReproduceResult:
        baseline = run.optional_input("baseline", ReproduceResult)

        with run.stage("prepare"):
            prepared = await prepare(run, self._cache, host, self._syzkaller, self._fetch)
        plan = prepared.plan
        spec = _sized(run, run.spec(ReproduceSpec), baseline, host.accelerator)
        plan.time.seconds = spec.time
        plan.boots.slowest_elsewhere = self._slowest_boots.get(host.accelerator)

        # The bundle is packed while the VMs run: its compression takes seconds.
        group = InstanceGroup(run, spec, plan, host, self._budget)
        packing = asyncio.create_task(keep_bundle(run, prepared))
        try:
            results = await group.run_all()
            judgement = judge(results, spec.titles, group.requested, group.evidence.controls)
            stage = VariantStage(run, spec, plan, group)
            learned = reference = variants = tests = None
            learner = run.optional_input("learned", ReproduceResult)
            fixed = run.optional_input("reference", ReproduceResult)
            if spec.variants and baseline is None and learner is not None:
                reference = await stage.learn_of_fix(learner, judgement.title)
            elif judgement.verdict is Verdict.SAME_CRASH and baseline is None:
                learned = await stage.learn(results)
            elif judgement.verdict is Verdict.NO_CRASH:
                variants = await stage.search(learner or baseline)
                if variants is not None and fixed is not None:
                    equivalence = await stage.compared(fixed)
                    variants = variants.model_copy(update={"equivalence": equivalence})
                tests = await kernel_test_stage.result(group)
                work = group.evidence.work
                why = compared_work.lacks(work_before(baseline), work) if work else None
                if why and not variant_stage.behaves_as_before(variants):
                    results[0] = results[0].model_copy(
                        update={"outcome": InstanceOutcome.NOT_DONE, "detail": why}
                    )
                    judgement = judge(
                        results, spec.titles, group.requested, group.evidence.controls
                    )
            await packing
        finally:
            await tasks.end([packing])
        accelerator = group.host.accelerator  # a slower one if the first did not work
        slowest_boot = max((result.boot_seconds or 0 for result in results), default=0)
        if slowest_boot:
            before = self._slowest_boots.get(accelerator, 0)
            self._slowest_boots[accelerator] = max(before, slowest_boot)

        controls = group.evidence.controls
        known = _calibration(run, spec, baseline, accelerator)
        confidence = _confidence(judgement, results, known)
        reason = "; ".join([judgement.reason, *_confidence_in_words(confidence, known)])
        run.log(f"{judgement.verdict}: {reason}")
        root = plan.disk.used if plan.disk else UsedRoot()
        return ReproduceResult(
            verdict=judgement.verdict,
            reason=reason,
            title=judgement.title,
            crashed=judgement.crashed,
            completed=judgement.completed,
            requested=group.requested,
            baseline=baseline.verdict if baseline else None,
            unseen_chance=unseen_chance(baseline.crashed, baseline.completed, judgement.completed)
            if baseline
            else None,
            time=plan.time.seconds,
            calibration=known,
            confidence=confidence,
            accelerator=accelerator,
            root=root,
            instances=results,
            sample=group.sample,
            findings=[
                *group.findings,
                *_work_findings(baseline, spec, group.evidence, judgement, variants),
                *(variant_stage.findings(variants) if variants else ()),
                *(kernel_tests.findings(tests) if tests else ()),
                *control_set.findings(controls),
                # Guests with another root than the baseline's prove nothing about the fix.
                *(other_root(baseline.root, root) if baseline else ()),
            ],
            learned=learned,
            reference=reference,
            variants=variants,
            kernel_tests=tests,
            evidence=group.evidence if spec.evidence else None,
            seconds={
                **run.seconds,
                "boot": slowest_boot,
                "run": max((result.run_seconds or 0 for result in results), default=0),
                "total": run.elapsed,
            },
        )


# --- size and confidence ----------------------------------------------------------------------


def _calibration(
    run: StepContext, spec: ReproduceSpec, baseline: ReproduceResult | None, accelerator: str
) -> Calibration | None:
    """Return the bug's calibration on this accelerator: the earlier one or the baseline's.

    Times on other accelerators say nothing about this one.
    """
    calibrations = [spec.calibration]
    if baseline is not None:
        calibrations.append(calibration.measured(baseline, spec.titles))
    here = []
    for known in filter(None, calibrations):
        if known.accelerator == accelerator:
            here.append(known)
        else:
            run.log(f"the bug was calibrated under {known.accelerator}: not used here")
    # The number of runs decides, never which answer is more convenient.
    return max(here, key=lambda known: known.runs, default=None)


def _sized(
    run: StepContext, spec: ReproduceSpec, baseline: ReproduceResult | None, accelerator: str
) -> ReproduceSpec:
    """Return the spec with the instances and the time that the wanted confidence needs."""
    if spec.confidence is None:
        return spec
    known = _calibration(run, spec, baseline, accelerator)
    wanted = calibration.planned(known, spec.confidence, spec.instances, spec.time)
    if wanted is None:
        run.log(f"too little is known of the bug: {spec.instances} x {spec.time:g} s, as asked")
        return spec
    run.log(f"{wanted.instances} x {wanted.time:g} s for {wanted.confidence:.0%}")
    return spec.model_copy(update={"instances": wanted.instances, "time": wanted.time})


def _confidence(
    judgement: Judgement, results: Sequence[InstanceResult], known: Calibration | None
) -> float | None:
    """Return the confidence of a `no_crash`; None for other verdicts and uncalibrated bugs."""
    if known is None or judgement.verdict is not Verdict.NO_CRASH:
        return None
    # A run that is shorter than the bug takes to show would survive on any kernel.
    if min(result.run_seconds or 0 for result in results) < known.time:
        return 0.0
    return round(1 - calibration.unseen(known, judgement.completed), 4)


def _confidence_in_words(confidence: float | None, known: Calibration | None) -> list[str]:
    """Return the confidence in words, for the verdict's reason; empty if it is unknown."""
    if confidence is None or known is None:
        return []
    shown = f"{known.crashed} of {known.runs} runs without the fix showed the bug"
    if confidence == 0:
        return [f"it proves nothing: {shown}, which took up to {known.time:g} s"]
    return [
        f"were the bug still there, the chance of that is at most {1 - confidence:.2%}: {shown}"
    ]


def _work_findings(
    baseline: ReproduceResult | None,
    spec: ReproduceSpec,
    evidence: Evidence,
    judgement: Judgement,
    variants: VariantRun | None,
) -> Iterator[Finding]:
    """Yield findings on the program's work on a patched kernel that it did not crash."""
    if baseline is None or judgement.verdict is not Verdict.NO_CRASH:
        return
    before = work_before(baseline)
    if evidence.work is not None:
        others_served = variant_stage.behaves_as_before(variants)
        yield from compared_work.findings(before, evidence.work, others_served=others_served)
    elif before is not None:
        yield compared_work.unknown("; ".join(evidence.missing))
    if before is None and spec.evidence:
        yield compared_work.not_compared()
