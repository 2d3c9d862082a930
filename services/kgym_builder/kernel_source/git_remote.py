"""A repository to fetch from: over HTTP through a tunnel, or a folder of this machine."""

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from kgym.api.steps import MOST_COMMITS, HistoryLook
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.host import proc
from kgym.host.sandbox import Sandbox
from kgym_builder.kernel_source import git_program
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.download import TellProgress
from kgym_builder.kernel_source.git_mirrors import LocalPlace
from kgym_builder.kernel_source.git_program import OBJECT_ID, SCRATCH, SOURCE, Answer
from kgym_builder.kernel_source.git_store import Store
from kgym_builder.kernel_source.git_tunnel import PLACE, Tunnel
from kgym_builder.kernel_source.source_limits import SourceLimits

_ASK_SECONDS = 120.0
# --global also reaches the program that serves a folder of this machine, in the same sandbox.
_START = """set -e
git config --global safe.directory '*'
git config --global uploadpack.allowFilter true
exec "$@"
"""
_FETCH = ("fetch", "-q", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
# Prefixes of a name, in the order in which Git tries them (gitrevisions(7)).
_NAME_KINDS = ("", "refs/", "refs/tags/", "refs/heads/")
_HEAD = re.compile(r"ref: (refs/heads/[\w./-]{1,200})\tHEAD", re.ASCII)
_REF = re.compile(rf"({OBJECT_ID.pattern})\t(.+)")
# Filters for a fetch: commits only, commits and folders, or everything.
NO_OBJECTS, NO_FILES, ALL = "tree:0", "blob:none", ""
_SUBJECT = 150
_ABSENT, _APART = 3, 4
_COMMIT = re.compile(r"[0-9a-f]{40}[ \t]")
_LIST_HISTORY = f"""
OLD=$1 NEW=$2; shift 2
"$@" cat-file -e "$OLD^{{commit}}" 2>/dev/null || exit {_ABSENT}
"$@" cat-file -e "$NEW^{{commit}}" 2>/dev/null || exit {_ABSENT}
"$@" merge-base --is-ancestor "$OLD" "$NEW"
case $? in 0) ;; 1) exit {_APART};; *) exit 1;; esac
"$@" rev-list --topo-order --reverse --max-count={MOST_COMMITS + 1} --no-commit-header \
    --format='%H %P%x09%<({_SUBJECT},trunc)%s' "$NEW" "^$OLD"
"""

# Bytes of the answer to a look at a history.
_LOOK_BYTES = 64 << 10
_CUT = f'"$@" | head -c {_LOOK_BYTES}'
# Notes, names of branches and tags, and signatures may tell of later commits.
_LOG = (
    *("--no-ext-diff", "--no-textconv", "--no-color", "--date=short", "--no-notes"),
    *("--no-decorate", "--no-show-signature", "--no-mailmap"),
)


class Remote:
    """A context with the repository at `url`, or at its `place` on this machine.

    At most `most` bytes may pass, within the time limit of one source.
    """

    def __init__(
        self,
        url: str,
        place: LocalPlace | None,
        origins: Origins,
        bounds: SourceLimits,
        report: TellProgress,
        most: int,
    ) -> None:
        self.url = url
        # The repository's name in errors.
        self.name = (
            url if place is None or url.startswith(("/", "file:")) else f"the mirror of {url}"
        )
        # From a local repository, one fetch gets everything: no connection can break.
        self.is_local = place is not None
        self._place = place
        self._origins = origins
        self._bounds = bounds
        self._report = report
        self._most = most
        self._tunnel: Tunnel | None = None
        self._stack = contextlib.AsyncExitStack()
        self._end = time.monotonic() + bounds.seconds

    async def __aenter__(self) -> Self:
        self._report("fetch", 0, None)
        if self._place is None:
            tunnel = Tunnel(
                self.name, self._origins, self._most, lambda done: self._report("fetch", done, None)
            )
            self._tunnel = await self._stack.enter_async_context(tunnel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def resolve(self, name: str) -> str | None:
        """Return the id that a branch, a tag or HEAD has now; None if it does not exist."""
        names = [f"{kind}{name}" for kind in _NAME_KINDS]
        asked = [pattern for full in names for pattern in (full, f"{full}^{{}}")]
        lines = await self._listed(name, "-q", self._address, *asked)
        ids_by_name = {match[2]: match[1] for match in map(_REF.fullmatch, lines) if match}
        # For an annotated tag, `^{}` gives the commit that it names.
        ids = [
            ids_by_name[key]
            for full in names
            for key in (f"{full}^{{}}", full)
            if key in ids_by_name
        ]
        return next(iter(ids), None)

    async def fetch(
        self, store: Store | None, scratch: Path, commit: str, depth: int = 1, what: str = ALL
    ) -> None:
        """Fetch one commit, with the `depth` - 1 generations before it.

        A server without filters sends all objects. Raises UserError `source_not_found`,
        InfrastructureError `download_failed`, OnlyBranches, Suspect.
        """
        words = [f"--depth={depth}", *([f"--filter={what}"] if what else []), "origin", commit]
        await self._fetch(store, scratch, words, f"commit {commit}")

    async def fetch_objects(self, store: Store, scratch: Path, ids: list[str]) -> None:
        """Fetch these objects only.

        Without negotiation, files that changed come whole, not as deltas: that is more than Git's
        thin packs, but it needs no commit in common.
        """
        words = [f"--filter={NO_FILES}", "--stdin", "origin"]
        asked_ids = "".join(f"{object_id}\n" for object_id in ids).encode()
        settings = ("fetch.negotiationAlgorithm=noop",)
        await self._fetch(store, scratch, words, f"object {ids[0]}", settings, asked_ids)

    async def fetch_history(self, scratch: Path, commit: str) -> None:
        """Fetch a commit with its whole history, without files."""
        words = [f"--filter={NO_OBJECTS}", "origin", commit]
        await self._fetch(None, scratch, words, f"commit {commit}")

    async def history(self, scratch: Path | None, since: str, commit: str) -> str:
        """Return the commits between two, from `scratch`, or from a repository of this machine.

        They are as `kgym.api.steps.HistoryArtifact` describes. Raises UserError `source_not_found`,
        `not_an_ancestor`, `history_too_long`, InfrastructureError `download_failed`.
        """
        program = git_program.command(folder=SCRATCH if scratch else self._address)
        argv = ["bash", "-c", _LIST_HISTORY, "bash", since, commit, *program]
        seconds = max(1.0, self._end - time.monotonic())
        answer = await self._ask("rev-list", scratch, argv, seconds)
        _check_history(self.name, since, commit, answer)
        return "".join(f"{line.rstrip()}\n" for line in answer.lines)

    async def lines(self, words: Sequence[str]) -> list[str]:
        """Return what Git prints about a repository of this machine; nothing if it fails."""
        argv = git_program.command("--literal-pathspecs", *words, folder=self._address)
        try:
            answer = await self._ask(words[0], None, argv, _ASK_SECONDS)
        except KgymError:  # also if the folder is gone, or the answer too large
            return []
        return answer.lines if answer.done.returncode == 0 else []

    async def look(self, tip: str, look: HistoryLook) -> str:
        """Return the answer to a look at the history up to the commit `tip`.

        Only a repository of this machine has all objects. Raises UserError `no_mirror`,
        `not_in_history`.
        """
        if not self.is_local:
            message = f"no worker's machine has a copy of {self.url}: `kgym mirror` makes one"
            raise UserError("no_mirror", message)
        seconds = min(_ASK_SECONDS, self._bounds.seconds)
        program = git_program.command("--literal-pathspecs", folder=self._address)
        asked = look.commit or tip
        argv = [*program, "merge-base", "--is-ancestor", _commit(asked), tip]
        if (await self._ask("merge-base", None, argv, seconds)).done.returncode != 0:
            raise UserError("not_in_history", f"the history that ends at {tip} has no {asked}")
        # Longer answers are cut, not refused.
        argv = ["bash", "-o", "pipefail", "-c", _CUT, "bash", *program, *_look_words(look, tip)]
        try:
            answer = await self._ask(look.kind, None, argv, seconds)
        except InfrastructureError as error:
            # Some expressions take Git for ever: no other try would end sooner.
            if isinstance(error.__cause__, proc.ProgramTimedOut):
                raise UserError("not_in_history", f"{error.message}: ask for less") from error
            raise
        if answer.done.returncode not in {0, 128 + signal.SIGPIPE}:
            why = git_program.failed(look.kind, self.name, answer.done)
            raise UserError("not_in_history", why.message)
        return "".join(f"{line}\n" for line in answer.lines)

    async def fetch_branches(self, store: Store | None, scratch: Path) -> None:
        """Fetch all branches and tags, with their history."""
        everything = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        await self._fetch(store, scratch, ["origin", *everything], "branches")

    async def fetch_everything(self, scratch: Path) -> None:
        """Fetch all references of the repository, and remove those that are gone."""
        await self._fetch(None, scratch, ["--prune", "origin", "+refs/*:refs/*"], "branches")

    async def head(self) -> str | None:
        """Return the branch that HEAD points to, such as `refs/heads/main`."""
        lines = await self._listed("HEAD", "--symref", self._address, "HEAD")
        return next((match[1] for match in map(_HEAD.fullmatch, lines) if match), None)

    async def _listed(self, what: str, *words: str) -> list[str]:
        """Return the lines of `git ls-remote`; errors call the reference `what`."""
        argv = git_program.command("ls-remote", *words, folder="/")
        answer = await self._ask("ls-remote", None, argv, min(_ASK_SECONDS, self._bounds.seconds))
        self._check("ls-remote", what, answer.done)
        return answer.lines

    @property
    def _address(self) -> str:
        return str(Path(SOURCE) / self._place.inside) if self._place else self.url

    def allow(self, most: int) -> None:
        """Raise the limit to this many bytes."""
        self._most = most
        if self._tunnel is not None:
            self._tunnel.most = most

    async def _fetch(
        self,
        store: Store | None,
        scratch: Path,
        words: list[str],
        what: str,
        settings: tuple[str, ...] = (),
        stdin: bytes = b"",
    ) -> None:
        settings = (f"remote.origin.url={self._address}", *settings)
        argv = git_program.command(*_FETCH, *words, settings=settings)
        seconds = max(1.0, self._end - time.monotonic())
        answer = await self._ask("fetch", scratch, argv, seconds, store, stdin)
        # The sandbox's disk limit is checked only now and then.
        if await asyncio.to_thread(_size, scratch) > self._most:
            message = f"{self.name} sends more than the {self._most} bytes that are allowed"
            raise UserError("source_too_large", message)
        self._check("fetch", what, answer.done, borrows=store is not None)

    async def _ask(
        self,
        name: str,
        scratch: Path | None,
        argv: list[str],
        seconds: float,
        store: Store | None = None,
        stdin: bytes = b"",
    ) -> Answer:
        shown = store.shown if store else {}
        silence = self._bounds.silence_seconds
        environment = {"GIT_HTTP_LOW_SPEED_LIMIT": "1000", "GIT_HTTP_LOW_SPEED_TIME": str(silence)}
        argv = ["sh", "-c", _START, "sh", *argv]
        # ssh would lend the worker's keys, and git:// is not encrypted: both stay forbidden.
        if self._place is not None:
            shown[SOURCE] = await self._folder(self._place)
            environment["GIT_ALLOW_PROTOCOL"] = "file"
        if self._tunnel is not None:
            shown[PLACE] = self._tunnel.folder
            environment |= {"GIT_ALLOW_PROTOCOL": "http:https", **self._tunnel.environment}
            argv = self._tunnel.command(argv)
        writable = {SCRATCH: scratch} if scratch else {}
        limits = self._bounds.fetching(self._most)
        box = Sandbox(writable=writable, readonly=shown, limits=limits)
        answer = await git_program.ask(name, box, argv, seconds, stdin, self.name, **environment)
        if self._tunnel is not None and self._tunnel.refused is not None:
            raise self._tunnel.refused
        return answer

    async def _folder(self, place: LocalPlace) -> Path:
        if not await asyncio.to_thread(place.folder.is_dir):
            raise UserError(
                "source_not_found", f"{self.name} is no repository that this worker may read"
            )
        return place.folder

    def _check(self, name: str, what: str, done: proc.Completed, *, borrows: bool = False) -> None:
        if done.returncode != 0:
            raise git_program.refused(
                name, self.name, what, done, local=self.is_local, store=borrows
            )


def _commit(name: str) -> str:
    # An annotated tag has an id, too, and a message that may be younger than its commit.
    return f"{name}^{{commit}}"


def _look_words(look: HistoryLook, tip: str) -> list[str]:
    """Return the Git command of a look."""
    path = ["--", look.path] if look.path else []
    match look.kind:
        case "show":
            form = "--format=commit %H%nauthor: %an, %ad%n%n%B"
            asked = _commit(look.commit or tip)
            return ["show", *_LOG, form, "--stat", "--patch", asked, *path]
        case "blame":
            lines = f"-L{look.first},{max(look.first, look.last)}"
            return ["blame", "--no-textconv", "--date=short", lines, tip, *path]
    words = ["-i", "-E", f"--grep={look.words}"] if look.words else []
    if look.function:
        path = [f"-L:{look.function}:{look.path}", "--no-patch"]
    form = "--format=%h %ad %s"
    return ["log", *_LOG, form, f"--max-count={look.limit}", *words, tip, *path]


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def _check_history(name: str, since: str, commit: str, answer: Answer) -> None:
    done = answer.done
    if done.returncode == _ABSENT:
        raise UserError("source_not_found", f"{name} lacks {since} or {commit}")
    if done.returncode == _APART:
        message = (
            f"{since} is not an ancestor of {commit} in {name}: use an older commit,"
            " such as their `git merge-base`"
        )
        raise UserError("not_an_ancestor", message)
    if done.returncode != 0:
        raise git_program.failed("rev-list", name, done)
    if odd := [line for line in answer.lines if not _COMMIT.match(line)]:
        message = f"the history of {name} has a line that is no commit: {odd[0][:100]!r}"
        raise InfrastructureError("download_failed", message)
    if len(answer.lines) > MOST_COMMITS:
        message = f"more than {MOST_COMMITS} commits lie between {since} and {commit}"
        raise UserError("history_too_long", message)
