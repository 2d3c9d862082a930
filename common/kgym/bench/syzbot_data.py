"""The bug format of kBenchSyz and Live-kBench: syzbot's JSON with further fields.

Both have the same fields under two names: those of syzbot's own JSON (`fix-commits`, in kBenchSyz's
files), and those of Live-kBench's models (`fixCommits`, in its database and its dataset). Both are
read, the first is written. Source: ARiSE-Lab/live-kbench,
kGym/kclient/KBDr/kclient/kgym_dataset.py (commit 8849209).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field

from kgym.api.faults import refused_at
from kgym.bench.bug_record import (
    BugRecord,
    Cause,
    Commit,
    Crash,
    DeveloperPatch,
    FoundText,
    Function,
)

_REPOSITORY_END = ("/log/", "/commit/", "/commits/", "/tree/", "/+/")


def _either(name: str, other: str) -> Any:
    return Field(
        None, validation_alias=AliasChoices(name, other), serialization_alias=name, repr=False
    )


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


# A time without a zone is in UTC.
Time = Annotated[datetime, AfterValidator(_aware)]


class _Read(BaseModel):
    """External data: unknown fields are ignored, a field of another type is an error."""

    model_config = ConfigDict(extra="ignore")


class _Commit(_Read):
    title: str | None = None
    link: str | None = None
    hash: str | None = _either("hash", "hashValue")
    repo: str | None = None
    branch: str | None = None


class _Crash(_Read):
    title: str | None = None
    syz_link: str | None = _either("syz-reproducer", "syzReproducerLink")
    syz: str | None = _either("syz-reproducer-data", "syzReproducer")
    c_link: str | None = _either("c-reproducer", "cReproducerLink")
    c: str | None = _either("c-reproducer-data", "cReproducer")
    config_link: str | None = _either("kernel-config", "kernelConfigLink")
    config: str | None = _either("kernel-config-data", "kernelConfig")
    source_git: str | None = _either("kernel-source-git", "kernelSourceGit")
    source_commit: str | None = _either("kernel-source-commit", "kernelSourceCommit")
    syzkaller_git: str | None = _either("syzkaller-git", "syzkallerGit")
    syzkaller_commit: str | None = _either("syzkaller-commit", "syzkallerCommit")
    compiler: str | None = _either("compiler-description", "compilerDescription")
    architecture: str | None = None
    report_link: str | None = _either("crash-report-link", "crashReportLink")


class _Bug(_Read):
    version: int = 1
    title: str
    display_title: str | None = _either("display-title", "displayTitle")
    id: str = Field(validation_alias=AliasChoices("id", "bugId"), serialization_alias="id")
    status: str
    fix_commits: list[_Commit] | None = _either("fix-commits", "fixCommits")
    cause_commit: _Commit | None = _either("cause-commit", "causeCommit")
    discussions: list[str] | None = None
    crashes: list[_Crash] = []
    subsystems: list[str] | None = None
    parent: str | None = _either("parent_of_fix_commit", "parentOfFixCommit")
    patch: str | None = None
    message: str | None = _either("patchMessage", "patch_message")
    files: list[str] | None = _either("patch_modified_files", "patchModifiedFiles")
    functions: list[tuple[str, str]] | None = _either(
        "patch_modified_functions", "patchModifiedFunctions"
    )
    patch_date: Time | None = _either("patch_commit_date", "patchCommitDate")
    cause_date: Time | None = _either("cause_commit_date", "causeCommitDate")
    cause_functions: list[tuple[str, str]] | None = _either(
        "cause_modified_functions", "causeModifiedFunctions"
    )
    report: str | None = _either("raw_crash_report", "rawCrashReport")


def read(data: Mapping[str, Any], where: str, **known: Any) -> BugRecord:
    """Return the record of one bug; `known` are fields of the record from other sources.

    Raises UserError `bad_bug_data` naming the field; `where` names the file or row.
    """
    with refused_at(where):
        bug = _Bug.model_validate(data)
        report = FoundText(
            text=bug.report, link=bug.crashes[0].report_link if bug.crashes else None
        )
        return BugRecord(
            **{
                "id": bug.id,
                "title": bug.title,
                "display_title": bug.display_title or None,
                "status": _status(bug.status),
                "subsystems": bug.subsystems,
                "crashes": [
                    _crash(crash, report if number == 0 else FoundText(link=crash.report_link))
                    for number, crash in enumerate(bug.crashes)
                ],
                "patch": _patch(bug),
                "cause": _cause(bug),
                "discussions": bug.discussions or [],
            }
            | known
        )


def write(record: BugRecord) -> dict[str, Any]:
    """Return the bug in kBenchSyz's format; unknown fields are left out."""
    patch, cause = record.patch or DeveloperPatch(), record.cause
    bug = _Bug.model_validate(
        {
            "title": record.title,
            "display-title": record.display_title,
            "id": record.id,
            "status": record.status,
            "fix-commits": [_written(commit) for commit in patch.commits] or None,
            "cause-commit": _written(cause.commit) if cause else None,
            "discussions": record.discussions or None,
            "crashes": [_written_crash(crash) for crash in record.crashes],
            "subsystems": record.subsystems,
            "parent_of_fix_commit": patch.parent,
            "patch": patch.diff,
            "patchMessage": patch.message,
            "patch_modified_files": patch.files,
            "patch_modified_functions": _pairs(patch.functions),
            "patch_commit_date": patch.date,
            "cause_commit_date": cause.date if cause else None,
            "cause_modified_functions": _pairs(cause.functions) if cause else None,
            "raw_crash_report": record.crashes[0].report.text if record.crashes else None,
        }
    )
    return bug.model_dump(mode="json", by_alias=True, exclude_none=True)


