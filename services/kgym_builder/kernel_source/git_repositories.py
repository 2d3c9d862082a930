"""Commits of Git repositories: resolve names to ids, fetch single commits, and archive their files.

Fetched objects go to one store of the host (`git_store.py`). A fetch gets a commit's folders first,
then the files that the store lacks, some thousands at a time, and keeps each lot. So a commit costs
what has changed since other commits, in whatever repository, and an aborted fetch resumes: Git
itself cannot resume a pack. Servers without filters send a commit in one piece; from servers that
send no single commits, all branches are fetched.
"""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from kgym.api.steps import HistoryLook
from kgym.errors import InfrastructureError, UserError
from kgym.host import sandbox
from kgym.host.folder_cache import FolderCache, locked
from kgym_builder.kernel_source import git_program, git_store, line_history
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.download import TellProgress
from kgym_builder.kernel_source.git_mirrors import LocalPlace
from kgym_builder.kernel_source.git_objects import Objects
from kgym_builder.kernel_source.git_program import SCRATCH, OnlyBranches, Suspect
from kgym_builder.kernel_source.git_remote import ALL, NO_FILES, NO_OBJECTS, Remote
from kgym_builder.kernel_source.git_store import Store
from kgym_builder.kernel_source.line_history import LineHistory
from kgym_builder.kernel_source.source_limits import SourceLimits

# Generations between a named commit and the one that is asked for.
MOST_GENERATIONS = 1000
# Prefix of a commit's name that asks for its parent.
PARENT = "parent-of "
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_STEP = re.compile(r"([~^])(\d*)")
_T = TypeVar("_T")


