"""The state of a download that may need several connections, without network I/O."""

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

# Bytes per read.
CHUNK = 1 << 20


def check_kept(step: StepView, artifact: Artifact) -> None:
    """Raise Gone `artifact_gone` if retention has removed it."""
    if step.artifacts_gone_at is not None:
        when = step.artifacts_gone_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        message = f"retention removed {artifact.name} of step {step.number} on {when}"
        raise Gone("artifact_gone", f"{message}; restart the job to make it again")


class Download:
    """A file that is being downloaded, to `.NAME.SHA.part` in its folder until it is complete."""

    def __init__(self, artifact: Artifact, url: str, path: Path) -> None:
        self.artifact = artifact
        self.url = url
        self.retries = Retries(connected=True)  # the caller has just listed the artifacts
        # Whether to accept a redirect to the storage. If the storage cannot be reached, or a clock
        # is wrong, the rest comes from the scheduler.
        self.direct = True
        self._path = path
        # Named after the content too: the part of another artifact is never continued.
        self._part = path.with_name(f".{path.name}.{artifact.sha256[:16]}.part")
        self._part.touch()
        self._have = self._part.stat().st_size

    @classmethod
    def of(
        cls, artifacts: Sequence[Artifact], job_id: int, step: int, name: str, path: Path
    ) -> "Download":
        """Start the download of this artifact; raise UserError if the step has none."""
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
        """Whether all bytes have arrived."""
        return self._have >= self.artifact.size

    @property
    def query(self) -> dict[str, str]:
        """The query of the next request."""
        return {"direct": "true"} if self.direct else {}

    @property
    def part(self) -> dict[str, str]:
        """The headers that request the missing bytes."""
        # Ranges count stored bytes, so the answer must not be compressed.
        return {"Range": f"bytes={self._have}-", "Accept-Encoding": "identity"}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request: the missing bytes, if the content is unchanged."""
        return {"If-Range": f'"{self.artifact.sha256}"', **self.part}

    def begin(self, response: httpx.Response) -> None:
        """Start over if the answer is not partial, and begins at the first byte."""
        self.retries.begin()
        # The whole file comes if `If-Range` no longer matches, or a proxy ignores ranges.
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            self._have = 0
            os.truncate(self._part, 0)

    def take(self, chunk: bytes) -> None:
        """Append bytes."""
        with self._part.open("ab") as file:
            file.write(chunk)
        self._have += len(chunk)

    def finish(self) -> None:
        """Verify the SHA-256 and rename the file; raise InfrastructureError on a mismatch."""
        with self._part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        if digest != self.artifact.sha256:
            self._part.unlink()
            raise InfrastructureError(
                "artifact_corrupt",
                f"{self.artifact.name}: SHA-256 mismatch: expected {self.artifact.sha256}, "
                f"got {digest}; download it again",
            )
        self._part.replace(self._path)
