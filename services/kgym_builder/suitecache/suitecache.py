"""SuiteCache: a kernel's source and object files after one full build, reused by all later ones.

An entry is a read-only image of the whole tree. The first step that needs it makes it. Storage
keeps it for all workers, and each step that uses it mounts it below a writable overlay, at the path
where it was built: the paths that kbuild wrote down stay valid. Taking an entry costs 20 ms.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from kgym.api.steps import Kernel, SourceSpec
from kgym.api.suitecache import ENTRY, HeldEntry
from kgym.bugs.config_symbols import check_architecture
from kgym.errors import InfrastructureError, UserError
from kgym.host import sandbox
from kgym.host.budget import JOB_MIB, Budget, Use
from kgym.host.folder_cache import FolderCache
from kgym.host.sandbox import Layer
from kgym.host.sandbox_limits import SandboxLimits
from kgym.host.squashfs import WAYS, Way
from kgym.worker import memo
from kgym.worker.context import StepContext
from kgym_builder.kbuild import control, kconfig
from kgym_builder.kbuild.kbuild import CONFIGURING, Kbuild, MakeBounds, Output, TreeUnreadable
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.compiled_trees import Entry, Identified
from kgym_builder.suitecache.entry_making import make_entry
from kgym_builder.suitecache.near_build import Base
from kgym_builder.suitecache.nearest import Candidate, NearRules
from kgym_builder.suitecache.source_trees import SourceTree, SourceTrees
from kgym_builder.suitecache.tree_build import TreeBuild
from kgym_builder.suitecache.tree_images import TreeImages
from kgym_builder.toolchains.toolchain import Toolchain
from kgym_builder.toolchains.toolchains import Toolchains

# Version of an entry's content; part of its identity.
LAYOUT = 6
# Part of the identity of kernels with modules, which earlier versions did not build.
_WITH_MODULES = "modules"
# Part of their identity if the config compresses modules, which earlier versions allowed.
_UNPACKED = "unpacked modules"
# Version of the memo of a config.
_CONFIGURED = 2
# Bytes of images that a host keeps for its workers.
MOST = 30 << 30

# Called with the tree before it is built: an error that it raises saves the full build.
TryPatches = Callable[[Tree], Awaitable[None]]


class SuiteCache:
    """The entries that the workers of this host use, kept below `cache`.

    At most `most` bytes of entries are kept, not counting those in use. Images are mounted in the
    first of the `ways` that works, or else unpacked. `limits` are those of the sandboxes in which
    trees are configured, built and used. Sources come from public addresses and from `origins`.
    `budget` is shared with other work on this host. By default, `toolchains` come from Debian's
    own archive. `near` says which entries others are made from.
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
        sources = KernelSources(cache / "sources", origins)
        self._sources = SourceTrees(sources, backport_folder, limits)
        self._folders = FolderCache(cache / "suitecache", compiled_trees.check)
        self._images = TreeImages(cache / "unpacked", ways, most)
        self._toolchains = toolchains or Toolchains(cache)
        self._limits = limits
        self._most = most
        self._near = near
        self.budget = budget or Budget.of_host()

    def held(self) -> list[HeldEntry]:
        """Return the entries on this host with the sizes of their images.

        Raises OSError if the folder cannot be read.
        """
        sizes = self._folders.sizes().items()
        return [HeldEntry(name=name, bytes=size) for name, size in sizes if ENTRY.fullmatch(name)]

    def drop(self, names: Sequence[str]) -> list[str]:
        """Remove these entries from this host unless they are in use; return those removed."""
        return [name for name in names if self._folders.remove(name)]

    async def identify(self, kernel: Kernel, run: StepContext) -> Identified:
        """Return the identity of the kernel's entry: in seconds for a new config, else at once.

        Raises UserError `wrong_architecture`, and what sources, toolchains and kconfig raise.
        """
        check_architecture(kernel.config.texts)
        tools = await self._toolchains.get(kernel.compiler, run)
        source_identity = await self._sources.identify(kernel, run)
        rules = [backport.model_dump() for backport in self._sources.backports(kernel)]
        parts = (LAYOUT, source_identity, kernel.config, *tools.parts, rules, str(control.SOURCE))
        # The backports' text is part of the key: two jobs with the same text share an entry. An
        # image's identity covers its programs; the host's programs are known by their paths only.
        own = () if tools.image else tuple(map(shutil.which, CONFIGURING))
        name = memo.key("config", _CONFIGURED, *parts, own)
        identified = await memo.recall(run, name, Identified)
        if identified is None:
            identified = await self._configure(kernel, tools, run)
            await memo.remember(run, name, identified)
        return identified.model_copy(update={"substitution": tools.substitution})

    def building(self, jobs: int | None = None) -> AbstractAsyncContextManager[int]:
        """Reserve the host's memory for one build with so many `jobs`, by default one per core."""
        most = min(jobs or self.budget.cores, self.budget.cores)
        return self.budget.share(Use.BUILD, 0, (most + 2) * JOB_MIB)

    def bounds(self, kernel: Kernel) -> MakeBounds:
        """Return the limits of make; raise UserError if the spec asks for more than is allowed."""
        most = (self._limits or SandboxLimits.of_host()).seconds
        if kernel.make_seconds is not None and kernel.make_seconds > most:
            raise UserError(
                "make_seconds_too_high",
                f"`make_seconds` is {kernel.make_seconds}, but this worker allows make at most"
                f" {most:g} s; its operator can raise that with KGYM_MAKE_SECONDS",
                limit=most,
            )
        return MakeBounds(kernel.jobs, kernel.make_seconds)

    async def take(
        self,
        kernel: Kernel,
        identified: Identified,
        run: StepContext,
        output: Output,
        *,
        objects: int | None = None,
        trial: TryPatches | None = None,
    ) -> Entry:
        """Return the kernel's entry, and make it if there is none; it is held for the attempt.

        `identified` comes from `identify`. `output` takes the output of a full build; `objects` is
        the expected number of its objects. `trial` runs before a full build.
        """
        identity, fresh, made = identified.identity, kernel.cache == "refresh", False
        bounds = self.bounds(kernel)
        tools = await self._toolchains.get(kernel.compiler, run)
        run.log(f"source {identified.source_identity}; entry {identity}")

        async def make(folder: Path) -> None:
            nonlocal made
            if await compiled_trees.fetched(run, identity, folder, fresh=fresh):
                return
            run.log("building the unpatched kernel, once for all builds and checks of its config")
            root = await self._images.root(tools, run)
            source = await self._sources.with_backports(kernel, tools, run, "full", root=root)
            if trial is not None:
                await trial(source.tree)
            build = TreeBuild(source.tree, tools, run, output, bounds, self._limits)
            with ExitStack() as held, _doubting(tools):
                take_base = partial(self._base, tools, run, held)
                async with self.building(kernel.jobs):
                    await make_entry(
                        build, identified, folder, take_base, self._near, objects, fresh=fresh
                    )
            await compiled_trees.store(run, identity, folder)
            made = True

        folder, _ = await self._folders.get(identity, make, fresh=fresh, held=run.held)
        # After this step's own entry is held: what is in use is never removed.
        if gone := await asyncio.to_thread(self._folders.trim, self._most):
            run.log(f"removed from this host to stay within its budget: {', '.join(gone)}")
        layer, root = await self._images.layers(folder, tools, run, run.held)
        return Entry(
            identified=identified,
            cached=not made,
            about=compiled_trees.read_about(folder),
            tools=tools,
            folder=folder,
            layer=layer,
            root=root,
            limits=self._limits,
            doubt=partial(self._doubt, identity, layer, tools),
        )

    async def published(self, kernel: Kernel | SourceSpec, run: StepContext) -> SourceTree:
        """Return the kernel's source as builds see it; it is held for the attempt."""
        tools = await self._toolchains.get(kernel.compiler, run)
        return await self._sources.with_backports(kernel, tools, run, "published", log=run.log)

    async def _configure(self, kernel: Kernel, tools: Toolchain, run: StepContext) -> Identified:
        """Run kconfig on the source; return the final config and the identity that follows."""
        run.progress("config")
        root = await self._images.root(tools, run)
        source = await self._sources.with_backports(kernel, tools, run, "config", root=root)
        with _doubting(tools):
            kbuild = Kbuild(source.tree, tools, Output(run.folder / "config.log"))
            configured = await kbuild.configure(kernel.config)
        config = (await source.tree.read([".config"]))[".config"].decode(errors="surrogateescape")
        await asyncio.to_thread(sandbox.remove, source.tree.overlay.folder)
        changed = [[change.path, str(change.content)] for change in source.changes]
        return Identified(
            identity=memo.digest(
                *(LAYOUT, source.source.identity, config, *tools.parts, changed),
                *([_WITH_MODULES] if (modules := kconfig.modules(config)) else []),
                *([_UNPACKED] if modules and kconfig.packs_modules(config) else []),
            ),
            source_identity=source.source.identity,
            config=config,
            dropped_symbols=configured.dropped,
            built_in=configured.built_in,
            backports=source.backports,
        )

    async def _base(
        self, tools: Toolchain, run: StepContext, held: ExitStack, wanted: Candidate
    ) -> Base | None:
        """Take a base entry until `held` is closed; None if it is damaged, gone or being made."""
        identity = wanted.identity

        async def fetch(folder: Path) -> None:
            if not await compiled_trees.fetch(run, identity, wanted.about, folder):
                raise InfrastructureError("not_near", "the stored entry is damaged or was removed")

        try:
            # Without waiting for its lock: the step that makes it may be waiting for our entry.
            folder, _ = await self._folders.get(identity, fetch, held=held, wait=False)
            if compiled_trees.read_about(folder) != wanted.about:
                raise InfrastructureError("not_near", "this host has another entry of that name")
        except InfrastructureError as error:
            run.log(f"entry {identity}, which is near, cannot be taken: {error.message}")
            return None
        layer, root = await self._images.layers(folder, tools, run, held)
        return Base(wanted, folder, layer, root, partial(self._doubt, identity, layer, tools))

    def _doubt(self, identity: str, layer: Layer, tools: Toolchain) -> None:
        self._folders.doubt(identity)
        tools.doubt()
        self._images.forget(layer)


@contextmanager
def _doubting(tools: Toolchain) -> Iterator[None]:
    """Have the toolchain's image verified before its next use if the tree could not be read."""
    try:
        yield
    except TreeUnreadable:
        tools.doubt()
        raise
