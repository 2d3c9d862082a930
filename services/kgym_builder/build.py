"""The `build` step: source, backports, config, patches, make; kernel and logs as artifacts.

The unpatched tree is built once per identity and kept as a layer over its
source; a patched build is an overlay of both, in which make compiles what the
patches touched.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kgym import diagnostics
from kgym import patch as patching
from kgym.cache import FolderCache
from kgym.errors import UserError
from kgym.patch import Change
from kgym.steps import BuildResult, BuildSpec, DroppedSymbol, Patch
from kgym.worker import StepRun
from kgym_builder import backports
from kgym_builder.kbuild import Kbuild, Output, Toolchain, kernel_version, toolchain
from kgym_builder.sources import Source, Sources
from kgym_builder.tree import Tree

LAYOUT = 1
"""Version of what a cached tree holds; part of its identity."""

ARTIFACTS = (
    "arch/x86/boot/bzImage",
    "vmlinux",
    "System.map",
    ".config",
    "compile_commands.json",
)
_RELEASE = "include/config/kernel.release"
_COMMANDS_SCRIPT = """
for script in scripts/clang-tools/gen_compile_commands.py scripts/gen_compile_commands.py; do
    [ -f $script ] && exec python3 $script
done
:
"""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a build will do, known before anything is compiled."""

    source: Source
    tools: Toolchain
    backports: tuple[str, ...]
    backported: tuple[Change, ...]
    patched: tuple[Change, ...]


class Builder:
    """Builds kernels; sources and compiled trees are kept under `cache`."""

    def __init__(self, cache: Path, backport_folder: Path) -> None:
        self.sources = Sources(cache / "sources")
        self.trees = FolderCache(cache / "trees")
        self.backports = backports.load(backport_folder)

    async def __call__(self, run: StepRun) -> BuildResult:
        """Perform a build step."""
        spec = run.assignment.spec
        assert isinstance(spec, BuildSpec)
        with ExitStack() as held:
            build = _Build(self, run, spec, held)
            try:
                return await build.result()
            except UserError:
                if build.output.path.exists():
                    await run.keep(build.output.path)
                raise


