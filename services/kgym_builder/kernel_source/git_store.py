"""The one store of Git objects of a host, for all repositories.

It is a bare repository without branches. Objects are named by the hash of their content, so those
of one repository serve all others. What a fetch brought is taken in when that fetch has ended, by
whole packs, which Git has hashed; no sandbox can write here. Which commits are whole is found out
by looking at their objects, never noted: so a fetch that broke off goes on with what has come.

Of each URL the newest commits are noted in `known/`. Its server, which has them, is told of these
alone, so that it sends what has changed since: those of others are none of its business.
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
# A source is what its commit holds, whatever its own attributes leave out or change: these here go
# before them. `-working-tree-encoding` would be an encoding called false.
_PLAIN = "* -text !eol !ident !filter !working-tree-encoding !export-ignore !export-subst\n"
_HEAD = "ref: refs/heads/none\n"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
# A repository that lacks objects, and may be sent less than all.
_PARTIAL_CONFIG = """[core]
	repositoryformatversion = 1
	bare = true
[extensions]
	partialClone = origin
[remote "origin"]
	promisor = true
"""
# What would change what the store's objects mean, or stop Git: none of it is ever put there.
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
        """Keep the store from being removed."""
        async with self._cache.using(self.KEY, _mend):
            await asyncio.to_thread(_mend, self._folder)
            yield

    @property
    def shown(self) -> dict[str, Path]:
        """What sandboxes see of it."""
        return {STORE: self._folder}

    @property
    def objects(self) -> Objects:
        """What it has."""
        return Objects(self.shown, STORE, self._bounds)

    async def scratch(self, folder: Path, url: str, *, partial: bool = False) -> Path:
        """Make a repository to fetch to, which borrows the store's objects.

        It tells a server of the commits that are known of `url`; it takes less than
        all if it is `partial`.
        """
        known = await self._known_here(url)
        config = _PARTIAL_CONFIG if partial else _CONFIG
        await asyncio.to_thread(_make_scratch, folder, config, True, known)
        return folder

    async def take_in(self, scratch: Path) -> None:
        """Take in what a fetch has brought, with nothing of it running any more."""
        await asyncio.to_thread(_mend, self._folder)  # another job may have found it damaged
        await asyncio.to_thread(_move, scratch / "objects", self._folder / "objects")

    def note(self, url: str, commits: Sequence[str], *, history: bool = False) -> None:
        """Note whole commits that came from there: alone, or with all of their `history`."""
        new = dict.fromkeys(commits, history)
        old = {commit: deep for commit, deep in self._known(url).items() if commit not in new}
        path = self._known_file(url)
        part = path.with_suffix(".part")
        lines = [
            f"{commit} {_DEEP if deep else _ALONE}\n" for commit, deep in {**old, **new}.items()
        ]
        part.write_text("".join(lines[-_MOST_KNOWN:]))
        part.replace(path)

    def state(self) -> int:
        """Return what names the store as it is, until it is made anew."""
        return self._folder.stat().st_ino

    async def renew(self, state: int, why: str, scratch: Path) -> None:
        """Make it anew from what was fetched without it, as it is damaged, and log why.

        Others that used it have to do again what they did with it. One that is in another `state`
        was made anew by somebody else.
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
        """Return the commits that are noted, the oldest first, and whether with their history."""
        try:
            lines = self._known_file(url).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        notes = [match.groups() for match in map(_NOTE.fullmatch, lines) if match]
        return {commit: kind == _DEEP for commit, kind in notes}

    async def _known_here(self, url: str) -> dict[str, bool]:
        """Return those of them that are here: packs may have been lost."""
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
    """Return what names a URL on this host's disk."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


async def lone_scratch(folder: Path, *, partial: bool = False) -> Path:
    """Make a repository to fetch to that knows of no store; it may lack objects if `partial`."""
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
    """Make the store, which is a repository without branches, or what it lacks of one."""
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
    """Move packs and objects. Their names are all that is believed: no links are followed."""
    packs = [path for path in _regular(source / "pack") if _PACK.fullmatch(path.name)]
    # An index makes its pack visible.
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
