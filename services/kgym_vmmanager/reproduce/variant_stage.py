"""The variants of a reproduce step: learned on a kernel with the bug, run on a patched one."""

import asyncio
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kgym.api.steps import (
    ENGINE,
    BuildArtifact,
    BuildResult,
    Dictionary,
    Equivalence,
    Finding,
    InstanceResult,
    LearnedVariants,
    Loss,
    ReproduceResult,
    ReproduceSpec,
    Severity,
    VariantCrash,
    VariantCrashKind,
    VariantRun,
)
from kgym.errors import KgymError
from kgym.worker.context import StepContext
from kgym_vmmanager.evidence import crash_path
from kgym_vmmanager.guest import cpio
from kgym_vmmanager.guest.paths import ORDERS, PROGRAM_TEXT, WORDS, WORDS_BEFORE
from kgym_vmmanager.reproduce.instance_group import InstanceGroup
from kgym_vmmanager.reproduce.instance_plan import InstancePlan
from kgym_vmmanager.reproduce.preparation import plan_with
from kgym_vmmanager.variants import balance, dictionary, fix_comparison, syz_mutator
from kgym_vmmanager.variants.syz_mutator import Mutator
from kgym_vmmanager.variants.syz_session import SyzGuest
from kgym_vmmanager.variants.variant_search import Guest, VariantSearch
from kgym_vmmanager.variants.variant_session import use_order

# Fewer compared variants do not show whether answers changed.
_LEAST_COMPARED = 10
# Share of the quiet variants that must behave as before, if the reproducer's own work is refused.
_LEAST_SAME = 0.8
# Refusals, and different answers, block above these shares of the quiet variants, if at least _FEW
# were compared. The known fix of fsconfig-source-fd must refuse the reproducer's request. It also
# refuses variants with the same request: 8 of 18 to 20, or 4 of 8. No shipped bug's fix gives
# different answers.
_MOST_REFUSED, _MOST_DIFFERENT, _FEW = 0.75, 0.25, 5


