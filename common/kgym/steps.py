"""What a step is asked (specs) and what it answers (results), one pair per step kind."""

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kgym import syz
from kgym.errors import Cause

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
TreePath = Annotated[str, Field(min_length=1, max_length=1000, description="path in the tree")]
_C_FILE = re.compile(r"(?:[\w+,@=-][\w.+,@=-]*/)*[\w+,@=-][\w.+,@=-]*\.c", re.ASCII)


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

DumpMethod = Literal["hypervisor", "kdump"]
"""How the memory of a crashed guest is saved: from outside, or by a kernel that it starts."""


class BuildSpec(Kernel):
    """Build a kernel: source, backports, then `patches` in order."""

    kind: Literal[StepKind.BUILD] = StepKind.BUILD
    patches: list[Patch] = []
    for_dump: DumpMethod | None = Field(
        None, description="add to the config what this way of taking dumps needs"
    )
    instrument: list[TreePath] = Field(
        [],
        max_length=5000,
        description="C files whose functions leave a record in the trace buffer at their entry"
        " (kgym.instrument), and add to the config what that needs",
    )
    objects: int | None = Field(
        None, gt=0, description="objects of a full build, where known, for the progress"
    )
    review: list[str] = Field(
        [], description="names of `patches` to look at: checkpatch, and what they cut off"
    )

    @model_validator(mode="after")
    def _reviews_its_patches(self) -> "BuildSpec":
        if unknown := set(self.review) - {patch.name for patch in self.patches}:
            raise ValueError(f"`review` names no patch: {', '.join(sorted(unknown))}")
        return self

    @field_validator("instrument")
    @classmethod
    def _instruments_c_files(cls, paths: list[str]) -> list[str]:
        for path in paths:
            if not _C_FILE.fullmatch(path):
                raise ValueError(f"{path!r} cannot be instrumented: it is no .c file of the tree")
        return list(dict.fromkeys(paths))


class Finding(Strict):
    """Something that a look at a patch or its kernel found: a hint for people, never a verdict."""

    check: Literal["amputation", "checkpatch", "smoke"]
    reason: str = Field(description="a short stable word, e.g. `check_removed`")
    message: str
    file: str | None = None
    line: int | None = Field(None, description="in the file after the patch, else before it")
    function: str | None = None


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


class SkippedFunction(Strict):
    """A function that gets no record, and why."""

    name: str
    line: int = Field(description="where its body begins")
    reason: str = Field(
        description="noinstr, notrace, init (and exit), section, calling_convention: as its marks"
        " say; inlined: into one of these; user_access: called with user memory open;"
        " local_labels: they have to come first; depends_on_config: its name;"
        " not_understood; no_place: no line for the file's own declarations before it"
    )


class InstrumentedFile(Strict):
    """What came of a file that was to be instrumented: all but the skipped have records."""

    path: TreePath
    reason: str | None = Field(None, description="why none of its functions has a record")
    functions: int = Field(0, description="that have a record")
    skipped: list[SkippedFunction] = []
    objects: int = Field(description="that it is compiled into; 0: not with this config")


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
    dump_symbols: list[str] = Field([], description="what `for_dump` asked of the config")
    instrumented: list[InstrumentedFile] = []
    trace_symbols: list[str] = Field([], description="what `instrument` added to the config")
    objects_compiled: int
    warnings: list[Diagnostic]
    findings: list[Finding] = Field([], description="about the patches that were to be reviewed")
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
    """A program that makes the kernel crash: C, or syzkaller's with its options in the header."""

    kind: Literal["c", "syz"] = "c"
    text: str = Field(min_length=1, description="the source")
    syzkaller: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{40}$",
        description="commit of the syzkaller whose binaries run it; null: the worker's own",
    )

    @model_validator(mode="after")
    def _is_well_formed(self) -> "Reproducer":
        if self.kind == "syz":
            syz.check(self.text)
        elif self.syzkaller is not None:
            raise ValueError("`syzkaller` goes with the kind `syz`")
        return self


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


class Calibration(Strict):
    """What runs on the unpatched kernel tell about a bug; `kgym.calibration` draws from it."""

    runs: int = Field(ge=1, description="N: runs that crashed, or lasted long enough to count")
    crashed: int = Field(ge=1, description="k: those that showed the bug")
    time: float = Field(
        gt=0,
        description="seconds that a run on a patched kernel has to last to count: the longest"
        " time to a crash, or the whole time where not all runs crashed",
    )
    accelerator: str

    @model_validator(mode="after")
    def _counts(self) -> "Calibration":
        if self.crashed > self.runs:
            raise ValueError("`crashed` is more than `runs`")
        return self


