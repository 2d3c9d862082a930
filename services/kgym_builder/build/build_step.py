"""The `build` step: patches on a kernel of SuiteCache; kernel and logs as artifacts.

`_Build.result` lists the stages in their order. What later steps of the job need is tried before
anything is compiled: a patch that does not apply, or a program that does not compile, would
otherwise cost a kernel and a crash before it is reported.
"""

import asyncio
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kgym.api.steps import (
    BuildArtifact,
    BuildResult,
    BuildSpec,
    Finding,
    InstrumentedFile,
    Patch,
    Reproducer,
    Strict,
)
from kgym.bugs import detectors
from kgym.bugs.config_symbols import refuse_without
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.host import sandbox
from kgym.host.reproducer_compiler import compile_reproducer
from kgym.source import diagnostics, instrument, module_archive
from kgym.source.instrument import Untraced
from kgym.source.patching import Change
from kgym.source.source_archive import name_of
from kgym.worker import memo
from kgym.worker.context import StepContext
from kgym_builder.build import analyses, kernel_tests
from kgym_builder.evidence.patch_review import on_trial, review
from kgym_builder.evidence.static_evidence import Built, changed_symbols, evidence
from kgym_builder.kbuild import control, kbuild, kconfig
from kgym_builder.kbuild.kbuild import Kbuild, Output, TreeUnreadable
from kgym_builder.kbuild.kconfig import DUMP_SYMBOLS, dumpable, with_symbols
from kgym_builder.kbuild.object_index import Dependents, Index
from kgym_builder.kbuild.path_rules import OWN_MAKES
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import patched_files
from kgym_builder.suitecache import compiled_trees, link_shortcut
from kgym_builder.suitecache.compiled_trees import Entry, Identified
from kgym_builder.suitecache.suitecache import SuiteCache

# Version of a build's artifacts; part of the key under which a build is remembered.
LAYOUT = 7
_MOST_FUNCTIONS = 1000
# Version of what the early checks find out; part of their memos' keys.
_CHECKED = 1
ARTIFACTS = (
    f"arch/x86/boot/{BuildArtifact.KERNEL}",
    BuildArtifact.VMLINUX,
    BuildArtifact.SYSTEM_MAP,
    ".config",
    BuildArtifact.COMPILE_COMMANDS,
)
_NAMES = {".config": BuildArtifact.CONFIG, kbuild.MODULES: BuildArtifact.MODULES}


class _Bases(Strict):
    """The unpatched artifacts of an entry, by name, as bases in storage.

    A patched artifact is stored as its difference from its base: 10 to 12 MB a build, not 161.
    """

    bases: dict[str, str]


class _Good(Strict):
    """The memo of an early check that passed. Failures are not kept: each job reports its own."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What the patched build made of the tree."""

    shortcut: bool = False
    """Whether it was linked by the shortcut, not by make."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Parts of the object that raises faults which do not compile, and why."""
    instrumented: Sequence[InstrumentedFile] = ()


class Builder:
    """Builds kernels on the entries of a SuiteCache.

    The file `untraced` lists functions that are never instrumented.
    """

    def __init__(self, suite: SuiteCache, untraced: Path = CONFIGS / "untraced.toml") -> None:
        self._suite = suite
        self._untraced = Untraced.model_validate(tomllib.loads(untraced.read_text()))

    async def __call__(self, run: StepContext) -> BuildResult:
        """Perform a build step."""
        build = _Build(self._suite, self._untraced, run)
        try:
            return await build.result()
        except UserError:
            if build.output.path.exists():
                await run.keep(build.output.path)
            raise


