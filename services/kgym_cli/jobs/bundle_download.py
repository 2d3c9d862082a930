"""The bundle of a reproduce step (`kgym.client.reproduce_bundle`), packed here as a file."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from kgym.api.jobs import JobView, StepView
from kgym.client import Client
from kgym.client.download import CHUNK
from kgym.client.reproduce_bundle import (
    NAME,
    BundleArchive,
    Member,
    build_job,
    is_packable,
    members,
)
from kgym.errors import UserError
from kgym_cli.jobs.artifact_download import Fetched, fetch


def packable(job: JobView, names: Sequence[str], step: int | None) -> list[StepView]:
    """Return the steps whose bundle is asked for by its name, and has yet to be packed."""
    if NAME not in names:
        return []
    return [one for one in job.steps if step in (None, one.number) and is_packable(one)]


def pack(client: Client, job: JobView, step: StepView, folder: Path, *, quiet: bool) -> Fetched:
    """Fetch what belongs to the bundle of this step, and pack it below `folder`."""
    number = build_job(job, step)
    there = job if number == job.id else client.job(number)
    parts = folder / f".{step.number}-bundle"
    files = []
    for member in members(job, step, there):
        of = (job if member.job == job.id else there).steps[member.step]
        wanted = of, member.artifact
        got = fetch(client, member.job, wanted, parts / str(member.job), quiet=quiet)
        files.append((member, Path(got.path)))
    path = folder / f"{step.number}-{step.kind}" / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _pack(files, part := path.with_name(f".{NAME}.part"))
        part.replace(path)
        shutil.rmtree(parts)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = path.stat().st_size
    except OSError as error:
        raise UserError("cannot_write", f"{path}: {error.strerror or error}") from error
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
