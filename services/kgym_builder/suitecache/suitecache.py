"""SuiteCache: a kernel's source and object files after one full build, reused by all later ones.

An entry is a read-only image of the whole tree. It is made once, by the first
step that needs it, kept in storage for all workers, and mounted below a
writable overlay by each step that uses it.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kgym.api.steps import Backport, Kernel, SourceSpec
from kgym.api.suitecache import ENTRY, HeldEntry
from kgym.errors import InfrastructureError, UserError
from kgym.host import sandbox
from kgym.host.budget import JOB_MIB, Budget, Use
from kgym.host.folder_cache import FolderCache
from kgym.host.sandbox import Layer, Sandbox, prepare
from kgym.host.sandbox_limits import SandboxLimits
from kgym.host.squashfs import WAYS, Images, Mounted, Way
from kgym.source.patching import Change
from kgym.worker.context import StepContext
from kgym_builder import memo
from kgym_builder.kbuild import control, kconfig
from kgym_builder.kbuild.kbuild import (
    CONFIGURING,
    Kbuild,
    MakeBounds,
    Output,
    TreeUnreadable,
    kernel_version,
)
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.download import TellProgress
from kgym_builder.kernel_source.kernel_sources import KernelSources, Source
from kgym_builder.patches import patched_files
from kgym_builder.suitecache import backports, compiled_trees
from kgym_builder.suitecache.compiled_trees import Entry, Identified
from kgym_builder.suitecache.entry_making import EntryMaker
from kgym_builder.suitecache.near_build import Base
from kgym_builder.suitecache.nearest import Candidate, NearRules
from kgym_builder.toolchains.image import read_about
from kgym_builder.toolchains.toolchain import Toolchain
from kgym_builder.toolchains.toolchains import Toolchains

# Version of what an entry holds; part of its identity.
LAYOUT = 6
# Likewise, of kernels that have any: earlier versions did not make them.
_WITH_MODULES = "modules"
# Likewise, where the config has them packed: earlier versions did so.
_UNPACKED = "unpacked modules"
# Version of what is remembered of a config.
_CONFIGURED = 2
# Bytes of images that a host keeps for its workers.
MOST = 30 << 30
# How much larger trees are that were unpacked.
UNPACKED = 5
UNPACK_SECONDS = 1200.0
_POLL_SECONDS = 1.0

# Called with the tree that is about to be built: what it raises spares the full build.
TryPatches = Callable[[Tree], Awaitable[None]]


class SuiteCache:
    """The entries that the workers of this host use, kept below `cache`.

    At most `most` bytes of them, but for those in use. Images are mounted in
    the first of the `ways` that works, or else unpacked. `limits` are those of
    the sandboxes in which trees are configured, built and used. Sources come from
    public addresses, and from what `origins` allow. `budget` is shared with
    what else works on this host, by default nobody; `toolchains` are by default
    those that Debian's own archive has. `near` says which entries others are made from.
    """

    def __init__(
        self,
        cache: Path,
        backport_folder: Path,
        limits: SandboxLimits | None = None,
        *,
        origins: Origins = Origins(),  # noqa: B008 - frozen
        most: int = MOST,
        budget: Budget | None = None,
        toolchains: Toolchains | None = None,
        ways: tuple[Way, ...] = WAYS,
        near: NearRules = NearRules(),  # noqa: B008 - frozen
    ) -> None:
        self._sources = KernelSources(cache / "sources", origins)
        self._folders = FolderCache(cache / "suitecache", compiled_trees.check)
        self._unpacked = FolderCache(cache / "unpacked")
        self._images = Images(ways)
        self._toolchains = toolchains or Toolchains(cache)
        self._backports = backports.load(backport_folder)
        self._limits = limits
        self._most = most
        self._near = near
        self.budget = budget or Budget.of_host()

    def held(self) -> list[HeldEntry]:
        """Return the entries that this host keeps, with the bytes of their images.

        Raises OSError where the folder cannot be read.
        """
        sizes = self._folders.sizes().items()
        return [HeldEntry(name=name, bytes=size) for name, size in sizes if ENTRY.fullmatch(name)]

    def drop(self, names: Sequence[str]) -> list[str]:
        """Remove those of these entries that nobody uses now from this host; return their names."""
        return [name for name in names if self._folders.remove(name)]

    async def identify(self, kernel: Kernel, run: StepContext) -> Identified:
        """Return what names the kernel's entry: for a new config in seconds, else at once.

        Raises UserError `wrong_architecture`, and as sources, toolchains and kconfig do.
        """
        config = kernel.config
        kconfig.check_architecture(config.texts)
        tools = await self._toolchains.get(kernel.compiler, run)
        source_identity = await self._sources.identify(kernel.source, _bytes(run), run.log)
        rules = [backport.model_dump() for backport in self._of(kernel)]
        parts = (LAYOUT, source_identity, kernel.config, *tools.parts, rules, str(control.SOURCE))
        # An image's programs are known by its identity.
        own = () if tools.image else tuple(map(shutil.which, CONFIGURING))
        name = memo.key("config", _CONFIGURED, *parts, own)
        identified = await memo.recall(run, name, Identified)
        if identified is None:
            identified = await self._configure(kernel, tools, run)
            await memo.remember(run, name, identified)
        return identified.model_copy(update={"substitution": tools.substitution})

    def building(self, jobs: int | None = None) -> AbstractAsyncContextManager[int]:
        """Hold the host's room for one build: its `jobs`, by default one a core, need memory."""
        most = min(jobs or self.budget.cores, self.budget.cores)
        return self.budget.share(Use.BUILD, 0, (most + 2) * JOB_MIB)

    def bounds(self, kernel: Kernel) -> MakeBounds:
        """Return what make may take for it; raise UserError for more than the operator allows."""
        most = (self._limits or SandboxLimits.of_host()).seconds
        if kernel.make_seconds is not None and kernel.make_seconds > most:
            raise UserError(
                "make_seconds_too_high",
                f"`make_seconds` is {kernel.make_seconds}, and this worker gives make {most:g} s"
                " at most; its operator raises that by KGYM_MAKE_SECONDS",
                limit=most,
            )
        return MakeBounds(kernel.jobs, kernel.make_seconds)

    async def take(
        self,
        kernel: Kernel,
        run: StepContext,
        output: Output,
        *,
        objects: int | None = None,
        trial: TryPatches | None = None,
    ) -> Entry:
        """Return the kernel's entry, made if there is none; it stays for the attempt.

        `output` takes what a full build prints, `objects` is how many it is known to have.
        """
        bounds = self.bounds(kernel)
        identified = await self.identify(kernel, run)
        tools = await self._toolchains.get(kernel.compiler, run)
        run.log(f"source {identified.source_identity}; entry {identified.identity}")
        made = False
        fresh = kernel.cache == "refresh"

        async def make(folder: Path) -> None:
            nonlocal made
            if await _fetched(run, identified.identity, folder, fresh=fresh):
                return
            run.log("building the unpatched kernel, once for all builds and checks of its config")
            tree = await self._prepared(kernel, tools, run, trial)
            rules, limits = self._near, self._limits
            maker = EntryMaker(
                identified, tree, tools, run, output, rules=rules, bounds=bounds, limits=limits
            )
            with ExitStack() as held, _doubting(tools):
                take = partial(self._base, tools, run, held)
                async with self.building(kernel.jobs):
                    await maker.make(objects, folder, take, fresh=fresh)
            await compiled_trees.store(run, identified.identity, folder)
            made = True

        folder, _ = await self._folders.get(identified.identity, make, fresh=fresh, held=run.held)
        if gone := await asyncio.to_thread(self._folders.trim, self._most):
            run.log(f"removed from this host, to keep to its budget: {', '.join(gone)}")
        layer, root = await self._layers(folder, tools, run, run.held)
        return Entry(
            identity=identified.identity,
            cached=not made,
            dropped_symbols=identified.dropped_symbols,
            built_in=identified.built_in,
            about=compiled_trees.read_about(folder),
            tools=tools,
            folder=folder,
            layer=layer,
            root=root,
            limits=self._limits,
            doubt=partial(self._doubt, identified.identity, layer, tools),
        )

    async def published(self, kernel: Kernel | SourceSpec, run: StepContext) -> "Published":
        """Return the kernel's source as builds see it; it stays for the attempt."""
        source = await self._sources.get(kernel.source, _bytes(run), run.held, run.log)
        tools = await self._toolchains.get(kernel.compiler, run)
        tree = Tree((source.tree,), run.folder / "published", self._limits)
        backported = await self._backport(tree, kernel, tools, run)
        return Published(source, tree, backported.names, backported.changes)

    async def _configure(self, kernel: Kernel, tools: Toolchain, run: StepContext) -> Identified:
        source = await self._sources.get(kernel.source, _bytes(run), run.held)
        run.progress("config")
        root = await self._root(tools, run)
        tree = Tree((source.tree,), run.folder / "config", self._limits, root=root)
        backported = await self._backport(tree, kernel, tools, run)
        with _doubting(tools):
            kbuild = Kbuild(tree, tools, Output(run.folder / "config.log"))
            configured = await kbuild.configure(kernel.config)
        config = (await tree.read([".config"]))[".config"].decode(errors="surrogateescape")
        await asyncio.to_thread(sandbox.remove, run.folder / "config")
        changed = [[change.path, str(change.content)] for change in backported.changes]
        return Identified(
            identity=memo.digest(
                *(LAYOUT, source.identity, config, *tools.parts, changed),
                *([_WITH_MODULES] if (modules := kconfig.modules(config)) else []),
                *([_UNPACKED] if modules and kconfig.packs_modules(config) else []),
            ),
            source_identity=source.identity,
            config=config,
            dropped_symbols=configured.dropped,
            built_in=configured.built_in,
            backports=backported.names,
        )

    async def _prepared(
        self, kernel: Kernel, tools: Toolchain, run: StepContext, trial: TryPatches | None
    ) -> Tree:
        """Return the tree that is about to be compiled, on which the trial was made."""
        source = await self._sources.get(kernel.source, _bytes(run), run.held)
        root = await self._root(tools, run)
        tree = Tree((source.tree,), run.folder / "full", self._limits, root=root)
        await self._backport(tree, kernel, tools, run)
        if trial is not None:
            await trial(tree)
        return tree

    def _of(self, kernel: Kernel | SourceSpec) -> list[Backport]:
        return backports.chosen(self._backports, kernel.backports)

    async def _backport(
        self, tree: Tree, kernel: Kernel | SourceSpec, tools: Toolchain, run: StepContext
    ) -> "_Backported":
        """Apply the backports that fit, and add the object that raises faults."""
        own = self._of(kernel)
        files = await tree.read(sorted({*await backports.paths(own), "Makefile", control.MAKEFILE}))
        version = kernel_version(files.get("Makefile", b"").decode(errors="replace"))
        fitting = [backport for backport in own if backports.fits(backport, version, tools)]
        done = await backports.apply(fitting, files)
        run.log(f"backports: {', '.join(done.names) or 'none'}")
        if done.left_out:
            names = ", ".join(done.left_out)
            run.log(f"backports left out, which the source has or does not need: {names}")
        changes = (
            *patched_files.in_all(done.applied),
            *control.changes(files.get(control.MAKEFILE)),
        )
        await tree.write(changes)
        return _Backported(done.names, changes)

    async def _base(
        self, tools: Toolchain, run: StepContext, held: ExitStack, wanted: Candidate
    ) -> Base | None:
        """Take an entry to make another from; None if it is damaged, gone, or being made now.

        It stays until `held` is closed.
        Nobody waits for it: who makes it may be waiting for ours.
        """
        identity = wanted.identity

        async def fetch(folder: Path) -> None:
            if not await compiled_trees.fetch(run, identity, wanted.about, folder):
                raise InfrastructureError("not_near", "the stored one is damaged, or gone")

        try:
            folder, _ = await self._folders.get(identity, fetch, held=held, wait=False)
            if compiled_trees.read_about(folder) != wanted.about:
                raise InfrastructureError("not_near", "this host has another one of that name")
        except InfrastructureError as error:
            run.log(f"entry {identity}, which is near, cannot be taken: {error.message}")
            return None
        layer, root = await self._layers(folder, tools, run, held)
        return Base(wanted, folder, layer, root, partial(self._doubt, identity, layer, tools))

    async def _layers(
        self, folder: Path, tools: Toolchain, run: StepContext, held: ExitStack
    ) -> tuple[Layer, Layer | None]:
        """Return the tree of the entry in this folder, and the root that its toolchain is in.

        A mount stays until `held` is closed.
        """
        mounted = self._images.mount(folder / compiled_trees.IMAGE, held, tools.image)
        if mounted is not None:
            run.log(f"tree: mounted by {mounted.way} and {mounted.overlay}")
            return mounted, mounted if tools.image else None
        run.log(f"tree: unpacked, as no image can be mounted here ({self._images.refusal})")
        sha256 = compiled_trees.read_about(folder).image_sha256
        tree = await self._unpack(folder / compiled_trees.IMAGE, sha256, run)
        return tree, tools.image and await self._unpack_root(tools.image, run)

    async def _root(self, tools: Toolchain, run: StepContext) -> Layer | None:
        """Return the root that a toolchain is in; None for the host's."""
        if tools.image is None:
            return None
        mounted = self._images.mount(None, run.held, tools.image)
        return mounted or await self._unpack_root(tools.image, run)

    async def _unpack_root(self, image: Path, run: StepContext) -> Path:
        return await self._unpack(image, read_about(image.parent).image_sha256, run)

    async def _unpack(self, image: Path, sha256: str, run: StepContext) -> Path:
        """Return the folder that an image was unpacked to."""

        async def make(unpacked: Path) -> None:
            await _unpack(image, prepare(unpacked / "tree"))

        unpacked, _ = await self._unpacked.get(sha256[:32], make, held=run.held)
        await asyncio.to_thread(self._unpacked.trim, UNPACKED * self._most)
        return unpacked / "tree"

    def _doubt(self, identity: str, layer: Layer, tools: Toolchain) -> None:
        self._folders.doubt(identity)
        tools.doubt()
        if isinstance(layer, Mounted):
            self._images.forget(layer)