@dataclass(frozen=True, slots=True)
class VariantStage:
    """Variants of one step, whose instances have run as `group`."""

    run: StepContext
    spec: ReproduceSpec
    plan: InstancePlan
    group: InstanceGroup

    async def learn(self, results: Collection[InstanceResult]) -> LearnedVariants | None:
        """Return the quiet variants of this kernel, whose crashes are in `results`."""
        if not self.spec.variants:
            return None
        if why := self._why_not:
            return LearnedVariants(missing=why)
        try:
            functions = await self._functions(results)
            with self.run.stage("variants"):
                words = await self._dictionary(functions, subsystem=True)
                kernel = await self._guest("build", words, words)
                search = VariantSearch(kernel, self.spec.titles, engine=self._engine)
                return await search.learn(words)
        except (KgymError, OSError) as error:  # the verdict does not need them
            return LearnedVariants(missing=f"no quiet variants: {error}")

    async def search(self, learner: ReproduceResult | None) -> VariantRun | None:
        """Return the variants' run on this patched kernel, on which the program did not crash.

        `learner` is the step that has learned the bug's quiet variants.
        """
        if not self.spec.variants:
            return None
        if why := self._why_not:
            return VariantRun(ran=0, missing=why)
        learned = learner.learned if learner else None
        if learned is None or learned.engine != self._engine:
            learned = LearnedVariants(missing="the unpatched kernel's were not learned")
        built = self.run.input("build", BuildResult)
        try:
            with self.run.stage("variants"):
                functions = [*self.plan.way, *built.changed_functions]
                patched = await self._dictionary(functions)
                words = dictionary.merged(patched, learned.dictionary)
                kernel = await self._guest("build", words, learned.dictionary)
                unpatched: Guest | None = None
                if self.spec.unpatched is not None:
                    unpatched = await self._guest("unpatched", words, learned.dictionary)
                search = VariantSearch(kernel, self.spec.titles, unpatched, self._engine)
                variants = await search.search(learned, self.spec.variants)
        except (KgymError, OSError) as error:
            return VariantRun(ran=0, missing=f"no variants ran: {error}")
        try:
            await self._keep_orders(variants, words)
        except (KgymError, OSError) as error:  # the variants' results count anyway
            self.run.log(f"no archive to run the variants by hand: {error}")
        return variants.model_copy(update={"leaked": list(leaked(variants, learned.losses))})

    async def learn_of_fix(self, learner: ReproduceResult, crash: str | None) -> LearnedVariants:
        """Return how this kernel, with the developers' fix, behaves on the bug's variants.

        `crash` is the title of its crash with the reproducer, if it crashed.
        """
        learned = learner.learned or LearnedVariants()
        why = f"the kernel with the fix crashes: {crash}" if crash is not None else self._why_not
        if why := why or self._not_comparable(learned):
            return LearnedVariants(missing=why)
        try:
            with self.run.stage("variants"):
                kernel = await self._guest("build", learned.dictionary, learned.dictionary)
                return await fix_comparison.of_fix(kernel, learned)
        except (KgymError, OSError) as error:
            return LearnedVariants(missing=f"no variants ran: {error}")

    async def compared(self, fixed: ReproduceResult) -> Equivalence:
        """Return how this patched kernel compares with `fixed`, which has the developers' fix.

        It is neither a finding nor part of the evidence: agents read those.
        """
        reference = fixed.reference or LearnedVariants()
        if why := self._not_comparable(reference):
            return Equivalence(missing=why)
        try:
            with self.run.stage("comparison"):
                kernel = await self._guest("build", reference.dictionary, reference.dictionary)
                return await fix_comparison.compared(kernel, reference)
        except (KgymError, OSError) as error:
            return Equivalence(missing=f"no variants ran: {error}")

    @property
    def _why_not(self) -> str:
        if self.spec.reproducer.kind != "c" and self.plan.mutator is None:
            return "the syzkaller image has no mutator: build it again (kgym syzkaller build)"
        return ""

    @property
    def _engine(self) -> str:
        return ENGINE if self.plan.mutator is None else syz_mutator.version(self.plan.mutator)

    def _not_comparable(self, learned: LearnedVariants) -> str:
        """Return why the `learned` variants cannot be compared one by one; empty if they can."""
        if self.plan.mutator is not None:
            return "variants of syzkaller programs are not compared with the fix"
        if learned.pace is None:
            return learned.missing or "the step that is named for them ran no variants"
        return "" if learned.engine == ENGINE else "they are of another version of the engine"

    async def _functions(self, results: Collection[InstanceResult]) -> list[str]:
        """Return the functions on the stack of the bug's crash."""
        for result in results:
            path = self.plan.folder / f"report-{result.number}.json"
            if result.title in self.spec.titles and path.exists():
                text = await asyncio.to_thread(path.read_text)
                return crash_path.functions(json.loads(text))[: crash_path.LONGEST]
        return []

    async def _dictionary(
        self, functions: Collection[str], *, subsystem: bool = False
    ) -> Dictionary:
        vmlinux = self.plan.folder / "variants" / "build" / BuildArtifact.VMLINUX
        await asyncio.to_thread(vmlinux.parent.mkdir, parents=True, exist_ok=True)
        await self.run.fetch("build", BuildArtifact.VMLINUX, vmlinux)
        return await dictionary.of_kernel(vmlinux, functions, subsystem=subsystem)

    async def _guest(self, build: str, words: Dictionary, before: Dictionary) -> Guest:
        """Return a function that boots guests of a build, with dictionaries in their image."""
        files = {WORDS: words, WORDS_BEFORE: before}
        entries = [
            cpio.file(path.lstrip("/"), dictionary.lines(each).encode())
            for path, each in files.items()
        ]
        folder = self.plan.folder / "variants" / build
        plan = await plan_with(self.run, self.plan, build, folder, entries)
        guest: Guest = partial(self.group.run_variants, plan)
        if self.plan.mutator is None:
            return guest
        mutators = {
            path: await self._mutator(each, folder / Path(path).name)
            for path, each in files.items()
        }
        return SyzGuest(guest, mutators)

    async def _mutator(self, words: Dictionary, folder: Path) -> Mutator:
        assert self.plan.mutator is not None
        program = self.plan.folder / "program-0" / Path(PROGRAM_TEXT).name
        return await Mutator.prepared(self.plan.mutator, program, words, folder)

    async def _keep_orders(self, variants: VariantRun, words: Dictionary) -> None:
        """Store for each crash the archive with which `reproduce.sh` runs its variant."""
        for crash in variants.crashes:
            if crash.seed is None:
                continue
            files = await self._by_hand(crash, crash.seed, words)
            path = self.plan.folder / f"variant-{crash.seed}.cpio"
            entries = [cpio.file(name.lstrip("/"), text.encode()) for name, text in files.items()]
            await asyncio.to_thread(path.write_bytes, cpio.archive(entries))
            await self.run.keep(path)

    async def _by_hand(self, crash: VariantCrash, seed: int, words: Dictionary) -> dict[str, str]:
        """Return the files of a guest that runs the variant, by their paths there."""
        if self.plan.mutator is not None:
            mutator = await self._mutator(words, self.plan.folder / "variants" / f"{seed}")
            made = await mutator.make([(seed, 1, crash.mask)])
            return {PROGRAM_TEXT: "\n".join(made.variants[seed, crash.mask].program) + "\n"}
        use = use_order(crash.pace) if crash.pace else ""
        orders = "".join([use, f"show {seed} {crash.mask}\n", *["go\n"] * 10])
        return {WORDS: dictionary.lines(words), ORDERS: orders}


