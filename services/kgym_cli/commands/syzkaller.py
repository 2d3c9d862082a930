"""`kgym syzkaller`."""

import os
import re
import tempfile
from pathlib import Path

import click

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import (
    SYZKALLER_GIT,
    GitSource,
    SyzkallerArtifact,
    SyzkallerResult,
    SyzkallerSpec,
    TarballSource,
)
from kgym.client import Client
from kgym.errors import UserError, file_errors
from kgym.transport.artifact_storage import sha256_of
from kgym_cli.inputs.parameters import FOLDER
from kgym_cli.jobs.job_answer import FailedStep
from kgym_cli.jobs.job_progress import follow, no_result
from kgym_cli.output import json_option, leave, people, print_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import scheduler
from kgym_cli.settings import settings

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[\w][\w./-]*")
_FORMS = "a full commit id, a repository as URL@COMMIT or FOLDER@COMMIT, or a tarball with --commit"


class SyzkallerAnswer(Answer):
    """The programs that were built or cached; without a result, `failure` has the reason."""

    job: int
    failure: FailedStep | None
    commit: str | None = None
    source_identity: str | None = None
    made: bool | None = None
    go: str | None = None
    compiler: str | None = None
    lacks: str = ""
    folder: Path | None = None
    seconds: dict[str, float] = {}

    @classmethod
    def of(
        cls, job: JobView, result: SyzkallerResult | None, folder: Path | None
    ) -> "SyzkallerAnswer":
        """Return the answer of a job of one `syzkaller` step."""
        built = result.model_dump(exclude={"kind", "bytes"}) if result else {}
        return cls(job=job.id, failure=FailedStep.of(job), folder=folder, **built)


@click.group()
def syzkaller() -> None:
    """Build the programs that run syzkaller reproducers."""


@syzkaller.command()
@click.argument("source")
@click.option("--commit", help="Commit of a tarball.")
@click.option(
    "--output",
    type=FOLDER,
    help="Target folder; a subfolder per commit.  [default: KGYM_SYZKALLER, or syzkaller in the"
    " data folder, where this machine's workers look]",
)
@click.option("--fresh", is_flag=True, help="Build again, ignoring earlier builds.")
@json_option(SyzkallerAnswer)
def build(source: str, commit: str | None, output: Path | None, fresh: bool, as_json: bool) -> None:
    """Build syz-execprog, syz-executor and syz-mutate from SOURCE, and install them by commit.

    SOURCE is a full commit id of syzkaller's repository, URL@COMMIT or FOLDER@COMMIT, or a tarball
    with --commit. A builder compiles in its sandbox, without network, with Debian's golang-go and
    g++; each source once. The exit status is 0 if the programs are installed, 2 for bad input, 3
    if there is no answer.
    """
    spec = _spec(source, commit).model_copy(update={"cache": "fresh" if fresh else "use"})
    with scheduler(work=True) as client:
        job = follow(client, client.submit(JobRequest(steps=[spec])))
        # Artifacts are downloaded before the client closes: the commands' platform may end with it.
        result = job.steps[0].result
        built = result if isinstance(result, SyzkallerResult) else None
        kept = output or settings().syzkaller
        folder = _installed(client, job, built, kept) if built else None
    answer = SyzkallerAnswer.of(job, built, folder)
    if as_json:
        print_json(answer)
    elif built is not None:
        how = f"built in {sum(built.seconds.values()):.0f} s" if built.made else "found"
        results.print(f"syzkaller {built.commit}: {how}; in {folder}")
        if built.lacks:
            people.print(f"its programs are not varied: {built.lacks}")
    if built is None:
        leave(no_result(job))


def _spec(named: str, commit: str | None) -> SyzkallerSpec:
    """Return the step that builds a source; raise UserError `bad_option`."""
    if commit is not None and not _COMMIT.fullmatch(commit):
        raise UserError("bad_option", f"--commit {commit!r} is not a full commit id")
    path = Path(named).expanduser()
    if _COMMIT.fullmatch(named):
        return SyzkallerSpec(source=GitSource(url=SYZKALLER_GIT, commit=named), commit=commit)
    if path.is_file():
        if commit is None:
            raise UserError("bad_option", "a tarball does not contain its commit id: give --commit")
        tarball = TarballSource(url=str(path.resolve()), sha256=sha256_of(path))
        return SyzkallerSpec(source=tarball, commit=commit)
    url, _, revision = named.rpartition("@")
    if url and _REVISION.fullmatch(revision):
        place = url if "://" in url else str(Path(url).expanduser().resolve())
        return SyzkallerSpec(source=GitSource(url=place, commit=revision), commit=commit)
    raise UserError("bad_option", f"{named!r} names no source of syzkaller: give {_FORMS}")


def _installed(client: Client, job: JobView, result: SyzkallerResult, folder: Path) -> Path:
    """Install the programs into their commit's folder; return the folder."""
    place = folder / result.commit
    with file_errors(place, "cannot_write"):
        place.mkdir(parents=True, exist_ok=True)
        # All downloads end before the first rename, so that a worker never runs an executor of
        # another build than its execprog.
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
            names = [name for name in SyzkallerArtifact if name in result.bytes]
            for name in names:
                client.download(job.id, 0, name, Path(part, name))
                Path(part, name).chmod(0o755)
            for name in names:
                os.replace(Path(part, name), place / name)
    return place
