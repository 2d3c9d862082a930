"""The record of one attempt of an agent on a bug."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kgym.api.steps import Count, Sha256, Strict
from kgym.bugs.equivalence import is_equivalent

# Maximum characters of a config, a report, a program or a diff.
TEXT = 8 << 20

Text = Annotated[str, Field(max_length=TEXT)]
Words = Annotated[str, Field(max_length=10_000)]
BugId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w][\w.:-]*$")]
Count32 = Annotated[int, Field(ge=0, lt=1 << 31)]
# Dollars or seconds; bounded, so that no sum of them is infinite.
Cost = Annotated[float, Field(ge=0, le=1e12)]


class Outcome(StrEnum):
    """The outcome of an attempt's patch: the classes of RGym's Tables 4 and 5."""

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
    UNKNOWN = "unknown"
    """Several tries gave no verdict on its patch. Figures that depend on it are unknown."""


class Setup(Strict):
    """An agent with its settings, its model, and the help it gets."""

    agent: Words
    settings: Words = Field("", description="name of its configuration")
    model: Words = ""
    feedback: bool = Field(False, description="whether it may run kernels while it works")
    oracle: bool = Field(False, description="whether it knows which files the developers changed")
    dollars: Cost | None = Field(None, description="limit of one attempt; null: none")

    def __str__(self) -> str:
        # Tables, folders and logs show a setup like this; empty parts are left out.
        words = [self.agent, self.settings, self.model]
        words += ["feedback"] * self.feedback + ["oracle"] * self.oracle
        words += [f"${self.dollars:g}"] if self.dollars is not None else []
        return ", ".join(word for word in words if word)


class Overlap(Strict):
    """The overlap of two sets."""

    common: Count32
    all: Count32

    @property
    def ratio(self) -> float:
        """Intersection over union; 0 where both sets are empty, as Live-kBench counts it."""
        return self.common / self.all if self.all else 0.0


class Votes(Strict):
    """A judge's votes on whether a patch is equivalent to the developers'."""

    yes: Count32
    no: Count32
    failed: Count32 = Field(0, description="answers that could not be read")

    @property
    def equivalent(self) -> bool | None:
        """Whether the yes votes outnumber the no votes, as on Live-kBench's leaderboard.

        None unless most votes could be read.
        """
        # A vote that failed is not a "no": it would count against the agent.
        return self.yes > self.no if self.yes + self.no > self.failed else None


class Account(Strict):
    """The account of an agent, or of a patch's author; never counted as our measurement."""

    dollars: Cost | None = None
    seconds: Cost | None = None
    ended: Words | None = Field(None, description="why it ended, such as `costLimitExceeded`")
    resolved: bool | None = Field(None, description="whether its patch removes the crash")


