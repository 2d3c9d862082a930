"""Rows of a sweep: the result of each patch on each bug, with what decided it. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pydantic import Field

from kgym.api.jobs import JobView
from kgym.api.outcomes import Outcome
from kgym.api.steps import BuildResult, Diagnostic, PatchCheck, PatchOutcome, Strict, Verdict
from kgym.api.steps.compilers import SUBSTITUTION
from kgym.bugs.bug import AFTER, BUILD_AFTER
from kgym.bugs.conclusion import (
    ANSWERS,
    Answer,
    check_outcome,
    check_reason,
    conclusion,
    in_one_line,
    reproduced,
    seconds,
    worst,
)
from kgym.bugs.equivalence import BehaviouralEquivalence
from kgym.bugs.resolution import Obstacle

# Outcomes of a trial that say something about its patch.
_OF_PATCH = {
    *(Outcome.RESOLVED, Outcome.NOT_RESOLVED),
    *(Outcome.DOES_NOT_COMPILE, Outcome.DOES_NOT_APPLY),
}


class Row(Strict):
    """The result of one patch on one bug."""

    bug: str
    patch: str
    outcome: Outcome
    reason: str = Field(description="what decided, in one line")
    verdict: Verdict | None = Field(None, description="of the patched kernel, if it ran")
    title: str | None = Field(None, description="of the crash of the patched kernel")
    obstacles: list[Obstacle] = Field(
        [], description="why it is not resolved although the patched kernel did not crash"
    )
    behavioural_equivalence: BehaviouralEquivalence | None = Field(
        None, description="with the known fix; null if it was not asked for, or the kernel crashed"
    )
    check: PatchOutcome | None = Field(None, description="whether it applies and compiles")
    diagnostic: Diagnostic | None = Field(None, description="the compiler's first error")
    job: int | None = Field(None, description="that tried it; null if none was needed")
    shown_by: int | None = Field(None, description="the job that showed the bug")
    checked_by: int | None = Field(None, description="the job that checked it")
    same_as: str | None = Field(None, description="the tried patch of the same content")
    compiler_substitution: str = Field("", description=SUBSTITUTION)
    seconds: float = Field(0, description="duration of its check, build and runs")


def status(rows: Iterable[Row]) -> Answer:
    """Return YES if all patches resolve their bugs, else the worst answer."""
    return worst(ANSWERS[row.outcome] for row in rows)


def counts(rows: Iterable[Row]) -> dict[str, dict[Outcome, int]]:
    """Return the number of patches by bug and outcome."""
    by_bug: dict[str, Counter[Outcome]] = {}
    for row in rows:
        by_bug.setdefault(row.bug, Counter())[row.outcome] += 1
    return {bug: dict(sorted(outcomes.items())) for bug, outcomes in by_bug.items()}


@dataclass(frozen=True, slots=True)
class Pair:
    """A bug and a patch without a row yet, with the facts known so far."""

    bug: str
    patch: str
    facts: dict[str, object] = field(default_factory=dict)

    def knowing(self, **facts: object) -> "Pair":
        """Return the pair with further facts."""
        return Pair(self.bug, self.patch, {**self.facts, **facts})

    def row(self, outcome: Outcome, reason: str, **facts: object) -> Row:
        """Return its row: the facts, the outcome, and the reason in one line."""
        known = {"bug": self.bug, "patch": self.patch, "outcome": outcome, **self.facts, **facts}
        return Row.model_validate({**known, "reason": in_one_line(reason)})


def checked(pair: Pair, check: PatchCheck) -> Pair | Row:
    """Return the pair if its patch is to be tried, else its final row."""
    # OVER_LIMIT: a check that a limit ended says neither yes nor no; the build decides.
    pair = pair.knowing(check=check.outcome, seconds=check.seconds)
    if check.outcome in {PatchOutcome.COMPILES, PatchOutcome.OVER_LIMIT}:
        return pair
    errors = (diagnostic for diagnostic in check.diagnostics if diagnostic.severity == "error")
    broken = check.outcome is PatchOutcome.DOES_NOT_COMPILE
    first = next(errors, None) if broken else None
    return pair.row(check_outcome(check.outcome), check_reason(check), diagnostic=first)


def tried(pair: Pair, job: JobView, accepted: Collection[str]) -> Row:
    """Return the row of a patch whose trial (`Bug.trial`) has ended."""
    came_to = conclusion(job, accepted)
    built, run = job.step(BUILD_AFTER), job.step(AFTER)
    before = pair.facts.get("seconds", 0)
    facts: dict[str, object] = {"job": job.id, "verdict": came_to.verdict, "title": came_to.title}
    after = reproduced(run)
    if (alike := BehaviouralEquivalence.of(after.variants if after else None)) is not None:
        facts["behavioural_equivalence"] = alike
    taken = sum(map(seconds, job.steps))
    facts["seconds"] = round((before if isinstance(before, float) else 0) + taken, 1)
    if built is not None and isinstance(built.result, BuildResult):
        facts["compiler_substitution"] = built.result.compiler_substitution
    # The check compiles only the changed files; the whole build may fail in others.
    outcome = came_to.outcome if came_to.outcome in _OF_PATCH else Outcome.INCONCLUSIVE
    if outcome is Outcome.NOT_RESOLVED and came_to.trial is not None:
        facts["obstacles"] = list(came_to.trial.deciding(came_to.title))
    return pair.row(outcome, came_to.reason or f"job {job.id} is {job.state}", **facts)


def not_shown(job: JobView) -> str | None:
    """Return why the job did not show its bug, so that no patch can be tried; None if it did."""
    came_to = conclusion(job)
    if job.state.final and came_to.verdict is Verdict.SAME_CRASH:
        return None
    reason = came_to.reason or f"it is {job.state}"
    if came_to.verdict in {Verdict.NO_CRASH, Verdict.OTHER_CRASH}:
        reason = f"{came_to.verdict}: {reason}"
    return f"the bug does not show without the patch (job {job.id}): {reason}"
