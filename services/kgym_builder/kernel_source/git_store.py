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
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from kgym.errors import UserError
from kgym.host import proc, sandbox
from kgym.host.folder_cache import FolderCache
from kgym.host.sandbox import Sandbox, prepare
from kgym_builder.kernel_source import git_program
from kgym_builder.kernel_source.git_program import SCRATCH, STORE
from kgym_builder.kernel_source.source_limits import SourceLimits

ARCHIVE = "source.tar"
_OUT = "/kgym/out"
_SECONDS = 300.0
_MOST_KNOWN = 100
_PACK = re.compile(r"pack-[0-9a-f]{40}\.(pack|idx)")
_LOOSE = re.compile(r"[0-9a-f]{38}")
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_DEEP, _ALONE = "deep", "alone"
_NOTE = re.compile(rf"([0-9a-f]{{40}}) ({_DEEP}|{_ALONE})")
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
_ABSENT, _NO_COMMIT = 3, 4
_MISSING = f"""
"$@" cat-file -e "$COMMIT" 2>/dev/null || exit {_ABSENT}
[ "$("$@" cat-file -t "$COMMIT^{{commit}}" 2>/dev/null)" = commit ] || exit {_NO_COMMIT}
"$@" cat-file -e "$COMMIT^{{tree}}" 2>/dev/null || exit {_ABSENT}
"$@" rev-list --objects --no-object-names --missing=print "$COMMIT^{{tree}}" | sed -n 's/^?//p'
"""


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
        async with self._cache.using(self.KEY, _begin):
            yield

    @property
    def shown(self) -> dict[str, Path]:
        """What sandboxes see of it."""
        return {STORE: self._folder}

    async def missing(self, commit: str) -> list[str] | None:
        """Return the ids of the commit's objects that are not here; None without its tree.

        Raises UserError `source_not_found` for the id of another object than a commit,
        `source_too_large`.
        """
        argv = ["bash", "-o", "pipefail", "-c", _MISSING, "bash"]
        argv += git_program.command(folder=STORE)
        box = Sandbox(readonly=self.shown, limits=self._bounds.looking())
        done = await git_program.run("rev-list", box, argv, _SECONDS, what=commit, COMMIT=commit)
        if done.returncode == _ABSENT:
            return None
        if done.returncode == _NO_COMMIT:
            raise UserError("source_not_found", f"{commit} is the id of an object, but no commit")
        if done.returncode != 0:
            raise git_program.failed("rev-list", commit, done)
        ids = done.text.split()
        if len(ids) > self._bounds.files:
            raise UserError("source_too_large", f"{commit} has more than {len(ids)} objects")
        return ids

    async def resolve(self, name: str) -> str | None:
        """Return the id of a commit that lies before one here, as `ID~2`; None if it is unknown."""
        words = ("rev-parse", "-q", "--verify", "--end-of-options", name)
        box = Sandbox(readonly=self.shown, limits=self._bounds.looking())
        argv = git_program.command(*words, folder=STORE)
        done = await git_program.run("rev-parse", box, argv, _SECONDS)
        found = done.text.strip()
        return found if done.returncode == 0 and _COMMIT_ID.fullmatch(found) else None

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
        await asyncio.to_thread(_move, scratch / "objects", self._folder / "objects")

    async def archive(self, commit: str, out: Path) -> proc.Completed:
        """Write the files of a whole commit to the new archive `source.tar` in `out`."""
        return await archive(self.shown, STORE, commit, out, self._bounds)

    def note(self, url: str, commits: Sequence[str], *, history: bool = False) -> None:
        """Note whole commits that came from there: alone, or with all of their `history`."""
        new = dict.fromkeys(commits, history)
        old = {one: deep for one, deep in self._known(url).items() if one not in new}
        path = self._known_file(url)
        part = path.with_suffix(".part")
        lines = [f"{one} {_DEEP if deep else _ALONE}\n" for one, deep in {**old, **new}.items()]
        part.write_text("".join(lines[-_MOST_KNOWN:]))
        part.replace(path)

    async def remove(self) -> None:
        """Remove it, as it is damaged: what others do with it now has to be done again."""
        gone = self._folder.with_name(f".{self.KEY}.part-damaged")
        await asyncio.to_thread(sandbox.remove, gone)
        self._folder.rename(gone)
        await asyncio.to_thread(sandbox.remove, gone)

    def _known(self, url: str) -> dict[str, bool]:
        """Return the commits that are noted, the oldest first, and whether with their history."""
        try:
            lines = self._known_file(url).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        found = [match.groups() for match in map(_NOTE.fullmatch, lines) if match]
        return {commit: kind == _DEEP for commit, kind in found}

    async def _known_here(self, url: str) -> dict[str, bool]:
        """Return those of them that are here: packs may have been lost."""
        known = self._known(url)
        if not known:
            return {}
        box = Sandbox(readonly=self.shown, limits=self._bounds.looking())
        argv = git_program.command("cat-file", "--batch-check=%(objectname)", folder=STORE)
        asked = "".join(f"{one}^{{tree}}\n" for one in known).encode()
        done = await git_program.run("cat-file", box, argv, _SECONDS, stdin=asked)
        answers = done.text.splitlines()
        if done.returncode != 0 or len(answers) != len(known):
            return {}
        there = zip(known.items(), answers, strict=True)
        return dict(one for one, answer in there if _COMMIT_ID.fullmatch(answer))

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
    box = Sandbox(readonly={SCRATCH: scratch}, limits=bounds.looking())
    done = await git_program.run("for-each-ref", box, argv, _SECONDS)
    return [one for one in done.text.split() if _COMMIT_ID.fullmatch(one)]


async def archive(
    shown: Mapping[str, Path], inside: str, commit: str, out: Path, bounds: SourceLimits
) -> proc.Completed:
    """Write the files of a commit of the repository at `inside` to the archive `source.tar`."""
    box = Sandbox(readonly=shown, writable={_OUT: prepare(out)}, limits=bounds.unpacking())
    words = ("archive", "--prefix=linux/", "-o", f"{_OUT}/{ARCHIVE}", commit)
    argv = git_program.command(*words, folder=inside)
    return await git_program.run("archive", box, argv, bounds.unpack_seconds)


def _begin(folder: Path) -> None:
    """Make the store, which is a repository without branches."""
    for name in ("known", "objects", "objects/info", "objects/pack", "refs"):
        (folder / name).mkdir()
    _write(folder, {"HEAD": _HEAD, "config": _CONFIG})


def _make_scratch(folder: Path, config: str, borrows: bool, known: Mapping[str, bool]) -> None:
    """Make a repository that tells servers of the `known` commits."""
    for name in ("", "objects", "objects/info", "objects/pack", "refs"):
        prepare(folder / name)
    files = {"HEAD": _HEAD, "config": config}
    if borrows:
        files["objects/info/alternates"] = f"{STORE}/objects\n"
    if known:
        files["packed-refs"] = "".join(f"{one} refs/known/{one}\n" for one in sorted(known))
    if alone := [one for one, deep in known.items() if not deep]:
        files["shallow"] = "".join(f"{one}\n" for one in alone)
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
        return [Path(one.path) for one in entries if one.is_file(follow_symlinks=False)]


def _take(path: Path, target: Path) -> None:
    if proc.privileged():
        os.chown(path, 0, 0)
    path.chmod(0o444)
    target.parent.mkdir(exist_ok=True)
    path.replace(target)
