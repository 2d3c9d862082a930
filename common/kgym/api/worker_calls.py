"""The protocol between scheduler and workers: claims, assignments, endings.

`WorkerCalls` is the scheduler's interface for workers. Every call about an attempt has its lease;
if the call is refused, the attempt ends (ARCHITECTURE.md, "What must hold").
"""

import hashlib
import uuid
from typing import Annotated, Protocol

from pydantic import Field

from kgym.api.capabilities import Capabilities
from kgym.api.jobs import Artifact, EntryName, Progress
from kgym.api.steps import Failure, StepKind, StepResult, StepSpec, Strict
from kgym.api.suitecache import HELD, HeldEntry
from kgym.errors import InfrastructureError

WORKER_ID = r"^[\w.:+-]+$"
# Workers report every 1.5 s. A lease outlasts a restart of the scheduler, or of the database.
LEASE_SECONDS = 60.0
# Characters of log in one report.
LOG = 1 << 20
# Maximum number of a step's artifacts.
ARTIFACTS = 10_000
# Heartbeat of workers that want or get no steps: the interval of the claims that show that they are
# alive. These claims are most of what an idle platform costs; 1,000 workers make 50 a second.
BEAT_SECONDS = 20.0
# How long a worker's leases last after its connection has ended, unless it reports.
LOST_SECONDS = 5.0


WorkerId = Annotated[str, Field(min_length=1, max_length=200, pattern=WORKER_ID)]


class Input(Strict):
    """The result of an earlier step that this one uses."""

    result: StepResult
    artifacts: list[Artifact]

    def artifact(self, name: str) -> Artifact:
        """Return the artifact of this name; raise InfrastructureError if there is none."""
        for artifact in self.artifacts:
            if artifact.name == name:
                return artifact
        left = ", ".join(artifact.name for artifact in self.artifacts) or "nothing"
        message = f"the earlier step has no artifact `{name}`, but {left}"
        raise InfrastructureError("artifact_not_found", message)


class Assignment(Strict):
    """A claimed step and its lease."""

    step_id: int = Field(description="the step's id among those of all jobs")
    job_id: int
    number: int = Field(description="the step's number in its job, from 0")
    attempt: int = Field(description="the attempt's number, from 1")
    lease: uuid.UUID = Field(description="sent with every call about the attempt")
    spec: StepSpec
    inputs: dict[str, Input] = Field(description="by their names in the spec")
    local: bool = Field(
        False, description="the job was submitted on the scheduler's machine, without a token"
    )


def attempt_folder(step_id: int, lease: uuid.UUID) -> str:
    """Return the storage folder of an attempt's artifacts.

    The lease is hashed: all workers can list the storage, and whoever knows a lease can end its
    attempt.
    """
    return f"steps/{step_id}/{hashlib.sha256(lease.bytes).hexdigest()[:32]}"


class AttemptEnding(Strict):
    """The end of an attempt: a result or a failure; a failure with a result is not retried."""

    result: StepResult | None = None
    failure: Failure | None = None
    artifacts: list[Artifact] = Field([], max_length=ARTIFACTS)


class WorkerInfo(Strict):
    """A worker's description of itself."""

    id: WorkerId
    kinds: list[StepKind] = Field(min_length=1, max_length=len(StepKind))
    slots: int = Field(ge=1, le=1000)
    capabilities: Capabilities | None = Field(None, description="null: tries everything")


class Claim(Strict):
    """A worker's request for steps; with `want` 0 it only shows that the worker is alive."""

    id: uuid.UUID = Field(description="unchanged when the claim is repeated after a lost answer")
    worker: WorkerInfo
    want: int = Field(ge=0, le=1000, description="maximum number of steps")
    again: bool = Field(False, description="whether it is repeated after a lost answer")
    woken: bool = Field(False, description="whether a notice caused it")
    entries: list[HeldEntry] | None = Field(
        None, max_length=HELD, description="SuiteCache entries on its host; null: as last reported"
    )

    def lease(self, number: int) -> uuid.UUID:
        """Return the lease of a claimed step, by its number in the answer."""
        # Computed, so that a repeated claim gets the same leases.
        return uuid.uuid5(self.id, str(number))


class Claimed(Strict):
    """The answer to a claim."""

    assignments: list[Assignment] = []
    more: list[StepKind] = Field([], description="kinds with more queued steps that it could run")
    draining: bool = Field(False, description="whether the worker shall claim no more")
    dropped: list[EntryName] = Field(
        [],
        max_length=HELD,
        description="SuiteCache entries to remove from its host once they are unused",
    )


class WorkerCalls(Protocol):
    """The scheduler's interface for workers. Each call is idempotent.

    Raises InfrastructureError if the scheduler cannot be reached; repeat the call.
    """

    async def claim(self, claim: Claim) -> Claimed:
        """Claim at most `want` queued steps, in fair order, that the worker can run."""

    async def report(self, lease: uuid.UUID, log: str, progress: Progress | None) -> bool:
        """Extend the lease and send log and progress; return False if the lease is lost."""

    async def finish(self, lease: uuid.UUID, ending: AttemptEnding) -> bool:
        """End the attempt; return False if the lease is lost."""

    async def release(self, lease: uuid.UUID) -> bool:
        """Release the step unfinished; the attempt does not count."""

    async def hold(self, lease: uuid.UUID, name: str) -> bool:
        """Lock a name until the attempt ends, or return False if it is locked or the lease lost.

        Locking it again returns True.
        """

    async def ended(self, lease: uuid.UUID) -> bool:
        """Return whether the attempt of any worker's lease has ended.

        False while it runs, and if there was no such attempt.
        """

    async def leave(self, worker: str) -> None:
        """Report that the worker has ended."""

    async def stay(self, worker: str) -> None:
        """Stay connected until cancelled, so that the worker's sudden death is noticed at once.

        The kernel closes the connections of a killed process; those of a paused one stay open.
        """
