"""The `check` step: which patches apply and compile."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.steps.base import Count, Details, Line, Name, Number, Seconds, StepKind, Strict, Words
from kgym.api.steps.compilers import SUBSTITUTION
from kgym.api.steps.evidence import Diagnostic, Finding
from kgym.api.steps.kernel import Kernel, Patch, SourceName

# Patches of a step for which the tree's scripts run, with a minute each.
MOST_UPSTREAM = 10


class CheckSpec(Kernel):
    """Try many patches, each alone: does it apply, does it compile, what does it change?"""

    kind: Literal[StepKind.CHECK] = StepKind.CHECK
    base: list[Patch] = Field(
        [],
        max_length=100,
        description="applied before each of `patches`, such as the change that reintroduces a bug",
    )
    patches: list[Patch] = Field(min_length=1, max_length=1000)
    dependents: int = Field(
        100, ge=1, le=100_000, description="objects to compile for a file that others include"
    )
    upstream: bool = Field(
        False, description="also answer what a maintainer asks of each patch (`Upstream`)"
    )

    @model_validator(mode="after")
    def _few_go_upstream(self) -> "CheckSpec":
        if self.upstream and len(self.patches) > MOST_UPSTREAM:
            raise ValueError(f"`upstream` is for at most {MOST_UPSTREAM} patches")
        return self


class FileOutcome(StrEnum):
    """The outcome of a check for one file that a patch changes."""

    COMPILES = "compiles"
    NOT_BUILT = "not_built"
    """The config compiles neither it nor anything that includes it."""
    REMOVED = "removed"
    """The patch removed or renamed it, and nothing else needs its object."""
    DOES_NOT_COMPILE = "does_not_compile"
    OVER_LIMIT = "over_limit"
    """No answer: a limit of time, memory or disk, or an unreadable tree, ended the check."""


class PatchOutcome(StrEnum):
    """The outcome of a patch: that of its worst source file, in this order."""

    COMPILES = "compiles"
    NOT_BUILT = "not_built"
    OVER_LIMIT = "over_limit"
    DOES_NOT_COMPILE = "does_not_compile"
    DOES_NOT_APPLY = "does_not_apply"
    REFUSED = "refused"
    """It is not a patch, or changes nothing."""


# Reasons of errors because of which a patch is REFUSED; with others, it does not fit this kernel.
NO_PATCH = {
    *("binary_patch", "empty_patch", "malformed_patch", "patch_too_large", "unsafe_patch"),
    *("source_not_allowed", "source_not_found", "source_too_large", "url_not_allowed"),  # of a URL
}
# Failures of a build that the patch has broken, although the check's files compiled.
NOT_BUILT = {"does_not_compile", "no_kernel"}


class FileCheck(Strict):
    """One file that a patch changes."""

    path: Name
    outcome: FileOutcome
    objects: Count = Field(description="objects that were compiled because of this file")
    dependents: Count = Field(description="objects of this config that depend on it")


class FunctionCheck(Strict):
    """One function that a patch changes; null where it is not compiled, inlined or not there."""

    file: Name
    name: Name
    instructions_before: Count | None
    instructions_after: Count | None


class Blamed(Strict):
    """A commit that wrote lines which a patch removes, or shows beside its change."""

    commit: Annotated[str, Field(max_length=40, pattern=r"^[0-9a-f]{40}$")]
    title: Name
    removed: Count
    kept: Count
    tag: Name = Field("", description="first tag that contains it, as `git describe --contains`")


class Upstream(Strict):
    """Facts for the mail of a patch, from the tree that it applies to."""

    diff: str = Field(
        "",
        max_length=200_000,
        description="as git writes it, with functions after `@@`; empty: use the patch as it is",
    )
    release: Name = Field("", description="of the kernel")
    findings: list[Finding] = Field(
        [], max_length=1000, description="of checkpatch --strict, sparse and clang-format"
    )
    prefix: Name = Field(description="subsystem, with which the subjects of such patches begin")
    recipients: list[Line] = Field(
        [], max_length=100, description="as the tree's get_maintainer.pl names them, with roles"
    )
    blame: list[Blamed] = Field([], max_length=100, description="empty if there is no history")


class PatchCheck(Strict):
    """The check of one patch."""

    name: Name
    outcome: PatchOutcome
    reason: Words = Field("", description="the first error, or which hunk does not apply and why")
    details: Details = Field({}, description="more about a patch that does not apply")
    notes: list[Line] = Field(
        [],
        max_length=10_000,
        description="how it was read: hunks that moved, files that were left out or are elsewhere",
    )
    files: list[FileCheck] = Field([], max_length=100_000)
    functions: list[FunctionCheck] = Field([], max_length=10_000)
    diagnostics: list[Diagnostic] = Field(
        [], max_length=10_000, description="errors, and the warnings it adds"
    )
    output: Words = Field("", description="the compiler's output, cut to 16 KiB")
    through_make: bool = Field(
        False, description="whether it was compiled by make, as its changes require it"
    )
    memoised: bool = Field(
        False, description="whether this is the cached result of an earlier check"
    )
    upstream: Upstream | None = Field(None, description="null if not requested")
    seconds: Number = Field(description="its duration")


class CheckResult(Strict):
    """The outcomes of the patches, in the order of the spec."""

    kind: Literal[StepKind.CHECK] = StepKind.CHECK
    source_identity: Line
    kernel_release: Name = Field(description="empty if no patch applies: nothing was compiled")
    compiler_version: Name
    compiler_substitution: Name = Field("", description=SUBSTITUTION)
    tree: Name = Field(description="the SuiteCache entry that was used")
    source_tree: SourceName = ""
    tree_cached: bool = Field(description="whether that entry existed")
    patches: list[PatchCheck] = Field(max_length=1000)
    seconds: Seconds = Field(
        description="by stage: identify, fetch, memo, tree, base, read, patches"
    )
