"""Specifications and results of steps, one pair for each kind."""

from typing import Annotated

from pydantic import Field

from kgym.api.steps.base import (
    Count,
    Failure,
    Line,
    Name,
    Needs,
    Number,
    Sha256,
    StepInput,
    StepKind,
    StepName,
    StepNumber,
    StepRef,
    Strict,
    TreePath,
)
from kgym.api.steps.build import (
    Ahead,
    BuildArtifact,
    BuildResult,
    BuildSpec,
    DroppedSymbol,
    DumpMethod,
    InstrumentedFile,
    SkippedFunction,
)
from kgym.api.steps.check import (
    CheckResult,
    CheckSpec,
    FileCheck,
    FileOutcome,
    FunctionCheck,
    PatchCheck,
    PatchOutcome,
    Upstream,
)
from kgym.api.steps.compilers import Compiler
from kgym.api.steps.evidence import (
    Call,
    Control,
    ControlName,
    ControlOutcome,
    Diagnostic,
    Evidence,
    Finding,
    Reached,
    RunEnd,
    Severity,
    Work,
)
from kgym.api.steps.guest import DISK_SYMBOLS, Reproducer, RootImage, UsedRoot, on_disk
from kgym.api.steps.kernel import (
    Backport,
    Edit,
    GitSource,
    Kernel,
    KernelConfig,
    KernelSource,
    PackageSource,
    Patch,
    TarballSource,
    When,
)
from kgym.api.steps.kernel_tests import MOST_TESTS, KernelTestRun, KernelTests
from kgym.api.steps.minimize import (
    DumpPart,
    MinimalTrace,
    MinimizeArtifact,
    MinimizeResult,
    MinimizeSpec,
    RelatedThread,
    StopReason,
    TraceAlternative,
    TraceAnchor,
    TraceCall,
    TracedFunction,
    TracePart,
    TraceStack,
    TraceStatistics,
)
from kgym.api.steps.reproduce import (
    CRASHED_AT_BOOT,
    DEFAULT_SYZKALLER,
    Calibration,
    CompletedEnd,
    DumpFailure,
    InstanceArtifact,
    InstanceDump,
    InstanceOutcome,
    InstanceResult,
    Measure,
    ReproduceArtifact,
    ReproduceResult,
    ReproduceSpec,
    Verdict,
    VmShape,
    syzkaller_input,
)
from kgym.api.steps.source import (
    MOST_COMMITS,
    HistoryArtifact,
    HistoryLook,
    HistoryResult,
    HistorySpec,
    SourceResult,
    SourceSpec,
)
from kgym.api.steps.syzkaller import (
    GUEST_PROGRAMS,
    SYZKALLER_GIT,
    SyzkallerArtifact,
    SyzkallerResult,
    SyzkallerSpec,
)
from kgym.api.steps.variants import (
    ENGINE,
    SEED_LIMIT,
    SYZ_ENGINE,
    Dictionary,
    Equivalence,
    LearnedVariants,
    Loss,
    Pace,
    QuietVariant,
    VariantCrash,
    VariantCrashKind,
    VariantRun,
)

StepSpec = Annotated[
    BuildSpec | CheckSpec | ReproduceSpec | MinimizeSpec | SourceSpec | SyzkallerSpec | HistorySpec,
    Field(discriminator="kind"),
]
StepResult = Annotated[
    BuildResult
    | CheckResult
    | ReproduceResult
    | MinimizeResult
    | SourceResult
    | SyzkallerResult
    | HistoryResult,
    Field(discriminator="kind"),
]
