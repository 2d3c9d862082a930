"""Kernel trees for agents, as Git repositories: created once, then mounted instantly.

The blobs of a kernel are cached in one layer per kernel. The tree of a bug is a folder of its own,
checked out from its only commit; it takes as much space as the kernel. An environment is an overlay
on it, and keeps its changes to itself.

An agent must not see which files a fix changes. So a tree contains no object besides those of its
commit, all its files have the same time, and they were created in the order of their names. Nothing
on this machine reads only some of them, which would leave access times and cached pages: an agent's
patch is compared with `Published` instead.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kgym.host import sandbox
from kgym.host.folder_cache import FolderCache
from kgym.host.sandbox import Overlay, Sandbox
from kgym.source.change_archive import archive
from kgym.source.patching import Change
from kgym.source.source_folder import SourceFolder

PLACE = "/linux"
# Version of the layers' content; part of their names.
LAYOUT = 3
# Bytes of layers, and of trees, kept on a host.
BUDGET = 20 << 30
_SECONDS = 1800.0
_UPPER, _TREE = "layer/upper", "out/tree"
# Git without user or system configuration, with fixed dates, so that commit ids are reproducible.
GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in {
            "NAME": "kgym",
            "EMAIL": "kgym@localhost",
            "DATE": "1970-01-01T00:00:00Z",
        }.items()
    },
}

# Arguments: the files to remove. stdin: an archive of the files to write.
# Blobs go straight into a pack (`bigFileThreshold`): creating a file for each takes longer. A bug's
# blobs do so, too: the tree's pack copies them unchanged, and another compression would reveal
# them. Without conversions by attributes, files are checked out exactly as they are here.
_KERNEL = Path(__file__).with_name("commit_kernel.sh").read_text()
# /out/paths contains the changed paths, each terminated by a NUL byte. The tree is written to
# /out/tree in the order of names, so that change times and inode numbers reveal nothing either.
# The index is newer than the files, or Git would read them all again. The files' access times are
# later still: file systems mounted relatime then leave them unchanged.
_BUG = Path(__file__).with_name("commit_bug.sh").read_text()


@dataclass(frozen=True, slots=True)
class Published(Mapping[str, bytes]):
    """A kernel's source with the changes that builds add, and those that bring the bug back.

    As a mapping, it has the contents of the regular files of the bug's tree, by path.
    """

    identity: str
    tree: Path
    """The files as published."""
    added: Sequence[Change]
    bug: Sequence[Change]

    def __getitem__(self, path: str) -> bytes:
        """Return a file's content."""
        changes = self._changes
        content = changes[path] if path in changes else SourceFolder(self.tree)[path]
        if content is None:
            raise KeyError(path)
        return content

    def __iter__(self) -> Iterator[str]:
        """Yield all paths, even of links."""
        changes = self._changes
        yield from (path for path in SourceFolder(self.tree) if path not in changes)
        yield from (path for path, content in changes.items() if content is not None)

    def __len__(self) -> int:
        """Return the number of paths, counted anew."""
        return sum(1 for _ in self)

    @property
    def _changes(self) -> dict[str, bytes | None]:
        return {change.path: change.content for change in (*self.added, *self.bug)}


class Trees:
    """The trees of a host, kept below `root`."""

    def __init__(self, root: Path) -> None:
        self._kernels = FolderCache(root / "kernels")
        self._bugs = FolderCache(root / "bugs")

    async def get(
        self, source: Published, held: ExitStack, tell: Callable[[str], None] = lambda _: None
    ) -> SourceFolder:
        """Return the tree with the bug, created if needed; it is kept until `held` is closed."""
        kernel_key = _key(LAYOUT, source.identity, *map(_named, source.added))
        key = _key(kernel_key, *map(_named, source.bug))

        async def kernel(folder: Path) -> None:
            tell("making a Git repository of the kernel, once for all its bugs")
            await _run(folder, (source.tree,), _KERNEL, source.added)
            await asyncio.to_thread(sandbox.remove, folder / "out")

        async def bug(folder: Path) -> None:
            with ExitStack() as making:
                below, _ = await self._kernels.get(kernel_key, kernel, held=making)
                await _run(folder, (below / _UPPER, source.tree), _BUG, source.bug)
            await asyncio.to_thread(sandbox.remove, folder / "layer")

        folder, there = await self._bugs.get(key, bug, held=held)
        if not there:
            await asyncio.to_thread(self._bugs.trim, BUDGET)
            await asyncio.to_thread(self._kernels.trim, BUDGET)
        return SourceFolder(folder / _TREE)


async def _run(
    folder: Path, lower: tuple[Path, ...], script: str, changes: Sequence[Change]
) -> None:
    """Run a script on these changes, in an overlay on `lower`; its results are below `folder`."""
    overlay = Overlay(lower, folder / "layer").create()
    out = sandbox.prepare(folder / "out")
    (out / "paths").write_bytes(b"".join(change.path.encode() + b"\0" for change in changes))
    box = Sandbox(overlays={PLACE: overlay}, writable={"/out": out})
    removed = [change.path for change in changes if change.content is None]
    await box.run(
        ["sh", "-c", script, "sh", *removed],
        cwd=PLACE,
        stdin=archive(changes),
        env=GIT,
        timeout=_SECONDS,
    )
    # Overlayfs needs its work folder only while it is mounted.
    await asyncio.to_thread(sandbox.remove, folder / "layer" / "work")


def _named(change: Change) -> str:
    content = "" if change.content is None else hashlib.sha256(change.content).hexdigest()
    return f"{change.path}\0{content}\0{change.executable}"


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:32]
