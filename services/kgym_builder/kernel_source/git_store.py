"""The store of Git objects of a host, shared by all repositories.

It is a bare repository without branches. Kernels' trees differ little, and objects are named by
their hashes, so those of one repository serve all others. No sandbox can write here: whole packs,
which Git has hashed, are moved in when a fetch has ended. Whether a commit is complete is looked up
in its objects, never recorded, so an aborted fetch needs no repair.

`known/` records the newest commits of each URL. Servers without filters are told of them, to send
only what has changed since. A server is never told of commits from another URL: they may be secret.
"""

import asyncio
import hashlib
import os
import re
import stat
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from kgym.atomic_files import replace_file
from kgym.host import proc, sandbox
from kgym.host.folder_cache import FolderCache, locked
from kgym.host.sandbox import prepare
from kgym_builder.kernel_source import git_program
from kgym_builder.kernel_source.git_objects import Objects
from kgym_builder.kernel_source.git_program import OBJECT_ID, SCRATCH, STORE
from kgym_builder.kernel_source.source_limits import SourceLimits

_MOST_KNOWN = 100
_PACK = re.compile(r"pack-[0-9a-f]{40}\.(pack|idx)")
_LOOSE = re.compile(r"[0-9a-f]{38}")
_DEEP, _ALONE = "deep", "alone"
_NOTE = re.compile(rf"([0-9a-f]{{40}}) ({_DEEP}|{_ALONE})")
_ATTRIBUTES = "info/attributes"
# These attributes override those of a commit, which could leave files out or change them.
# `-working-tree-encoding` would mean an encoding called false, hence `!`.
_PLAIN = "* -text !eol !ident !filter !working-tree-encoding !export-ignore !export-subst\n"
_HEAD = "ref: refs/heads/none\n"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
# A repository that may lack objects, so that a fetch can leave some out.
_PARTIAL_CONFIG = """[core]
	repositoryformatversion = 1
	bare = true
[extensions]
	partialClone = origin
[remote "origin"]
	promisor = true
"""
# Files that would change the meaning of the store's objects, or stop Git. We never write them.
_FOREIGN = ("objects/info/alternates", "info/grafts", "packed-refs", "shallow", "shallow.lock")
_log = structlog.get_logger()


class Store:
    """The store below `root`."""

    KEY = "store"

    def __init__(self, root: Path, bounds: SourceLimits) -> None:
        self._cache = FolderCache(root)
        self._folder = root / self.KEY
        self._bounds = bounds

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Keep the store from being removed while the context lasts."""
        async with self._cache.using(self.KEY, _mend):
            await asyncio.to_thread(_mend, self._folder)
            yield

    @property
    def shown(self) -> dict[str, Path]:
        """The store's mount in sandboxes."""
        return {STORE: self._folder}

    @property
    def objects(self) -> Objects:
        """The store's objects."""
        return Objects(self.shown, STORE, self._bounds)

    async def scratch(self, folder: Path, url: str, *, partial: bool = False) -> Path:
        """Make a repository to fetch into, which borrows the store's objects.

        It tells the server of the known commits of `url`. If `partial`, it accepts a filtered
        fetch.
        """
        known = await self._known_here(url)
        config = _PARTIAL_CONFIG if partial else _CONFIG
        await asyncio.to_thread(_make_scratch, folder, config, True, known)
        return folder

    async def take_in(self, scratch: Path) -> None:
        """Move the objects of a fetch into the store, after its programs have ended."""
        await asyncio.to_thread(_mend, self._folder)  # another job may have removed it as damaged
        await asyncio.to_thread(_move, scratch / "objects", self._folder / "objects")

    def note(self, url: str, commits: Sequence[str], *, history: bool = False) -> None:
        """Record complete commits of a URL: alone, or with their whole `history`."""
        new = dict.fromkeys(commits, history)
        old = {commit: deep for commit, deep in self._known(url).items() if commit not in new}
        lines = [
            f"{commit} {_DEEP if deep else _ALONE}\n" for commit, deep in {**old, **new}.items()
        ]
        replace_file(self._known_file(url), "".join(lines[-_MOST_KNOWN:]))

    def state(self) -> int:
        """Return an id of the store that changes when it is renewed."""
        return self._folder.stat().st_ino

    async def renew(self, state: int, why: str, scratch: Path) -> None:
        """Replace the damaged store by what was fetched without it; log why.

        Other users of the store have to repeat their work. If the store is in another `state`,
        somebody else has renewed it already.
        """
        async with locked(self._folder.with_name(f".{self.KEY}-anew.lock")):
            if self._folder.exists() and self.state() == state:
                _log.warning("damaged store of Git objects removed", store=self.KEY, why=why)
                gone = self._folder.with_name(f".{self.KEY}.part-damaged")
                await asyncio.to_thread(sandbox.remove, gone)
                self._folder.rename(gone)
                await asyncio.to_thread(_mend, self._folder)
                await asyncio.to_thread(sandbox.remove, gone)
        await self.take_in(scratch)

    def _known(self, url: str) -> dict[str, bool]:
        """Return the recorded commits, oldest first, and whether each has its history."""
        try:
            lines = self._known_file(url).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        notes = [match.groups() for match in map(_NOTE.fullmatch, lines) if match]
        return {commit: kind == _DEEP for commit, kind in notes}

    async def _known_here(self, url: str) -> dict[str, bool]:
        """Return the recorded commits that the store still has: packs may have been lost."""
        known = self._known(url)
        if not known:
            return {}
        argv = git_program.command("cat-file", "--batch-check=%(objectname)", folder=STORE)
        asked = "".join(f"{commit}^{{tree}}\n" for commit in known).encode()
        answer = await self.objects.ask("cat-file", argv, asked)
        if answer.done.returncode != 0 or len(answer.lines) != len(known):
            return {}
        there = zip(known.items(), answer.lines, strict=True)
        return dict(
            known_commit for known_commit, answered in there if OBJECT_ID.fullmatch(answered)
        )

    def _known_file(self, url: str) -> Path:
        return self._folder / "known" / key(url)


