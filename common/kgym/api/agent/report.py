"""The evidence for a fix: what a run hands over beside the patch."""

from pydantic import Field

from kgym.api.agent.runs import FixView, Spent
from kgym.api.steps import Finding, Strict


class Evidence(Strict):
    """A run of the patched kernel."""

    verdict: str
    reason: str
    confidence: float | None
    job: int | None = Field(description="of the scheduler, which keeps its logs")
    findings: list[Finding]


class OtherFix(Strict):
    """Another patch that resolves the bug as well."""

    number: int
    node: str
    confidence: float | None
    lines: int


class Report(Strict):
    """The evidence for a fix."""

    run: int
    bug: str
    crash: str
    job: int | None = Field(description="that showed the bug on the unpatched kernel")
    fix: FixView
    hypothesis: str | None
    reasons: list[str] = Field(description="of the edits, as the model gave them")
    mended: list[str] = Field(
        description="what was wrong with the patch before the model mended it, the first form first"
    )
    evidence: list[Evidence]
    rejected: dict[str, int] = Field(description="how the other debug cycles ended")
    others: list[OtherFix]
    strategy: str
    model: str
    spent: Spent
    notes: list[str]
    markdown: str = Field("", description="the same for people")
