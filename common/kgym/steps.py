"""What a step is asked (specs) and what it answers (results), one pair per step kind."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kgym.errors import Cause

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
TreePath = Annotated[str, Field(min_length=1, max_length=1000, description="path in the tree")]


class Strict(BaseModel):
    """A model that refuses unknown fields and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StepKind(StrEnum):
    """What a step does; each kind has its own queue and workers."""

    BUILD = "build"
    CHECK = "check"
    REPRODUCE = "reproduce"
    MINIMIZE = "minimize"


# --- kernel source and config -------------------------------------------------------------


class GitSource(Strict):
    """A commit of a Git repository."""

    kind: Literal["git"] = "git"
    url: str = Field(description="https, ssh, git or file URL, or an absolute local path")
    commit: str = Field(description="full commit id, tag or branch", pattern=r"^[\w][\w./-]*$")


class TarballSource(Strict):
    """A tar archive with one top folder, checked against its SHA-256."""

    kind: Literal["tarball"] = "tarball"
    url: str = Field(description="http(s) URL, or a path on the builder's host")
    sha256: Sha256


class PackageSource(Strict):
    """A distribution's source package of the kernel (`linux-source-…`), from its own archive."""

    kind: Literal["package"] = "package"
    names: list[Annotated[str, Field(pattern=r"^linux-source-[a-z0-9.+-]+$")]] = Field(
        min_length=1, description="the first one that the distribution offers is taken"
    )


KernelSource = Annotated[GitSource | TarballSource | PackageSource, Field(discriminator="kind")]


class KernelConfig(Strict):
    """A full `.config`, or a base target of kconfig with fragments on top of it.

    On `allnoconfig`, a symbol that no fragment mentions is `n`; on the other
    bases it keeps the base's value or takes its default.
    """

    full: str | None = Field(None, description="text of a complete .config")
    base: Literal["allnoconfig", "tinyconfig", "defconfig"] | None = None
    fragments: list[str] = Field([], description="texts of `CONFIG_X=y` lines, later ones win")

    @model_validator(mode="after")
    def _one_form(self) -> "KernelConfig":
        if (self.full is None) == (self.base is None):
            raise ValueError("give either `full` or `base` with `fragments`")
        if self.full is not None and self.fragments:
            raise ValueError("`fragments` go with `base`, not with `full`")
        return self


Compiler = Annotated[str, Field(pattern=r"^(gcc|clang)(-[0-9]+)?$")]


# --- changes to the source ----------------------------------------------------------------


class Edit(Strict):
    """Replace the one place in `file` that reads `original`."""

    file: TreePath
    original: str = Field(min_length=1)
    replacement: str


class Patch(Strict):
    """One named change to the kernel source: a unified diff, or edits."""

    name: str = Field("patch", max_length=200)
    diff: str | None = Field(None, description="unified diff, paths relative to the tree")
    edits: list[Edit] = []

    @model_validator(mode="after")
    def _one_form(self) -> "Patch":
        if (self.diff is None) == (not self.edits):
            raise ValueError("give either `diff` or `edits`")
        return self


# --- the kernel that changes are tried on -------------------------------------------------


class Kernel(Strict):
    """An unpatched kernel: its SuiteCache entry is made once, by whoever needs it first."""

    source: KernelSource
    config: KernelConfig
    compiler: Compiler = "gcc"
    cache: Literal["use", "fresh", "refresh"] = Field(
        "use",
        description="`fresh` does the step again even where its result is known already; "
        "`refresh` builds the SuiteCache entry anew as well",
    )


# --- build --------------------------------------------------------------------------------


class BuildSpec(Kernel):
    """Build a kernel: source, backports, then `patches` in order."""

    kind: Literal[StepKind.BUILD] = StepKind.BUILD
    patches: list[Patch] = []
    objects: int | None = Field(
        None, gt=0, description="objects of a full build, where known, for the progress"
    )


class Diagnostic(Strict):
    """One message of the compiler, assembler or linker."""

    file: str
    line: int | None = None
    column: int | None = None
    severity: Literal["error", "warning"]
    message: str


class DroppedSymbol(Strict):
    """A config symbol that kconfig did not give the value asked for."""

    symbol: str
    wanted: str
    got: str


class BuildResult(Strict):
    """What was built, and from what."""

    kind: Literal[StepKind.BUILD] = StepKind.BUILD
    source_identity: str = Field(description="e.g. `package:linux-source-6.1=6.1.192-1`")
    kernel_release: str
    compiler_version: str
    tree: str = Field(description="the SuiteCache entry that was used")
    tree_cached: bool = Field(description="whether that entry was there already")
    memoised: bool = Field(False, description="whether the same was built before: a copy of that")
    shortcut: bool = Field(False, description="whether saved commands did what make would have")
    backports: list[str]
    dropped_symbols: list[DroppedSymbol]
    objects_compiled: int
    warnings: list[Diagnostic]
    seconds: dict[str, float] = Field(description="by stage: source, config, tree, patch, make, …")


# --- check --------------------------------------------------------------------------------


class CheckSpec(Kernel):
    """Try many patches, each alone: does it apply, does it compile, what does it change?"""

    kind: Literal[StepKind.CHECK] = StepKind.CHECK
    base: list[Patch] = Field(
        [], description="applied before each of `patches`, as the change that brings a bug back"
    )
    patches: list[Patch] = Field(min_length=1, max_length=1000)
    dependents: int = Field(
        100, ge=1, le=100_000, description="objects to compile for a file that others include"
    )


