"""The `build` step: patches on a kernel of SuiteCache; kernel and logs as artifacts."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kgym import diagnostics
from kgym.errors import InfrastructureError, UserError
from kgym.patch import Change
from kgym.steps import BuildResult, BuildSpec
from kgym.worker import StepRun
from kgym_builder import entries, memo, shortcut
from kgym_builder.entries import Entry
from kgym_builder.kbuild import UNREADABLE, Kbuild, Output
from kgym_builder.objectindex import Index
from kgym_builder.patches import changes
from kgym_builder.suitecache import SuiteCache
from kgym_builder.tree import Tree

LAYOUT = 1
"""Version of what a build leaves; part of its memo's key."""
ARTIFACTS = (
    "arch/x86/boot/bzImage",
    "vmlinux",
    "System.map",
    ".config",
    "compile_commands.json",
)
_NAMES = {".config": "config"}


class Builder:
    """Builds kernels on the entries of a SuiteCache."""

    def __init__(self, suite: SuiteCache) -> None:
        self._suite = suite

    async def __call__(self, run: StepRun) -> BuildResult:
        """Perform a build step."""
        spec = run.assignment.spec
        assert isinstance(spec, BuildSpec)
        with ExitStack() as held:
            build = _Build(self._suite, run, spec, held)
            try:
                return await build.result()
            except UserError:
                if build.output.path.exists():
                    await run.keep(build.output.path)
                raise


class _Build:
    """One build step on its way."""

    def __init__(self, suite: SuiteCache, run: StepRun, spec: BuildSpec, held: ExitStack) -> None:
        self.suite = suite
        self.held = held
        self.run = run
        self.spec = spec
        self.seconds: dict[str, float] = {}
        self.output = Output(run.folder / "build.log")

    async def result(self) -> BuildResult:
        """Build; or copy what was built before from the same, if that is not forbidden."""
        with self._stage("identify"):
            found = await self.suite.identify(self.spec, self.run, self.held)
        if self.spec.cache == "use" and (known := await self._recalled(found.identity)):
            return known
        with self._stage("tree"):
            entry = await self._entry()
        self.run.log(f"entry {entry.identity}: {'cached' if entry.cached else 'built'}")
        for one in entry.dropped_symbols:
            self.run.log(f"config: CONFIG_{one.symbol} is {one.got}, not {one.wanted}")
        try:
            result = await self._built(entry)
        except InfrastructureError as error:
            if error.reason == UNREADABLE:
                entry.doubt()
            raise
        await memo.remember(self.run, self._memo(entry.identity), result, self.run.artifacts)
        return result

    def _memo(self, identity: str) -> str:
        patches = [patch.model_dump(exclude={"name"}) for patch in self.spec.patches]
        return memo.key("build", LAYOUT, identity, patches, ARTIFACTS)

    async def _recalled(self, identity: str) -> BuildResult | None:
        with self._stage("memo"):
            known = await memo.recall(self.run, self._memo(identity), BuildResult)
        if known is None:
            return None
        self.run.log(f"entry {identity}: the same was built before")
        own = {"memoised": True, "tree_cached": True, "objects_compiled": 0}
        return known.model_copy(update={**own, "seconds": self.seconds})

    async def _built(self, entry: Entry) -> BuildResult:
        tree = entry.tree(self.run.folder / "tree")
        with self._stage("make"):
            short = await self._make(entry, tree)
        with self._stage("artifacts"):
            await self._keep(entry, tree)
        about = entry.about
        return BuildResult(
            source_identity=about.source_identity,
            kernel_release=about.kernel_release,
            compiler_version=about.compiler_version,
            tree=entry.identity,
            tree_cached=entry.cached,
            shortcut=short,
            backports=about.backports,
            dropped_symbols=entry.dropped_symbols,
            objects_compiled=self.output.objects,
            warnings=diagnostics.parse(self.output.tail)[:100],
            seconds=self.seconds,
        )

    async def _entry(self) -> Entry:
        async def trial(tree: Tree) -> None:
            await self._changes(tree)

        return await self.suite.take(
            self.spec, self.run, self.held, self.output, objects=self.spec.objects, trial=trial
        )

    async def _changes(self, tree: Tree) -> tuple[Change, ...]:
        return await changes(tree, self.spec.patches, self.run.log)

    async def _make(self, entry: Entry, tree: Tree) -> bool:
        """Make what the patches changed; return whether the shortcut did."""
        if not self.spec.patches:
            return False
        kbuild = Kbuild(tree, entry.tools, self.output)
        changed = await self._changes(tree)
        await tree.write(changed)
        self.output.count(self.run, "rebuild", None)
        if entry.about.shortcut:
            objects = shortcut.objects(changed, Index(entry.index), entry.linked)
            if objects is not None:
                await shortcut.Shortcut(tree, kbuild, entry.about).build(objects)
                return True
        if any("Kconfig" in change.path for change in changed):
            await kbuild.make("olddefconfig")
        await kbuild.make("bzImage")
        return False

    async def _keep(self, entry: Entry, tree: Tree) -> None:
        self.run.progress("artifacts")
        found = await tree.export(ARTIFACTS, self.run.folder / "out")
        missing = {"bzImage", "vmlinux"} - {path.name for path in found}
        if missing:
            raise UserError("no_kernel", f"make left no {' and no '.join(sorted(missing))}")
        names = {path: _NAMES.get(path.name, path.name) for path in found}
        keeping = (self.run.keep(path, name, move=True) for path, name in names.items())
        await asyncio.gather(*keeping)
        order = list(names.values())
        self.run.artifacts.sort(key=lambda one: order.index(one.name))
        log = self.output.path if self.output.path.exists() else entry.folder / entries.LOG
        await self.run.keep(log, "build.log")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - start, 3)
