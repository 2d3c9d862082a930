"""What came of one attempt of an agent on a bug."""

from enum import StrEnum

from pydantic import Field

from kgym.api.steps import Sha256, Strict
from kgym.bench.bug_record import BugId, Text, Words


class Outcome(StrEnum):
    """How an attempt's patch ended: the classes of RGym's Tables 4 and 5."""

    PASS = "pass"  # noqa: S105
    """It builds, and no instance crashed."""
    TRIGGER = "trigger"
    """It builds, and the bug still shows."""
    OTHER = "other"
    """It builds, and the kernel crashes in another way."""
    BOOT = "boot"
    """It builds, and the kernel does not boot."""
    COMPILE = "compile"
    """It does not compile."""
    BAD = "bad"
    """There is no patch, or it does not apply."""


class Setup(Strict):
    """Who tries: an agent, its settings, its model, and what it is given."""

    agent: Words
    settings: Words = Field("", description="the name of its configuration")
    model: Words = ""
    feedback: bool = Field(False, description="it may run kernels while it works")
    oracle: bool = Field(False, description="it is told which files the developers changed")
    dollars: float | None = Field(None, ge=0, description="limit of one attempt; null: none")

    def __str__(self) -> str:
        words = [self.agent, self.settings, self.model]
        words += ["feedback"] * self.feedback + ["oracle"] * self.oracle
        words += [f"${self.dollars:g}"] if self.dollars is not None else []
        return ", ".join(word for word in words if word)


class Overlap(Strict):
    """Of two sets, how much they have in common."""

    common: int = Field(ge=0)
    all: int = Field(ge=0)

    @property
    def ratio(self) -> float:
        """Intersection over union; 0 where both sets are empty, as Live-kBench counts it."""
        return self.common / self.all if self.all else 0.0


class Votes(Strict):
    """What a judge's votes were on whether a patch is equivalent to the developers'."""

    yes: int = Field(ge=0)
    no: int = Field(ge=0)
    failed: int = Field(0, ge=0, description="answers that could not be read")

    @property
    def equivalent(self) -> bool:
        """Whether more votes say so than deny it, as Live-kBench's leaderboard counts them."""
        return self.yes > self.no


class AttemptRecord(Strict):
    """One attempt; what was not found out is null. `run` counts a setup's attempts on a bug."""

    bug: BugId
    setup: Setup
    run: int = Field(ge=1)
    outcome: Outcome
    diff: Text | None = None
    patch: Sha256 | None = Field(None, description="of the patch without what changes nothing")
    crashed: int | None = Field(None, ge=0, description="completed instances that crashed")
    completed: int | None = Field(None, ge=0)
    votes: Votes | None = None
    files: Overlap | None = Field(None, description="changed by it, and by the developers")
    functions: Overlap | None = None
    clean: bool | None = Field(
        None,
        description="resolved, and nothing stands in the way: no detector is silent, nothing is cut"
        " off, the kernel still works, other bugs' programs find nothing",
    )
    dollars: float | None = Field(None, ge=0, description="what its model has cost")
    kernel_dollars: float | None = Field(None, ge=0, description="what its kernels have cost")
    seconds: float | None = Field(None, ge=0, description="from its start to its patch")
    model_seconds: float | None = Field(None, ge=0)
    kernel_seconds: float | None = Field(None, ge=0, description="waiting for `run_kernel`")
    kernel_runs: int | None = Field(None, ge=0, description="calls of `run_kernel`")
    tokens: int | None = Field(None, ge=0)
    error: Words | None = Field(None, description="why the agent did not come to its end")

    @property
    def racy(self) -> bool:
        """Whether the bug showed on some instances alone (RGym's column Racey)."""
        return (
            self.outcome is Outcome.TRIGGER
            and self.crashed is not None
            and self.completed is not None
            and 0 < self.crashed < self.completed
        )

    @property
    def resolved(self) -> bool:
        """Whether the crash is gone."""
        return self.outcome is Outcome.PASS

    @property
    def equivalent(self) -> bool | None:
        """Whether it is resolved and equivalent (EPR); null where no judge has looked at it."""
        if not self.resolved:
            return False
        return None if self.votes is None else self.votes.equivalent
