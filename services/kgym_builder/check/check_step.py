"""The `check` step: many patches on one kernel, each tried alone, in parallel.

`_Check.result` lists the stages in their order. If the kernel is not compiled yet, the patches are
first applied to its source, which takes seconds: if none applies, no kernel is compiled. All files
that the patches touch are read at once. Then each patch needs one start of the sandbox: files in,
objects compiled and measured, results out.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kgym.api.steps import (
    CheckResult,
    CheckSpec,
    Diagnostic,
    FunctionCheck,
    GitSource,
    Patch,
    PatchCheck,
    PatchOutcome,
    Upstream,
)
from kgym.api.steps.check import NO_PATCH
from kgym.errors import UserError
from kgym.host import sandbox
from kgym.host.budget import JOB_MIB, Use
from kgym.host.sandbox_limits import LimitExceeded
from kgym.source import patching
from kgym.source.source_archive import name_of
from kgym.worker import memo
from kgym.worker.context import StepContext
from kgym_builder.check import compile_plan, patch_judgement, patch_urls, upstream
from kgym_builder.check.base_layer import BaseLayer, BaseLayers
from kgym_builder.check.compilation import Counts, compiled
from kgym_builder.check.compile_plan import CompilePlan, FileChange, Way
from kgym_builder.check.patch_judgement import Lines, PatchJudgement, changed_lines, new_warnings
from kgym_builder.kbuild import kconfig
from kgym_builder.kbuild.kbuild import Output
from kgym_builder.kbuild.working_tree import Tree, behind_link
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.download import report_bytes
from kgym_builder.kernel_source.git_repositories import Repositories
from kgym_builder.kernel_source.line_history import LineHistory
from kgym_builder.kernel_source.source_limits import SourceLimits
from kgym_builder.patches import changed_functions, patched_files
from kgym_builder.patches.changed_functions import Function
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.compiled_trees import About, Identified
from kgym_builder.suitecache.suitecache import SuiteCache

# Version of a check's answers; part of their memos' keys.
LAYOUT = 4
# Bytes of output for one patch, and for all patches of a step: they share the size of a result.
_OUTPUT = 16 << 10
_RESULT = 2 << 20
# Diagnostics for one patch; 100 times as many are shared by all patches of a step.
_DIAGNOSTICS = 100
# Changed functions of a patch that are measured.
_FUNCTIONS = 500
# Patches of a step that are fetched, one after the other.
_MOST_URLS = 20
_C_FILE = (".c", ".h", ".inc", ".S")


# The files that a patch names, its changes, and the functions that it changes.
_Changes = tuple[dict[str, bytes], patching.Applied, list[tuple[str, Function]]]


class Checker:
    """Checks patches on the entries of a SuiteCache; compiled bases are kept in `cache`.

    `origins` has the hosts from which patches may be fetched.
    """

    def __init__(self, suite: SuiteCache, cache: Path, origins: Origins = Origins()) -> None:  # noqa: B008 - frozen
        self.suite = suite
        self.origins = origins
        self.grounds = BaseLayers(cache)
        folder = cache / "sources" / "repositories"
        self.repositories = Repositories(folder, origins, SourceLimits())

    async def __call__(self, run: StepContext) -> CheckResult:
        """Perform a check step."""
        return await _Check(self, run).result()


@dataclass(frozen=True, slots=True)
class _Known:
    """A patch that applies: its changes, and the plan of its check."""

    applied: patching.Applied
    files: list[FileChange]
    functions: list[tuple[str, Function]]
    plan: CompilePlan


class _NoneApplies(Exception):
    """Raised before a kernel is compiled for patches of which none applies."""


class _Check:
    """One check step while it runs."""

    def __init__(self, checker: Checker, run: StepContext) -> None:
        self.checker = checker
        self.run = run
        self.spec = run.spec(CheckSpec)
        self.done = 0
        # Patches by number; each URL is replaced by the patch that it leads to.
        self.patches = list(self.spec.patches)
        count = len(self.spec.patches)
        self.most_output = min(_OUTPUT, _RESULT // count)
        self.most_listed = max(1, min(_DIAGNOSTICS, 100 * _DIAGNOSTICS // count))

    async def result(self) -> CheckResult:
        spec, run = self.spec, self.run
        with run.stage("identify"):
            identified = await self.checker.suite.identify(spec, run)
        with run.stage("fetch"):
            refused = await self._fetched()
        with run.stage("memo"):
            checks = await self._recalled(identified.identity) | refused
        answered = len(checks) == len(spec.patches)
        if answered and (about := await compiled_trees.find(run, identified.identity)):
            return self._result(identified, about, checks, cached=True)
        with run.stage("tree"):
            output = Output(run.folder / "build.log")

            async def trial(tree: Tree) -> None:
                await self._try_on_source(tree, identified.identity, checks)

            try:
                entry = await self.checker.suite.take(spec, identified, run, output, trial=trial)
            except _NoneApplies:
                return self._result(identified, None, checks, cached=False)
        with run.stage("base"):
            ground = await self.checker.grounds.get(entry, spec.base, run)
        with run.stage("read"):
            paths, named = await patched_files.named(self.patches)
            files, links = await self.checker.grounds.read(ground, named, run.folder / "read")
        with run.stage("patches"):
            # Each patch has its own sandbox and overlay, so that none sees another one's files.
            numbers = [number for number in range(len(spec.patches)) if number not in checks]
            trials = [
                asyncio.create_task(self._trial(ground, number, paths[number], files, links))
                for number in numbers
            ]
            try:
                checks |= dict(zip(numbers, await asyncio.gather(*trials), strict=True))
            finally:
                await _ended(trials)
        return self._result(identified, entry.about, checks, cached=entry.cached)

    def _result(
        self,
        kernel: Identified,
        about: About | None,
        checks: Mapping[int, PatchCheck],
        *,
        cached: bool,
    ) -> CheckResult:
        """Return the step's result; without a compiled kernel, `about` is None."""
        return CheckResult(
            source_identity=kernel.source_identity,
            source_tree=name_of(kernel.source_identity, kernel.backports),
            kernel_release=about.kernel_release if about else "",
            compiler_version=about.compiler_version if about else "",
            compiler_substitution=kernel.substitution,
            tree=kernel.identity if about else "",
            tree_cached=cached,
            patches=[checks[number] for number in range(len(checks))],
            seconds=self.run.seconds,
        )

    async def _fetched(self) -> dict[int, PatchCheck]:
        """Fetch the patches that are URLs; return the checks of those that cannot be fetched."""
        refused = {}
        urls = {number: patch for number, patch in enumerate(self.patches) if patch.url}
        for number, patch in urls.items():
            try:
                if len(urls) > _MOST_URLS:
                    raise UserError("patch_too_large", f"over {_MOST_URLS} URLs; check fewer")
                target = self.run.folder / f"mail-{number}"
                self.patches[number] = await patch_urls.fetch(patch, self.checker.origins, target)
            except UserError as error:
                refused[number] = self._refused(patch, error)
        return refused

    async def _try_on_source(
        self, tree: Tree, identity: str, checks: dict[int, PatchCheck]
    ) -> None:
        """Add the answers for patches that do not apply to the source.

        Raises _NoneApplies if that answers the step, and UserError if the base does not apply.
        """
        spec, run = self.spec, self.run
        run.progress("apply", 0, len(spec.patches), "patches")
        named, paths = await patched_files.named([*spec.base, *self.patches])
        files, links = await tree.look(sorted(paths))
        base = await patched_files.applied(tree, spec.base, files, lambda note: None)
        patched_files.update(files, patched_files.in_all(base))
        for number, own in enumerate(named[len(spec.base) :]):
            if number in checks:
                continue
            try:
                await _changes_of(tree, self.patches[number], own, files, links)
            except LimitExceeded:
                continue
            except UserError as error:
                check = checks[number] = self._refused(self.patches[number], error)
                await memo.remember(run, self._memo(identity, number), check)
                run.log(f"{check.name}: {check.outcome}: {check.reason}")
        outcomes = {check.outcome for check in checks.values()}
        hopeless = {PatchOutcome.DOES_NOT_APPLY, PatchOutcome.REFUSED}
        if len(checks) == len(spec.patches) and outcomes <= hopeless:
            raise _NoneApplies

    def _memo(self, identity: str, number: int) -> str:
        """Return the key of a patch's memo."""
        spec = self.spec
        asked = [spec.base, self.patches[number], spec.dependents, *([True] * spec.upstream)]
        return memo.key("check", LAYOUT, identity, *asked, self.most_output, self.most_listed)

    async def _recalled(self, identity: str) -> dict[int, PatchCheck]:
        """Return the answers of earlier checks, by the patches' numbers."""
        if self.spec.cache != "use":
            return {}
        numbers = range(len(self.spec.patches))
        names = (self._memo(identity, number) for number in numbers)
        known = await asyncio.gather(*(memo.recall(self.run, name, PatchCheck) for name in names))
        recalled = {number: check for number, check in zip(numbers, known, strict=True) if check}
        for check in recalled.values():
            self.run.log(f"{check.name}: {check.outcome}, from an earlier check")
        return {
            number: check.model_copy(update={"memoised": True, "seconds": 0.0})
            for number, check in recalled.items()
        }

    async def _trial(
        self,
        ground: BaseLayer,
        number: int,
        paths: list[str] | UserError,
        files: dict[str, bytes],
        links: set[str],
    ) -> PatchCheck:
        """Check one patch; its errors become its answer, so the others are checked anyway."""
        patch = self.patches[number]
        folder = self.run.folder / f"patch-{number}"
        start = time.monotonic()
        try:
            tree = ground.tree(folder)
            changes = await _changes_of(tree, patch, paths, files, links)
            known = await asyncio.to_thread(self._known, ground, changes)
            budget = self.checker.suite.budget
            # A patch that needs make may compile anything: it gets all cores.
            wide = min(budget.cores, max(1, len(known.plan.objects)))
            wide = budget.cores if known.plan.way else wide
            async with budget.share(Use.CHECK, wide, wide * JOB_MIB) as cores:
                start = time.monotonic()
                check = await self._compiled(ground, patch, known, folder, cores)
        except UserError as error:
            check = self._refused(patch, error)
        finally:
            await asyncio.to_thread(sandbox.remove, folder)
        check = check.model_copy(update={"seconds": round(time.monotonic() - start, 3)})
        # An exceeded limit is no verdict: on a less busy host, the same patch may pass.
        if check.outcome is not PatchOutcome.OVER_LIMIT:
            await memo.remember(
                self.run, self._memo(ground.entry.identified.identity, number), check
            )
        self.done += 1
        self.run.progress("patches", self.done, len(self.spec.patches), "patches")
        self.run.log(f"{patch.name}: {check.outcome}" + (f": {check.reason}" * bool(check.reason)))
        return check

    def _refused(self, patch: Patch, error: UserError) -> PatchCheck:
        outcome = PatchOutcome.REFUSED if error.reason in NO_PATCH else PatchOutcome.DOES_NOT_APPLY
        return PatchCheck(
            name=patch.name,
            outcome=PatchOutcome.OVER_LIMIT if isinstance(error, LimitExceeded) else outcome,
            reason=_cut(error.message, self.most_output),
            details={"reason": error.reason, **error.details},
            seconds=0,
        )

    def _known(self, ground: BaseLayer, changes: _Changes) -> _Known:
        files, applied, functions = changes
        changed = compile_plan.file_changes(applied.changes, files)
        known = ground.index.dependents(file.path for file in changed)
        modules = bool(kconfig.modules(ground.entry.about.config))
        plan = compile_plan.plan(changed, known, self.spec.dependents, modules=modules)
        return _Known(applied, changed, functions, plan)

    async def _compiled(
        self, ground: BaseLayer, patch: Patch, known: _Known, folder: Path, cores: int
    ) -> PatchCheck:
        plan = known.plan
        symbols = dict.fromkeys(name for _, code in known.functions for name in code.symbols)
        work = patch_judgement.work(plan, ground.entry.tools, known.applied.changes, list(symbols))
        # Even if nothing is to be compiled: writing the files shows whether the tree takes them.
        judged = PatchJudgement(plan, await compiled(ground.tree(folder), work, cores))
        if any(result.unreadable for result in judged.done):
            ground.entry.doubt()
        warnings, words = await self._added(ground, known, judged)
        facts = None
        if self.spec.upstream and known.files and not judged.failed:
            facts = await self._upstream(ground, patch.diff or "", known, folder)
        return PatchCheck(
            name=patch.name,
            outcome=judged.patch_outcome,
            reason=judged.reason,
            notes=list(known.applied.notes[: self.most_listed]),
            files=judged.files,
            functions=_counted(known, judged),
            diagnostics=[*judged.errors, *warnings][: self.most_listed],
            output=_cut(judged.output + words, self.most_output),
            through_make=plan.way is not Way.COMMANDS,
            upstream=facts,
            seconds=0,
        )

    async def _upstream(
        self, ground: BaseLayer, submitted: str, known: _Known, folder: Path
    ) -> Upstream:
        """Return what a maintainer asks; `folder` has the tree with the patch."""
        about = ground.entry.about

        async def history(diff: str, path: str) -> LineHistory | None:
            if not isinstance(source := self.spec.source, GitSource):
                return None
            known, commit = self.checker.repositories, about.source_identity.removeprefix("git:")
            return await known.of_lines(source.url, commit, diff, path, report_bytes(self.run))

        before = ground.tree(folder.with_name(f"{folder.name}-before"))
        after, objects = ground.tree(folder), known.plan.objects
        facts = await upstream.answers(before, after, known.files, submitted, objects, history)
        await asyncio.to_thread(sandbox.remove, before.overlay.folder)
        return facts.model_copy(update={"release": about.kernel_release})

    async def _added(
        self, ground: BaseLayer, known: _Known, judged: PatchJudgement
    ) -> tuple[list[Diagnostic], str]:
        """Return the warnings that the patch adds, with the compiler's output."""
        added: dict[Diagnostic, None] = {}
        words = []
        lines: dict[str, Lines] = {}
        for obj, warnings, output in judged.warned(ground.index):
            before = []
            if obj is not None:
                before = await self.checker.grounds.warnings(ground, obj, self.run)
                lines = lines or await asyncio.to_thread(changed_lines, known.files)
            if new := new_warnings(before, warnings, lines):
                added |= dict.fromkeys(new)
                words.append(output)
        return list(added), "".join(words)


