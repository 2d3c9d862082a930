"""The `reproduce` step: does the kernel crash, and how."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.steps.base import (
    Count,
    Failure,
    Line,
    Name,
    Needs,
    Number,
    Seconds,
    Step,
    StepInput,
    StepKind,
    StepRef,
    Strict,
    Words,
)
from kgym.api.steps.build import DumpMethod
from kgym.api.steps.evidence import Evidence, Finding, RunEnd
from kgym.api.steps.guest import Reproducer, Root, RootImage, UsedRoot
from kgym.api.steps.kernel_tests import KernelTestRun
from kgym.api.steps.variants import LearnedVariants, VariantRun

_MOST_INSTANCES = 1000
# A worker's syzkaller for programs that name no commit.
DEFAULT_SYZKALLER = "default"

# How a completed run ends; `killed`: at its time limit.
CompletedEnd = Annotated[
    str, Field(max_length=20, pattern=r"^(exit \d{1,3}|signal \d{1,3}|killed)$")
]


class ReproduceArtifact(StrEnum):
    """Names of a reproduce step's artifacts, besides programs and initrds."""

    COMMAND = "qemu-command.txt"
    """The first instance's command."""
    SCRIPT = "reproduce.sh"
    """A script that reproduces the crash by hand, with the bundle's other files."""
    ABOUT = "about.json"
    """What the script runs: bug, kernel, QEMU."""
    ROOT = "root.zst"
    """The guests' root disk, compressed by zstd; about.json has its format."""
    BUNDLE = "bundle.tar.gz"
    """All of them in one archive, if requested (`"bundle": "whole"`)."""


class InstanceArtifact(StrEnum):
    """Names of each instance's artifacts: `{}` is its number, or `0-retry-1` after a retry."""

    CONSOLE = "console-{}.log"
    PROGRAM = "reproducer-{}.log"
    """The program's output, if any."""
    REPORT = "report-{}.txt"
    """The crash report, with source lines."""
    REPORT_JSON = "report-{}.json"
    """The same in parts: `CrashReport.as_dict`."""

    def of(self, instance: int | str) -> str:
        """Return the name of this file of an instance."""
        return self.format(instance)


class VmShape(Strict):
    """A VM: its size, its root, and additions to the kernel's command line."""

    cpus: int = Field(1, ge=1, le=64)
    memory: int = Field(1024, ge=256, le=1 << 20, description="MiB")
    append: str = Field(
        "", max_length=1000, pattern=r"^[ -~]*$", description="kernel command line, added last"
    )
    root: Root = "initramfs"


class Verdict(StrEnum):
    """What a reproduce step concludes."""

    SAME_CRASH = "same_crash"
    OTHER_CRASH = "other_crash"
    NO_CRASH = "no_crash"
    INCONCLUSIVE = "inconclusive"


# Beginning of an instance's detail if it `boot_failed` by a crash, which the kernel caused.
CRASHED_AT_BOOT = "it crashed while booting"


class InstanceOutcome(StrEnum):
    """How one instance ended; only `crash` and `survived` count as completed."""

    CRASH = "crash"
    SURVIVED = "survived"
    STOPPED = "stopped"
    BOOT_FAILED = "boot_failed"
    SSH_LOST = "ssh_lost"
    START_FAILED = "start_failed"
    ENDED_EARLY = "ended_early"
    """Every run of the program failed at once."""
    NOT_DONE = "not_done"
    """Too few runs of the program were completed."""
    HUNG = "hung"
    REBOOTED = "rebooted"


