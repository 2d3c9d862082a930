"""The `build` step: a kernel with patches, compiled."""

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kgym.api.steps.base import Count, Line, Name, Seconds, StepKind, Strict, TreePath
from kgym.api.steps.compilers import SUBSTITUTION
from kgym.api.steps.evidence import Diagnostic, Finding
from kgym.api.steps.guest import Reproducer
from kgym.api.steps.kernel import Kernel, Patch, SourceName
from kgym.api.steps.kernel_tests import KernelTests

_C_FILE = re.compile(r"(?:[\w+,@=-][\w.+,@=-]*/)*[\w+,@=-][\w.+,@=-]*\.c", re.ASCII)

# How a crashed guest's memory is saved: by QEMU, or by a capture kernel in the guest.
DumpMethod = Literal["hypervisor", "kdump"]


class BuildArtifact(StrEnum):
    """Names of a build's artifacts."""

    KERNEL = "bzImage"
    VMLINUX = "vmlinux"
    """The kernel with its symbols and debug information."""
    SYSTEM_MAP = "System.map"
    CONFIG = "config"
    """The `.config` that it was built with."""
    COMPILE_COMMANDS = "compile_commands.json"
    MODULES = "modules.tar"
    """The modules as installed by `make modules_install`, if the config has any."""
    TESTS = "kernel-tests.tar"
    """Programs of the kernel's own tests, if they were asked for."""
    LOG = "build.log"
    """Output of make and the compilers."""
    CSCOPE = "cscope.tar"
    """cscope's database for `cscope -d` in the source tree, on request."""
    INSTRUCTIONS = "instructions.tsv"
    """Instructions of each function of vmlinux without and with the patches, on request."""


Analysis = Literal["cscope", "instructions"]


class Ahead(Strict):
    """Requirements of later steps: the build fails at once if they cannot be met."""

    patches: list[Patch] = Field(
        [], max_length=10, description="each has to apply after the build's own, alone"
    )
    programs: list[Reproducer] = Field([], max_length=10, description="those in C have to compile")
    symbols: list[Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_]+$")]] = Field(
        [], max_length=100, description="of the config, without CONFIG_: each has to be `y`"
    )


class BuildSpec(Kernel):
    """Build a kernel: source, backports, then `patches` in order."""

    kind: Literal[StepKind.BUILD] = StepKind.BUILD
    patches: list[Patch] = Field([], max_length=100)
    for_dump: DumpMethod | None = Field(
        None, description="add the config symbols for this dump method"
    )
    instrument: list[TreePath] = Field(
        [],
        max_length=5000,
        description="C files whose functions write a record to the trace buffer at entry"
        " (kgym.source.instrument); also adds the config symbols for it",
    )
    objects: int | None = Field(
        None, gt=0, lt=1 << 31, description="objects of a full build, if known, for the progress"
    )
    review: list[Annotated[str, Field(max_length=200)]] = Field(
        [],
        max_length=100,
        description="names of `patches` that are on trial: findings report what they remove, touch"
        " and print, and whether the kernel can still report bugs",
    )
    files: list[TreePath] = Field(
        [],
        max_length=1000,
        description="files that a fix may have to change; others are a finding. Empty: unknown",
    )
    checkpatch: bool = Field(False, description="also check the style of patches on trial")
    kernel_tests: bool = Field(
        False, description="also build the kernel's own tests of what the patches on trial change"
    )
    analyses: list[Analysis] = Field(
        [],
        max_length=2,
        description="also make these artifacts: cscope.tar, the database of the files that the"
        " config compiles or the patches change; instructions.tsv, the numbers of instructions of"
        " all functions of vmlinux without and with the patches",
    )
    ahead: Ahead | None = Field(None, description="checked before anything is compiled")

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
                raise ValueError(f"{path!r} cannot be instrumented: not a .c file of the tree")
        return list(dict.fromkeys(paths))


class DroppedSymbol(Strict):
    """A config symbol that did not get the requested value from kconfig."""

    symbol: Name
    wanted: Name
    got: Name


class SkippedFunction(Strict):
    """A function without a record, and the reason."""

    name: Name
    line: Count = Field(description="where its body begins")
    reason: Name = Field(
        description="noinstr, notrace, init (and exit), section, calling_convention: as its marks"
        " say; inlined: into one of these; user_access: called with user memory open;"
        " local_labels: they have to come first; depends_on_config: its name;"
        " not_understood; no_place: no line for the file's own declarations before it"
    )


class InstrumentedFile(Strict):
    """An instrumented file: all its functions except the `skipped` have records."""

    path: TreePath
    reason: Line | None = Field(None, description="why it was not instrumented at all")
    functions: Count = Field(0, description="functions that have a record")
    skipped: list[SkippedFunction] = Field([], max_length=100_000)
    objects: Count = Field(
        description="objects that it is compiled into; 0: the config leaves it out"
    )


class BuildResult(Strict):
    """The result of a build."""

    kind: Literal[StepKind.BUILD] = StepKind.BUILD
    source_identity: Line = Field(description="e.g. `package:linux-source-6.1=6.1.192-1`")
    kernel_release: Name
    compiler_version: Name
    compiler_substitution: Name = Field("", description=SUBSTITUTION)
    tree: Name = Field(description="the SuiteCache entry that was used")
    source_tree: SourceName = ""
    tree_cached: bool = Field(description="whether that entry existed")
    memoised: bool = Field(False, description="whether it is a copy of an earlier identical build")
    shortcut: bool = Field(False, description="whether saved commands replaced make")
    backports: list[Name] = Field(max_length=1000)
    dropped_symbols: list[DroppedSymbol] = Field(
        max_length=100_000,
        description="symbols of the config that did not get the requested value, except those that"
        " describe the toolchain",
    )
    config_version: Name = Field(
        "",
        description="the version that the config was made for, by its first lines, if it is not the"
        " kernel's: kconfig has converted it",
    )
    modules: Count = Field(0, description="modules that were built; guests load them on demand")
    built_in: list[Name] = Field(
        [], max_length=100_000, description="symbols changed from `m` to `y` on request"
    )
    dump_symbols: list[Name] = Field(
        [], max_length=1000, description="symbols that `for_dump` added to the config"
    )
    instrumented: list[InstrumentedFile] = Field([], max_length=5000)
    trace_symbols: list[Name] = Field(
        [], max_length=1000, description="symbols that `instrument` added to the config"
    )
    objects_compiled: Count
    warnings: list[Diagnostic] = Field(max_length=10_000)
    findings: list[Finding] = Field([], max_length=10_000, description="about the reviewed patches")
    changed_functions: list[Name] = Field(
        [], max_length=1000, description="functions that the reviewed patches change"
    )
    kernel_tests: KernelTests | None = Field(None, description="null if not requested")
    detectors: dict[Name, Name] = Field(
        {},
        max_length=100,
        description="symbols of fault detectors in the unpatched kernel's config",
    )
    controls_lacking: dict[Name, Line] = Field(
        {},
        max_length=100,
        description="faults that cannot be raised on the unpatched kernel, because the code for"
        " them does not compile, and the compiler's message; `all`: none of them can",
    )
    seconds: Seconds = Field(
        description="by stage: identify, tree, make, …; `link` and `image` are parts of `make`"
    )
