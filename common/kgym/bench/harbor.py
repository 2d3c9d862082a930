"""Datasets as Harbor tasks: one folder per bug, which Harbor builds, assigns and judges.

Format: https://www.harborframework.com/docs/tasks. The image's build clones the tree, so a task
needs a commit. A platform (KGYM_SERVER, KGYM_TOKEN) tries the patch, so it needs a config and a
program too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kgym.api.steps import GitSource
from kgym.bench.bug_bundles import bundle_files, write_each
from kgym.bench.bug_record import BugRecord, Crash
from kgym.bench.dataset import Dataset
from kgym.bench.tried_bug import tried_bug
from kgym.bugs.bundle_folder import toml
from kgym.errors import UserError
from kgym.source.comments import bare_program

# Built from docker/kenv/base.Dockerfile.
IMAGE = "kgym-kenv:latest"
_URL = re.compile(r"https?://[^\s'\"\\]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Templates of a task's files.
_TASK_FILES = Path(__file__).with_name("harbor_task")
_INSTRUCTION = (_TASK_FILES / "instruction.md").read_text()
_TASK = (_TASK_FILES / "task.toml").read_text()
_DOCKERFILE = (_TASK_FILES / "Dockerfile").read_text()
# The reward says whether the crash is gone (exit status 0), or whether the patch failed (1, 2). Any
# other status is a failure of the platform, for which no reward is written.
_TEST = (_TASK_FILES / "test.sh").read_text()
_SOLVE = (_TASK_FILES / "solve.sh").read_text()


@dataclass(frozen=True, slots=True)
class HarborOptions:
    """How tasks are judged, and their time limits in seconds."""

    instances: int = 25
    agent_seconds: float = 7200.0
    verifier_seconds: float = 14400.0


def write(
    dataset: Dataset, folder: Path, options: HarborOptions = HarborOptions()
) -> dict[str, str]:
    """Write the tasks into a new folder; return the omitted bugs by id, with reasons.

    Raises UserError `folder_in_use`, and `not_triable` if no bug can be a task.
    """
    return write_each(dataset, folder, lambda bug: task(bug, dataset.name, options))


def task(record: BugRecord, dataset: str, options: HarborOptions) -> Mapping[str, str]:
    """Return the files of a bug's task by path; raise UserError `not_triable`."""
    bug = tried_bug(record)
    source, crash = bug.build.source, next(iter(record.crashes), Crash())
    if not isinstance(source, GitSource) or bug.build.config.full is None:
        raise UserError("not_triable", f"{record.id} is on no commit with a config of its own")
    if not _URL.fullmatch(source.url) or not _COMMIT.fullmatch(source.commit):
        what = f"{source.commit!r} of {source.url!r}"
        raise UserError("not_triable", f"{record.id}: {what} cannot be fetched by an image")
    # The bundle only tries the agent's patch: the fix belongs to the task's solution alone.
    bundle = bundle_files(record, replace(bug, fix=None))
    files = {
        "instruction.md": _INSTRUCTION.format(
            report=(crash.report.text or record.title).strip(),
            program=bare_program(bug.reproducers[0].text),
        ),
        "task.toml": _TASK.format(
            name=toml(f"kgym/{dataset}-{record.id}".lower()),
            title=toml(record.title),
            kind=toml(str(record.type)),
            bug=toml(record.id),
            subsystems=toml(record.subsystems or []),
            agent_seconds=options.agent_seconds,
            verifier_seconds=options.verifier_seconds,
        ),
        "environment/Dockerfile": _DOCKERFILE.format(
            image=IMAGE, repository=source.url, commit=source.commit
        ),
        "tests/test.sh": _TEST.format(instances=options.instances),
        **{f"tests/bundle/{name}": text for name, text in bundle},
    }
    if bug.fix is not None and bug.fix.diff is not None:
        files |= {"solution/solve.sh": _SOLVE, "solution/fix.patch": bug.fix.diff}
    return files