class FileOutcome(StrEnum):
    """What became of one file that a patch changes."""

    COMPILES = "compiles"
    NOT_BUILT = "not_built"
    """The config compiles neither it nor anything that includes it."""
    DOES_NOT_COMPILE = "does_not_compile"
    OVER_LIMIT = "over_limit"
    """A limit of time, memory or disk, or an unreadable tree, ended it: neither yes nor no."""


class PatchOutcome(StrEnum):
    """What became of a patch: the worst of its files that are code, in this order."""

    COMPILES = "compiles"
    NOT_BUILT = "not_built"
    OVER_LIMIT = "over_limit"
    DOES_NOT_COMPILE = "does_not_compile"
    DOES_NOT_APPLY = "does_not_apply"


class FileCheck(Strict):
    """One file that a patch changes."""

    path: str
    outcome: FileOutcome
    objects: int = Field(description="compiled because of it")
    dependents: int = Field(description="objects of this config that depend on it")


class FunctionCheck(Strict):
    """One function that a patch changes; null where it is not compiled, inlined or not there."""

    file: str
    name: str
    instructions_before: int | None
    instructions_after: int | None


class PatchCheck(Strict):
    """What is known of one patch."""

    name: str
    outcome: PatchOutcome
    reason: str = Field("", description="the first error, or which hunk does not apply and why")
    details: dict[str, object] = Field({}, description="of a patch that does not apply")
    files: list[FileCheck] = []
    functions: list[FunctionCheck] = []
    diagnostics: list[Diagnostic] = Field([], description="errors, and the warnings it adds")
    output: str = Field("", description="the compiler's own words, cut to 16 KiB")
    through_make: bool = Field(False, description="whether it changes what only make can follow")
    memoised: bool = Field(False, description="whether this was found out by an earlier check")
    seconds: float


class CheckResult(Strict):
    """What became of the patches, in the order of the spec."""

    kind: Literal[StepKind.CHECK] = StepKind.CHECK
    source_identity: str
    kernel_release: str
    compiler_version: str
    tree: str = Field(description="the SuiteCache entry that was used")
    tree_cached: bool = Field(description="whether that entry was there already")
    patches: list[PatchCheck]
    seconds: dict[str, float] = Field(
        description="by stage: identify, memo, tree, base, read, patches"
    )


# --- reproduce ----------------------------------------------------------------------------


class StepRef(Strict):
    """A step of this job (`job` left out: an earlier one) or a finished step of another job."""

    job: int | None = Field(None, ge=1, lt=1 << 63)
    step: int = Field(ge=0, lt=100)


class Reproducer(Strict):
    """A program that makes the kernel crash."""

    kind: Literal["c"] = "c"
    text: str = Field(min_length=1, description="the source")


class VmShape(Strict):
    """A VM: its size, and what is added to the kernel's command line."""

    cpus: int = Field(1, ge=1, le=64)
    memory: int = Field(1024, ge=256, le=1 << 20, description="MiB")
    append: str = Field(
        "", max_length=1000, pattern=r"^[ -~]*$", description="kernel command line, added last"
    )


class Verdict(StrEnum):
    """What a reproduce step concludes."""

    SAME_CRASH = "same_crash"
    OTHER_CRASH = "other_crash"
    NO_CRASH = "no_crash"
    INCONCLUSIVE = "inconclusive"


class Outcome(StrEnum):
    """How one instance ended."""

    CRASH = "crash"
    SURVIVED = "survived"
    STOPPED = "stopped"
    BOOT_FAILED = "boot_failed"
    SSH_LOST = "ssh_lost"
    START_FAILED = "start_failed"
    ENDED_EARLY = "ended_early"
    HUNG = "hung"
    REBOOTED = "rebooted"


class ReproduceSpec(Strict):
    """Run a reproducer on N instances of a built kernel."""

    kind: Literal[StepKind.REPRODUCE] = StepKind.REPRODUCE
    build: StepRef
    reproducer: Reproducer
    titles: list[str] = Field([], description="of the crash looked for; empty: any is the same")
    vm: VmShape = VmShape()
    instances: int = Field(2, ge=1, le=1000)
    time: float = Field(120, gt=0, le=86400, description="seconds of running, each instance")
    stop_at_first_crash: bool = True
    baseline: StepRef | None = Field(
        None, description="reproduce step on the unpatched kernel, for the bug's crash rate"
    )


class InstanceResult(Strict):
    """One VM of a reproduce step."""

    number: int
    outcome: Outcome
    detail: str = ""
    boot_seconds: float | None = None
    run_seconds: float | None = Field(None, description="how long the reproducer was running")
    runs: int = Field(0, description="how often the reproducer was started")
    title: str | None = Field(None, description="of its crash")
    verdict_lag: float | None = Field(
        None, description="seconds from the crash's last console line to the verdict"
    )


class ReproduceResult(Strict):
    """The verdict and what it rests on."""

    kind: Literal[StepKind.REPRODUCE] = StepKind.REPRODUCE
    verdict: Verdict
    reason: str
    title: str | None
    crashed: int = Field(description="k: completed instances that crashed")
    completed: int = Field(description="N: instances that crashed or survived the whole time")
    requested: int
    unseen_chance: float | None = Field(
        description="(1 - p)^N at the baseline's crash rate p; null without a baseline"
    )
    accelerator: str
    instances: list[InstanceResult]
    seconds: dict[str, float]


StepSpec = Annotated[BuildSpec | CheckSpec | ReproduceSpec, Field(discriminator="kind")]
StepResult = Annotated[BuildResult | CheckResult | ReproduceResult, Field(discriminator="kind")]


class Failure(Strict):
    """Why a step failed."""

    cause: Cause
    reason: str
    message: str
    details: dict[str, object] = {}
