"""A bug's kernel source as builds see it, as a Git repository to work in."""

import asyncio
import shutil
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path

from kgym.api.worker_calls import Assignment
from kgym.bugs.bug import Bug
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.host import proc, sandbox
from kgym.source.patching import Change
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_benchmark.kenv.trees import Published, Trees
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.patches import patched_files
from kgym_builder.suitecache.suitecache import SuiteCache
from kgym_cli.output import people
from kgym_cli.settings import settings

_COPY_SECONDS = 1800.0


def write(bug: Bug, folder: Path, data: Path) -> str:
    """Write the source with the bug to a new `folder`; return the identity of the published one.

    Sources are cached in `data`, with the platform's. Raises UserError as builds do, and
    `bad_option` if the folder is not empty.
    """
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and _is_empty(folder))):
        raise UserError("bad_option", f"{folder} already exists: name a new folder")
    with ExitStack() as held:
        return asyncio.run(_write(bug, folder, data, held))


async def _write(bug: Bug, folder: Path, data: Path, held: ExitStack) -> str:
    source = await source_of(bug, data, held)
    tree = await Trees(settings().cache / "kenv").get(source, held, people.print)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    words = ("-rP", "--preserve=mode,links,timestamps", "--reflink=auto")
    try:
        await proc.run(["cp", *words, f"{tree.folder}/.", folder], timeout=_COPY_SECONDS)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return source.identity


async def source_of(bug: Bug, data: Path, held: ExitStack) -> Published:
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
    bug_changes: dict[str, Change] = {}
    for patch in bug.build.patches:
        changed = await patched_files.changes(published.tree, [patch], run.log)
        with_modes = await published.tree.with_modes(changed)
        await published.tree.write(with_modes)
        bug_changes |= {change.path: change for change in with_modes}
    source = published.source
    return Published(source.identity, source.tree, published.changes, tuple(bug_changes.values()))


def _is_empty(folder: Path) -> bool:
    return next(folder.iterdir(), None) is None