class Attempt(Strict):
    """One attempt on a bug; unknown values are null. `run` numbers a setup's attempts."""

    bug: BugId
    run: int = Field(ge=1, lt=1 << 31)
    outcome: Outcome
    patch: Sha256 | None = Field(None, description="identity of the patch's change")
    crashed: Count32 | None = Field(None, description="completed instances that crashed")
    completed: Count32 | None = None
    votes: Votes | None = None
    files: Overlap | None = Field(None, description="changed by it and by the developers")
    functions: Overlap | None = None
    clean: bool | None = Field(
        None,
        description="resolved without obstacles: no variant of the program crashes, nothing leaks,"
        " no detector is silent, nothing is cut off, the kernel still works",
    )
    equivalence: Overlap | None = Field(
        None, description="variants that do the same as with the developers' fix, of those compared"
    )
    dollars: Cost | None = Field(None, description="cost of its model")
    kernel_dollars: Cost | None = Field(None, description="cost of its kernels")
    seconds: Cost | None = Field(None, description="from its start to its patch")
    model_seconds: Cost | None = None
    kernel_seconds: Cost | None = Field(None, description="waiting for `run_kernel`")
    kernel_runs: Count32 | None = Field(None, description="calls of `run_kernel`")
    tokens: Count | None = None
    error: Words | None = Field(None, description="why the agent did not finish")
    environment: Sha256 | None = Field(
        None, description="digest of what the agent found: equal for equal environments"
    )
    account: Account | None = Field(None, description="its own, such as its `metadata.json`")

    @property
    def disputed(self) -> list[str]:
        """The fields in which its own account differs from ours; costs, by more than a tenth."""
        own = self.account or Account()
        costs = {"dollars": (own.dollars, self.dollars), "seconds": (own.seconds, self.seconds)}
        parts = [
            name
            for name, (claimed, ours) in costs.items()
            if claimed is not None and ours is not None and abs(claimed - ours) > 0.1 * ours
        ]
        known = own.resolved is not None and self.resolved is not None
        return [*parts, *["resolved"] * (known and own.resolved is not self.resolved)]

    @property
    def racy(self) -> bool:
        """Whether the bug showed on some instances only (RGym's column Racey)."""
        return (
            self.outcome is Outcome.TRIGGER
            and self.crashed is not None
            and self.completed is not None
            and 0 < self.crashed < self.completed
        )

    @property
    def resolved(self) -> bool | None:
        """Whether the crash is gone; None if unknown."""
        return None if self.outcome is Outcome.UNKNOWN else self.outcome is Outcome.PASS

    @property
    def equivalent(self) -> bool | None:
        """Whether it is resolved and equivalent (EPR); None if unknown, or undecided."""
        if not self.resolved:
            return self.resolved
        return None if self.votes is None else self.votes.equivalent

    @property
    def behavioural_equivalence(self) -> float | None:
        """Share of the variants that do the same as with the developers' fix; None if unknown."""
        if not self.resolved:
            return None if self.resolved is None else 0.0
        if self.equivalence is not None:
            return self.equivalence.ratio
        # Variants are often not run for a patch that is not clean.
        return 0.0 if self.clean is False else None

    @property
    def equivalent_by_execution(self) -> bool | None:
        """Whether it is clean and nearly all variants do the same (EPR by execution)."""
        if not (self.resolved and self.clean):
            return False if False in (self.resolved, self.clean) else None
        of = self.equivalence
        return None if of is None else is_equivalent(of.common, of.all)


class AttemptRecord(Attempt):
    """One attempt with its setup and its patch."""

    setup: Setup
    diff: Text | None = None


class FailedAttempt(Strict):
    """A try at an attempt that ended without a record, such as one without a verdict."""

    bug: BugId
    setup: Setup
    run: int = Field(ge=1, lt=1 << 31)
    reason: Words


class FailedSetup(Strict):
    """Attempts of a setup that failed, and have no record yet."""

    setup: Setup
    attempts: Count32
    reasons: dict[Words, Count32] = Field(
        max_length=5, description="of the last try; the five most frequent"
    )

    def __str__(self) -> str:
        """Return the setup, the number of its failed attempts, and how often each reason occurs."""
        reasons = "; ".join(f"{reason} ({count})" for reason, count in self.reasons.items())
        return f"{self.setup}: {self.attempts} attempts failed: {reasons}"


def failed_setups(
    failed: Iterable[FailedAttempt], done: Collection[tuple[Setup, BugId, int]]
) -> list[FailedSetup]:
    """Sum up failed tries by setup, without those of runs that were `done` later."""
    last = {(attempt.setup, attempt.bug, attempt.run): attempt.reason for attempt in failed}
    reasons: dict[Setup, Counter[str]] = defaultdict(Counter)
    for key, reason in last.items():
        if key not in done:
            reasons[key[0]][reason] += 1
    return [
        FailedSetup(setup=setup, attempts=counts.total(), reasons=dict(counts.most_common(5)))
        for setup, counts in sorted(reasons.items(), key=lambda item: str(item[0]))
    ]
