"""The tree that patches are checked on: a SuiteCache entry, with the base's patches on it.

The base is compiled once for all checks on it, and kept as a layer of its own beside the entries.
Warnings that objects give without the patch are kept as memos.
"""

import asyncio
import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kgym.api.steps import Diagnostic, Patch, Strict
from kgym.errors import UserError
from kgym.host import sandbox
from kgym.host.folder_cache import FolderCache
from kgym.host.resources import Host
from kgym.source import diagnostics
from kgym.worker import memo
from kgym.worker.context import StepContext
from kgym_builder.check import compile_plan, patch_judgement
from kgym_builder.check.compilation import CompileBatch, CompileCommands, compiled
from kgym_builder.kbuild import kconfig, object_index
from kgym_builder.kbuild.object_index import Index, Object
from kgym_builder.kbuild.saved_commands import compile_words
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import patched_files
from kgym_builder.suitecache.compiled_trees import Entry

# Version of a layer's content; part of its identity.
LAYOUT = 1
# Bytes of compiled bases that a host keeps; most have some 10 MB.
BUDGET = 5 << 30
# A limit on dependents that leaves none out: the base's objects have to be complete.
_EVERY = 1 << 30
# Bytes of source files that a worker keeps in memory.
_MOST_KEPT = 64 << 20


class _Warnings(Strict):
    warnings: list[Diagnostic]


@dataclass(frozen=True, slots=True)
class BaseLayer:
    """A compiled tree; `upper` is the base's layer, if there is one."""

    key: str
    entry: Entry
    index: Index
    upper: Path | None = None

    def tree(self, folder: Path) -> Tree:
        """Return the tree for one use, as `Entry.tree` does."""
        above = () if self.upper is None else (self.upper,)
        return Tree((*above, self.entry.layer), folder, self.entry.limits, root=self.entry.root)


class _SourceFile(NamedTuple):
    """A file of a base layer: None if it does not exist, or lies behind a symbolic link."""

    content: bytes | None
    behind_link: bool


class BaseLayers:
    """The compiled bases of this host, kept below `cache`."""

    def __init__(self, cache: Path) -> None:
        self._bases = FolderCache(cache / "bases")
        # By the layer's key, the entry's image and the path; the least recently used first.
        self._files: dict[tuple[str, str, str], _SourceFile] = {}

    async def get(self, entry: Entry, base: Sequence[Patch], run: StepContext) -> BaseLayer:
        """Return the entry with the base, compiled if need be; it is held for the attempt.

        Raises UserError if the base does not apply or does not compile.
        """
        bare = BaseLayer(entry.identified.identity, entry, Index(entry.index))
        if not base:
            return bare
        patches = [patch.model_dump(mode="json") for patch in base]
        # The image is part of the key: an entry that was made again has other files and times.
        parts = json.dumps([LAYOUT, entry.identified.identity, entry.about.image_sha256, patches])
        key = hashlib.sha256(parts.encode()).hexdigest()[:32]

        async def make(folder: Path) -> None:
            await _compile_base(bare, base, run, folder)

        folder, _ = await self._bases.get(key, make, held=run.held)
        await asyncio.to_thread(self._bases.trim, BUDGET)
        return BaseLayer(key, entry, Index(folder / "index.db"), folder / "upper")

    async def read(
        self, layer: BaseLayer, paths: Iterable[str], folder: Path
    ) -> tuple[dict[str, bytes], set[str]]:
        """Return the contents of the files that exist, and the paths behind a symbolic link.

        Files that this worker has not read before are read by a sandbox that uses `folder`.
        """
        # A layer never changes, and agents try one patch after the other on the same few files.
        # Without this cache, starting a second sandbox takes half of a check's time besides the
        # compiler's.
        keys = {path: (layer.key, layer.entry.about.image_sha256, path) for path in paths}
        # Copied before the wait: another check may meanwhile have files forgotten.
        files = {path: self._files[key] for path, key in keys.items() if key in self._files}
        if unread := sorted(keys.keys() - files.keys()):
            tree = layer.tree(folder)
            read_contents, behind_links = await tree.look(unread)
            await asyncio.to_thread(sandbox.remove, tree.overlay.folder)
            for path in unread:
                files[path] = _SourceFile(read_contents.get(path), path in behind_links)
        for path, file in files.items():
            self._files.pop(keys[path], None)  # to the end: it was used last
            self._files[keys[path]] = file
        self._forget()
        contents = {path: file.content for path, file in files.items() if file.content is not None}
        return contents, {path for path, file in files.items() if file.behind_link}

    def _forget(self) -> None:
        # A path takes memory even if its file does not exist.
        sizes = {key: len(key[2]) + len(file.content or b"") for key, file in self._files.items()}
        kept = sum(sizes.values())
        for key, size in sizes.items():
            if kept <= _MOST_KEPT:
                break
            del self._files[key]
            kept -= size

    async def warnings(self, ground: BaseLayer, obj: Object, run: StepContext) -> list[Diagnostic]:
        """Return an object's warnings without the patch: from a memo, or by compiling it."""
        name = memo.key("warnings", ground.key, obj.path)
        if (known := await memo.recall(run, name, _Warnings)) is not None:
            return known.warnings
        words = compile_words(obj.command)
        work = CompileBatch([], [CompileCommands([words], [])] if words else [])
        tree = ground.tree(run.folder / f"warnings-{uuid.uuid4().hex}")
        done = (await compiled(tree, work, 1)).jobs.get(0)
        await asyncio.to_thread(sandbox.remove, tree.overlay.folder)
        warnings = diagnostics.parse(done.output.splitlines()) if done else []
        await memo.remember(run, name, _Warnings(warnings=warnings))
        return warnings


async def _compile_base(
    bare: BaseLayer, base: Sequence[Patch], run: StepContext, folder: Path
) -> None:
    run.log("compiling the base, once for all checks on it")
    tree = bare.tree(folder)
    before = await patched_files.read(tree, base)
    changes = patched_files.in_all(await patched_files.applied(tree, base, before, run.log))
    files = compile_plan.file_changes(changes, before)
    modules = bool(kconfig.modules(bare.entry.about.config))
    known = bare.index.dependents(file.path for file in files)
    plan = compile_plan.plan(files, known, _EVERY, modules=modules)
    cores = Host.here().cores
    work = patch_judgement.work(plan, bare.entry.tools, changes, ())
    outcome = await compiled(tree, work, cores)
    judged = patch_judgement.PatchJudgement(plan, outcome)
    if judged.failed:
        raise UserError(
            "does_not_compile",
            f"the base does not compile: {judged.reason}",
            diagnostics=[error.model_dump() for error in judged.errors[:100]],
        )
    # Indexed anew, as the base's patches may have changed commands and dependencies.
    await object_index.build(tree, folder / "index.db")
    tree.discard_work()
