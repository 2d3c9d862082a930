"""A file that comes in parts, perhaps over several connections, without network I/O."""

import hashlib
import os
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import httpx

from kgym.api.jobs import Artifact, StepView
from kgym.client.protocol import Retries
from kgym.errors import Gone, InfrastructureError, UserError

# Bytes that are read at once.
CHUNK = 1 << 20


def check_kept(step: StepView, artifact: Artifact) -> None:
    """Raise Gone `artifact_gone` where retention has removed it."""
    if step.artifacts_gone_at is not None:
        when = step.artifacts_gone_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        message = f"retention removed {artifact.name} of step {step.number} on {when}"
        raise Gone("artifact_gone", f"{message}; restart the job to make it again")


class Download:
    """A file on its way: `.NAME.SHA.part` beside its place, until it is whole."""

    def __init__(self, artifact: Artifact, url: str, path: Path) -> None:
        self.artifact = artifact
        self.url = url
        self.retries = Retries(connected=True)  # by whoever has just listed the artifact
        # Whether the storage is asked for the file itself, where it gives it out.
        self.direct = True
        self._path = path
        self._part = path.with_name(f".{path.name}.{artifact.sha256[:16]}.part")
        self._part.touch()
        self._have = self._part.stat().st_size

    @classmethod
    def of(
        cls, artifacts: Sequence[Artifact], job_id: int, step: int, name: str, path: Path
    ) -> "Download":
        """Begin with the artifact of this name; raise UserError if the step left none."""
        kept = next((artifact for artifact in artifacts if artifact.name == name), None)
        if kept is None:
            left = ", ".join(artifact.name for artifact in artifacts) or "none"
            raise UserError(
                "artifact_not_found",
                f"step {step} of job {job_id} left no artifact {name!r} (it left: {left})",
            )
        return cls(kept, f"/jobs/{job_id}/steps/{step}/artifacts/{quote(name, safe='')}", path)

    @property
    def complete(self) -> bool:
        """Whether all bytes are here."""
        return self._have >= self.artifact.size

    @property
    def query(self) -> dict[str, str]:
        """The query of the next request."""
        return {"direct": "true"} if self.direct else {}

    @property
    def part(self) -> dict[str, str]:
        """The headers that ask for what is missing."""
        return {"Range": f"bytes={self._have}-", "Accept-Encoding": "identity"}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request: for what is missing, of this very content."""
        return {"If-Range": f'"{self.artifact.sha256}"', **self.part}

    def begin(self, response: httpx.Response) -> None:
        """Note the answer: one that is not partial begins at the first byte."""
        self.retries.begin()
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            self._have = 0
            os.truncate(self._part, 0)

    def take(self, chunk: bytes) -> None:
        """Append to what is here."""
        with self._part.open("ab") as file:
            file.write(chunk)
        self._have += len(chunk)

    def finish(self) -> None:
        """Verify the file and move it into its place; raise InfrastructureError if it is wrong."""
        with self._part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        if digest != self.artifact.sha256:
            self._part.unlink()
            raise InfrastructureError(
                "artifact_corrupt",
                f"{self.artifact.name} arrived with SHA-256 {digest}, not {self.artifact.sha256}; "
                "download it again",
            )
        self._part.replace(self._path)