class _Build:
    """One build step while it runs."""

    def __init__(self, suite: SuiteCache, untraced: Untraced, run: StepContext) -> None:
        self.suite = suite
        self.untraced = untraced
        self.run = run
        self.spec = dumpable(run.spec(BuildSpec))
        self.output = Output(run.folder / "build.log")
        self.trace_symbols: list[str] = []
        self.artifacts: tuple[str, ...] = ARTIFACTS

    async def result(self) -> BuildResult:
        """Build; or copy the result of an equal build, unless the spec forbids it."""
        run, ahead = self.run, self.spec.ahead
        analyses.require(self.spec.analyses)
        bounds = self.suite.bounds(self.spec)
        if ahead:
            with run.stage("programs"):
                await _compile_programs(run, ahead.programs)
        with run.stage("identify"):
            identified = await self._identify()
        if ahead:
            refuse_without(identified.config, ahead.symbols)
        if kconfig.modules(identified.config):
            self.artifacts = (*ARTIFACTS, kbuild.MODULES)
        applies = await _known_to_apply(run, identified.identity, self.spec)
        entry = None if applies else await self._entry_for_later_steps(identified)
        # `fresh` builds again on the same entry; `refresh` makes the entry anew, too (`take`).
        if self.spec.cache == "use" and (known := await self._recalled(identified)):
            return await self._with_tests(known, identified)
        with run.stage("tree"):
            entry = entry or await self._entry(identified)
        self._log_entry(entry)
        try:
            result = await self._built(entry, bounds)
        except TreeUnreadable:
            entry.doubt()
            raise
        await memo.remember(run, self._memo(entry.identified.identity), result, run.artifacts)
        return await self._with_tests(result, identified, entry)

    async def _with_tests(
        self, result: BuildResult, identified: Identified, entry: Entry | None = None
    ) -> BuildResult:
        """Return the result with the kernel's own tests if they are wanted."""
        # Not part of the build's memo: the same patch may have been built without them.
        if not self.spec.kernel_tests:
            return result
        reviewed = [patch for patch in self.spec.patches if patch.name in self.spec.review]
        _, paths = await patched_files.named(reviewed)

        async def tree(folder: Path) -> Tree:
            return (entry or await self._entry(identified)).tree(folder)

        with self.run.stage("kernel tests"):
            tests = await kernel_tests.build(self.run, identified.identity, paths, tree)
        return result.model_copy(update={"kernel_tests": tests, "seconds": self.run.seconds})

    async def _identify(self) -> Identified:
        """Identify the kernel; one that is to be instrumented gets the symbols for tracing."""
        identified = await self.suite.identify(self.spec, self.run)
        # Only if need be: a kernel with other symbols has another entry.
        if self.spec.instrument and not _traces(identified):
            self.trace_symbols = list(instrument.SYMBOLS)
            config = with_symbols(self.spec.config, self.trace_symbols)
            self.spec = self.spec.model_copy(update={"config": config})
            identified = await self.suite.identify(self.spec, self.run)
            if not _traces(identified):
                asked = ", ".join(self.trace_symbols)
                raise UserError("no_tracing", f"the config has no TRACING even with {asked}")
        return identified

    def _memo(self, identity: str) -> str:
        patches = [
            (patch.model_dump(exclude={"name"}), patch.name in self.spec.review)
            for patch in self.spec.patches
        ]
        looked = [self.spec.files, self.spec.checkpatch] if self.spec.review else []
        records = [instrument.VERSION, self.untraced, self.spec.instrument, self.trace_symbols]
        asked = [*(records if self.spec.instrument else []), *sorted(set(self.spec.analyses))]
        return memo.key("build", LAYOUT, identity, patches, self.artifacts, looked, *asked)

    def _other_version(self, release: str) -> str:
        """Return the version that the config was made for if it differs from this kernel's."""
        version = kconfig.other_version(self.spec.config.texts, release)
        if version:
            self.run.log(f"config: made for {version}, not {release}: kconfig has converted it")
        return version

    @property
    def _dump_symbols(self) -> list[str]:
        return list(DUMP_SYMBOLS[self.spec.for_dump]) if self.spec.for_dump else []

    async def _recalled(self, identified: Identified) -> BuildResult | None:
        with self.run.stage("memo"):
            known = await memo.recall(self.run, self._memo(identified.identity), BuildResult)
        if known is None:
            return None
        self.run.log(f"entry {identified.identity}: an equal build is known")
        own = {
            "memoised": True,
            "built_in": identified.built_in,
            "dropped_symbols": identified.dropped_symbols,
            "config_version": self._other_version(known.kernel_release),
            "tree_cached": True,
            "objects_compiled": 0,
        }
        asked = {"dump_symbols": self._dump_symbols, "seconds": self.run.seconds}
        asked |= {"compiler_substitution": identified.substitution}
        return known.model_copy(update={**own, **asked})

    def _log_entry(self, entry: Entry) -> None:
        log, identified = self.run.log, entry.identified
        log(f"entry {identified.identity}: {'cached' if entry.cached else 'built'}")
        if identified.built_in:
            log(f"config: built in, not modules: {' '.join(identified.built_in)[:2000]}")
        for symbol in identified.dropped_symbols:
            log(f"config: CONFIG_{symbol.symbol} is {symbol.got}, not {symbol.wanted}")

    async def _built(self, entry: Entry, bounds: kbuild.MakeBounds) -> BuildResult:
        run, spec = self.run, self.spec
        tree = entry.tree(run.folder / "tree")
        with run.stage("review"):
            trial = await on_trial(tree, spec.patches, spec.review)
            findings = await review(tree, trial, spec.files, checkpatch=spec.checkpatch)
        with run.stage("make"):
            async with self.suite.building(spec.jobs):
                made = await self._make(entry, tree, bounds)
        if trial:
            findings += control.dropped(entry.about.lacking, made.lacking)
            with run.stage("evidence"):
                built = Built(list(dict.fromkeys(self.output.made)), not made.shortcut)
                findings += await evidence(run, entry, tree, trial, built, spec.files)
        changed = sorted(await asyncio.to_thread(changed_symbols, trial))
        _log_findings(run, findings)
        with run.stage("artifacts"):
            modules = await self._keep(entry, tree)
        for analysis in sorted(set(spec.analyses)):
            with run.stage(analysis):
                await analyses.keep(run, analysis, entry, tree, spec.patches)
        about = entry.about
        return BuildResult(
            source_identity=about.source_identity,
            source_tree=name_of(about.source_identity, about.backports),
            kernel_release=about.kernel_release,
            compiler_version=about.compiler_version,
            compiler_substitution=entry.tools.substitution,
            tree=entry.identified.identity,
            tree_cached=entry.cached,
            shortcut=made.shortcut,
            backports=about.backports,
            dropped_symbols=entry.identified.dropped_symbols,
            config_version=self._other_version(about.kernel_release),
            modules=modules,
            built_in=entry.identified.built_in,
            dump_symbols=self._dump_symbols,
            instrumented=list(made.instrumented),
            trace_symbols=self.trace_symbols,
            objects_compiled=self.output.objects,
            warnings=diagnostics.parse(self.output.tail)[:100],
            findings=findings,
            changed_functions=changed[:_MOST_FUNCTIONS],
            detectors=detectors.symbols(about.config),
            controls_lacking=about.lacking,
            seconds=run.seconds,
        )

    async def _entry_for_later_steps(self, identified: Identified) -> Entry:
        """Return the entry, after trying on it the patches of later steps."""
        with self.run.stage("tree"):
            entry = await self._entry(identified)
        if entry.cached:  # else they were tried on the source
            with self.run.stage("ahead"):
                tree = entry.tree(self.run.folder / "ahead")
                await _apply_later_patches(self.run, entry.identified.identity, self.spec, tree)
                await asyncio.to_thread(sandbox.remove, tree.overlay.folder)
        return entry

    async def _entry(self, identified: Identified) -> Entry:
        async def trial(tree: Tree) -> None:
            await _read(tree, self.spec.instrument, await self._changes(tree))
            await _apply_later_patches(self.run, identified.identity, self.spec, tree)

        return await self.suite.take(
            self.spec, identified, self.run, self.output, objects=self.spec.objects, trial=trial
        )

    async def _changes(self, tree: Tree) -> tuple[Change, ...]:
        return await patched_files.changes(tree, self.spec.patches, self.run.log)

    async def _make(self, entry: Entry, tree: Tree, bounds: kbuild.MakeBounds) -> _Made:
        """Make what patches and records change, by the shortcut if it serves, else by make."""
        if not self.spec.patches and not self.spec.instrument:
            return _Made()
        tool = Kbuild(tree, entry.tools, self.output, bounds)
        changed, instrumented = await self._with_records(entry, tree, await self._changes(tree))
        await tree.write(changed)
        self.output.made.clear()  # of the entry, if this step had to make it
        self.output.begun.clear()
        self.output.count(self.run, "rebuild", None)
        objects = None
        if entry.about.shortcut:
            objects = link_shortcut.objects(changed, Index(entry.index), entry.linked)

        short = False

        async def make() -> None:
            nonlocal short
            if objects is not None:
                short = await link_shortcut.Shortcut(tree, tool, entry.about).build(objects)
            if short:
                return
            if any("Kconfig" in change.path for change in changed):
                await tool.make("olddefconfig")
            await again()

        async def again() -> None:
            await tool.kernel(entry.about.config)

        known = entry.about.lacking
        lacking = await control.spared(make, again, tree, self.output, known)
        self.run.seconds.update(self.output.late_stages())
        return _Made(short and lacking == known, lacking, instrumented)

    async def _with_records(
        self, entry: Entry, tree: Tree, changed: tuple[Change, ...]
    ) -> tuple[tuple[Change, ...], list[InstrumentedFile]]:
        """Add the files with records to what patches change."""
        if not self.spec.instrument:
            return changed, []
        self.run.progress("instrument", 0, len(self.spec.instrument), "files")
        files = await _read(tree, self.spec.instrument, changed)
        dependents = Index(entry.index).dependents(files)
        new, results = await asyncio.to_thread(_instrumented, files, self.untraced, dependents)
        for file in results:
            if file.reason:
                self.run.log(f"not instrumented: {file.path}: {file.reason}")
        total = sum(file.functions for file in results)
        self.run.log(f"instrumented: {total} functions in {len(new)} files")
        return tuple({change.path: change for change in [*changed, *new]}.values()), results

    async def _keep(self, entry: Entry, tree: Tree) -> int:
        """Keep the artifacts; return how many modules are among them."""
        exported = await tree.export(self.artifacts, self.run.folder / "out")
        missing = {BuildArtifact.KERNEL, BuildArtifact.VMLINUX} - {path.name for path in exported}
        if missing:
            raise UserError("no_kernel", f"make left no {' and no '.join(sorted(missing))}")
        modules = 0
        for path in exported:
            if path.name == kbuild.MODULES:
                modules = await asyncio.to_thread(module_archive.count, path)
                self.run.log(f"modules: {modules}, which guests load on demand")
        names = {path: _NAMES.get(path.name, path.name) for path in exported}
        bases = await self._bases(entry)
        keeping = (
            self.run.keep(path, name, move=True, base=bases.get(name))
            for path, name in names.items()
        )
        await asyncio.gather(*keeping)
        order = list(names.values())
        self.run.artifacts.sort(key=lambda artifact: order.index(artifact.name))
        log = self.output.path if self.output.path.exists() else entry.folder / compiled_trees.LOG
        await self.run.keep(log, BuildArtifact.LOG)
        return modules

    async def _bases(self, entry: Entry) -> dict[str, str]:
        """Return the unpatched kernel's artifacts in storage; store them first if need be."""
        named = memo.key("bases", entry.identified.identity, self.artifacts)
        known = await memo.recall(self.run, named, _Bases)
        if known:
            there = [await self.run.storage.has_base(base) for base in known.bases.values()]
            if all(there):
                return known.bases
        folder = self.run.folder / "unpatched"
        exported = await entry.tree(folder / "tree").export(self.artifacts, folder / "out")
        bases = {
            _NAMES.get(path.name, path.name): await self.run.storage.put_base(path)
            for path in exported
        }
        await memo.remember(self.run, named, _Bases(bases=bases))
        await asyncio.to_thread(sandbox.remove, folder)
        return bases


