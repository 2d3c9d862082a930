"""What a step is asked (specs) and what it answers (results), one pair per step kind."""

from typing import Annotated

from pydantic import Field

from kgym.steps.build import (
    BuildResult,
    BuildSpec,
    DroppedSymbol,
    DumpMethod,
    InstrumentedFile,
    SkippedFunction,
)
from kgym.steps.check import (
    CheckResult,
    CheckSpec,
    FileCheck,
    FileOutcome,
    FunctionCheck,
    PatchCheck,
    PatchOutcome,
)
from kgym.steps.evidence import (
    Call,
    Control,
    ControlName,
    ControlOutcome,
    Evidence,
    Reached,
    RunEnd,
    Work,
)
from kgym.steps.findings import Diagnostic, Finding, Severity
from kgym.steps.kernel import (
    Compiler,
    Edit,
    GitSource,
    Kernel,
    KernelConfig,
    KernelSource,
    PackageSource,
    Patch,
    TarballSource,
)
from kgym.steps.minimize import (
    DumpPart,
    MinimalTrace,
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
from kgym.steps.model import Failure, Sha256, StepKind, StepRef, Strict, TreePath
from kgym.steps.reproduce import (
    Calibration,
    CompletedEnd,
    DumpFailure,
    InstanceDump,
    InstanceResult,
    Outcome,
    Reproducer,
    ReproduceResult,
    ReproduceSpec,
    Verdict,
    VmShape,
)

__all__ = [
    "BuildResult",
    "BuildSpec",
    "Calibration",
    "Call",
    "CheckResult",
    "CheckSpec",
    "Compiler",
    "CompletedEnd",
    "Control",
    "ControlName",
    "ControlOutcome",
    "Diagnostic",
    "DroppedSymbol",
    "DumpFailure",
    "DumpMethod",
    "DumpPart",
    "Edit",
    "Evidence",
    "Failure",
    "FileCheck",
    "FileOutcome",
    "Finding",
    "FunctionCheck",
    "GitSource",
    "InstanceDump",
    "InstanceResult",
    "InstrumentedFile",
    "Kernel",
    "KernelConfig",
    "KernelSource",
    "MinimalTrace",
    "MinimizeResult",
    "MinimizeSpec",
    "Outcome",
    "PackageSource",
    "Patch",
    "PatchCheck",
    "PatchOutcome",
    "Reached",
    "RelatedThread",
    "ReproduceResult",
    "ReproduceSpec",
    "Reproducer",
    "RunEnd",
    "Severity",
    "Sha256",
    "SkippedFunction",
    "StepKind",
    "StepRef",
    "StepResult",
    "StepSpec",
    "StopReason",
    "Strict",
    "TarballSource",
    "TraceAlternative",
    "TraceAnchor",
    "TraceCall",
    "TracePart",
    "TraceStack",
    "TraceStatistics",
    "TracedFunction",
    "TreePath",
    "Verdict",
    "VmShape",
    "Work",
]

StepSpec = Annotated[
    BuildSpec | CheckSpec | ReproduceSpec | MinimizeSpec, Field(discriminator="kind")
]
StepResult = Annotated[
    BuildResult | CheckResult | ReproduceResult | MinimizeResult, Field(discriminator="kind")
]
