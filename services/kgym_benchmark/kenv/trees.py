"""Kernel trees for agents, as Git repositories: created once, then mounted instantly.

Creating a repository of a kernel takes a minute. So its files and objects are cached as one layer
per kernel. On it lies one layer per bug, with the files that bring the bug back and the only
commit. An environment is an overlay of both, and keeps its changes to itself.

An agent must not find the fix in the repository. So the objects of the files without the bug are
removed, and the commit with the bug is the only one.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kgym.host import sandbox
from kgym.host.folder_cache import FolderCache
from kgym.host.sandbox import Overlay, Sandbox
from kgym.source.change_archive import archive
from kgym.source.patching import Change

PLACE = "/linux"
# Version of the layers' content; part of their names.
LAYOUT = 1
# Bytes of layers kept on a host.
BUDGET = 20 << 30
_SECONDS = 1800.0
_UPPER = "layer/upper"
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
# Objects stay loose: `_BUG` removes those of the fixed files, and a pack would keep them.
_KERNEL = """set -e
tar -xf - --no-same-owner --unlink-first
[ $# = 0 ] || rm -f -- "$@"
rm -rf .git
git init -q --template= -b master
git config core.checkStat minimal
git config core.trustctime false
git config core.looseCompression 1
git config core.fsync none
git config gc.auto 0
git config maintenance.auto false
git config core.logAllRefUpdates false
git add -A -f .
git write-tree >/dev/null
"""
# /out/paths contains the changed paths, each terminated by a NUL byte.
_BUG = """set -e
xargs -0r git --literal-pathspecs ls-files -s -- </out/paths | cut -d' ' -f2 | sort -u >/out/old
tar -xf - --no-same-owner --unlink-first
[ $# = 0 ] || rm -f -- "$@"
[ ! -s /out/paths ] ||
    git --literal-pathspecs add -A -f --pathspec-from-file=/out/paths --pathspec-file-nul
git ls-files -s | cut -d' ' -f2 | sort -u >/out/kept
comm -23 /out/old /out/kept | while read -r id; do
    rest=${id#??}
    rm -f -- ".git/objects/${id%"$rest"}/$rest"
done
git commit -q --allow-empty --no-verify -m 'The kernel'
git config kgym.base "$(git rev-parse HEAD)"
"""


@dataclass(frozen=True, slots=True)
class Published:
    """A kernel's source, the changes that builds add, and those that bring the bug back."""

    identity: str
    tree: Path
    """The files as published."""
    added: Sequence[Change]
    bug: Sequence[Change]


@dataclass(frozen=True, slots=True)
class BugTree:
    """A tree with a bug; `layers` are read-only, the topmost first."""

    layers: tuple[Path, ...]

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if it is missing, or not a regular file."""
        for layer in self.layers:
            file = _inside(layer, path)
            if file is not None and file.is_file():
                return file.read_bytes()
            if file is not None and (file.is_char_device() or file.is_symlink()):
                return None  # a whiteout: overlayfs marks a removed file by a character device
        return None


def _inside(layer: Path, path: str) -> Path | None:
    """Return the path in a layer; None if it does not exist, or leads through a link."""
    here = layer
    parts = Path(path).parts
    if ".." in parts or Path(path).is_absolute():
        return None
    # Links could lead out of the layer, to files of this machine.
    for part in parts:
        if here.is_symlink():
            return None
        here = here / part
    return here if here.is_symlink() or here.exists() else None


class Trees:
    """The trees of a host, kept below `root`."""

    def __init__(self, root: Path) -> None:
        self._kernels = FolderCache(root / "kernels")
        self._bugs = FolderCache(root / "bugs")

    async def get(
        self, source: Published, held: ExitStack, tell: Callable[[str], None] = lambda _: None
    ) -> BugTree:
        """Return the tree with the bug, created if needed; it is kept until `held` is closed."""
        kernel_key = _key(LAYOUT, source.identity, *map(_named, source.added))
        key = _key(kernel_key, *map(_named, source.bug))

        async def kernel(folder: Path) -> None:
            tell("making a Git repository of the kernel, once for all its bugs")
            await _layer(folder, (source.tree,), _KERNEL, source.added)

        kernel_folder, _ = await self._kernels.get(kernel_key, kernel, held=held)
        below = (kernel_folder / _UPPER, source.tree)

        async def bug(folder: Path) -> None:
            await _layer(folder, below, _BUG, source.bug)

        folder, there = await self._bugs.get(key, bug, held=held)
        if not there:
            await asyncio.to_thread(self._bugs.trim, BUDGET)
            await asyncio.to_thread(self._kernels.trim, BUDGET)
        return BugTree((folder / _UPPER, *below))


async def _layer(
    folder: Path, lower: tuple[Path, ...], script: str, changes: Sequence[Change]
) -> None:
    """Create a layer in `folder` by running a script on these changes."""
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
    for rest in (out, folder / "layer" / "work"):
        await asyncio.to_thread(sandbox.remove, rest)


def _named(change: Change) -> str:
    content = "" if change.content is None else hashlib.sha256(change.content).hexdigest()
    return f"{change.path}\0{content}\0{change.executable}"


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:32]