class _Build:
    """One build step on its way."""

    def __init__(self, builder: Builder, run: StepRun, spec: BuildSpec, held: ExitStack) -> None:
        self.builder = builder
        self.held = held
        self.run = run
        self.spec = spec
        self.seconds: dict[str, float] = {}
        self.output = Output(run.folder / "build.log")

    async def result(self) -> BuildResult:
        with self._stage("source"):
            plan = await self._plan()
        with self._stage("tree"):
            layer, cached = await self._layer(plan)
        about = json.loads((layer / "about.json").read_text())
        dropped = [DroppedSymbol(**one) for one in about["dropped"]]
        self.run.log(f"tree {layer.name}: {'cached' if cached else 'built'}")
        for one in dropped:
            self.run.log(f"config: CONFIG_{one.symbol} is {one.got}, not {one.wanted}")
        tree = Tree((layer / "upper", plan.source.tree), self.run.folder / "tree")
        with self._stage("make"):
            await self._make_patched(plan, tree)
        with self._stage("artifacts"):
            await self._keep(tree, layer)
        return BuildResult(
            source_identity=plan.source.identity,
            kernel_release=about["release"],
            compiler_version=plan.tools.version,
            tree=layer.name,
            tree_cached=cached,
            backports=list(plan.backports),
            dropped_symbols=dropped,
            objects_compiled=self.output.objects,
            warnings=diagnostics.parse(self.output.tail)[:100],
            seconds=self.seconds,
        )

    async def _plan(self) -> _Plan:
        """Fetch the source, and try the changes on it before the long work starts."""
        spec, run = self.spec, self.run
        tools = await toolchain(spec.compiler)
        source = await self.builder.sources.get(spec.source, self._bytes, self.held)
        run.log(f"source {source.identity}; {tools.version}")
        tree = Tree((source.tree,), run.folder / "plan")
        paths = {path for patch in spec.patches for path in patching.files(patch)}
        known = self.builder.backports
        paths |= {edit.file for backport in known for edit in backport.edits}
        files = await tree.read(sorted({*paths, "Makefile"}))
        kernel = kernel_version(files.get("Makefile", b"").decode(errors="replace"))
        fitting = [
            patch
            for backport in known
            if backport.applies(kernel, tools.family, tools.number)
            and (patch := backport.patch(files.get))
        ]
        backported = self._apply(fitting, files)
        patched = self._apply(spec.patches, files)
        names = tuple(patch.name for patch in fitting)
        return _Plan(source, tools, names, backported, patched)

    def _apply(self, patches: Sequence[Patch], files: dict[str, bytes]) -> tuple[Change, ...]:
        """Apply patches one after the other; `files` follows."""
        changes: dict[str, Change] = {}
        for patch in patches:
            applied = patching.apply(patch, files.get)
            for note in applied.notes:
                self.run.log(note)
            for change in applied.changes:
                changes[change.path] = change
                files.pop(change.path, None)
                if change.content is not None:
                    files[change.path] = change.content
        return tuple(changes.values())

    async def _layer(self, plan: _Plan) -> tuple[Path, bool]:
        spec = self.spec
        identity = {
            "layout": LAYOUT,
            "source": plan.source.identity,
            "config": spec.config.model_dump(),
            "compiler": [spec.compiler, plan.tools.version],
            "backports": [[one.path, str(one.content)] for one in plan.backported],
        }
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]

        async def make(folder: Path) -> None:
            self.run.log("building the unpatched tree, once for all builds of this config")
            await self._make_layer(plan, folder)

        fresh = spec.cache == "refresh"
        return await self.builder.trees.get(key, make, fresh=fresh, held=self.held)

    async def _make_layer(self, plan: _Plan, folder: Path) -> None:
        tree = Tree((plan.source.tree,), folder)
        kbuild = Kbuild(tree, plan.tools, self.output)
        await tree.write(plan.backported)
        self.run.progress("config")
        dropped = await kbuild.configure(self.spec.config)
        self._count_objects("build", self.spec.objects)
        await kbuild.make("bzImage")
        await tree.run(["sh", "-c", _COMMANDS_SCRIPT])
        about = {
            "dropped": [one.model_dump() for one in dropped],
            "release": (await tree.read([_RELEASE]))[_RELEASE].decode().strip(),
        }
        tree.discard_work()
        (folder / "about.json").write_text(json.dumps(about))
        shutil.copyfile(self.output.path, folder / "build.log")

    async def _make_patched(self, plan: _Plan, tree: Tree) -> None:
        if not self.spec.patches:
            return
        kbuild = Kbuild(tree, plan.tools, self.output)
        await tree.write(plan.patched)
        self._count_objects("rebuild", None)
        if any("Kconfig" in change.path for change in plan.patched):
            await kbuild.make("olddefconfig")
        await kbuild.make("bzImage")

    async def _keep(self, tree: Tree, layer: Path) -> None:
        self.run.progress("artifacts")
        found = await tree.export(ARTIFACTS, self.run.folder / "out")
        missing = {"bzImage", "vmlinux"} - {path.name for path in found}
        if missing:
            raise UserError("no_kernel", f"make left no {' and no '.join(sorted(missing))}")
        for path in found:
            await self.run.keep(path, "config" if path.name == ".config" else path.name)
        log = self.output.path if self.output.path.exists() else layer / "build.log"
        await self.run.keep(log, "build.log")

    def _count_objects(self, stage: str, total: int | None) -> None:
        start = self.output.objects
        self.run.progress(stage, 0, total, "objects")

        def count(objects: int) -> None:
            self.run.progress(stage, objects - start, total, "objects")

        self.output.on_object = count

    def _bytes(self, stage: str, done: float, total: float | None) -> None:
        self.run.progress(stage, done, total, "bytes" if done else "")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - start, 3)
