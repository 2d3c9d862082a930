"""Git repositories that sources come from, kept on the host, and touched only in a sandbox.

Whoever serves a repository decides what Git has to cope with. So each command runs confined, with
limits, and what it reaches are the one kept repository and the one that is fetched: over HTTP by
way of a tunnel, or a folder of this machine.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from kgym.errors import InfrastructureError, UserError
from kgym.host import proc, sandbox
from kgym.host.folder_cache import FolderCache, locked
from kgym.host.sandbox import Sandbox, prepare
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.download import TellProgress
from kgym_builder.kernel_source.git_tunnel import PLACE, Tunnel
from kgym_builder.kernel_source.source_limits import SourceLimits
from kgym_builder.kernel_source.unpack import too_large

_KEPT = "/kgym/git"
_SOURCE = "/kgym/source"
_OUT = "/kgym/out"
_EVERYTHING = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_HEAD = "refs/kgym/head"
"""Where the repository's own HEAD is kept, for who asks for it."""
_SECONDS = 60.0
_OURS = re.compile(
    r"No space left|Disk quota|Cannot allocate|Input/output error|unable to create thread"
)
"""What Git says where the host is to blame for it that a repository of it cannot be fetched."""
_GONE = re.compile(r"(?m)^fatal: repository '.*' not found$")
_MOST_LINES = 40
_MOST_WORDS = 4000
_GIT = (
    *("git", "-C", _KEPT, "-c", "gc.auto=0", "-c", "core.hooksPath=/dev/null"),
    # Packs come whole or not at all, unlike the single files of objects; larger ones than this are
    # not taken into memory.
    *("-c", "fetch.unpackLimit=1", "-c", "core.bigFileThreshold=32m"),
    *("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60"),
)
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
# What a killed command left behind would stop all later ones.
_FETCH = f"""set -e
git config --global safe.directory '*'
git init -q --bare --template= {_KEPT}
find {_KEPT} '(' -name 'tmp_*' -o -name '*.lock' ')' -delete
exec "$@"
"""


