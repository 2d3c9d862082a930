"""A bug's kernel source as builds see it, as a Git repository to work in."""

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kgym.api.worker_calls import Assignment
from kgym.bugs.bug import Bug
from kgym.bugs.tree_snapshot import embedded, git
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.host import proc, sandbox
from kgym.source.patching import Change
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.kernel_sources import Source
from kgym_builder.patches import patched_files
from kgym_builder.suitecache.suitecache import SuiteCache
from kgym_cli.settings import settings

_COPY_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A written tree: folder, source, and the commits on top of it."""

    folder: Path
    source_identity: str
    commits: list[str]


def write(bug: Bug, folder: Path, data: Path) -> SourceTree:
    """Write the source to a new `folder` in commits: as published, what builds add, the bug.

    Sources are cached in `data`, with the platform's. Raises UserError as builds do, and
    `bad_option` if the folder is not empty.
    """
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and _is_empty(folder))):
        raise UserError("bad_option", f"{folder} already exists: name a new folder")
    with ExitStack() as held:
        source_tree = asyncio.run(source_of(bug, data, held))
        published = source_tree.published
        added = ", ".join(["the object that raises faults", *source_tree.backports])
        commits = [
            _Commit(f"{published.identity}, as published", ()),
            _Commit(f"What builds add: {added}", source_tree.added),
            *(_Commit(f"{bug.name}: {name}", changed) for name, changed in source_tree.patches),
        ]
        try:
            _copy(published.tree, folder)
            commit_names = [_commit(folder, commit) for commit in commits]
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return SourceTree(folder, published.identity, [commit for commit in commit_names if commit])


@dataclass(frozen=True, slots=True)
class SourceOfBug:
    """A bug's source as published, and the changes that its builds make to it."""

    published: Source
    backports: list[str]
    added: tuple[Change, ...]
    """Added by every build."""
    patches: list[tuple[str, tuple[Change, ...]]]
    """Patches that bring the bug back, by name."""


async def source_of(bug: Bug, data: Path, held: ExitStack) -> SourceOfBug:
    """Return a bug's source, valid until `held` is closed.

    Sources are cached in `data`, with the platform's. Raises UserError as builds do.
    """
    await asyncio.to_thread(data.mkdir, parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="source-", dir=data))
    held.callback(sandbox.remove, work)
    assignment = Assignment(
        step_id=0, job_id=0, number=0, attempt=1, lease=uuid.uuid4(), spec=bug.build, inputs={}
    )
    run = StepContext(assignment, work, LocalStorage(data / "artifacts"), held=held)
    # Any local path is allowed: the caller of this command owns the files anyway.
    chosen = settings()
    mirrors = chosen.mirrors.absolute()
    origins = Origins.named(chosen.sources, chosen.source_networks, (Path("/"),), mirrors)
    suite = SuiteCache(data / "cache", CONFIGS / "backports", origins=origins)
    published = await suite.published(bug.build, run)
    patches = []
    for patch in bug.build.patches:
        changed = await patched_files.changes(published.tree, [patch], run.log)
        changed = tuple(await published.tree.with_modes(changed))
        await published.tree.write(changed)
        patches.append((patch.name, changed))
    return SourceOfBug(published.source, published.backports, published.changes, patches)


@dataclass(frozen=True, slots=True)
class _Commit:
    message: str
    changes: Sequence[Change]


def _is_empty(folder: Path) -> bool:
    return next(folder.iterdir(), None) is None


def _copy(tree: Path, folder: Path) -> None:
    """Copy the tree and initialise a Git repository in the copy."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ("-rP", "--preserve=mode,links,timestamps", "--reflink=auto")
    asyncio.run(proc.run(["cp", *words, f"{tree}/.", folder], timeout=_COPY_SECONDS))
    # A `.git` that comes with the source is removed, at any depth: its hooks and settings would run
    # commands of whoever published it.
    for own in (folder / ".git", *embedded(folder)):
        if own.is_symlink() or own.is_file():
            own.unlink()
        elif own.exists():
            shutil.rmtree(own)
    git(folder, "init", "-q", "--template=", "-b", "kgym")


def _commit(folder: Path, commit: _Commit) -> str | None:
    """Write and commit changes; return the message, or None if nothing changed."""
    for change in commit.changes:
        path = folder / change.path
        if not path.parent.resolve().is_relative_to(folder.resolve()) or path.is_symlink():
            raise UserError("unsafe_patch", f"{change.path} lies behind a symbolic link")
        if change.content is None:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(change.content)
        path.chmod(0o755 if change.executable else 0o644)
    if commit.changes:
        paths = "\0".join(change.path for change in commit.changes)
        # `-f`: the kernel's own .gitignore would leave out files such as `*.o` that a build adds.
        # Paths go over stdin, as there may be more than a command line holds.
        words = ("add", "-A", "-f", "--pathspec-from-file=-", "--pathspec-file-nul")
        git(folder, "--literal-pathspecs", *words, stdin=paths)
    else:
        git(folder, "add", "-A", "-f", ".")
    if not git(folder, "status", "--porcelain", "--untracked-files=no"):
        return None
    git(folder, "commit", "-q", "-m", commit.message)
    return commit.message
