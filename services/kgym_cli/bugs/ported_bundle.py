"""Bundles of bugs that a campaign has brought back (`kgym.bugs.port`)."""

from hashlib import sha256
from pathlib import Path

from kgym.bugs.bundle_folder import toml, write_folder
from kgym.bugs.port import PortOptions, PortRow, Subject, bug_on


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
        program = f'file = {toml(subject.program.name)}\nsha256 = "{digest}"'
    lines = [
        f"title = {toml(title)}",
        f"alt_titles = {toml(others)}",
        f"references = {toml([f'syzbot {own.id}', *commits])}",
        f"files = {toml(one.file.files)}",
        f"\n[kernel]\nuse = {toml(row.kernel)}",
        f"\n[reproducer]\n{program}\ntime = {options.time}\ninstances = {options.survivals}",
        *([f"\n[vm]\nappend = {toml(one.file.vm.append)}"] if one.file.vm.append else []),
        '\n[regress]\npatch = "regress.patch"\n',
    ]
    files = {"bug.toml": "\n".join(lines), "regress.patch": one.build.patches[0].diff or ""}
    if with_program:
        files["repro.c"] = one.reproducers[0].text
    write_folder(folder, files)