class ReproduceSpec(Strict):
    """Run a reproducer on N instances of a built kernel."""

    kind: Literal[StepKind.REPRODUCE] = StepKind.REPRODUCE
    build: StepRef
    reproducer: Reproducer
    others: list[Reproducer] = Field(
        [],
        max_length=8,
        description="further programs for the same bug; instances take all of them in turn",
    )
    titles: list[str] = Field([], description="of the crash looked for; empty: any is the same")
    vm: VmShape = VmShape()
    instances: int = Field(2, ge=1, le=1000)
    time: float = Field(120, gt=0, le=86400, description="seconds of running, each instance")
    stop_at_first_crash: bool = Field(
        True, description="stop when the crash looked for was seen: nothing changes that verdict"
    )
    baseline: StepRef | None = Field(
        None, description="reproduce step on the unpatched kernel, for the bug's crash rate"
    )
    calibration: Calibration | None = Field(
        None, description="the bug's crash rate and time, measured before; else the baseline's"
    )
    smoke: bool = Field(False, description="also try on one more instance whether the kernel works")
    bundle: Literal["whole", "small", "none"] = Field(
        "whole", description="archive to run the same by hand; `small` leaves out vmlinux"
    )
    dump: DumpMethod | Literal["none"] = Field(
        "none", description="how to save the memory of instances that crash or hang"
    )
    capture: StepRef | None = Field(
        None, description="the build of the capture kernel, for `kdump` (configs/kernels)"
    )

    @model_validator(mode="after")
    def _captures_for_kdump(self) -> "ReproduceSpec":
        if (self.dump == "kdump") != (self.capture is not None):
            raise ValueError("`kdump` takes a `capture` kernel, other ways of dumping none")
        return self


class DumpFailure(StrEnum):
    """Why there is no dump of an instance."""

    NO_RESERVATION = "no_reservation"
    """The kernel set no memory aside for the capture kernel."""
    KEXEC_REFUSED = "kexec_refused"
    """It did not take the capture kernel."""
    NO_PANIC = "no_panic"
    """It went on, or hung: nothing started the capture kernel."""
    CAPTURE_SILENT = "capture_silent"
    """The capture kernel did not come up in time."""
    SSH = "ssh"
    """The connection broke, or the guest's program that saves the memory failed."""
    DISK = "disk"
    QEMU = "qemu"
    """QEMU refused, died, or took too long."""


class InstanceDump(Strict):
    """The dump of one instance, or why there is none."""

    method: DumpMethod
    artifact: str | None = None
    size: int = Field(0, description="bytes of the artifact")
    failure: DumpFailure | None = None
    message: str = Field("", description="of the last failure")
    attempts: int = 0
    seconds: float = Field(0, description="from the end of the instance to the whole dump")


class InstanceResult(Strict):
    """One VM of a reproduce step."""

    number: int
    outcome: Outcome
    detail: str = ""
    boot_seconds: float | None = None
    run_seconds: float | None = Field(None, description="how long the reproducer was running")
    reproducer: int = Field(0, description="which: 0 is `reproducer`, then come `others`")
    runs: int = Field(0, description="how often the reproducer was started")
    title: str | None = Field(None, description="of its crash")
    alt_titles: list[str] = Field([], description="other names of its crash")
    verdict_lag: float | None = Field(
        None, description="seconds from the crash's last console line to the verdict"
    )
    dump: InstanceDump | None = Field(None, description="null where none was asked for, or due")


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
    time: float | None = Field(None, description="seconds asked of each instance")
    calibration: Calibration | None = Field(None, description="what `confidence` rests on")
    confidence: float | None = Field(
        None,
        description="of `no_crash`: 1 - the chance that the bug, still there, would not have"
        " shown, as far as so few measured runs can tell (`kgym.calibration`)",
    )
    accelerator: str
    instances: list[InstanceResult]
    findings: list[Finding] = Field([], description="what the smoke test found")
    seconds: dict[str, float]


# --- minimize -----------------------------------------------------------------------------


