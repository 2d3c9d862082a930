"""Bundles of bugs that a campaign has brought back (`kgym.bugs.port`)."""

import json
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

from kgym.bugs.port import PortOptions, PortRow, Subject, bug_on
from kgym.errors import UserError


def write_bundle(
    folder: Path,
    row: PortRow,
    subject: Subject,
    options: PortOptions,
    *,
    with_program: bool = True,
) -> None:
    """Write the bundle of a bug that has come back, whole; one that is there is replaced.

    Without its program, it names that by its file name and SHA-256 (KGYM_PROGRAMS).

    Raises UserError `cannot_write`, and as `bug_on` does.
    """
    one = bug_on(subject, row.kernel, options)
    title, own = row.crash or subject.bug.title, subject.bug
    commits = [f"commit {commit.hash}: {commit.title}" for commit in own.commits]
    others = [] if title == own.title else [own.title]
    program = 'file = "repro.c"'
    if not with_program:
        digest = sha256(subject.program.read_bytes()).hexdigest()
        program = f'file = {_toml(subject.program.name)}\nsha256 = "{digest}"'
    lines = [
        f"title = {_toml(title)}",
        f"alt_titles = {_toml(others)}",
        f"references = {_toml([f'syzbot {own.id}', *commits])}",
        f"files = {_toml(one.file.files)}",
        f"\n[kernel]\nuse = {_toml(row.kernel)}",
        f"\n[reproducer]\n{program}\ntime = {options.time}\ninstances = {options.survivals}",
        *([f"\n[vm]\nappend = {_toml(one.file.vm.append)}"] if one.file.vm.append else []),
        '\n[regress]\npatch = "regress.patch"\n',
    ]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part-") as part:
            made = Path(part) / "bundle"
            made.mkdir()
            (made / "bug.toml").write_text("\n".join(lines))
            (made / "regress.patch").write_text(one.build.patches[0].diff or "", newline="")
            if with_program:
                shutil.copyfile(subject.program, made / "repro.c")
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    except OSError as error:
        raise UserError("cannot_write", f"{folder}: {error.strerror or error}") from error


def _toml(value: str | list[str]) -> str:
    """Return a value in TOML, whose form is JSON's but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
