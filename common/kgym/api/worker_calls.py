"""What scheduler and workers say to each other: claims, assignments, endings.

`WorkerCalls` is the scheduler as a worker sees it. Every call about an attempt
carries its lease; if the call is refused, the attempt ends (ARCHITECTURE.md, "What must hold").
"""

import uuid
from typing import Annotated, Protocol

from pydantic import Field

from kgym.api.capabilities import Capabilities
from kgym.api.jobs import Artifact, EntryName, Progress
from kgym.api.steps import Failure, StepKind, StepResult, StepSpec, Strict
from kgym.api.suitecache import HELD, HeldEntry
from kgym.errors import InfrastructureError

WORKER_ID = r"^[\w.:+-]+$"
LEASE_SECONDS = 60.0
# Characters of log in one report.
LOG = 1 << 20
# Artifacts that a step may leave, at most.
ARTIFACTS = 10_000
# How often a worker that asks for no step says that it is alive.
BEAT_SECONDS = 10.0
# How long the leases of a worker last once its connection has ended, unless it is heard of.
LOST_SECONDS = 5.0


WorkerId = Annotated[str, Field(min_length=1, max_length=200, pattern=WORKER_ID)]


class Input(Strict):
    """A finished step that this one builds on."""

    result: StepResult
    artifacts: list[Artifact]

    def artifact(self, name: str) -> Artifact:
        """Return the artifact of this name; raise InfrastructureError if the step left none."""
        for artifact in self.artifacts:
            if artifact.name == name:
                return artifact
        left = ", ".join(artifact.name for artifact in self.artifacts) or "nothing"
        message = f"the step before left no `{name}`, but {left}"
        raise InfrastructureError("artifact_not_found", message)


class Assignment(Strict):
    """A claimed step: what to do, under which lease."""

    step_id: int = Field(description="the step's id among those of all jobs")
    job_id: int
    number: int = Field(description="the step's number in its job, from 0")
    attempt: int = Field(description="the attempt's number, from 1")
    lease: uuid.UUID = Field(description="which every call about the attempt carries")
    spec: StepSpec
    inputs: dict[str, Input] = Field(description="by the names that the spec has for them")


class AttemptEnding(Strict):
    """How an attempt ended: with a result, or with a failure; a failure with a result is final."""

    result: StepResult | None = None
    failure: Failure | None = None
    artifacts: list[Artifact] = Field([], max_length=ARTIFACTS)


class WorkerInfo(Strict):
    """What a worker says about itself."""

    id: WorkerId
    kinds: list[StepKind] = Field(min_length=1, max_length=len(StepKind))
    slots: int = Field(ge=1, le=1000)
    capabilities: Capabilities | None = Field(None, description="null: tries everything")


class Claim(Strict):
    """A worker asks for steps; with `want` 0 it only says that it is alive."""

    id: uuid.UUID = Field(description="the same when the claim is repeated, as its answer was lost")
    worker: WorkerInfo
    want: int = Field(ge=0, le=1000, description="how many steps, at most")
    again: bool = Field(False, description="whether it is repeated, as its answer was lost")
    woken: bool = Field(False, description="whether a notification led to it")
    entries: list[HeldEntry] | None = Field(
        None,
        max_length=HELD,
        description="of SuiteCache, that its host keeps; null: as it has said before",
    )

    def lease(self, number: int) -> uuid.UUID:
        """Return the lease of a step that the claim gets, by its number in the answer."""
        return uuid.uuid5(self.id, str(number))


class Claimed(Strict):
    """What a claim got."""

    assignments: list[Assignment] = []
    more: list[StepKind] = Field([], description="kinds of which more waits that it could do")
    draining: bool = Field(False, description="whether the worker shall take no more")
    dropped: list[EntryName] = Field(
        [],
        max_length=HELD,
        description="entries of SuiteCache whose copies go from its host once nobody uses them",
    )


class WorkerCalls(Protocol):
    """The scheduler as a worker sees it. Each call is idempotent.

    Raises InfrastructureError where the scheduler cannot be reached: repeat the call.
    """

    async def claim(self, claim: Claim) -> Claimed:
        """Lease at most `want` queued steps to the worker: the fairest ones that it can do."""
        ...

    async def report(self, lease: uuid.UUID, log: str, progress: Progress | None) -> bool:
        """Extend the lease and pass on what is new; False if the lease is stale."""
        ...

    async def finish(self, lease: uuid.UUID, ending: AttemptEnding) -> bool:
        """End the attempt; False if the lease is stale."""
        ...

    async def release(self, lease: uuid.UUID) -> bool:
        """Give the step back unfinished; the attempt does not count."""
        ...

    async def hold(self, lease: uuid.UUID, name: str) -> bool:
        """Let the attempt hold a name until it ends; False if another's holds it, or it is stale.

        Who holds it already holds it still.
        """
        ...

    async def ended(self, lease: uuid.UUID) -> bool:
        """Tell whether the attempt of a lease has ended, whosever it was.

        False while it runs, and where there was no such attempt.
        """
        ...

    async def leave(self, worker: str) -> None:
        """Say that the worker has ended."""
        ...

    async def stay(self, worker: str) -> None:
        """Be connected until cancelled, so that the worker's sudden end is noticed at once.

        The kernel closes the connections of a killed process; those of a paused one stay open.
        """
        ...
