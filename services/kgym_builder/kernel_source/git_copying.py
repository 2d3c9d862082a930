"""Make mirrors: copy a repository for the workers of a host, and bring the copy up to date."""

import json
import re
from pathlib import Path

from kgym.atomic_files import replace_file
from kgym.errors import UserError
from kgym.host.folder_cache import locked
from kgym.source.mirror_table import TABLE
from kgym_builder.kernel_source import git_store
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.download import TellProgress
from kgym_builder.kernel_source.git_mirrors import Mirrors, plain
from kgym_builder.kernel_source.git_remote import Remote
from kgym_builder.kernel_source.source_limits import SourceLimits

# For a whole repository with its history: Linux' stable one has 6 GB.
_LIMITS = SourceLimits(repository=64 << 30, seconds=12 * 3600.0)
_ODD = re.compile(r"[^\w.-]+", re.ASCII)


async def copy(url: str, origins: Origins, report: TellProgress) -> Path:
    """Copy the repository at an http(s) URL to the folder of mirrors, or bring its copy up to date.

    Branches and tags that are gone are removed from the copy, too. Raises UserError `bad_option`,
    and what sources raise.
    """
    mirrors = origins.mirrors
    assert mirrors.folder is not None
    if origins.check(url) is not None:
        raise UserError("bad_option", f"{url} is on this machine: enter its path in {TABLE}")
    folder = mirrors.table().get(plain(url)) or mirrors.folder / _name(url)
    if folder.parent != mirrors.folder:
        raise UserError("bad_option", f"{TABLE} names {folder}, which somebody else keeps")
    async with locked(mirrors.folder / f".{folder.name}.lock"):
        if not _begun(folder):
            await git_store.lone_scratch(folder)
        _forget_leftovers(folder)
        async with Remote(url, None, origins, _LIMITS, report, _LIMITS.repository) as remote:
            await remote.fetch_everything(folder)
            if head := await remote.head():
                replace_file(folder / "HEAD", f"ref: {head}\n")
    async with locked(mirrors.folder / f".{TABLE}.lock"):
        _enter(mirrors, url, folder)
    return folder


def _name(url: str) -> str:
    readable = _ODD.sub("-", plain(url).rpartition("/")[2]).strip(".-")[:60]
    return f"{readable or 'mirror'}-{git_store.key(plain(url))[:8]}.git"


def _begun(folder: Path) -> bool:
    """Return whether the folder has a repository, not just the beginning of one."""
    try:
        return all((folder / name).stat().st_size for name in ("HEAD", "config"))
    except OSError:
        return False


def _forget_leftovers(folder: Path) -> None:
    """Remove the files of a killed fetch: locks would stop this one, the others waste disk."""
    for pattern in ("objects/*/tmp_*", "*.lock", "refs/**/*.lock"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def _enter(mirrors: Mirrors, url: str, folder: Path) -> None:
    assert mirrors.folder is not None
    paths = mirrors.table() | {plain(url): folder}
    table = {entry: str(_short(path, mirrors.folder)) for entry, path in sorted(paths.items())}
    replace_file(mirrors.folder / TABLE, json.dumps(table, indent=2) + "\n")


def _short(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path
