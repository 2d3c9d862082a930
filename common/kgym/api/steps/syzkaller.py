"""The `syzkaller` step: build the binaries that run and vary syzkaller's programs."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.steps.base import Count, Line, Name, Needs, Seconds, Step, StepKind, Strict
from kgym.api.steps.kernel import GitSource, TarballSource

Commit = Annotated[str, Field(max_length=40, pattern=r"^[0-9a-f]{40}$")]
# The default repository of syzkaller.
SYZKALLER_GIT = "https://github.com/google/syzkaller"


class SyzkallerArtifact(StrEnum):
    """The static binaries, by name."""

    EXECPROG = "syz-execprog"
    """Parses a program, and passes it to the executor again and again."""
    EXECUTOR = "syz-executor"
    """Makes its system calls."""
    MUTATOR = "syz-mutate"
    """Prints variants of a program, on the host."""


GUEST_PROGRAMS = (SyzkallerArtifact.EXECPROG, SyzkallerArtifact.EXECUTOR)


class SyzkallerSpec(Step):
    """Build `syz-execprog` and `syz-executor` of one commit, or reuse an earlier build.

    Reproduce steps that name this step run their `syz` programs with them.
    """

    kind: Literal[StepKind.SYZKALLER] = StepKind.SYZKALLER
    source: Annotated[GitSource | TarballSource, Field(discriminator="kind")]
    commit: Commit | None = Field(
        None,
        description="the source's commit, for programs that name it; by default, and verified,"
        " Git's. For a tarball it is the submitter's claim, which is not used for other jobs",
    )
    cache: Literal["use", "fresh"] = Field("use", description="`fresh` builds them again")

    @model_validator(mode="after")
    def _has_a_commit(self) -> "SyzkallerSpec":
        # Git proves its commit; an archive proves only its own SHA-256.
        if self.commit is None and isinstance(self.source, TarballSource):
            raise ValueError("a tarball does not contain its commit: give `commit`")
        return self

    def needs(self) -> Needs:
        """Return its needs. Go is not among them, as it may be unnecessary: the build may exist."""
        return Needs(architecture="x86_64")


class SyzkallerResult(Strict):
    """The step's result; the binaries are its artifacts (`SyzkallerArtifact`)."""

    kind: Literal[StepKind.SYZKALLER] = StepKind.SYZKALLER
    commit: Commit
    source_identity: Line = Field(description="e.g. `git:COMMIT`; `worker`: its operator's own")
    made: bool = Field(description="whether this step built them; false if they existed")
    go: Name = Field("", description="version of Go; empty if unknown")
    compiler: Name = Field("", description="version of the executor's compiler")
    lacks: Line = Field("", description="why there is no `syz-mutate`: programs are not varied")
    bytes: dict[SyzkallerArtifact, Count] = Field({}, max_length=len(SyzkallerArtifact))
    seconds: Seconds = Field(
        description="by stage: source, descriptions, execprog, executor, mutator"
    )
