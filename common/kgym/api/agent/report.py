"""The evidence for a fix, which a run delivers with the patch."""

from pydantic import Field

from kgym.api.agent.runs import FixView, Spent
from kgym.api.steps import Finding, Number, Strict


class Evidence(Strict):
    """A run of the patched kernel."""

    verdict: str
    reason: str
    confidence: Number | None
    job: int | None = Field(description="of the scheduler, which has its logs")
    findings: list[Finding]


class OtherFix(Strict):
    """Another patch that resolves the bug."""

    number: int
    node: str
    confidence: Number | None
    lines: int


class Report(Strict):
    """The evidence for a fix."""

    run: int
    bug: str
    crash: str
    job: int | None = Field(description="that showed the bug on the unpatched kernel")
    fix: FixView
    hypothesis: str | None
    reasons: list[str] = Field(description="of the edits, in the model's words")
    mended: list[str] = Field(description="problems of the patch's earlier forms, in order")
    evidence: list[Evidence]
    rejected: dict[str, int] = Field(description="number of other debug cycles by outcome")
    others: list[OtherFix]
    strategy: str
    model: str
    spent: Spent
    notes: list[str]
    markdown: str = Field("", description="the same as text")
