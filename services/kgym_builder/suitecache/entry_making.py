"""How an entry is made: from the nearest there is, or from scratch, or both ways to compare them.

What is made from another entry has to be what would come from scratch. A share of such builds is
rehearsed: done both ways, and the kernels compared by the hashes of their sections, with all that
later builds take from the entry. Where they differ, the one from scratch is the entry, the reason
is kept with it, and the next of this compiler are rehearsed until one is equal again.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from kgym.api.suitecache import EntryMaking
from kgym.errors import UserError
from kgym.host import proc, sandbox
from kgym.host.sandbox_limits import SandboxLimits
from kgym.worker.context import StepContext
from kgym_builder import memo
from kgym_builder.kbuild import kbuild, object_index
from kgym_builder.kbuild.elf_sections import section_hashes
from kgym_builder.kbuild.kbuild import MakeBounds, Output, TreeUnreadable
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.compiled_trees import Identified
from kgym_builder.suitecache.manifest import Manifest
from kgym_builder.suitecache.near_build import Base, compile_near
from kgym_builder.suitecache.nearest import Candidate, NearRules, Wanted, nearest
from kgym_builder.suitecache.tree_build import Compiled, TreeBuild
from kgym_builder.toolchains.toolchain import Toolchain

# Gives an entry to make another from, for as long as the attempt lasts; None if it cannot.
TakeBase = Callable[[Candidate], Awaitable[Base | None]]
_SHOWN = 10

Rehearsal = Literal["none", "equal", "unequal"]


@dataclass(frozen=True, slots=True)
class _Made:
    """A tree with a kernel in it."""

    build: TreeBuild
    compiled: Compiled


class EntryMaker:
    """Makes the entry `found` of the source in `tree`, whose root has the toolchain."""

    def __init__(
        self,
        identified: Identified,
        tree: Tree,
        tools: Toolchain,
        run: StepContext,
        output: Output,
        *,
        rules: NearRules,
        bounds: MakeBounds,
        limits: SandboxLimits | None,
    ) -> None:
        self._identified = identified
        self._tree = tree
        self._tools = tools
        self._run = run
        self._output = output
        self._rules = rules
        self._bounds = bounds
        self._limits = limits
        self._seconds: dict[str, float] = {}
        self._toolchain = memo.digest(*tools.parts)
        self._reason = ""
        self._base: Base | None = None

    async def make(
        self, objects: int | None, folder: Path, take: TakeBase, *, fresh: bool
    ) -> EntryMaking:
        """Leave the files of the entry in `folder`; with `fresh`, it is made from scratch."""
        manifest = await self._manifest()
        near, rehearse = None, False
        if fresh:
            self._reason = "it was asked for anew"
        elif manifest is not None:
            near, rehearse = await self._near(manifest, take)
        full = None
        if near is None or rehearse:
            with self._run.stage("make", self._seconds):
                full = await self._compiled(self._build(self._tree), objects)
        rehearsal: Rehearsal = "none"
        if near is not None and full is not None:
            rehearsal = await self._compare(near, full)
        chosen = full if near is None or (full and rehearsal == "unequal") else near
        for other in (near, full):
            if other is not None and other is not chosen:
                await asyncio.to_thread(sandbox.remove, other.build.tree.overlay.folder)
        assert chosen is not None
        shortcut = None  # to be found out
        if chosen is near and not rehearse and self._base and self._base.candidate.linked_alike:
            shortcut = self._base.candidate.about.shortcut
        about = await chosen.build.keep(
            self._identified, chosen.compiled, folder, self._seconds, shortcut=shortcut
        )
        made = self._making(chosen, near, rehearsal, manifest, about.image_sha256)
        (folder / compiled_trees.MAKING).write_text(made.model_dump_json())
        if manifest is not None:
            (folder / compiled_trees.MANIFEST).write_bytes(manifest.text())
        return made

    async def _manifest(self) -> Manifest | None:
        with self._run.stage("manifest", self._seconds):
            try:
                return await Manifest.read(self._tree)
            except UserError as error:
                self._reason = error.message
                return None

    async def _near(self, manifest: Manifest, take: TakeBase) -> tuple[_Made | None, bool]:
        """Return the kernel made from the nearest entry, and whether to compare it."""
        name = self._identified.identity
        wanted = Wanted(name, self._identified.config, self._toolchain, manifest)
        with self._run.stage("nearest", self._seconds):
            nearby = await nearest(self._run, wanted, self._rules)
        self._reason = nearby.reason
        for candidate in nearby.candidates:
            base = await take(candidate)
            if base is None:
                self._reason = f"{candidate.identity}, which is near, could not be taken"
                continue
            self._run.log(
                f"made from entry {candidate.identity}: {len(candidate.files.paths)} files and"
                f" {candidate.symbols} symbols of the config differ"
            )
            made = await self._made_from(base, manifest)
            if made is not None:
                self._base = base
                drawn = int(name[:8], 16) < self._rules.rehearsals * (1 << 32)
                return made, drawn or nearby.doubted
        self._run.log(f"made from scratch: {self._reason}")
        return None, False

    async def _made_from(self, base: Base, manifest: Manifest) -> _Made | None:
        """Return the kernel, or None where it has to be made another way; say why."""
        folder = self._run.folder / "near"
        tree = Tree((base.layer,), folder, self._limits, root=base.root)
        build = self._build(tree)
        try:
            with self._run.stage("near", self._seconds):
                compiled = await compile_near(base, build, self._identified, self._tree, manifest)
        except TreeUnreadable as error:
            base.doubt()
            self._reason = f"{base.candidate.identity} is damaged: {error.message}"
        except (UserError, proc.ProgramFailed) as error:  # from scratch, it may do, or say why not
            self._reason = f"not from {base.candidate.identity}: {error.message}"
        else:
            return _Made(build, compiled)
        self._run.log(self._reason)
        await asyncio.to_thread(sandbox.remove, folder)
        return None

    def _build(self, tree: Tree) -> TreeBuild:
        return TreeBuild(tree, self._tools, self._run, self._output, self._bounds)

    async def _compiled(self, build: TreeBuild, objects: int | None) -> _Made:
        return _Made(build, await build.compile(self._identified, objects))

    async def _compare(self, near: _Made, full: _Made) -> Rehearsal:
        """Return whether both are the same kernel; keep the reason where they are not."""
        with self._run.stage("compare", self._seconds):
            ours, theirs = await self._fingerprint(near), await self._fingerprint(full)
        differ = sorted(
            name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
        )
        if not differ:
            self._run.log("rehearsal: from scratch, the kernel is the same")
            return "equal"
        assert self._base is not None
        more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        self._reason = (
            f"made from {self._base.candidate.identity}, it would have been another kernel:"
            f" {', '.join(differ[:_SHOWN])}{more} differ"
        )
        self._run.log(f"rehearsal: {self._reason}")
        return "unequal"

    async def _fingerprint(self, made: _Made) -> dict[str, str]:
        """Return what a kernel comes to, and what builds on it will take, as hashes by name."""
        tree, compiled = made.build.tree, made.compiled
        out = tree.overlay.folder / "compared"
        files = await tree.export(["vmlinux", "System.map", kbuild.MODULES], out)
        hashes: dict[str, str] = {}
        for path in files:
            if path.name == "vmlinux":
                sections = await asyncio.to_thread(section_hashes, path)
                hashes |= {f"vmlinux {name}": words for name, words in sections.items()}
            else:
                hashes[path.name] = await asyncio.to_thread(_sha256, path)
        await asyncio.to_thread(sandbox.remove, out)
        hashes |= {"config": compiled.config, "release": compiled.release}
        hashes |= {"linked objects": compiled.linked.decode(errors="replace")}
        hashes |= _named("environment", compiled.environment)
        hashes |= _named("control", compiled.lacking)
        return hashes | _named("command of", await object_index.commands(tree))

    def _making(
        self,
        chosen: _Made,
        near: _Made | None,
        rehearsal: Rehearsal,
        manifest: Manifest | None,
        sha256: str,
    ) -> EntryMaking:
        candidate = self._base.candidate if self._base else None
        from_base = candidate is not None and chosen is near
        return EntryMaking(
            image_sha256=sha256,
            toolchain=self._toolchain,
            files=manifest.digest if manifest else "",
            base=candidate.identity if candidate and from_base else None,
            files_changed=len(candidate.files.paths) if candidate else 0,
            symbols_changed=candidate.symbols if candidate else 0,
            objects=chosen.compiled.objects,
            reason="" if from_base else self._reason,
            rehearsal=rehearsal,
            rehearsed=candidate.identity if candidate and rehearsal != "none" else None,
            made_at=datetime.now(UTC),
            seconds=chosen.compiled.seconds,
        )


def _named(what: str, values: Mapping[str, str]) -> dict[str, str]:
    return {f"{what} {name}": value for name, value in values.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