def key(url: str) -> str:
    """Return the name of a URL on this host's disk."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


async def lone_scratch(folder: Path, *, partial: bool = False) -> Path:
    """Make a repository to fetch into without a store; it may lack objects if `partial`."""
    config = _PARTIAL_CONFIG if partial else _CONFIG
    await asyncio.to_thread(_make_scratch, folder, config, False, {})
    return folder


async def tips(scratch: Path, bounds: SourceLimits) -> list[str]:
    """Return the newest commits of the branches that were fetched."""
    words = ("for-each-ref", "--sort=-committerdate", f"--count={_MOST_KNOWN}")
    argv = git_program.command(*words, "--format=%(objectname)", "refs/heads")
    answer = await Objects({SCRATCH: scratch}, SCRATCH, bounds).ask("for-each-ref", argv)
    return [commit for commit in answer.lines if OBJECT_ID.fullmatch(commit)]


def _mend(folder: Path) -> None:
    """Create the store, or restore the files that it lacks."""
    for name in ("", "info", "known", "objects", "objects/info", "objects/pack", "refs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in _FOREIGN:
        (folder / name).unlink(missing_ok=True)
    files = {"HEAD": _HEAD, "config": _CONFIG, _ATTRIBUTES: _PLAIN}
    for name, text in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != text.encode():
            part = folder / f".{uuid.uuid4().hex}.part"
            _write(folder, {part.name: text})
            part.replace(path)


def _make_scratch(folder: Path, config: str, borrows: bool, known: Mapping[str, bool]) -> None:
    """Make a repository that tells servers of the `known` commits."""
    for name in ("", "info", "objects", "objects/info", "objects/pack", "refs"):
        prepare(folder / name)
    files = {"HEAD": _HEAD, "config": config, _ATTRIBUTES: _PLAIN}
    if borrows:
        files["objects/info/alternates"] = f"{STORE}/objects\n"
    if known:
        files["packed-refs"] = "".join(
            f"{commit} refs/known/{commit}\n" for commit in sorted(known)
        )
    if alone := [commit for commit, deep in known.items() if not deep]:
        files["shallow"] = "".join(f"{commit}\n" for commit in alone)
    _write(folder, files)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)


def _move(source: Path, target: Path) -> None:
    """Move packs and objects. Only regular files with valid names are moved; links are not."""
    packs = [path for path in _regular(source / "pack") if _PACK.fullmatch(path.name)]
    # Indexes last: an index makes its pack visible.
    for path in sorted(packs, key=lambda path: path.suffix == ".idx"):
        _take(path, target / "pack" / path.name)
    for number in range(256):
        loose = source / f"{number:02x}"
        for path in _regular(loose):
            if _LOOSE.fullmatch(path.name):
                _take(path, target / loose.name / path.name)


def _regular(folder: Path) -> list[Path]:
    """Return the regular files in a folder that sandboxed programs wrote to."""
    if not os.path.lexists(folder) or not stat.S_ISDIR(folder.lstat().st_mode):
        return []
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]


def _take(path: Path, target: Path) -> None:
    if proc.privileged():
        os.chown(path, 0, 0)
    path.chmod(0o444)
    target.parent.mkdir(exist_ok=True)
    path.replace(target)
