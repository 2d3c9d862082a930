"""The nodes of a search: hypotheses, patches and results of its debug cycles."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kgym.api.steps import Edit, Finding, Number, PatchOutcome, Strict, TreePath, Upstream, Verdict


class Crash(Strict):
    """A crash of a kernel."""

    title: str = Field(description="in syzkaller's form")
    report: str = Field(description="text of the crash report")
    trace: str | None = Field(None, description="the calls before the crash, as prompts show them")


class CauseFunction(Strict):
    """A function that the causing commit changed."""

    file: TreePath
    name: str = Field(min_length=1, max_length=200)


class CauseCommit(Strict):
    """The commit that introduced a bug."""

    commit: str = Field(max_length=100, description="its id; empty if only the title is known")
    title: str = Field("", max_length=1000)
    functions: list[CauseFunction] = Field([], max_length=10_000, description="that it changed")
    diff: str = Field("", description="its diff; empty if unknown")


class Tried(Strict):
    """The result of a patched kernel."""

    kind: Literal["tried"] = "tried"
    verdict: Verdict | Literal["does_not_build"]
    reason: str = Field("", description="for the verdict")
    crash: Crash | None = Field(None, description="of the patched kernel")
    noise: bool = Field(False, description="whether the crash is unrelated to the bug")
    findings: list[Finding] = []
    obstacles: list[str] = Field(
        [], description="why it is not `resolved`: reasons of findings and controls"
    )
    confidence: Number | None = Field(
        None, description="of `no_crash`: 1 - the chance that a remaining bug was missed"
    )
    job: int | None = Field(None, description="the scheduler's job that tried it")
    printed: str = Field("", description="what the patch prints for debugging, on the console")

    @property
    def resolved(self) -> bool:
        """Whether the bug is gone, according to the evidence."""
        return self.verdict is Verdict.NO_CRASH and not self.obstacles

    @property
    def messages(self) -> list[str]:
        """The messages of its findings that a model may read."""
        # This one names the files where the bug lies: often those of the fix.
        return [each.message for each in self.findings if each.reason != "outside_files"]

    @property
    def undecided(self) -> bool:
        """Whether the patch is worth another run: no verdict on it, or an unrelated crash."""
        return (self.verdict is Verdict.INCONCLUSIVE and not self.obstacles) or self.noise

    @property
    def outcome(self) -> str:
        """The result in one line."""
        if self.crash is not None:
            return self.crash.title
        if self.obstacles:
            ran = "no crash, but " if self.verdict is Verdict.NO_CRASH else ""
            return f"{ran}rejected: {', '.join(self.obstacles)}"
        return f"{self.verdict}: {self.reason}" if self.reason else str(self.verdict)


class NodeOutcome(StrEnum):
    """The outcome of a debug cycle."""

    RESOLVED = "resolved"
    CRASHED = "crashed"
    """The patched kernel crashed."""
    REJECTED = "rejected"
    """It did not crash, but findings or controls invalidate the verdict."""
    NO_PATCH = "no_patch"
    """No new patch applies and compiles."""
    INCONCLUSIVE = "inconclusive"
    """There is no verdict; the cycle does not count."""
    STOPPED = "stopped"


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=False)


class Candidate(_Kept):
    """A patch of a model."""

    text: str = Field(description="of the answer")
    edits: list[Edit] = Field([], description="of this cycle; empty if it does not apply")
    reasons: list[str] = []
    notes: list[str] = Field([], description="how the answer was read: drafts, white space")
    diff: str = Field("", description="against the unpatched tree, with inherited edits")
    digest: str = Field("", description="of the change, ignoring comments and blanks")
    problem: str = Field("", description="why it cannot be built, for the model's next turn")
    outcome: PatchOutcome | None = Field(None, description="of the compile check")
    repairs: int = 0
    mended: list[str] = Field([], description="problems of its earlier forms")
    repeats: str | None = Field(None, description="the node that tried the same change before")

    @property
    def problems(self) -> list[str]:
        """The problems of all its forms, the first form first."""
        return [*self.mended, *([self.problem] if self.problem else [])]


class Node(_Kept):
    """One debug cycle."""

    name: str = Field(description="in its run")
    parent: str | None = Field(description="the node that it continues; null for a root")
    depth: int = Field(description="in the tree; 1 for a root")
    begins_at: str = Field("hypothesis", description="or `patch`, `review`: with the parent's")
    rounds: int = 0
    further_files: list[str] = Field([], description="that it found, besides the candidate files")
    hypotheses: list[str] = Field([], description="the most likely first, if they are ranked")
    critique: str = Field("", description="text of the self-reflection")
    hypothesis: str | None = None
    candidates: list[Candidate] = []
    consistency: str = Field("", description="text of the answer that chose a patch")
    chosen: int | None = Field(None, description="index of the candidate that was built")
    runs: list[Tried] = Field([], description="of the chosen patch; the last one counts")
    summary: str = Field("", description="of its failure, for later cycles")
    outcome: NodeOutcome | None = None
    unreadable: list[str] = Field([], description="why answers were unreadable")
    message: str = Field("", description="of the commit, from the reviewed diff")
    upstream: Upstream | None = Field(None, description="facts about the reviewed diff")

    @property
    def tried(self) -> Tried | None:
        """The result of the chosen patch."""
        return self.runs[-1] if self.runs else None
