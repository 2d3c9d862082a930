"""Source trees as builds see them: fetched, with backports and the object that raises faults."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kgym.api.steps import Backport, Kernel, SourceSpec
from kgym.host.sandbox import Layer
from kgym.host.sandbox_limits import SandboxLimits
from kgym.source.patching import Change
from kgym.worker.context import StepContext
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.kernel_source.download import report_bytes
from kgym_builder.kernel_source.kernel_sources import KernelSources, Source
from kgym_builder.suitecache import backports
from kgym_builder.toolchains.toolchain import Toolchain


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A source; in `tree`, `changes` of `backports` and of our own object are applied to it."""

    source: Source
    tree: Tree
    backports: list[str]
    changes: tuple[Change, ...]


class SourceTrees:
    """The sources that are kept below `cache`, with the backports that are shipped in a folder."""

    def __init__(self, sources: KernelSources, shipped: Path, limits: SandboxLimits | None) -> None:
        self._sources = sources
        self._shipped = backports.load(shipped)
        self._limits = limits

    async def identify(self, kernel: Kernel, run: StepContext) -> str:
        """Return the identity of the kernel's source; fetch no more than that takes."""
        return await self._sources.identify(kernel.source, report_bytes(run), run.log)

    def backports(self, kernel: Kernel | SourceSpec) -> list[Backport]:
        """Return the backports to consider for the kernel, in the order in which they apply."""
        return backports.chosen(self._shipped, kernel.backports)

    async def with_backports(
        self,
        kernel: Kernel | SourceSpec,
        tools: Toolchain,
        run: StepContext,
        name: str,
        *,
        root: Layer | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> SourceTree:
        """Return the kernel's source tree in the folder `name` of the attempt.

        `root` has the programs that work on the tree. `log` gets remarks on the source.
        """
        source = await self._sources.get(kernel.source, report_bytes(run), run.held, log)
        tree = Tree((source.tree,), run.folder / name, self._limits, root=root)
        wanted = self.backports(kernel)
        names, changes = await backports.apply_to(tree, wanted, tools, run.log)
        return SourceTree(source, tree, names, changes)