class Repositories:
    """The repositories that are kept below `root`, each by its URL."""

    def __init__(self, root: Path, origins: Origins, bounds: SourceLimits) -> None:
        self._root = root
        self._origins = origins
        self._bounds = bounds

    async def commit(self, url: str, name: str, report: TellProgress) -> str:
        """Return the full id of a commit, branch or tag, or of HEAD, as it is there now."""
        async with self._kept(url) as kept:
            refs = (*_EVERYTHING, f"+HEAD:{_HEAD}") if name == "HEAD" else _EVERYTHING
            await self._fetch(kept, url, refs, report)
            commit = await self._known(kept, _HEAD if name == "HEAD" else name)
        if commit is None:
            raise UserError("source_not_found", f"{url} has no commit {name}")
        return commit

    async def archive(self, url: str, commit: str, report: TellProgress, folder: Path) -> Path:
        """Write the files of the commit, given by its full id, to a new tar archive."""
        async with self._kept(url) as kept:
            if not await self._known(kept, commit):
                # A server that allows it sends just this commit's history.
                await self._fetch(kept, url, (commit,), report, check=False)
            if not await self._known(kept, commit):
                await self._fetch(kept, url, _EVERYTHING, report)
            if not await self._known(kept, commit):
                raise UserError("source_not_found", f"{url} has no commit {commit}")
            return await self._packed(kept, commit, prepare(folder / "out"))

    def trim(self, budget: int) -> None:
        """Remove those that were used the longest time ago, to keep to `budget` bytes."""
        FolderCache(self._root).trim(budget)

    @asynccontextmanager
    async def _kept(self, url: str) -> AsyncIterator[Path]:
        """Hold the repository of this URL alone; without the right of a limit to grow, it goes."""
        key = hashlib.sha256(url.encode()).hexdigest()[:32]
        async with locked(self._root / f".{key}.lock"):
            (self._root / f".{key}.use").touch()
            kept = prepare(self._root / key)
            try:
                yield kept
            except UserError as error:
                if error.reason == "source_too_large":
                    await asyncio.to_thread(sandbox.remove, kept)
                raise

    async def _known(self, kept: Path, name: str) -> str | None:
        words = ("rev-parse", "-q", "--verify", "--end-of-options", f"{name}^{{commit}}")
        box = Sandbox(readonly={_KEPT: kept}, limits=self._bounds.unpacking())
        done = await self._run("rev-parse", box, [*_GIT, *words], _SECONDS)
        return done.text.strip() if done.returncode == 0 else None

    async def _fetch(
        self,
        kept: Path,
        url: str,
        refs: tuple[str, ...],
        report: TellProgress,
        *,
        check: bool = True,
    ) -> None:
        report("fetch", 0, None)
        path = self._origins.check(url)
        words = ("fetch", "-q", "--no-tags", "--prune", "--no-write-fetch-head")
        argv = ["sh", "-c", _FETCH, "sh", *_GIT, *words, "--no-recurse-submodules"]
        if path is not None:
            done = await self._fetch_local(kept, path, argv, refs)
        else:
            done = await self._fetch_remote(kept, url, [*argv, url, *refs], report)
        # The watch over the sandbox looks now and then.
        if await asyncio.to_thread(_size, kept) > self._bounds.repository:
            most = self._bounds.repository
            raise UserError("source_too_large", f"the repository has more than {most} bytes")
        if check and done.returncode != 0:
            failed = _failed("fetch", url, done)
            lasting = _GONE.search(done.text) or (path and not _OURS.search(done.text))
            # Of a folder of this host, another attempt says the same.
            raise UserError("source_not_found", failed.message) if lasting else failed

    async def _fetch_local(
        self, kept: Path, path: Path, argv: list[str], refs: tuple[str, ...]
    ) -> proc.Completed:
        folder, inside = self._origins.repository(path)
        if not await asyncio.to_thread(folder.is_dir):
            raise UserError(
                "source_not_found", f"{path} is no repository that this worker may read"
            )
        box = Sandbox(
            writable={_KEPT: kept},
            readonly={_SOURCE: folder},
            limits=self._bounds.fetching(),
        )
        argv = [*argv, str(_SOURCE / inside), *refs]
        return await self._run("fetch", box, argv, self._bounds.seconds, GIT_ALLOW_PROTOCOL="file")

    async def _fetch_remote(
        self, kept: Path, url: str, argv: list[str], report: TellProgress
    ) -> proc.Completed:
        passed = partial(_tell, report)
        async with Tunnel(self._origins, self._bounds.repository, passed) as tunnel:
            box = Sandbox(
                writable={_KEPT: kept},
                readonly={PLACE: tunnel.folder},
                limits=self._bounds.fetching(),
            )
            allowed = {"GIT_ALLOW_PROTOCOL": "http:https", **tunnel.environment}
            argv = tunnel.command(argv)
            done = await self._run("fetch", box, argv, self._bounds.seconds, **allowed)
        if tunnel.refused is not None:
            raise tunnel.refused
        return done

    async def _packed(self, kept: Path, commit: str, out: Path) -> Path:
        archive = out / "source.tar"
        box = Sandbox(
            readonly={_KEPT: kept},
            writable={_OUT: out},
            limits=self._bounds.unpacking(),
        )
        argv = [*_GIT, "archive", "--prefix=linux/", "-o", f"{_OUT}/source.tar", commit]
        done = await self._run("archive", box, argv, self._bounds.unpack_seconds)
        if done.returncode != 0 or archive.is_symlink() or not archive.is_file():
            # It may lack objects: the next attempt fetches all of it.
            await asyncio.to_thread(sandbox.remove, kept)
            raise _failed("archive", commit, done)
        return archive

    async def _run(
        self, command: str, box: Sandbox, argv: list[str], seconds: float, **environment: str
    ) -> proc.Completed:
        try:
            return await box.run(
                argv, timeout=seconds, check=False, env={**_ENVIRONMENT, **environment}
            )
        except proc.ProgramTimedOut as error:
            message = f"`git {command}` was not done within {seconds:g} s"
            raise InfrastructureError("download_failed", message) from error
        except UserError as error:
            raise too_large(error) from error


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def _tell(report: TellProgress, done: int) -> None:
    report("fetch", done, None)


def _failed(command: str, what: str, done: proc.Completed) -> InfrastructureError:
    """Return the error of a command of Git, with its words."""
    lines = [line.strip() for line in done.text.splitlines() if line.strip()]
    said = " / ".join(lines[:_MOST_LINES])[:_MOST_WORDS]
    said = "".join(one if one.isprintable() else "?" for one in said)  # a server may have said it
    return InfrastructureError(
        "download_failed",
        f"`git {command}` of {what} ended with status {done.returncode}: "
        + (said or "it printed nothing"),
    )
