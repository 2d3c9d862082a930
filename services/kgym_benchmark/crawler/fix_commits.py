"""The developers' fix commits: parent, message, diff and date.

They are read from a local mirror (`kgym mirror`), which also gives the changed functions; or else
from the web pages of git.kernel.org (cgit), `patch/?id=` and `commit/?id=` of a repository.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from email import message_from_bytes, policy
from pathlib import Path
from urllib.parse import urlsplit

from kgym.bench.attempt_record import TEXT
from kgym.bench.bug_record import DeveloperPatch, Function
from kgym.errors import KgymError, NotFound, UserError
from kgym.host import proc
from kgym.source.mirror_table import mirror_table
from kgym_benchmark.crawler import html_tables
from kgym_benchmark.crawler.fetcher import Fetcher

_GIT_SECONDS = 120.0
_COMMITTED = "%Y-%m-%d %H:%M:%S %z"


@dataclass(frozen=True, slots=True)
class GitSites:
    """The places where commits are looked up."""

    site: str
    """The site with the web pages of repositories: https://git.kernel.org."""
    mirrors: Path | None = None
    """A folder with `map.json`, which maps a repository's URL to its path."""

    def mirror(self, repository: str) -> Path | None:
        """Return the local mirror of a repository, if there is one."""
        if self.mirrors is None:
            return None
        known = {_plain(url): path for url, path in mirror_table(self.mirrors).items()}
        path = known.get(_plain(repository))
        return None if path is None else self.mirrors / path


def fixed(patch: DeveloperPatch, sites: GitSites, fetcher: Fetcher) -> DeveloperPatch:
    """Return the patch, completed by its commit if that can be found.

    Raises InfrastructureError as `Fetcher.get` does.
    """
    named = next((commit for commit in patch.commits if commit.id and len(commit.id) == 40), None)
    if named is None or named.id is None or named.repository is None or patch.diff is not None:
        return patch
    mirror = sites.mirror(named.repository)
    if mirror is not None:
        known = asyncio.run(_of_mirror(mirror, named.id))
        if known is not None:
            return patch.model_copy(update=known)
    try:
        return patch.model_copy(update=_of_pages(named.repository, named.id, sites, fetcher))
    except NotFound:
        return patch


# --- a mirror -------------------------------------------------------------------------------


async def _of_mirror(mirror: Path, commit: str) -> dict[str, object] | None:
    """Return the fields of a commit from a local repository; None if it is missing there."""
    shown = ["show", "-s", "--format=%P%x00%cI%x00%B", commit]
    printed = await _git(mirror, *shown)
    diff = await _git(mirror, "diff-tree", "-p", "--no-color", "--no-ext-diff", commit)
    if printed is None or diff is None:
        return None
    parents, date, message = printed.decode(errors="replace").split("\0", 2)
    # A root commit has no parent to try the bug on.
    if not parents or len(diff) > TEXT:
        return None
    parent = parents.split()[0]
    text = diff.decode(errors="replace").partition("\n")[2]
    files = await _git(mirror, "diff-tree", "-r", "--name-only", "--no-commit-id", "-z", commit)
    listed = (files or b"").removesuffix(b"\n").decode(errors="replace")
    names = [name for name in listed.split("\0") if name]
    return {
        "parent": parent,
        "date": datetime.fromisoformat(date),
        "message": message.strip(),
        "diff": text,
        "files": names,
        "functions": await _functions(mirror, parent, text, names),
    }


async def _functions(
    mirror: Path, parent: str, diff: str, files: list[str]
) -> list[Function] | None:
    from kgym.bench.patch_overlap import changed_parts  # noqa: PLC0415 - needs the extra `bench`

    shown = {name: await _git(mirror, "cat-file", "blob", f"{parent}:{name}") for name in files}
    before = {name: content for name, content in shown.items() if content is not None}
    try:
        changed = changed_parts(diff, before)
    except KgymError:
        return None
    return [Function(file=file, name=name) for file, name in sorted(changed.functions)]


async def _git(mirror: Path, *words: str) -> bytes | None:
    """Return Git's output in whole lines; None if Git fails, or if the output is too long."""
    lines: list[bytes] = []
    size = 0

    def hear(line: bytes) -> None:
        nonlocal size
        size += len(line) + 1
        if size <= TEXT:
            lines.append(line + b"\n")

    done = await proc.run(
        ["git", "-c", "safe.directory=*", "--no-replace-objects", "-C", mirror, *words],
        timeout=_GIT_SECONDS,
        on_line=hear,
        check=False,
    )
    return b"".join(lines) if not done.returncode and size <= TEXT else None


def _plain(url: str) -> str:
    """Return a repository's URL without scheme and `.git`, for lookups in tables."""
    return url.rpartition("://")[2].rstrip("/").removesuffix(".git")


# --- cgit -----------------------------------------------------------------------------------


def _of_pages(repository: str, commit: str, sites: GitSites, fetcher: Fetcher) -> dict[str, object]:
    path = urlsplit(repository).path.rstrip("/")
    base = f"{sites.site.rstrip('/')}{path}"
    patch = fetcher.get(f"{base}/patch/?id={commit}", TEXT)
    message, diff = _mail(patch.body, patch.url)
    page = fetcher.get(f"{base}/commit/?id={commit}", TEXT)
    parent, date = _facts(page.body)
    files = [
        line.removeprefix("diff --git a/").partition(" b/")[0]
        for line in diff.splitlines()
        if line.startswith("diff --git a/")
    ]
    known = {"parent": parent, "date": date}
    return {"message": message, "diff": diff, "files": files} | {
        name: value for name, value in known.items() if value is not None
    }


def _mail(body: bytes, where: str) -> tuple[str, str]:
    """Return message and diff of a commit that is formatted as a mail."""
    head, mark, rest = body.partition(b"\ndiff --git ")
    if not mark:
        raise NotFound("page_missing", f"{where} contains no diff")
    try:
        mail = message_from_bytes(head.partition(b"\n")[2], policy=policy.default)
        subject = " ".join(str(mail["Subject"] or "").split())
        text = str(mail.get_content())
    except (LookupError, UserError, UnicodeError, ValueError) as error:
        raise NotFound("page_missing", f"{where} is not a mail: {error}") from error
    diff, _, _ = (b"diff --git " + rest).partition(b"\n-- \n")
    message = f"{subject}\n\n{text.partition(chr(10) + '---' + chr(10))[0].strip()}"
    return message.strip(), diff.decode(errors="replace").rstrip("\n") + "\n"


def _facts(body: bytes) -> tuple[str | None, datetime | None]:
    """Return the first parent and the date of a commit, from its page."""
    parent: str | None = None
    date: datetime | None = None
    for table in html_tables.tables(body.decode(errors="replace")):
        for row in table.rows:
            name = row[0].text
            if name == "parent" and parent is None:
                words = row[1].text.split() if len(row) > 1 else []
                parent = words[0] if words and len(words[0]) == 40 else None
            elif name == "committer" and date is None:
                date = _date(row[-1].text)
    return parent, date


def _date(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, _COMMITTED)
    except ValueError:
        return None