class Calibration(Strict):
    """A bug's crash rate, measured on the unpatched kernel (see `kgym.bugs.calibration`)."""

    runs: int = Field(
        ge=1, lt=1 << 31, description="N: runs that crashed, or lasted long enough to count"
    )
    crashed: int = Field(ge=1, lt=1 << 31, description="k: those that showed the bug")
    time: float = Field(
        gt=0,
        le=86400,
        description="seconds that a run on a patched kernel has to last to count: the longest"
        " time to a crash, or the whole time where not all runs crashed",
    )
    accelerator: Name
    ends: list[RunEnd] = Field([], max_length=1000, description="how the program's runs ended")

    @model_validator(mode="after")
    def _counts(self) -> "Calibration":
        if self.crashed > self.runs:
            raise ValueError("`crashed` is more than `runs`")
        return self


class Measure(Strict):
    """Measure the crash rate after an early first crash.

    `more` instances are added, and all instances run until they crash, or for `time` seconds.
    """

    # Both are fixed before the first run: a choice made after seeing crashes would bias the rate.

    more: int = Field(3, ge=1, lt=1000, description="further instances")
    time: float = Field(
        30, gt=0, le=86400, description="seconds within which the first crash has to come"
    )


class ReproduceSpec(Step):
    """Run a reproducer on N instances of a built kernel."""

    kind: Literal[StepKind.REPRODUCE] = StepKind.REPRODUCE
    build: StepRef
    reproducer: Reproducer
    others: list[Reproducer] = Field(
        [],
        max_length=8,
        description="further programs for the same bug; instances take all of them in turn",
    )
    syzkaller: list[StepRef] = Field(
        [],
        max_length=9,
        description="`syzkaller` steps: `syz` programs are run by the one of their commit, those"
        " that name none by the first; empty: by the worker's own",
    )
    titles: list[Annotated[str, Field(max_length=1000)]] = Field(
        [], max_length=100, description="of the crash that is looked for; empty: any crash will do"
    )
    vm: VmShape = VmShape()
    instances: int = Field(2, ge=1, le=1000)
    time: float = Field(
        120, gt=0, le=86400, description="seconds that the reproducer runs on each instance"
    )
    completed: list[CompletedEnd] = Field(
        [],
        max_length=32,
        description="how a completed run of the program ends, e.g. `exit 1`; empty: as on the"
        " unpatched kernel, else by exit status 0 or not at all",
    )
    stop_at_first_crash: bool = Field(
        True, description="stop all instances once the crash that is looked for was seen"
    )
    measure: Measure | None = Field(
        None, description="how to go on after a first crash that came soon, instead of stopping"
    )
    baseline: StepRef | None = Field(
        None, description="reproduce step on the unpatched kernel, for the bug's crash rate"
    )
    calibration: Calibration | None = Field(
        None,
        description="the bug's crash rate and time, measured before; what the baseline tells is"
        " taken instead where it rests on more runs",
    )
    confidence: float | None = Field(
        None,
        ge=0.5,
        lt=1,
        description="choose `instances` and `time` at the start of the step, by the bug's measured"
        " rate, for a `no_crash` of this confidence; the given ones are used if too little was"
        " measured, or too much would be needed",
    )
    required: bool = Field(
        False,
        description="fail without a verdict (`no_verdict`, with the result), if later steps of the"
        " job depend on it",
    )
    evidence: bool = Field(
        False,
        description="also record what the program does (on a kernel with the bug), and whether a"
        " kernel without a crash could have reported one and still does the same work",
    )
    variants: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="how many programs close to the reproducer are run as well: with a baseline,"
        " once this kernel shows no crash; without, those that stay quiet are learned, to be"
        " compared with on later kernels",
    )
    learned: StepRef | None = Field(
        None,
        description="reproduce step that has learned the bug's quiet variants; null: baseline."
        " Without a baseline, this kernel has the developers' fix, and becomes a `reference`",
    )
    reference: StepRef | None = Field(
        None,
        description="reproduce step on the kernel with the developers' fix, whose variants are"
        " compared with this kernel's",
    )
    unpatched: StepRef | None = Field(
        None, description="the build without the fix, on which a variant's crash is tried as well"
    )
    smoke: bool = Field(
        False, description="also test on one more instance whether the kernel works"
    )
    bundle: Literal["on_demand", "whole", "small", "none"] = Field(
        "on_demand",
        description="archive for reproducing by hand: packed when it is downloaded, from the"
        " artifacts of this step and its build; or packed and stored by the step;"
        " `small` omits vmlinux",
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
            raise ValueError("`kdump` needs a `capture` kernel; other methods use none")
        return self

    @model_validator(mode="after")
    def _compares_variants(self) -> "ReproduceSpec":
        if self.reference is not None and not self.variants:
            raise ValueError("`reference` needs `variants`")
        return self

    @model_validator(mode="after")
    def _measures_in_passing(self) -> "ReproduceSpec":
        if self.measure is not None and not self.stop_at_first_crash:
            raise ValueError("`measure` needs `stop_at_first_crash`: without it, all are measured")
        if self.measure is not None and self.instances + self.measure.more > _MOST_INSTANCES:
            raise ValueError(f"`instances` and `measure.more` are more than {_MOST_INSTANCES}")
        return self

    def inputs(self) -> list[StepInput]:
        """Return the build, and the other steps that are named."""
        root = self.vm.root
        named: list[tuple[str, StepRef | None, StepKind]] = [
            ("build", self.build, StepKind.BUILD),
            ("baseline", self.baseline, StepKind.REPRODUCE),
            ("capture", self.capture, StepKind.BUILD),
            ("unpatched", self.unpatched, StepKind.BUILD),
            ("learned", self.learned, StepKind.REPRODUCE),
            ("reference", self.reference, StepKind.REPRODUCE),
            ("root", root.step if isinstance(root, RootImage) else None, StepKind.REPRODUCE),
        ]
        for number, ref in enumerate(self.syzkaller):
            named.append((syzkaller_input(number), ref, StepKind.SYZKALLER))
        return [StepInput(name, ref, kind) for name, ref, kind in named if ref is not None]

    def unmet(self, result: Strict) -> Failure | None:
        """Return a failure if a required verdict is missing."""
        if not self.required or not isinstance(result, ReproduceResult):
            return None
        if result.verdict is not Verdict.INCONCLUSIVE:
            return None
        # Counted as the infrastructure's failure: the user's input may be valid.
        why = f"no verdict on this kernel, so nothing further is tried: {result.reason}"
        return Failure(cause="infrastructure", reason="no_verdict", message=why)

    def needs(self) -> Needs:
        """Return the needs of its VMs; all kernels are built for x86_64."""
        programs = [] if self.syzkaller else [self.reproducer, *self.others]
        return Needs(
            architecture="x86_64",
            cores=self.vm.cpus,
            memory=_class(self.vm.memory),
            syzkaller=sorted(
                {
                    program.syzkaller or DEFAULT_SYZKALLER
                    for program in programs
                    if program.kind == "syz"
                }
            ),
            dump=self.dump if self.dump == "hypervisor" else None,
        )


def syzkaller_input(number: int) -> str:
    """Return the input's name for the `ReproduceSpec.syzkaller` of this number."""
    return f"syzkaller-{number}"


# Two sizes for each power of two: with every size of its own, each would be a lane.
def _class(memory: int) -> int:
    power = 1 << (memory - 1).bit_length()
    return power * 3 // 4 if memory <= power * 3 // 4 else power


class DumpFailure(StrEnum):
    """Why an instance has no dump."""

    NO_RESERVATION = "no_reservation"
    """The kernel reserved no memory for the capture kernel."""
    KEXEC_REFUSED = "kexec_refused"
    """The kernel refused to load the capture kernel."""
    NO_PANIC = "no_panic"
    """The kernel went on, or hung, so nothing started the capture kernel."""
    CAPTURE_SILENT = "capture_silent"
    """The capture kernel did not come up in time."""
    VM_LOST = "vm_lost"
    """The VM was lost before the dump was complete, not through its guest."""
    SSH = "ssh"
    """The connection broke, or the guest's program that saves the memory failed."""
    DISK = "disk"
    QEMU = "qemu"
    """QEMU refused, died, or took too long."""


class InstanceDump(Strict):
    """The dump of one instance, or why there is none."""

    method: DumpMethod
    artifact: Name | None = None
    size: Count = Field(0, description="bytes of the artifact")
    failure: DumpFailure | None = None
    message: Line = Field("", description="of the last failure")
    attempts: Count = 0
    seconds: Number = Field(0, description="from the end of the instance to the whole dump")


class InstanceResult(Strict):
    """One VM of a reproduce step."""

    number: Count = Field(description="of the instance, from 0")
    outcome: InstanceOutcome
    detail: Line = Field("", description="more about the outcome, in words")
    boot_seconds: Number | None = Field(None, description="from its start until it could be used")
    run_seconds: Number | None = Field(None, description="how long the reproducer was running")
    reproducer: Count = Field(0, description="which: 0 is `reproducer`, then come `others`")
    runs: Count = Field(0, description="how often the reproducer was started")
    ends: list[RunEnd] = Field([], max_length=1000, description="how its runs ended")
    title: Line | None = Field(None, description="title of its crash")
    alt_titles: list[Line] = Field([], max_length=1000, description="other titles of its crash")
    guilty_file: Line | None = Field(
        None, description="the source file that its crash report blames, if the report has lines"
    )
    stack: list[Name] = Field(
        [], max_length=64, description="functions of its crash's stack, innermost first"
    )
    verdict_lag: Number | None = Field(
        None, description="seconds from the crash's last console line to the verdict"
    )
    dump: InstanceDump | None = Field(None, description="null if not requested, or not due")


class ReproduceResult(Strict):
    """The verdict, with the runs, evidence and findings behind it."""

    kind: Literal[StepKind.REPRODUCE] = StepKind.REPRODUCE
    verdict: Verdict
    reason: Words = Field(description="reason of the verdict")
    title: Line | None = Field(description="title of the deciding crash, if any")
    crashed: Count = Field(description="k: completed instances that crashed")
    completed: Count = Field(description="N: instances that crashed or survived the whole time")
    requested: Count = Field(description="instances that were asked for")
    baseline: Verdict | None = Field(
        None, description="on the unpatched kernel; null where none was named"
    )
    unseen_chance: Number | None = Field(
        description="(1 - p)^N at the baseline's crash rate p; null without a baseline"
    )
    time: Number | None = Field(None, description="seconds asked of each instance")
    calibration: Calibration | None = Field(None, description="what `confidence` rests on")
    confidence: Number | None = Field(
        None,
        description="of `no_crash`: 1 - the probability that the bug is still present and did not"
        " show, given the number of measured runs (`kgym.bugs.calibration`)",
    )
    accelerator: Name = Field(description="what ran the VMs: `kvm`, `tcg`, or a cloud's machines")
    root: UsedRoot = UsedRoot()
    instances: list[InstanceResult] = Field(max_length=1000)
    sample: list[Count] | None = Field(
        None,
        max_length=1000,
        description="the instances whose runs were not started or ended by another's crash: only"
        " these may be pooled with other steps' to estimate the crash rate; null: all",
    )
    findings: list[Finding] = Field(
        [], max_length=10_000, description="of the smoke test and of the evidence"
    )
    learned: LearnedVariants | None = Field(
        None, description="variants of an unpatched kernel, with which later ones are compared"
    )
    reference: LearnedVariants | None = Field(
        None, description="variants of the kernel with the developers' fix"
    )
    variants: VariantRun | None = Field(None, description="variants of a patched kernel")
    kernel_tests: KernelTestRun | None = Field(
        None, description="the kernel's own tests; they run with the variants"
    )
    evidence: Evidence | None = Field(None, description="null if not requested")
    seconds: Seconds
