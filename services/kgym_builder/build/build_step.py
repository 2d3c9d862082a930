"""The `build` step: patches on a kernel of SuiteCache; kernel and logs as artifacts."""

import asyncio
import tomllib
from pathlib import Path

from kgym.api.steps import BuildArtifact, BuildResult, BuildSpec, InstrumentedFile, Strict
from kgym.bugs import detectors
from kgym.bugs.config_symbols import refuse_without
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.host import sandbox
from kgym.source import diagnostics, instrument, module_archive
from kgym.source.instrument import Untraced
from kgym.source.patching import Change
from kgym.source.source_archive import name_of
from kgym.worker.context import StepContext
from kgym_builder import memo
from kgym_builder.build import early_checks, instrumented_files
from kgym_builder.evidence.patch_review import on_trial, review
from kgym_builder.evidence.static_evidence import Built, evidence
from kgym_builder.kbuild import control, kbuild, kconfig
from kgym_builder.kbuild.dump_symbols import SYMBOLS, dumpable, with_symbols
from kgym_builder.kbuild.kbuild import Kbuild, Output, TreeUnreadable
from kgym_builder.kbuild.object_index import Index
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches.patched_files import changes
from kgym_builder.suitecache import compiled_trees, link_shortcut
from kgym_builder.suitecache.compiled_trees import Entry, Identified
from kgym_builder.suitecache.suitecache import SuiteCache

# Version of a build's artifacts; part of the key under which a build is remembered.
LAYOUT = 5
ARTIFACTS = (
    f"arch/x86/boot/{BuildArtifact.KERNEL}",
    BuildArtifact.VMLINUX,
    BuildArtifact.SYSTEM_MAP,
    ".config",
    BuildArtifact.COMPILE_COMMANDS,
)
_NAMES = {".config": BuildArtifact.CONFIG, kbuild.MODULES: BuildArtifact.MODULES}


class _Bases(Strict):
    """The artifacts of an entry without a patch, as the storage has them as bases, by name."""

    bases: dict[str, str]


