"""The bundle of a reproduce step, packed here out of what the step and its build left.

bundle/kernel, initrd-N.cpio    what the VM of reproducer N booted
bundle/vmlinux, config          of the kernel, for debuggers and for building it again
bundle/reproducer…              source and program
bundle/about.json               what was built, and what is looked for
bundle/reproduce.sh [N]         boots it with QEMU; the console comes on the terminal
"""

import gzip
import hashlib
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from kgym.api.jobs import JobView, StepView
from kgym.api.steps import BuildArtifact, ReproduceArtifact, ReproduceSpec
from kgym.client import Client
from kgym.errors import UserError
from kgym_cli.artifact_download import Fetched, checked, fetch

NAME = ReproduceArtifact.BUNDLE
_SCRIPT = ReproduceArtifact.SCRIPT
_OWN = ("initrd-", "reproducer", ReproduceArtifact.ABOUT, _SCRIPT)
_BUILT: dict[str, str] = {
    BuildArtifact.KERNEL: "kernel",
    BuildArtifact.VMLINUX: "vmlinux",
    BuildArtifact.CONFIG: "config",
}


def packable(job: JobView, names: Sequence[str], step: int | None) -> list[StepView]:
    """Return the steps whose bundle is asked for by its name, and has yet to be packed."""
    if NAME not in names:
        return []
    return [
        one
        for one in job.steps
        if step in (None, one.number)
        and isinstance(one.spec, ReproduceSpec)
        and _SCRIPT in (left := {artifact.name for artifact in one.artifacts})
        and NAME not in left
    ]


def pack(client: Client, job: JobView, step: StepView, folder: Path, *, quiet: bool) -> Fetched:
    """Fetch what belongs to the bundle of this step, and pack it below `folder`."""
    build_job, build = _build(client, job, step)
    parts = folder / f".{step.number}-bundle"
    own = [(one, one.name) for one in step.artifacts if one.name.startswith(_OWN)]
    built = [(one, _BUILT[one.name]) for one in build.artifacts if one.name in _BUILT]
    files = {}
    for number, of, these in ((job.id, step, own), (build_job, build, built)):
        for artifact, name in these:
            checked(of, artifact)
            got = fetch(client, number, (of, artifact), parts / str(number), quiet=quiet)
            files[name] = Path(got.path)
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


def _build(client: Client, job: JobView, step: StepView) -> tuple[int, StepView]:
    """Return the build that the step rests on, and the number of its job."""
    assert isinstance(step.spec, ReproduceSpec)
    named = step.spec.build
    there = job if named.job in (None, job.id) else client.job(named.job)
    build = there.step(named.step)
    if build is None:
        raise UserError("no_such_step", f"job {there.id} has no step {named.step}")
    return there.id, build


def _pack(files: dict[str, Path], target: Path) -> None:
    """Write the archive; the same files give the same bytes."""
    with (
        target.open("wb") as sink,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=sink, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name in sorted(files):
            member = tarfile.TarInfo(f"bundle/{name}")
            member.size = files[name].stat().st_size
            program = name.startswith("reproducer") and "." not in name
            member.mode = 0o755 if program or name == _SCRIPT else 0o644
            with files[name].open("rb") as file:
                archive.addfile(member, file)
