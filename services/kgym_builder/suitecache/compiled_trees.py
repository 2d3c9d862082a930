"""Entries of SuiteCache: what is known of one, its files, and how they are stored.

In storage, the files lie in `suitecache/IDENTITY/`, in a folder named by the
image's SHA-256; beside it, and stored last, `about.json`, which names it. So an
entry is whole or absent, also while another replaces it.
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
# How it was made (`EntryMaking`).
MAKING = "making.json"
# The source files it was made of (`manifest.py`).
MANIFEST = "manifest"
_FILES = (IMAGE, INDEX, LINKED, LOG)
# Files that entries of earlier versions do not have: nothing is made from those.
_LATER = (MAKING, MANIFEST)
_POLL_SECONDS = 1.0

# How the shortcut builds: not at all, with modpost beside the link, or before it.
Order = Literal["", "parallel", "serial"]


class Identified(Strict):
    """What a kernel comes to before anything is compiled."""

    identity: str
    """Names its entry: the same for all requests with the same source and final config."""
    source_identity: str
    config: str
    """The final .config."""
    dropped_symbols: list[DroppedSymbol]
    built_in: list[str] = []
    """The symbols that were to be modules, and are not."""
    backports: list[str]
    substitution: str = ""
    """What is to be said of the compiler; it goes with the request, and is not kept."""


class About(Strict):
    """What is known of an entry: `about.json`, written when the rest of it is whole."""

    source_identity: str
    compiler_version: str
    kernel_release: str
    backports: list[str]
    config: str
    """The final .config."""
    environment: dict[str, str]
    """What the top Makefile gives to its sub-makes."""
    shortcut: Order
    image_sha256: Sha256
    image_bytes: int
    lacking: dict[str, str]
    """Parts of the object that raises faults which this kernel does not take, and why."""
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Entry:
    """A compiled, unpatched kernel tree, as one step uses it."""

    identity: str
    cached: bool
    """Whether it was there before this step, here or in storage."""
    about: About
    dropped_symbols: list[DroppedSymbol]
    """Of the requested config: another request may come to the same entry."""
    built_in: list[str]
    """Likewise."""
    tools: Toolchain
    folder: Path
    """Holds the entry's files on this host."""
    layer: Layer
    root: Layer | None
    """The toolchain image, whose programs work on the tree; None for the host's."""
    limits: SandboxLimits | None
    """Of the sandboxes that the tree is used in."""
    doubt: Callable[[], None]
    """Called when the image could not be read: the next who takes it checks it."""

    def tree(self, folder: Path) -> Tree:
        """Return the tree for one use: what is changed goes to `folder`, which it makes."""
        return Tree(self.lower, folder, self.limits, root=self.root)

    @property
    def lower(self) -> tuple[Layer, ...]:
        """The layers of the unpatched tree."""
        return (self.layer,)

    @property
    def index(self) -> Path:
        """What depends on each file of the tree (`object_index.Index`)."""
        return self.folder / INDEX

    @property
    def linked(self) -> frozenset[str]:
        """The objects that go into vmlinux, and nowhere else."""
        return linked_in(self.folder)


async def store(run: StepContext, identity: str, folder: Path) -> None:
    """Store the files of a new entry, and remove those that it replaces."""
    about = read_about(folder)
    before = await find(run, identity)
    for name in (*_FILES, *_LATER):
        if name in _FILES or (folder / name).exists():
            await run.storage.put(f"{_prefix(identity, about)}/{name}", folder / name)
    await run.storage.remove(mark_of(identity).rpartition("/")[0])  # if it was dropped before
    await run.storage.put(f"suitecache/{identity}/{ABOUT}", folder / ABOUT)
    if before is not None and before.image_sha256 != about.image_sha256:
        await run.storage.remove(_prefix(identity, before))


async def find(run: StepContext, identity: str) -> About | None:
    """Return what is stored of an entry, or None if there is none."""
    text = await _stored(run, f"suitecache/{identity}/{ABOUT}")
    try:
        return About.model_validate_json(text) if text is not None else None
    except ValidationError:  # damaged; or of a version with the same layout, which must not be
        return None


async def fetch(run: StepContext, identity: str, about: About, folder: Path) -> bool:
    """Fetch the entry's files; return False, and forget the stored ones, if they are damaged."""
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
    # Fetched: retention shall see that it is in use.
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
    """Return how a stored entry was made; None of one of an earlier version."""
    text = await _stored(run, f"{_prefix(identity, about)}/{MAKING}")
    try:
        record = EntryMaking.model_validate_json(text) if text is not None else None
    except ValidationError:
        return None
    return record if record is not None and record.image_sha256 == about.image_sha256 else None


async def manifest(run: StepContext, identity: str, about: About) -> Manifest | None:
    """Return the source files of a stored entry; None where that is not known."""
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
    """Read what is known of the entry in this folder."""
    return About.model_validate_json((folder / ABOUT).read_bytes())


def linked_in(folder: Path) -> frozenset[str]:
    """Read which objects of the entry in this folder go into vmlinux."""
    return linked_paths((folder / LINKED).read_bytes())


def linked_paths(lines: bytes) -> frozenset[str]:
    """Return the paths that are listed, a line each."""
    text = lines.decode(errors="surrogateescape")
    return frozenset(posixpath.normpath(line) for line in text.splitlines())


def check(folder: Path, thorough: bool) -> bool:
    """Whether the image in this folder is the one that was packed.

    Its SHA-256 is computed where that is asked for, or where the file was
    changed, or copied, since that was last done.
    """
    try:
        sha256 = read_about(folder).image_sha256
        return sealed_image.matches(folder / IMAGE, sha256, thorough=thorough)
    except (OSError, ValueError):
        return False


def _prefix(identity: str, about: About) -> str:
    return f"suitecache/{identity}/{about.image_sha256[:32]}"