async def _changes_of(
    tree: Tree,
    patch: Patch,
    paths: list[str] | UserError,
    files: dict[str, bytes],
    links: Collection[str],
) -> _Changes:
    """Apply a patch; return its changes."""
    if isinstance(paths, UserError):
        raise paths
    for path in paths:
        if path in links:
            raise behind_link(path)
    own = {path: files[path] for path in paths if path in files}
    return own, *await patched_files.with_misplaced(tree, own, _looked_at, [patch], files)


def _looked_at(
    patches: Sequence[Patch], files: dict[str, bytes]
) -> tuple[patching.Applied, list[tuple[str, Function]]]:
    """Apply a single patch; return its changes, and the functions that it changes."""
    applied = patched_files.apply_one(patches[0], files)
    functions = (
        (change.path, function)
        for change in applied.changes
        if change.path.endswith(_C_FILE)
        for function in changed_functions.changed(
            _text(files.get(change.path)), _text(change.content)
        )
    )
    return applied, list(islice(functions, _FUNCTIONS))


async def _ended(tasks: Sequence[asyncio.Task[PatchCheck]]) -> None:
    """Cancel the tasks that still run, as one has failed or the step was cancelled."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _counted(known: _Known, judged: PatchJudgement) -> list[FunctionCheck]:
    """Return each function's instruction counts in the first object of its file that has it."""
    objects = {file.path: patch_judgement.objects(file) for file in known.plan.files}
    before, after = judged.before, judged.after
    checks = []
    for path, function in known.functions:
        holders = (
            obj
            for obj in objects[path]
            if any((obj, name) in before or (obj, name) in after for name in function.symbols)
        )
        holder = next(holders, "")
        checks.append(
            FunctionCheck(
                file=path,
                name=function.name,
                instructions_before=_sum(before, holder, function),
                instructions_after=_sum(after, holder, function),
            )
        )
    return checks


def _sum(counts: Counts, path: str, function: Function) -> int | None:
    parts = [counts[path, name] for name in function.symbols if (path, name) in counts]
    return sum(parts) if parts else None


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="surrogateescape")


def _cut(text: str, most: int) -> str:
    """Return the start of a text, at most so many bytes."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")
