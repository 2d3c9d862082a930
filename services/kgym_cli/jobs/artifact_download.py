"""Downloads of `kgym job fetch`: artifacts of a job, and the bundle of a reproduce step."""

import shutil
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel, Field

from kgym.api.jobs import Artifact, JobView, StepView
from kgym.api.steps import StepKind
from kgym.client import Client
from kgym.client.download import CHUNK, check_kept
from kgym.client.reproduce_bundle import (
    NAME,
    BundleArchive,
    Member,
    build_job,
    is_packable,
    members,
)
from kgym.errors import InfrastructureError, UserError, file_errors
from kgym.transport.artifact_storage import sha256_of
from kgym_cli.output import people


class Fetched(BaseModel):
    """A downloaded artifact."""

    step: int
    kind: StepKind = Field(description="of the step")
    name: str
    path: str
    size: int = Field(description="bytes")
    sha256: str


def chosen(job: JobView, names: Sequence[str], step: int | None) -> list[tuple[StepView, Artifact]]:
    """Return the artifacts with these names or patterns, of all steps or of one.

    Raises UserError `artifact_not_found` if a name matches nothing, Gone `artifact_gone` if
    retention has removed a matching artifact.
    """
    if step is not None and step >= len(job.steps):
        raise UserError("no_such_step", f"job {job.id} has {len(job.steps)} steps, from 0")
    steps = [view for view in job.steps if step in (None, view.number)]
    left = [(view, artifact) for view in steps for artifact in view.artifacts]
    for name in names:
        if not any(fnmatchcase(artifact.name, name) for _, artifact in left):
            known = ", ".join(dict.fromkeys(artifact.name for _, artifact in left)) or "none"
            where = f"step {step} of job {job.id}" if step is not None else f"job {job.id}"
            raise UserError(
                "artifact_not_found", f"{where} has no artifact {name!r} (it has: {known})"
            )
    artifacts = [
        (view, artifact)
        for view, artifact in left
        if not names or any(fnmatchcase(artifact.name, name) for name in names)
    ]
    for view, artifact in artifacts:
        check_kept(view, artifact)
    return artifacts


def fetch(
    client: Client, job: int, wanted: tuple[StepView, Artifact], folder: Path, *, quiet: bool
) -> Fetched:
    """Download an artifact below `folder`, unless it exists there."""
    step, artifact = wanted
    # A scheduler elsewhere is not trusted with this machine's files. Names hold no slash
    # (kgym.api.jobs), so these two are the only ones that would leave the folder.
    if artifact.name in {".", ".."}:
        message = f"step {step.number}: {artifact.name!r} is not a file name"
        raise InfrastructureError("bad_artifact", message)
    path = folder / f"{step.number}-{step.kind}" / artifact.name
    with file_errors(path, "cannot_write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is(path, artifact):
            if not quiet:
                people.print(f"{artifact.name}: {artifact.size / (1 << 20):,.1f} MiB")
            client.download(job, step.number, artifact.name, path)
    return Fetched(
        step=step.number,
        kind=step.kind,
        name=artifact.name,
        path=str(path),
        size=artifact.size,
        sha256=artifact.sha256,
    )


def _is(path: Path, artifact: Artifact) -> bool:
    """Return whether the file exists with the artifact's content."""
    is_whole = path.is_file() and path.stat().st_size == artifact.size
    return is_whole and sha256_of(path) == artifact.sha256


def packable(job: JobView, names: Sequence[str], step: int | None) -> list[StepView]:
    """Return the steps whose bundle is requested and must be packed here."""
    if NAME not in names:
        return []
    return [
        candidate
        for candidate in job.steps
        if step in (None, candidate.number) and is_packable(candidate)
    ]


def pack(client: Client, job: JobView, step: StepView, folder: Path, *, quiet: bool) -> Fetched:
    """Download the parts of a step's bundle and pack them below `folder`."""
    number = build_job(job, step)
    there = job if number == job.id else client.job(number)
    # Parts stay until the archive is written: a second attempt does not download them again.
    parts = folder / f".{step.number}-bundle"
    files = []
    for member in members(job, step, there):
        of = (job if member.job == job.id else there).steps[member.step]
        wanted = of, member.artifact
        got = fetch(client, member.job, wanted, parts / str(member.job), quiet=quiet)
        files.append((member, Path(got.path)))
    path = folder / f"{step.number}-{step.kind}" / NAME
    with file_errors(path, "cannot_write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        _pack(files, part := path.with_name(f".{NAME}.part"))
        # The archive is packed beside its place, so that an interrupted one is never taken for
        # whole.
        part.replace(path)
        shutil.rmtree(parts)
        sha256, size = sha256_of(path), path.stat().st_size
    return Fetched(
        step=step.number, kind=step.kind, name=NAME, path=str(path), size=size, sha256=sha256
    )


def _pack(files: Sequence[tuple[Member, Path]], target: Path) -> None:
    archive = BundleArchive()
    with target.open("wb") as sink:
        for member, path in files:
            sink.write(archive.begin(member))
            with path.open("rb") as file:
                while part := file.read(CHUNK):
                    sink.write(archive.add(part))
            sink.write(archive.end_file())
        sink.write(archive.end())