class MinimizeSpec(Strict):
    """Cut a crashed instance's trace down to what matters for its crash report."""

    kind: Literal[StepKind.MINIMIZE] = StepKind.MINIMIZE
    reproduce: StepRef = Field(description="the step that left dumps, or traces, and crash reports")
    build: StepRef = Field(description="the step whose `vmlinux` crashed")
    instance: int | None = Field(
        None, ge=0, description="null: the first that left both a crash report and a dump"
    )
    files: list[TreePath] = Field(
        [], max_length=1000, description="localisation candidates; none: all that was traced"
    )
    limit: int = Field(200, ge=1, le=10_000, description="records of the minimal trace")
    past_repeats: bool = Field(
        False, description="go on behind a pattern that repeats, instead of stopping there"
    )


class TracedFunction(Strict):
    """A function that was executed; `file` is null where the tracer does not say."""

    file: str | None
    name: str


class TracePart(StrEnum):
    """Where a call stands: within the matched stack, or what was executed before or after."""

    BACKWARD = "backward"
    MATCH = "match"
    FORWARD = "forward"


class TraceStack(StrEnum):
    """The stacks of a crash report."""

    CRASH = "crash"
    ALLOCATED = "allocated"
    FREED = "freed"


class TraceCall(Strict):
    """A call, or several that follow one another and stand there `count` times in a row."""

    pattern: list[TracedFunction]
    count: int = 1
    time: int = Field(description="of the first call, in nanoseconds of the trace clock")
    cpu: int
    part: TracePart
    anchor: bool = Field(False, description="whether the trace was cut around it")
    frame: int | None = Field(None, description="frame of the stack that it is; 0 is the innermost")
    omitted: int = Field(0, description="records of the thread that are left out right before it")


class TraceAnchor(Strict):
    """Which stack was found in the trace, innermost frame first.

    `missed` are frames in candidate files that were not found in order; without
    a stack, the anchor is the thread's last record.
    """

    stack: TraceStack | None = None
    frames: list[str] = []
    missed: list[str] = []
    span: int = Field(0, description="records from the outermost to the innermost frame")


class TraceAlternative(Strict):
    """A further place where the thread reached the same stack; the most likely ones first."""

    frames: list[str]
    span: int
    calls: list[TraceCall]


class RelatedThread(Strict):
    """What a thread did that freed or allocated the object, or ran the same code meanwhile."""

    why: Literal["freed", "allocated", "concurrent"]
    pid: int
    task: str | None
    records: int
    calls: list[TraceCall]


class TraceStatistics(Strict):
    """How much there was, and how much is left; a record is one entry of a function."""

    records: int
    lost: int = Field(description="records that the kernel is known to have overwritten")
    threads: int
    candidate_records: int = Field(description="in candidate files")
    thread_records: int = Field(description="of those, the crashing thread's")
    anchors: int = Field(description="places where the stack was reached")
    minimal_records: int = Field(description="records of a repeated pattern count once")
    represented_records: int = Field(description="repetitions included")
    match_records: int = Field(description="of the minimal records, those of the matched stack")


StopReason = Literal["end", "limit", "repeat"]


class MinimalTrace(Strict):
    """The calls that matter for a crash, in order; `pid` is null where there is no record."""

    pid: int | None
    task: str | None = None
    guessed: bool = Field(False, description="the report does not say that it is this thread")
    anchor: TraceAnchor
    calls: list[TraceCall]
    before: StopReason = Field("end", description="why the walk backward ended")
    after: StopReason = Field("end", description="why the walk forward ended")
    alternatives: list[TraceAlternative] = []
    related: list[RelatedThread] = []
    functions: list[TracedFunction] = Field(
        [], description="all that the thread ran in candidate files, in order of first call"
    )
    statistics: TraceStatistics


class DumpPart(Strict):
    """Something that was read out of a dump, or why it could not be."""

    name: str
    error: str | None = None


class MinimizeResult(Strict):
    """The minimal trace, and what else the dump told."""

    kind: Literal[StepKind.MINIMIZE] = StepKind.MINIMIZE
    instance: int
    title: str
    trace: MinimalTrace
    parts: list[DumpPart] = Field(description="each is an artifact of its name, unless it failed")
    seconds: dict[str, float]


StepSpec = Annotated[
    BuildSpec | CheckSpec | ReproduceSpec | MinimizeSpec, Field(discriminator="kind")
]
StepResult = Annotated[
    BuildResult | CheckResult | ReproduceResult | MinimizeResult, Field(discriminator="kind")
]


class Failure(Strict):
    """Why a step failed."""

    cause: Cause
    reason: str
    message: str
    details: dict[str, object] = {}
