"""The nodes of a search: what each debug cycle thought, wrote and found."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kgym.api.steps import Edit, Finding, PatchOutcome, Strict, TreePath, Verdict


class Crash(Strict):
    """How a kernel crashed."""

    title: str = Field(description="as syzkaller would name it")
    report: str = Field(description="the text of the crash report")
    trace: str | None = Field(None, description="the calls before it, as the prompts show them")


class CauseFunction(Strict):
    """A function that the commit changed which brought a bug in."""

    file: TreePath
    name: str = Field(min_length=1, max_length=200)


class CauseCommit(Strict):
    """The commit that brought a bug in."""

    commit: str = Field(max_length=100, description="its id; empty where only its title is known")
    title: str = Field("", max_length=1000)
    functions: list[CauseFunction] = Field([], max_length=10_000, description="that it changed")
    diff: str = Field("", description="what it changed; empty where that is not known")


class Tried(Strict):
    """What became of a patched kernel."""

    kind: Literal["tried"] = "tried"
    verdict: Verdict | Literal["does_not_build"]
    reason: str = Field("", description="why it is that verdict")
    crash: Crash | None = Field(None, description="of the patched kernel, where it crashed")
    noise: bool = Field(False, description="the crash is one that has nothing to do with the bug")
    findings: list[Finding] = []
    obstacles: list[str] = Field(
        [], description="why `no_crash` is not `resolved`: reasons of findings and controls"
    )
    confidence: float | None = Field(
        None, description="of `no_crash`: 1 - the chance that the bug, still there, was missed"
    )
    job: int | None = Field(None, description="the scheduler's job that tried it")

    @property
    def resolved(self) -> bool:
        """Whether the bug is gone, as far as evidence goes."""
        return self.verdict is Verdict.NO_CRASH and not self.obstacles

    @property
    def outcome(self) -> str:
        """What it came to, in a line."""
        if self.crash is not None:
            return self.crash.title
        if self.obstacles:
            return f"no crash, but rejected: {', '.join(self.obstacles)}"
        return f"{self.verdict}: {self.reason}" if self.reason else str(self.verdict)


class NodeOutcome(StrEnum):
    """How a debug cycle ended."""

    RESOLVED = "resolved"
    CRASHED = "crashed"
    """The patched kernel crashed."""
    REJECTED = "rejected"
    """It did not crash, but what the verdict rests on does not hold: findings, controls."""
    NO_PATCH = "no_patch"
    """No new patch applies and compiles."""
    INCONCLUSIVE = "inconclusive"
    """The platform came to no verdict: it counts as no cycle."""
    STOPPED = "stopped"


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=False)


class Candidate(_Kept):
    """A patch that a model wrote."""

    text: str = Field(description="of the answer")
    edits: list[Edit] = Field([], description="of this cycle; none where it cannot be applied")
    reasons: list[str] = []
    diff: str = Field("", description="against the tree with the bug, inherited edits included")
    digest: str = Field("", description="the same of patches that differ in comments and blanks")
    problem: str = Field("", description="why it cannot be built, for the model's next turn")
    outcome: PatchOutcome | None = Field(None, description="of the compile check")
    repairs: int = 0
    mended: list[str] = Field([], description="the problems of its earlier forms")
    repeats: str | None = Field(None, description="the node that tried the same before")

    @property
    def problems(self) -> list[str]:
        """What was wrong with it, the first of its forms first."""
        return [*self.mended, *([self.problem] if self.problem else [])]


class Node(_Kept):
    """One debug cycle."""

    name: str = Field(description="in its run")
    parent: str | None = Field(description="the node that it goes on from; null for a root")
    depth: int = Field(description="of the tree at this node; 1 for a root")
    begins_at: str = Field("hypothesis", description="or `patch`: with the parent's hypothesis")
    rounds: int = 0
    further_files: list[str] = Field([], description="that it found, besides the candidate files")
    hypotheses: list[str] = Field([], description="the most likely first, where they are ranked")
    critique: str = Field("", description="the self-reflection's words")
    hypothesis: str | None = None
    candidates: list[Candidate] = []
    consistency: str = Field("", description="the words by which a patch was chosen")
    chosen: int | None = Field(None, description="which of the candidates was built")
    runs: list[Tried] = Field([], description="of the patch that was chosen, the last one counts")
    summary: str = Field("", description="what others can learn from its failure")
    outcome: NodeOutcome | None = None
    unreadable: list[str] = Field([], description="answers in which nothing was found, and why")

    @property
    def tried(self) -> Tried | None:
        """What the patch came to."""
        return self.runs[-1] if self.runs else None