def behaves_as_before(variants: VariantRun | None) -> bool:
    """Return whether the quiet variants show that the kernel's answers did not change."""
    if variants is None or variants.compared < _LEAST_COMPARED:
        return False
    return variants.same / variants.compared >= _LEAST_SAME


def leaked(variants: VariantRun, before: Sequence[Loss] | None) -> Iterator[Loss]:
    """Yield what the patched kernel loses beyond the unpatched kernel's losses `before`."""
    # Some programs leave objects behind on any kernel, such as keys. For the program itself, the
    # unpatched kernel's losses are unknown: it crashes.
    if before is None:
        return
    known = {loss.name: loss.per_run for loss in before}
    more: dict[str, float] = {}
    for loss in (*(variants.losses or ()), *(variants.program_losses or ())):
        extra = loss.per_run - known.get(loss.name, 0)
        if extra >= balance.LEAK:
            more[loss.name] = max(extra, more.get(loss.name, 0))
    yield from (Loss(name=name, per_run=round(extra, 2)) for name, extra in more.items())


def findings(variants: VariantRun) -> Iterator[Finding]:
    """Yield what the variants show against a patch."""
    for crash in variants.crashes:
        yield _crash(crash)
    if variants.leaked:
        losses = ", ".join(f"{loss.per_run:g} {loss.name}" for loss in variants.leaked)
        yield Finding(
            check="variants",
            severity=Severity.BLOCKING,
            reason="leaks_objects",
            message=f"each run loses more objects than on the unpatched kernel: {losses}",
        )
    if variants.compared:
        enough = variants.compared >= _FEW
        for reason, seeds, what, share in (
            ("variants_refused", variants.refused, "refuses", _MOST_REFUSED),
            ("variants_differ", variants.different, "answers differently", _MOST_DIFFERENT),
        ):
            if seeds:
                example = f"; {variants.examples[0]}" if variants.examples else ""
                most = enough and len(seeds) > share * variants.compared
                yield Finding(
                    check="variants",
                    severity=Severity.BLOCKING if most else Severity.NOTE,
                    reason=reason,
                    message=f"the kernel {what} {len(seeds)} of {variants.compared} programs close"
                    f" to the reproducer that the unpatched kernel accepts{example}",
                )


def _crash(crash: VariantCrash) -> Finding:
    how = "; ".join(crash.changes) or "which variant it was is not known"
    by_hand = f" (reproduce.sh 0 {crash.seed})" if crash.seed is not None else ""
    match crash.kind:
        case VariantCrashKind.SAME:
            reason, what = "variant_crashes", "a program close to the reproducer still crashes"
        case VariantCrashKind.NEW:
            reason, what = "variant_new_crash", "a variant crashes only the patched kernel"
        case VariantCrashKind.OTHER_BUG:
            reason, what = "variant_other_bug", "a variant crashes the unpatched kernel, too"
        case VariantCrashKind.UNKNOWN:
            reason, what = "variant_crash", "a variant crashes; whether it did before is unknown"
    blocking = crash.kind in (VariantCrashKind.SAME, VariantCrashKind.NEW)
    return Finding(
        check="variants",
        severity=Severity.BLOCKING if blocking else Severity.NOTE,
        reason=reason,
        message=f"{what}: {crash.title}: {how}{by_hand}",
    )
