"""Entries of SuiteCache: their metadata and files, and how they are stored.

In storage, the files of an entry are in `suitecache/IDENTITY/`, in a folder named by the image's
SHA-256. `about.json` beside it names that folder and is stored last. So an entry is whole or
absent, even while it is replaced.
"""

import asyncio
import posixpath
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from kgym.api.steps import DroppedSymbol, Sha256, Strict
from kgym.api.suitecache import EntryMaking, mark_of
from kgym.host import sealed_image
from kgym.host.sandbox import Layer
from kgym.host.sandbox_limits import SandboxLimits
from kgym.transport.artifact_storage import ArtifactMissing
from kgym.worker.context import StepContext
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.suitecache.manifest import Manifest
from kgym_builder.toolchains.toolchain import Toolchain

IMAGE = "image.squashfs"
INDEX = "index.db"
LINKED = "linked"
LOG = "build.log"
ABOUT = "about.json"
# How the entry was made (`EntryMaking`).
MAKING = "making.json"
# Its source files (`manifest.py`).
MANIFEST = "manifest"
_FILES = (IMAGE, INDEX, LINKED, LOG)
# Entries of earlier versions lack these files; no entry is made from such a one.
_LATER = (MAKING, MANIFEST)
_POLL_SECONDS = 1.0

# How the shortcut links: not at all, with modpost in parallel, or after modpost.
Order = Literal["", "parallel", "serial"]


class Identified(Strict):
    """A kernel's identity and final config, known before anything is compiled."""

    identity: str
    """The entry's name: equal for all requests with the same source and final config."""
    source_identity: str
    config: str
    """The final .config."""
    dropped_symbols: list[DroppedSymbol]
    built_in: list[str] = []
    """Symbols that the config asked for as modules, and that were built in instead."""
    backports: list[str]
    substitution: str = ""
    """Note on a substituted compiler. It depends on the request, so it is not stored."""


class About(Strict):
    """Metadata of an entry: `about.json`, written when its other files are complete."""

    source_identity: str
    compiler_version: str
    kernel_release: str
    backports: list[str]
    config: str
    """The final .config."""
    environment: dict[str, str]
    """Variables that the top Makefile exports to its sub-makes."""
    shortcut: Order
    image_sha256: Sha256
    image_bytes: int
    lacking: dict[str, str]
    """Parts of our fault-raising object that do not compile with this kernel, and why."""
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Entry:
    """A compiled, unpatched kernel tree, as one step uses it."""

    identified: Identified
    """Of the request; others can have the same final config and entry."""
    cached: bool
    """Whether it existed before this step, on this host or in storage."""
    about: About
    tools: Toolchain
    folder: Path
    """The entry's files on this host."""
    layer: Layer
    root: Layer | None
    """Root with the programs for the tree: a toolchain image; None for the host's own."""
    limits: SandboxLimits | None
    """Limits of sandboxes that use the tree."""
    doubt: Callable[[], None]
    """Call it after a read error: the next step that takes the entry verifies its image."""

    def tree(self, folder: Path) -> Tree:
        """Return the tree for one use; changes go to the new `folder`."""
        return Tree((self.layer,), folder, self.limits, root=self.root)

    @property
    def index(self) -> Path:
        """The file of the `object_index.Index`: which objects depend on each file."""
        return self.folder / INDEX

    @property
    def linked(self) -> frozenset[str]:
        """Objects that are linked into vmlinux only."""
        return linked_in(self.folder)


async def store(run: StepContext, identity: str, folder: Path) -> None:
    """Store the files of a new entry, then remove those of the entry that it replaces."""
    about = read_about(folder)
    before = await find(run, identity)
    for name in (*_FILES, *_LATER):
        if name in _FILES or (folder / name).exists():
            await run.storage.put(f"{_prefix(identity, about)}/{name}", folder / name)
    # An earlier mark would let schedulers drop the new entry, too.
    await run.storage.remove(mark_of(identity).rpartition("/")[0])
    await run.storage.put(f"suitecache/{identity}/{ABOUT}", folder / ABOUT)
    if before is not None and before.image_sha256 != about.image_sha256:
        await run.storage.remove(_prefix(identity, before))


