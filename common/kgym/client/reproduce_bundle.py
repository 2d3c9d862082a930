"""The bundle of a reproduce step, packed from the artifacts of the step and its build; no I/O.

bundle/kernel, initrd-N.cpio    kernel and initrd of the VM of reproducer N
bundle/vmlinux, config          of the kernel, for debuggers and for building it again
bundle/reproducer…              source and program
bundle/about.json               description of the kernel, the bug and QEMU
bundle/root.zst                 the root disk, if any
bundle/variant-SEED.cpio        the variants that crashed it
bundle/reproduce.sh [N [SEED]]  boots it with QEMU; prints the console
"""

import tarfile
import zlib
from dataclasses import dataclass

from kgym.api.jobs import Artifact, JobView, StepView
from kgym.api.steps import BuildArtifact, ReproduceArtifact, ReproduceSpec
from kgym.client.download import check_kept
from kgym.errors import NotFound

NAME = ReproduceArtifact.BUNDLE
_SCRIPT = ReproduceArtifact.SCRIPT
_OWN = (
    "initrd-",
    "reproducer",
    "variant-",
    ReproduceArtifact.ABOUT,
    ReproduceArtifact.ROOT,
    _SCRIPT,
)
_BUILT: dict[str, str] = {
    BuildArtifact.KERNEL: "kernel",
    BuildArtifact.VMLINUX: "vmlinux",
    BuildArtifact.CONFIG: "config",
}
_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the bundle: the artifact of a step, and its name in the bundle."""

    job: int
    step: int
    artifact: Artifact
    name: str


def is_packable(step: StepView) -> bool:
    """Return whether the step has the artifacts for a bundle, and no bundle itself."""
    left = {artifact.name for artifact in step.artifacts}
    return isinstance(step.spec, ReproduceSpec) and _SCRIPT in left and NAME not in left


def build_job(job: JobView, step: StepView) -> int:
    """Return the number of the job that built the kernel of a reproduce step."""
    assert isinstance(step.spec, ReproduceSpec)
    return step.spec.build.job or job.id


def members(job: JobView, step: StepView, there: JobView) -> list[Member]:
    """Return the files of a step's bundle, by name; `there` is the job of its build.

    Raises:
        Gone: Retention has removed one (`artifact_gone`).
        NotFound: The build does not exist (`step_not_found`), or has no kernel
            (`artifact_not_found`).
    """
    assert isinstance(step.spec, ReproduceSpec)
    named = step.spec.build.step
    build = there.step(named)
    if build is None:
        raise NotFound("step_not_found", f"job {there.id} has no step {named}")
    own = [(job.id, step, left, left.name) for left in step.artifacts if left.name.startswith(_OWN)]
    built = [
        (there.id, build, left, _BUILT[left.name])
        for left in build.artifacts
        if left.name in _BUILT
    ]
    if BuildArtifact.KERNEL not in {left.name for left in build.artifacts}:
        message = f"step {build.number} of job {there.id} left no {BuildArtifact.KERNEL}"
        raise NotFound("artifact_not_found", message)
    bundled = []
    for of, left_by, artifact, name in (*own, *built):
        check_kept(left_by, artifact)
        bundled.append(Member(of, left_by.number, artifact, name))
    return sorted(bundled, key=lambda member: member.name)


class BundleArchive:
    """A writer of the archive; it is deterministic: the same files give the same bytes."""

    def __init__(self) -> None:
        # Level 1: the archive is packed while it is sent, and most of it is vmlinux.
        self._gzip = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
        self._size = 0

    def begin(self, member: Member) -> bytes:
        """Return the header of a file."""
        # Owner and time stay 0, so that the same files give the same archive.
        head = tarfile.TarInfo(f"bundle/{member.name}")
        head.size = member.artifact.size
        program = member.name.startswith("reproducer") and "." not in member.name
        head.mode = 0o755 if program or member.name == _SCRIPT else 0o644
        return self.add(head.tobuf())

    def add(self, part: bytes) -> bytes:
        """Return the archive's bytes for a part of the content."""
        self._size += len(part)
        return self._gzip.compress(part)

    def end_file(self) -> bytes:
        """Return the padding after a file."""
        return self.add(bytes(-self._size % tarfile.BLOCKSIZE))

    def end(self) -> bytes:
        """Return the end of the archive."""
        self._size += (rest := 2 * tarfile.BLOCKSIZE)
        return self._gzip.compress(bytes(rest + -self._size % tarfile.RECORDSIZE)) + (
            self._gzip.flush()
        )