class Repositories:
    """The commits of a host, in a store below `root`."""

    def __init__(self, root: Path, origins: Origins, bounds: SourceLimits) -> None:
        self._root = root
        self._origins = origins
        self._bounds = bounds
        self._store = Store(root, bounds)

    async def commit(self, url: str, name: str, report: TellProgress) -> str:
        """Return the current full id of a commit, branch, tag or HEAD.

        `NAME^`, `NAME~2` and `parent-of NAME` name its ancestors. Raises UserError
        `source_not_allowed`, `source_not_found`.
        """
        self._origins.repositories(url)  # a full id needs no look-up, but an allowed URL
        base, steps, generations = _parts(name)
        commit_id = base
        if not _COMMIT_ID.fullmatch(base):
            commit_id = await self._ask(url, report, lambda remote: _resolve(remote, base))
        if not generations:
            return commit_id
        async with self._store.used():
            before = await self._before(url, commit_id, steps, generations, report)
        if before is None:
            message = f"{url} has no {base}{steps}: the history of {commit_id} does not go so far"
            raise UserError("source_not_found", message)
        return before

    async def archive(self, url: str, commit: str, report: TellProgress, folder: Path) -> Path:
        """Write the files of the commit with this full id to a new tar archive.

        Raises UserError `source_not_found`, `source_too_large`, `source_unreadable`,
        InfrastructureError `download_failed`.
        """
        async with self._store.used():
            state, objects = self._store.state(), self._store.objects
            try:
                if await objects.missing(commit) != []:
                    async with self._held(url):  # another call may have fetched it by now
                        if await objects.missing(commit) != []:
                            await self._ask(
                                url, report, lambda remote: self._complete(remote, commit)
                            )
                return await objects.archive(commit, folder / "out")
            except Suspect as suspect:
                why = str(suspect)
            # Is the commit odd, or the store damaged? Fetch it once more without the store: the
            # store is renewed only if that succeeds. Otherwise one odd commit could cost all users
            # their objects.
            async with self._held(url), self._scratch(url) as place:
                scratch = await git_store.lone_scratch(place)
                await self._ask(url, report, lambda remote: self._apart(remote, scratch, commit))
                archive = await self._archived(scratch, commit, folder / "out")
                await self._store.renew(state, why, scratch)
                return archive

    async def history(self, url: str, since: str, commit: str, report: TellProgress) -> str:
        """List the commits in the history of `commit` that are not in that of `since`.

        A server sends all commits, without files. Raises UserError `source_not_found`,
        `not_an_ancestor`, `history_too_long`.
        """

        async def listed(remote: Remote) -> str:
            if remote.is_local:
                return await remote.history(None, since, commit)
            remote.allow(self._bounds.repository)
            async with self._held(url), self._scratch(url) as folder:
                scratch = await git_store.lone_scratch(folder, partial=True)
                try:
                    await remote.fetch_history(scratch, commit)
                except OnlyBranches:
                    await remote.fetch_branches(None, scratch)
                return await remote.history(scratch, since, commit)

        async with self._store.used():  # it makes the folder
            return await self._ask(url, report, listed)

    async def of_lines(
        self, url: str, commit: str, diff: str, path: str, report: TellProgress
    ) -> LineHistory | None:
        """Return the history of a file and of a diff's lines; None without a local repository."""
        places = [place for place in self._origins.repositories(url) if place is not None]
        if not places:
            return None

        async def read(remote: Remote) -> LineHistory:
            return await line_history.read(remote.lines, commit, diff, path)

        return await self._ask(url, report, read, places)

    async def look(self, url: str, tip: str, look: HistoryLook, report: TellProgress) -> str:
        """Return the answer to a look at the history up to `tip`; raises as `Remote.look`."""
        return await self._ask(url, report, lambda remote: remote.look(tip, look))

    def trim(self, budget: int) -> None:
        """Remove the store if it has more than `budget` bytes and is not in use.

        It goes as a whole, as packs of single commits depend on each other.
        """
        FolderCache(self._root).trim(budget)

    async def _complete(self, remote: Remote, commit: str) -> None:
        """Fetch the objects of the commit that the store lacks."""
        try:
            await self._fetch_missing(remote, commit)
        except OnlyBranches:
            remote.allow(self._bounds.repository)
            await self._fetch_branches(remote, commit)
        else:
            self._store.note(remote.url, [commit])

    async def _fetch_missing(self, remote: Remote, commit: str) -> None:
        objects = self._store.objects
        missing = await objects.missing(commit)
        if missing is None:
            await self._fetch_commit(remote, commit, ALL if remote.is_local else NO_FILES)
            missing = await objects.missing(commit)
        while missing:
            asked = missing
            try:
                await self._fetch_objects(remote, asked)
            except OnlyBranches:  # it leaves files out of commits, but does not send single files
                await self._fetch_commit(remote, commit, ALL)
            missing = await objects.missing(commit)
            if still := set(asked).intersection(missing or ()):
                message = (
                    f"{remote.name} does not send {len(still)} objects of {commit}, as {min(still)}"
                )
                raise InfrastructureError("download_failed", message)
        if missing is None:
            raise Suspect(f"the store has no {commit} after it was fetched")

    async def _fetch_commit(
        self, remote: Remote, commit: str, what: str, generations: int = 1
    ) -> None:
        async with self._scratch(remote.url) as folder:
            scratch = await self._store.scratch(folder, remote.url, partial=what != ALL)
            await remote.fetch(self._store, scratch, commit, generations, what)
            await self._store.take_in(scratch)

    async def _fetch_objects(self, remote: Remote, ids: list[str]) -> None:
        at_once = self._bounds.objects_at_once
        for start in range(0, len(ids), at_once):
            async with self._scratch(remote.url) as folder:
                scratch = await self._store.scratch(folder, remote.url, partial=True)
                await remote.fetch_objects(self._store, scratch, ids[start : start + at_once])
                await self._store.take_in(scratch)

    async def _fetch_branches(self, remote: Remote, commit: str) -> None:
        """Fetch all branches, from a server that sends only their newest commits."""
        async with self._scratch(remote.url) as folder:
            scratch = await self._store.scratch(folder, remote.url)
            await remote.fetch_branches(self._store, scratch)
            tips = await git_store.tips(scratch, self._bounds)
            await self._store.take_in(scratch)
        if await self._store.objects.missing(commit) != []:
            message = (
                f"no branch or tag of {remote.name} contains the commit {commit}, and that server"
                " sends no other commits"
            )
            raise UserError("source_not_found", message)
        self._store.note(remote.url, tips, history=True)

    async def _before(
        self, url: str, commit: str, steps: str, generations: int, report: TellProgress
    ) -> str | None:
        """Return the ancestor so many steps before a commit; None if its history is too short."""
        state, objects = self._store.state(), self._store.objects

        async def fetch(remote: Remote) -> bool:
            try:
                # The last generation is named by its child, so it need not be fetched.
                await self._fetch_commit(remote, commit, NO_OBJECTS, generations)
            except OnlyBranches:
                remote.allow(self._bounds.repository)
                await self._fetch_branches(remote, commit)
                return True
            return False

        why = f"it lacks a commit before {commit} after that was fetched"
        try:
            if (before := await objects.resolve(commit + steps)) is not None:
                return before
            async with self._held(url):
                whole = await self._ask(url, report, fetch)
            if (before := await objects.resolve(commit + steps)) is not None or whole:
                return before
        except Suspect as suspect:
            why = str(suspect)
        async with self._held(url), self._scratch(url) as place:
            scratch = await git_store.lone_scratch(place, partial=True)
            far = (generations + 1, NO_OBJECTS)
            await self._ask(url, report, lambda remote: self._apart(remote, scratch, commit, *far))
            apart = Objects({SCRATCH: scratch}, SCRATCH, self._bounds)
            if (before := await apart.resolve(commit + steps)) is not None:
                await self._store.renew(state, why, scratch)
            return before

    async def _apart(
        self, remote: Remote, scratch: Path, commit: str, depth: int = 1, what: str = ALL
    ) -> None:
        """Fetch a commit without the store's objects."""
        try:
            await remote.fetch(None, scratch, commit, depth, what)
        except OnlyBranches:
            remote.allow(self._bounds.repository)
            await remote.fetch_branches(None, scratch)

    async def _archived(self, scratch: Path, commit: str, out: Path) -> Path:
        """Archive the files of a commit that was fetched without the store's objects."""
        objects = Objects({SCRATCH: scratch}, SCRATCH, self._bounds)
        try:
            if (missing := await objects.missing(commit)) != []:
                message = f"the server does not send {(missing or [commit])[0]} of commit {commit}"
                raise UserError("source_not_found", message)
            return await objects.archive(commit, out)
        except Suspect as suspect:
            raise UserError("source_unreadable", str(suspect)) from suspect

    async def _ask(
        self,
        url: str,
        report: TellProgress,
        work: Callable[[Remote], Awaitable[_T]],
        places: Sequence[LocalPlace | None] = (),
    ) -> _T:
        """Do the work with the first place that has the commit."""
        place, *others = places or self._origins.repositories(url)
        most = self._bounds.archive
        try:
            async with Remote(url, place, self._origins, self._bounds, report, most) as remote:
                return await work(remote)
        except UserError as error:
            if error.reason != "source_not_found" or not others:
                raise
        return await self._ask(url, report, work, others)

    @asynccontextmanager
    async def _held(self, url: str) -> AsyncIterator[None]:
        """Allow one fetch at a time from this URL: the next one can use what this one fetched."""
        key = git_store.key(url)
        async with locked(self._root / f".{key}.lock"):
            for leftover in self._root.glob(f".{key}.part-*"):  # of a killed process
                await asyncio.to_thread(sandbox.remove, leftover)
            yield

    @asynccontextmanager
    async def _scratch(self, url: str) -> AsyncIterator[Path]:
        folder = self._root / f".{git_store.key(url)}.part-{uuid.uuid4().hex}"
        try:
            yield folder
        finally:
            await asyncio.to_thread(sandbox.remove, folder)


async def _resolve(remote: Remote, name: str) -> str:
    commit = await remote.resolve(name)
    if commit is None:
        raise UserError(
            "source_not_found",
            f"{remote.name} has no branch or tag {name}; a commit is named by its id of 40 digits",
        )
    if not _COMMIT_ID.fullmatch(commit):
        raise git_program.other_ids(remote.name)
    return commit


def _parts(name: str) -> tuple[str, str, int]:
    """Split a name into its base and suffixes such as `^` and `~2`; also count generations.

    Raises UserError `source_not_found`.
    """
    rest = name.removeprefix(PARENT)
    base = re.split(r"[~^]", rest, maxsplit=1)[0]
    steps = rest.removeprefix(base) + ("^" if rest != name else "")
    far = 0
    for sign, number in _STEP.findall(steps):
        far += int(number or 1) if sign == "~" else number.strip("0") != "0"
    if far > MOST_GENERATIONS:
        message = f"{name[:100]} is more than {MOST_GENERATIONS} commits before {base[:100]}"
        raise UserError("source_not_found", message)
    return base, steps, far