class Builder:
    """Builds kernels on the entries of a SuiteCache.

    The file `untraced` lists what is never instrumented.
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
        self.instrumented: list[InstrumentedFile] = []
        self.trace_symbols: list[str] = []
        self.lacking: dict[str, str] = {}
        self.modules = 0
        self.built_in: list[str] = []
        self.artifacts: tuple[str, ...] = ARTIFACTS
        self.bounds = kbuild.ALL

    async def result(self) -> BuildResult:
        """Build; or copy what was built before from the same, if that is not forbidden."""
        self.bounds = self.suite.bounds(self.spec)
        if self.spec.ahead:
            with self.run.stage("programs"):
                await early_checks.compile_all(self.run, self.spec.ahead.programs)
        with self.run.stage("identify"):
            identified = await self._identify()
        if self.spec.ahead:
            refuse_without(identified.config, self.spec.ahead.symbols)
        self.built_in = identified.built_in
        if kconfig.modules(identified.config):
            self.artifacts = (*ARTIFACTS, kbuild.MODULES)
        served = await early_checks.known(self.run, identified.identity, self.spec)
        entry = None if served else await self._looked_ahead(identified.identity)
        if self.spec.cache == "use" and (known := await self._recalled(identified)):
            return known
        with self.run.stage("tree"):
            entry = entry or await self._entry(identified.identity)
        self.run.log(f"entry {entry.identity}: {'cached' if entry.cached else 'built'}")
        if entry.built_in:
            self.run.log(f"config: built in, not modules: {' '.join(entry.built_in)[:2000]}")
        for symbol in entry.dropped_symbols:
            self.run.log(f"config: CONFIG_{symbol.symbol} is {symbol.got}, not {symbol.wanted}")
        try:
            result = await self._built(entry)
        except TreeUnreadable:
            entry.doubt()
            raise
        await memo.remember(self.run, self._memo(entry.identity), result, self.run.artifacts)
        return result

    async def _identify(self) -> Identified:
        """Return what names the kernel, which traces if it is to be instrumented."""
        identified = await self.suite.identify(self.spec, self.run)
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
        asked = records if self.spec.instrument else []
        return memo.key("build", LAYOUT, identity, patches, self.artifacts, looked, *asked)

    def _other_version(self, release: str) -> str:
        """Return the version that the config was made for, if it is another than this kernel's."""
        version = kconfig.other_version(self.spec.config.texts, release)
        if version:
            self.run.log(f"config: made for {version}, not {release}: kconfig has brought it over")
        return version

    @property
    def _dump_symbols(self) -> list[str]:
        return list(SYMBOLS[self.spec.for_dump]) if self.spec.for_dump else []

    async def _recalled(self, identified: Identified) -> BuildResult | None:
        with self.run.stage("memo"):
            known = await memo.recall(self.run, self._memo(identified.identity), BuildResult)
        if known is None:
            return None
        self.run.log(f"entry {identified.identity}: the same was built before")
        own = {
            "memoised": True,
            "built_in": self.built_in,
            "dropped_symbols": identified.dropped_symbols,
            "config_version": self._other_version(known.kernel_release),
            "tree_cached": True,
            "objects_compiled": 0,
        }
        asked = {"dump_symbols": self._dump_symbols, "seconds": self.run.seconds}
        asked |= {"compiler_substitution": identified.substitution}
        return known.model_copy(update={**own, **asked})

    async def _built(self, entry: Entry) -> BuildResult:
        tree = entry.tree(self.run.folder / "tree")
        with self.run.stage("review"):
            trial = await on_trial(tree, self.spec.patches, self.spec.review)
            asked = self.spec.checkpatch
            findings = await review(tree, trial, self.spec.files, checkpatch=asked)
        with self.run.stage("make"):
            async with self.suite.building(self.spec.jobs):
                short = await self._make(entry, tree)
        lost = list(control.dropped(entry.about.lacking, self.lacking))
        if trial:
            findings += lost
            with self.run.stage("evidence"):
                built = Built(list(dict.fromkeys(self.output.made)), not short)
                files = self.spec.files
                findings += await evidence(self.run, entry, tree, trial, built, files)
        for finding in findings:
            where = f"{finding.file}:{finding.line}: " if finding.line else ""
            self.run.log(
                f"{finding.severity}: {finding.check}: {where}{finding.reason}: {finding.message}"
            )
        with self.run.stage("artifacts"):
            await self._keep(entry, tree)
        about = entry.about
        return BuildResult(
            source_identity=about.source_identity,
            source_tree=name_of(about.source_identity, about.backports),
            kernel_release=about.kernel_release,
            compiler_version=about.compiler_version,
            compiler_substitution=entry.tools.substitution,
            tree=entry.identity,
            tree_cached=entry.cached,
            shortcut=short,
            backports=about.backports,
            dropped_symbols=entry.dropped_symbols,
            config_version=self._other_version(about.kernel_release),
            modules=self.modules,
            built_in=entry.built_in,
            dump_symbols=self._dump_symbols,
            instrumented=self.instrumented,
            trace_symbols=self.trace_symbols,
            objects_compiled=self.output.objects,
            warnings=diagnostics.parse(self.output.tail)[:100],
            findings=findings,
            detectors=detectors.symbols(about.config),
            controls_lacking=about.lacking,
            seconds=self.run.seconds,
        )

    async def _looked_ahead(self, identity: str) -> Entry:
        """Return the entry, on which what later steps rest on was tried."""
        with self.run.stage("tree"):
            entry = await self._entry(identity)
        if entry.cached:  # else it was tried on the source
            with self.run.stage("ahead"):
                folder = self.run.folder / "ahead"
                tree = entry.tree(folder)
                await early_checks.apply_all(self.run, entry.identity, self.spec, tree)
                await asyncio.to_thread(sandbox.remove, folder)
        return entry

    async def _entry(self, identity: str) -> Entry:
        async def trial(tree: Tree) -> None:
            await instrumented_files.read(tree, self.spec.instrument, await self._changes(tree))
            await early_checks.apply_all(self.run, identity, self.spec, tree)

        return await self.suite.take(
            self.spec, self.run, self.output, objects=self.spec.objects, trial=trial
        )

    async def _changes(self, tree: Tree) -> tuple[Change, ...]:
        return await changes(tree, self.spec.patches, self.run.log)

    async def _make(self, entry: Entry, tree: Tree) -> bool:
        """Make what patches and records changed; return whether the shortcut did."""
        if not self.spec.patches and not self.spec.instrument:
            return False
        tool = Kbuild(tree, entry.tools, self.output, self.bounds)
        changed = await self._changes(tree)
        if self.spec.instrument:
            changed = await self._with_records(entry, tree, changed)
        await tree.write(changed)
        self.output.made.clear()  # of the entry, if this step had to make it
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
        self.lacking = await control.spared(make, again, tree, self.output, known)
        return short and self.lacking == known

    async def _with_records(
        self, entry: Entry, tree: Tree, changed: tuple[Change, ...]
    ) -> tuple[Change, ...]:
        """Add to what patches change the files with records."""
        self.run.progress("instrument", 0, len(self.spec.instrument), "files")
        files = await instrumented_files.read(tree, self.spec.instrument, changed)
        dependents = Index(entry.index).dependents(files)
        new, self.instrumented = await asyncio.to_thread(
            instrumented_files.instrumented, files, self.untraced, dependents
        )
        for file in self.instrumented:
            if file.reason:
                self.run.log(f"not instrumented: {file.path}: {file.reason}")
        total = sum(file.functions for file in self.instrumented)
        self.run.log(f"instrumented: {total} functions in {len(new)} files")
        return tuple({change.path: change for change in [*changed, *new]}.values())

    async def _keep(self, entry: Entry, tree: Tree) -> None:
        exported = await tree.export(self.artifacts, self.run.folder / "out")
        missing = {BuildArtifact.KERNEL, BuildArtifact.VMLINUX} - {path.name for path in exported}
        if missing:
            raise UserError("no_kernel", f"make left no {' and no '.join(sorted(missing))}")
        names = {path: _NAMES.get(path.name, path.name) for path in exported}
        for path in exported:
            if path.name == kbuild.MODULES:
                self.modules = await asyncio.to_thread(module_archive.count, path)
                self.run.log(f"modules: {self.modules}, which guests load on demand")
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

    async def _bases(self, entry: Entry) -> dict[str, str]:
        """Return what the storage has of the unpatched kernel, for the artifacts are like it."""
        named = memo.key("bases", entry.identity, self.artifacts)
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