@dataclass(frozen=True, slots=True)
class Published:
    """A source: `tree` is as published, but for `changes`, by `backports` and our own object."""

    source: Source
    tree: Tree
    backports: list[str]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class _Backported:
    names: list[str]
    changes: tuple[Change, ...]


async def _fetched(run: StepContext, identity: str, folder: Path, *, fresh: bool) -> bool:
    """Fetch the entry; or else hold its name, for this step to make it.

    While another step holds it, wait for what that one makes. With `fresh`,
    what is stored now is not wanted.
    """
    unwanted = await compiled_trees.find(run, identity) if fresh else None
    waits = False
    while True:
        ours = await run.hold(f"suitecache/{identity}")
        about = await compiled_trees.find(run, identity)
        if about is not None and (unwanted is None or about != unwanted):
            run.progress("fetch", 0, about.image_bytes, "bytes")
            if await compiled_trees.fetch(run, identity, about, folder):
                run.log("fetched the entry from storage")
                return True
            run.log("the stored entry is damaged")
        if ours:
            return False
        if not waits:
            run.log("waiting for the step that builds this entry now")
            run.progress("waiting for the entry")
        waits = True
        await asyncio.sleep(_POLL_SECONDS)


@contextmanager
def _doubting(tools: Toolchain) -> Iterator[None]:
    """Let the toolchain's image be checked if what it works on could not be read."""
    try:
        yield
    except TreeUnreadable:
        tools.doubt()
        raise


async def _unpack(image: Path, tree: Path) -> None:
    sandboxed = Sandbox(readonly={"/image": image.parent}, writable={"/tree": tree})
    argv = ["unsquashfs", "-quiet", "-no-progress", "-force", "-dest", "/tree"]
    await sandboxed.run([*argv, f"/image/{image.name}"], timeout=UNPACK_SECONDS)


def _bytes(run: StepContext) -> TellProgress:
    def report(stage: str, done: float, total: float | None) -> None:
        run.progress(stage, done, total, "bytes" if done else "")

    return report
