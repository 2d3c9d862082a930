"""Conversion between bundles (`kgym.bugs.bundle`) and bugs of a dataset."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kgym.api.agent.nodes import CauseCommit
from kgym.api.steps import GitSource, Reproducer
from kgym.bench.bug_record import (
    BugRecord,
    Cause,
    Commit,
    Crash,
    DeveloperPatch,
    FoundText,
    Function,
)
from kgym.bench.dataset import Dataset
from kgym.bench.dataset_files import refuse_used
from kgym.bench.tried_bug import tried_bug
from kgym.bugs import bundle
from kgym.bugs.bug import Bug
from kgym.bugs.bug_file import FIX_COMMIT
from kgym.bugs.bundle_folder import toml
from kgym.configs import CONFIGS
from kgym.errors import NotFound, UserError
from kgym.source import patching


def read_bundles(folder: Path, configs: Path = CONFIGS) -> Dataset:
    """Read a bundle or a folder of bundles; raise NotFound `no_dataset`, UserError `bad_bundle`.

    A bug's id is the name of its folder. Records refer to shipped bundles by name, and to others by
    their path on this machine.
    """
    folders = sorted(path.parent for path in folder.glob("*/bug.toml"))
    if (folder / "bug.toml").is_file():
        folders = [folder]
    if not folders:
        raise NotFound("no_dataset", f"{folder} holds no bundle: no bug.toml, nor folders with one")
    bugs = (_record(bundle_folder, configs) for bundle_folder in folders)
    return Dataset.of(folder.resolve().name, bugs, source=f"{len(folders)} bundles")


def _record(folder: Path, configs: Path) -> BugRecord:
    shipped = folder.resolve().parent == (configs / "bugs").resolve()
    named = folder.name if shipped else str(folder.resolve())
    bug = bundle.load(named, configs)
    file = bug.file
    others = [Crash(title=title) for title in file.alt_titles]
    return BugRecord(
        id=folder.resolve().name,
        title=file.title,
        status="open" if bug.fix is None else "fixed",
        subsystems=file.subsystems or None,
        crashes=[_crash(bug), *others],
        patch=developer_patch(bug),
        discussions=[
            reference
            for reference in file.references
            if reference.startswith(("http://", "https://"))
        ],
        bundle=named,
        cause=_cause(bug.cause),
    )


def developer_patch(bug: Bug) -> DeveloperPatch | None:
    """Return a bundle's fix, with the commits that its references name; None without a fix."""
    if bug.fix is None:
        return None
    named = filter(None, map(FIX_COMMIT.fullmatch, bug.file.references))
    return DeveloperPatch(
        commits=[Commit(id=match[1], title=match[2] or None) for match in named],
        diff=patching.as_diff(bug.fix),
        date=bug.file.fixed,
        files=bug.file.files or None,
    )


def _cause(commit: CauseCommit | None) -> Cause | None:
    if commit is None:
        return None
    named = Commit(id=_commit_id(commit.commit), title=commit.title or None)
    functions = [Function(file=function.file, name=function.name) for function in commit.functions]
    return Cause(commit=named, functions=functions or None)


def _crash(bug: Bug) -> Crash:
    source = bug.build.source
    git = source if isinstance(source, GitSource) else None
    every = (*bug.reproducers, *bug.on_request)
    # The first of each kind.
    programs = {program.kind: program for program in reversed(every)}
    texts = {kind: FoundText(text=program.text) for kind, program in programs.items()}
    return Crash(
        title=bug.file.title,
        repository=git and git.url,
        commit=git and _commit_id(git.commit),
        config=FoundText(text=bug.build.config.full),
        compiler=bug.build.compiler,
        c_reproducer=texts.get("c", FoundText()),
        syz_reproducer=texts.get("syz", FoundText()),
        syzkaller_commit=programs["syz"].syzkaller if "syz" in programs else None,
    )


def _commit_id(text: str) -> str | None:
    return text if re.fullmatch("[0-9a-f]{40}", text) else None