def _traces(identified: Identified) -> bool:
    return "CONFIG_TRACING=y" in identified.config.splitlines()


def _log_findings(run: StepContext, findings: Sequence[Finding]) -> None:
    for finding in findings:
        where = f"{finding.file}:{finding.line}: " if finding.line else ""
        run.log(f"{finding.severity}: {finding.check}: {where}{finding.reason}: {finding.message}")


# --- what later steps need ----------------------------------------------------------------------


async def _compile_programs(run: StepContext, programs: Sequence[Reproducer]) -> None:
    """Compile the programs in C; raise UserError `reproducer_does_not_compile`."""
    for number, program in enumerate(each for each in programs if each.kind == "c"):
        name = memo.key("program", _CHECKED, program.text)
        if await memo.recall(run, name, _Good):
            continue
        folder = run.folder / f"ahead-{number}"
        source = folder / "source" / "reproducer.c"
        source.parent.mkdir(parents=True)
        source.write_text(program.text)
        await compile_reproducer(source, folder / "program")
        sandbox.remove(folder)
        await memo.remember(run, name, _Good())


async def _known_to_apply(run: StepContext, identity: str, spec: BuildSpec) -> bool:
    """Return whether all patches of later steps are known to apply to this entry."""
    return all(
        [
            await memo.recall(run, _applies_memo(identity, spec, patch), _Good)
            for patch in _later_patches(spec)
        ]
    )


