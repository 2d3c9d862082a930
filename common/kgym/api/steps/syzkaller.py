"""The `syzkaller` step: the two programs that run syzkaller's programs in a guest, built."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.steps.base import Count, Line, Name, Needs, Seconds, Step, StepKind, Strict
from kgym.api.steps.kernel import GitSource, TarballSource

Commit = Annotated[str, Field(max_length=40, pattern=r"^[0-9a-f]{40}$")]
# Where syzkaller's commits are, if nothing else is said.
SYZKALLER_GIT = "https://github.com/google/syzkaller"


class SyzkallerArtifact(StrEnum):
    """The programs, static ones, as they lie in a guest."""

    EXECPROG = "syz-execprog"
    """Reads a program, and hands it to the executor again and again."""
    EXECUTOR = "syz-executor"
    """Makes its system calls."""


class SyzkallerSpec(Step):
    """Build `syz-execprog` and `syz-executor` of one commit, or find those that were built before.

    Reproduce steps that name this one run their `syz` programs by them.
    """

    kind: Literal[StepKind.SYZKALLER] = StepKind.SYZKALLER
    source: Annotated[GitSource | TarballSource, Field(discriminator="kind")]
    commit: Commit | None = Field(
        None,
        description="the commit that the source is, for programs that name it; Git's own where left"
        " out, and checked where it is a Git source. Of a tarball it is the submitter's word, which"
        " no other job believes",
    )
    cache: Literal["use", "fresh"] = Field("use", description="`fresh` builds them again")

    @model_validator(mode="after")
    def _has_a_commit(self) -> "SyzkallerSpec":
        if self.commit is None and isinstance(self.source, TarballSource):
            raise ValueError("a tarball does not tell its commit: give `commit`")
        return self

    def needs(self) -> Needs:
        """Return what it needs. Go is asked for only where something has to be built."""
        return Needs(architecture="x86_64")


class SyzkallerResult(Strict):
    """The programs are the step's artifacts (`SyzkallerArtifact`)."""

    kind: Literal[StepKind.SYZKALLER] = StepKind.SYZKALLER
    commit: Commit
    source_identity: Line = Field(description="e.g. `git:COMMIT`; `worker`: its operator's own")
    made: bool = Field(description="whether this step built them, or found them")
    go: Name = Field("", description="version of the compiler; empty where it is not known")
    compiler: Name = Field("", description="version of the executor's")
    bytes: dict[SyzkallerArtifact, Count] = Field({}, max_length=len(SyzkallerArtifact))
    seconds: Seconds = Field(description="by stage: source, descriptions, execprog, executor")