def write_bundles(dataset: Dataset, folder: Path) -> dict[str, str]:
    """Write bundles into a new folder; return the omitted bugs by id, with reasons.

    Raises UserError as `write_each` does.
    """
    return write_each(dataset, folder, _files)


def write_each(
    dataset: Dataset, folder: Path, files: Callable[[BugRecord], Mapping[str, str]]
) -> dict[str, str]:
    """Write each bug's `files` into a new folder; return the omitted bugs by id, with reasons.

    `files` raises UserError for a bug that has none. Raises UserError `folder_in_use`, and
    `not_triable` if no bug can be written.
    """
    refuse_used(folder)
    left_out: dict[str, str] = {}
    for record in dataset.bugs:
        try:
            texts = files(record)
        except UserError as error:
            left_out[record.id] = error.message
            continue
        for name, text in texts.items():
            path = folder / record.id / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, newline="")
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    if len(left_out) == len(dataset):
        why = next(iter(left_out.values()), "there is no bug")
        raise UserError("not_triable", f"no bug of {dataset.name} can be written: {why}")
    return left_out


def _files(record: BugRecord) -> dict[str, str]:
    # A dataset may come from anywhere: only names of shipped bundles are read here.
    if record.bundle in bundle.names():
        shipped = sorted((CONFIGS / "bugs" / record.bundle).iterdir())
        return {path.name: path.read_text() for path in shipped}
    if record.bundle is not None:
        raise UserError(
            "not_triable", f"{record.id} is tried by the bundle {record.bundle}: copy that"
        )
    return dict(bundle_files(record, tried_bug(record)))


def bundle_files(record: BugRecord, bug: Bug) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the files of a bundle, for a bug that is tried on a commit."""
    source, config = bug.build.source, bug.build.config.full
    assert isinstance(source, GitSource)
    assert config is not None
    first, *others = bug.reproducers
    commits = record.patch.commits if record.patch else []
    about = [f"commit {commit.id}: {commit.title or ''}" for commit in commits if commit.id]
    lines = [
        f"title = {toml(record.title)}",
        f"subsystems = {toml(record.subsystems or [])}",
        *([f"fixed = {record.fixed.isoformat()}"] if record.fixed else []),
        f"alt_titles = {toml(bug.file.alt_titles)}",
        f"references = {toml([f'syzbot {record.id}', *about, *record.discussions])}",
        f"files = {toml(bug.file.files)}",
        f"\n[kernel]\ngit = {toml(source.url)}\ncommit = {toml(source.commit)}",
        f'config = "kernel.config"\ncompiler = {toml(bug.build.compiler)}',
        f"\n[reproducer]\n{_program(first)}",
        f"time = {bug.file.reproducer.time}\ninstances = {bug.file.reproducer.instances}",
        *(f"\n[[reproducer.others]]\n{_program(program)}" for program in others),
    ]
    if bug.file.vm.append:
        lines.append(f"\n[vm]\nappend = {toml(bug.file.vm.append)}")
    if bug.fix is not None:
        lines.append('\n[fix]\npatch = "fix.patch"')
        yield "fix.patch", bug.fix.diff or ""
    if bug.cause is not None and (bug.cause.commit or bug.cause.title):
        lines += _cause_table(bug.cause)
    yield "kernel.config", config
    for program in bug.reproducers:
        yield f"repro.{program.kind}", program.text
    yield "bug.toml", "\n".join(lines) + "\n"


def _cause_table(cause: CauseCommit) -> Iterator[str]:
    yield f"\n[cause]\ncommit = {toml(cause.commit)}\ntitle = {toml(cause.title)}"
    for function in cause.functions:
        yield f"\n[[cause.functions]]\nfile = {toml(function.file)}\nname = {toml(function.name)}"


def _program(program: Reproducer) -> str:
    known = f"\nsyzkaller = {toml(program.syzkaller)}" if program.syzkaller else ""
    return f'file = "repro.{program.kind}"\nkind = "{program.kind}"{known}'