# --- from theirs to ours --------------------------------------------------------------------


def _status(status: str) -> str:
    """Return the status without syzbot's additions: the date of the fix, and what it waits for."""
    return status.split(maxsplit=1)[0].lower() if status.strip() else status


def _commit(commit: _Commit) -> Commit:
    return Commit(
        title=commit.title,
        id=commit.hash or None,
        link=commit.link,
        repository=commit.repo,
        branch=commit.branch,
    )


def _crash(crash: _Crash, report: FoundText) -> Crash:
    return Crash(
        title=crash.title or None,
        repository=_repository(crash.source_git),
        commit=crash.source_commit or None,
        config=FoundText(text=crash.config, link=crash.config_link),
        compiler=crash.compiler or None,
        architecture=crash.architecture or "amd64",
        c_reproducer=FoundText(text=crash.c, link=crash.c_link),
        syz_reproducer=FoundText(text=crash.syz, link=crash.syz_link),
        report=report,
        syzkaller_repository=_repository(crash.syzkaller_git),
        syzkaller_commit=crash.syzkaller_commit or None,
    )


def _repository(link: str | None) -> str | None:
    """Return the URL of the repository, from that of a commit's page."""
    # cgit, GitHub and Gitiles put the commit after the repository's path.
    for end in _REPOSITORY_END:
        if link and end in link:
            return link.partition(end)[0]
    return link or None


def _patch(bug: _Bug) -> DeveloperPatch | None:
    if not bug.fix_commits and bug.patch is None:
        return None
    return DeveloperPatch(
        commits=[_commit(commit) for commit in bug.fix_commits or []],
        parent=bug.parent or None,
        diff=bug.patch,
        message=bug.message,
        date=bug.patch_date,
        files=bug.files,
        functions=_functions(bug.functions),
    )


def _cause(bug: _Bug) -> Cause | None:
    if bug.cause_commit is None:
        return None
    return Cause(
        commit=_commit(bug.cause_commit),
        date=bug.cause_date,
        functions=_functions(bug.cause_functions),
    )


def _functions(pairs: list[tuple[str, str]] | None) -> list[Function] | None:
    return None if pairs is None else [Function(name=name, file=file) for name, file in pairs]


# --- from ours to theirs --------------------------------------------------------------------


def _written(commit: Commit) -> dict[str, Any]:
    return {
        "title": commit.title,
        "link": commit.link,
        "hash": commit.id,
        "repo": commit.repository,
        "branch": commit.branch,
    }


def _written_crash(crash: Crash) -> dict[str, Any]:
    return {
        "title": crash.title or "",
        "syz-reproducer": crash.syz_reproducer.link,
        "syz-reproducer-data": crash.syz_reproducer.text,
        "c-reproducer": crash.c_reproducer.link,
        "c-reproducer-data": crash.c_reproducer.text,
        "kernel-config": crash.config.link,
        "kernel-config-data": crash.config.text,
        "kernel-source-git": crash.repository,
        "kernel-source-commit": crash.commit,
        "syzkaller-git": crash.syzkaller_repository,
        "syzkaller-commit": crash.syzkaller_commit,
        "compiler-description": crash.compiler,
        "architecture": crash.architecture,
        "crash-report-link": crash.report.link,
    }


def _pairs(functions: list[Function] | None) -> list[tuple[str, str]] | None:
    return None if functions is None else [(function.name, function.file) for function in functions]
