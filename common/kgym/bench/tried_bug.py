"""Runnable bugs from a dataset: a kernel to build, programs to run, the developers' fix."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from kgym.api.agent.nodes import CauseCommit, CauseFunction
from kgym.api.faults import refused_at
from kgym.api.steps import BuildSpec, GitSource, KernelConfig, Patch, Reproducer
from kgym.bench.bug_record import BugRecord, Crash, Function
from kgym.bugs import bundle
from kgym.bugs.bug import Bug
from kgym.bugs.bug_file import BugFile
from kgym.bugs.fixed_bug import FixCommit, FixedBug
from kgym.bugs.port import append_for, ported
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.source import patching

# The kernel: the parent of the fix, or the commit on which syzbot saw the crash.
Base = Literal["parent", "crash"]
INSTANCES = 5
SECONDS = 60.0


def tried_bug(
    record: BugRecord,
    base: Base = "parent",
    *,
    kernel: str | None = None,
    instances: int = INSTANCES,
    seconds: float = SECONDS,
    configs: Path = CONFIGS,
) -> Bug:
    """Return the bug, to be tried on `instances` VMs for `seconds` each.

    With `kernel`, it is tried on that shared kernel with its fix reversed. A bug with a bundle is
    loaded from it. Raises UserError `not_triable`, which says what is missing, and as
    `kgym.bugs.bundle.load` does.
    """
    if record.bundle is not None:
        name = record.bundle if kernel is None else f"{record.bundle}@{kernel}"
        return bundle.load(name, configs)
    with refused_at(record.id, "not_triable"):
        if kernel is not None:
            bug = _ported(record, kernel, instances, seconds, configs)
        else:
            bug = _on_commit(record, base, instances, seconds)
        return replace(bug, cause=cause_of(record))


def fix_of(record: BugRecord) -> Patch | None:
    """Return the developers' fix; None if its diff is unknown."""
    diff = record.patch.diff if record.patch else None
    return Patch(name="fix", diff=diff) if diff else None


def cause_of(record: BugRecord) -> CauseCommit | None:
    """Return the commit that introduced the bug; None if it is unknown."""
    if record.cause is None:
        return None
    commit = record.cause.commit
    return CauseCommit(
        commit=commit.id or "",
        title=commit.title or "",
        functions=list(_functions(record.cause.functions or [])),
    )


def _functions(functions: Sequence[Function]) -> Iterator[CauseFunction]:
    """Yield the functions with valid names: a dataset's names are unchecked."""
    for function in functions:
        try:
            yield CauseFunction(file=function.file, name=function.name)
        except ValidationError:
            continue


def programs(crash: Crash) -> tuple[Reproducer, ...]:
    """Return the programs that show the crash: the C program, and syzkaller's."""
    reproducers = []
    if crash.c_reproducer.text:
        reproducers.append(Reproducer(kind="c", text=crash.c_reproducer.text))
    if crash.syz_reproducer.text:
        commit = crash.syzkaller_commit
        # A step that builds syzkaller needs the full id; else the worker's own syzkaller runs it.
        known = commit if commit is not None and len(commit) == 40 else None
        reproducers.append(Reproducer(kind="syz", text=crash.syz_reproducer.text, syzkaller=known))
    return tuple(reproducers)


def _on_commit(record: BugRecord, base: Base, instances: int, seconds: float) -> Bug:

    crash = next((crash for crash in record.crashes if programs(crash)), None)
    if crash is None:
        raise _lacks(record, "a program that shows it")
    if not crash.config.text:
        raise _lacks(record, "its kernel's config")
    commit = crash.commit if base == "crash" else _parent(record)
    if crash.repository is None or commit is None:
        raise _lacks(record, "the repository and commit of its kernel")
    fix = fix_of(record)
    compiler = crash.compiler or "gcc"
    kernel = {"git": crash.repository, "commit": commit, "config": "kernel.config"}
    build = BuildSpec(
        source=GitSource(url=crash.repository, commit=commit),
        config=KernelConfig(full=crash.config.text),
        compiler=compiler,
    )
    append = append_for(record.title)
    file = BugFile.model_validate(
        {
            "title": record.title,
            "alt_titles": record.titles[1:],
            "files": [] if fix is None else patching.files(fix),
            "kernel": {**kernel, "compiler": compiler},
            "reproducer": {"file": "repro.c", "time": seconds, "instances": instances},
            "vm": {"append": append} if append else {},
        }
    )
    return Bug(record.id, file, build, programs(crash), fix)


def _parent(record: BugRecord) -> str | None:
    patch = record.patch
    if patch is None:
        return None
    if patch.parent is not None:
        return patch.parent
    fixes = [
        commit.id for commit in patch.commits if commit.id is not None and len(commit.id) == 40
    ]
    # `ID^` is resolved by the builder, which has the repository.
    return f"{fixes[0]}^" if fixes else None


def _ported(record: BugRecord, kernel: str, instances: int, seconds: float, configs: Path) -> Bug:
    patch = record.patch
    if patch is None or not patch.diff:
        raise _lacks(record, "the diff of its fix")
    reproducers = [program for crash in record.crashes for program in programs(crash)]
    if not reproducers:
        raise _lacks(record, "a program that shows it")
    commits = [
        FixCommit(title=commit.title or "", hash=commit.id or "") for commit in patch.commits
    ]
    public = FixedBug.model_validate(
        {"id": record.id, "title": record.title, "patch": patch.diff, "commits": commits}
    )
    return ported(public, reproducers[0], kernel, instances, seconds, configs)


def _lacks(record: BugRecord, what: str) -> UserError:
    return UserError("not_triable", f"{record.id} cannot be tried: {what} is unknown")