async def find(run: StepContext, identity: str) -> About | None:
    """Return the metadata of the stored entry, or None if there is none."""
    text = await _stored(run, f"suitecache/{identity}/{ABOUT}")
    try:
        return About.model_validate_json(text) if text is not None else None
    except ValidationError:  # damaged; a change of these fields needs another LAYOUT
        return None


async def fetch(run: StepContext, identity: str, about: About, folder: Path) -> bool:
    """Fetch the entry's files. If they are damaged, remove them from storage and return False."""
    try:
        for name in _FILES:
            await run.storage.get(f"{_prefix(identity, about)}/{name}", folder / name)
    except ArtifactMissing:
        return False
    for name in _LATER:
        with suppress(ArtifactMissing):
            await run.storage.get(f"{_prefix(identity, about)}/{name}", folder / name)
    (folder / ABOUT).write_text(about.model_dump_json())
    seal = folder.parent / f".{identity}.seal"  # while `folder` has another name
    image = folder / IMAGE
    right = partial(sealed_image.matches, image, about.image_sha256, thorough=True, seal=seal)
    if not await asyncio.to_thread(right):
        await run.storage.remove(f"suitecache/{identity}")
        for name in (*_FILES, *_LATER, ABOUT):
            (folder / name).unlink(missing_ok=True)
        return False
    # Stored again, so that retention sees that the entry is in use.
    await run.storage.put(f"suitecache/{identity}/{ABOUT}", folder / ABOUT)
    return True


async def fetched(run: StepContext, identity: str, folder: Path, *, fresh: bool) -> bool:
    """Fetch the entry; or return False, with its name held, so that this step makes it.

    While another step holds the name, wait for the entry that it makes. With `fresh`, an entry
    that is stored already does not count.
    """
    unwanted = await find(run, identity) if fresh else None
    waits = False
    while True:
        ours = await run.hold(f"suitecache/{identity}")
        about = await find(run, identity)
        if about is not None and (unwanted is None or about != unwanted):
            run.progress("fetch", 0, about.image_bytes, "bytes")
            if await fetch(run, identity, about, folder):
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


async def making(run: StepContext, identity: str, about: About) -> EntryMaking | None:
    """Return how a stored entry was made; None if an earlier version made it."""
    text = await _stored(run, f"{_prefix(identity, about)}/{MAKING}")
    try:
        record = EntryMaking.model_validate_json(text) if text is not None else None
    except ValidationError:
        return None
    return record if record is not None and record.image_sha256 == about.image_sha256 else None


async def manifest(run: StepContext, identity: str, about: About) -> Manifest | None:
    """Return the manifest of a stored entry's source; None if there is none."""
    text = await _stored(run, f"{_prefix(identity, about)}/{MANIFEST}")
    try:
        return Manifest.parse(text) if text is not None else None
    except ValueError:  # damaged
        return None


async def _stored(run: StepContext, key: str) -> bytes | None:
    path = run.folder / f"stored-{uuid.uuid4().hex}"
    try:
        await run.storage.get(key, path)
        return await asyncio.to_thread(path.read_bytes)
    except ArtifactMissing:
        return None
    finally:
        path.unlink(missing_ok=True)


def read_about(folder: Path) -> About:
    """Read the metadata of the entry in this folder."""
    return About.model_validate_json((folder / ABOUT).read_bytes())


def linked_in(folder: Path) -> frozenset[str]:
    """Read the list of objects that are linked into the vmlinux of this folder's entry."""
    return linked_paths((folder / LINKED).read_bytes())


def linked_paths(lines: bytes) -> frozenset[str]:
    """Return the paths of a list with one path per line."""
    text = lines.decode(errors="surrogateescape")
    return frozenset(posixpath.normpath(line) for line in text.splitlines())


def check(folder: Path, thorough: bool) -> bool:
    """Return whether the image in this folder is the one that was packed.

    Its SHA-256 is computed if `thorough`, or if the file's inode, size or times have changed since
    it was last computed. Bits that rot without that show up as read errors (`Entry.doubt`).
    """
    try:
        sha256 = read_about(folder).image_sha256
        return sealed_image.matches(folder / IMAGE, sha256, thorough=thorough)
    except (OSError, ValueError):
        return False


def _prefix(identity: str, about: About) -> str:
    return f"suitecache/{identity}/{about.image_sha256[:32]}"