async def _apply_later_patches(
    run: StepContext, identity: str, spec: BuildSpec, tree: Tree
) -> None:
    """Apply each patch of later steps after the build's own, without writing any.

    Raises what `kgym.source.patching.apply` raises.
    """
    for patch in _later_patches(spec):
        await patched_files.changes(tree, [*spec.patches, patch], lambda note: None)
        await memo.remember(run, _applies_memo(identity, spec, patch), _Good())


def _later_patches(spec: BuildSpec) -> list[Patch]:
    return spec.ahead.patches if spec.ahead else []


def _applies_memo(identity: str, spec: BuildSpec, patch: Patch) -> str:
    texts = [applied.model_dump(exclude={"name"}) for applied in (*spec.patches, patch)]
    return memo.key("applies", _CHECKED, identity, texts)


# --- files with records -------------------------------------------------------------------------


async def _read(tree: Tree, paths: Sequence[str], changed: Sequence[Change]) -> dict[str, bytes]:
    """Return the patched contents of the files; raise UserError `no_such_file`."""
    patched = {change.path: change.content for change in changed}
    there = await tree.read(path for path in paths if path not in patched)
    contents = {path: patched.get(path, there.get(path)) for path in paths}
    missing = [path for path, content in contents.items() if content is None]
    if missing:
        raise UserError("no_such_file", f"cannot instrument, not in the tree: {', '.join(missing)}")
    return {path: content for path, content in contents.items() if content is not None}


def _instrumented(
    files: Mapping[str, bytes], untraced: Untraced, dependents: Mapping[str, Dependents]
) -> tuple[list[Change], list[InstrumentedFile]]:
    """Return the files with records, and the result for each.

    `dependents` are the objects of each file. Raises what `instrument` raises.
    """
    changes, results = [], []
    for path, source in files.items():
        objects = dependents[path].objects
        reason = untraced.reason(path)
        if dependents[path].made or any(OWN_MAKES.match(obj.path) for obj in objects):
            reason = "it is also used to build something other than the kernel"
        if reason:
            results.append(InstrumentedFile(path=path, reason=reason, objects=len(objects)))
            continue
        done = instrument.instrument(source, path)
        changes.append(Change(path, done.content))
        results.append(
            InstrumentedFile(
                path=path,
                functions=len(done.functions),
                skipped=list(done.skipped),
                objects=len(objects),
            )
        )
    return changes, results
