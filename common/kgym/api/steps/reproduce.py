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

_MOST_INSTANCES = 1000
# Stands for the syzkaller that a worker has for programs which ask for no commit.
DEFAULT_SYZKALLER = "default"

# How a run ends that did its work; `killed`: it goes on until its time is over.
CompletedEnd = Annotated[
    str, Field(max_length=20, pattern=r"^(exit \d{1,3}|signal \d{1,3}|killed)$")
]


class ReproduceArtifact(StrEnum):
    """The files that a reproduce step leaves once, by name; programs and initrds besides."""

    COMMAND = "qemu-command.txt"
    """How the first instance was started."""
    SCRIPT = "reproduce.sh"
    """Crashes the kernel again by hand, beside what belongs to the bundle."""
    ABOUT = "about.json"
    """What the script runs: bug, kernel, QEMU."""
    ROOT = "root.zst"
    """The root disk, packed by zstd, where guests had one; its format stands in about.json."""
    BUNDLE = "bundle.tar.gz"
    """All of it in one, where the step was asked for that (`"bundle": "whole"`)."""


class InstanceArtifact(StrEnum):
    """The files that a reproduce step leaves of each instance: `{}` is its number.

    Of an instance that was tried again, it is `0-retry-1`.
    """

    CONSOLE = "console-{}.log"
    PROGRAM = "reproducer-{}.log"
    """What the program printed, if it did."""
    REPORT = "report-{}.txt"
    """The crash report, with source lines."""
    REPORT_JSON = "report-{}.json"
    """The same in parts: `CrashReport.as_dict`."""

    def of(self, instance: int | str) -> str:
        """Return the name of this file of an instance."""
        return self.format(instance)


class VmShape(Strict):
    """A VM: its size, and what is added to the kernel's command line."""

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


# How the detail of an instance begins that `boot_failed` by a crash: its kernel's own fault.
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
    """Too few runs of the program ended as those that do their work."""
    HUNG = "hung"
    REBOOTED = "rebooted"


class Calibration(Strict):
    """What runs on the unpatched kernel tell about a bug; `kgym.bugs.calibration` draws from it."""

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
    """Measure the bug in passing: where it shows soon, go on after the first crash.

    `more` instances are added, and each of all runs until it crashes, or for `time` seconds.
    Both are fixed before anything is seen, so that what is measured flatters nobody.
    """

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
        description="how a run of the program ends that did its work, e.g. `exit 1`; empty: as on"
        " the unpatched kernel, or else by exit status 0, or not at all",
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
        description="have `instances` and `time` chosen when the step begins, by what was measured"
        " of the bug, for a `no_crash` that is so sure; those given are taken where too little was"
        " measured, or too much would be needed",
    )
    required: bool = Field(
        False,
        description="fail where there is no verdict (`no_verdict`, with the result): what comes"
        " after it in the job would rest on nothing",
    )
    evidence: bool = Field(
        False,
        description="also learn what the program does (on a kernel with the bug), and whether a"
        " kernel without a crash could have told of one and still does that work",
    )
    smoke: bool = Field(False, description="also try on one more instance whether the kernel works")
    bundle: Literal["on_demand", "whole", "small", "none"] = Field(
        "on_demand",
        description="archive to run the same by hand: packed when somebody fetches it, out of what"
        " this step and its build left; or packed and kept by the step; `small` leaves out vmlinux",
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

    @model_validator(mode="after")
    def _measures_in_passing(self) -> "ReproduceSpec":
        if self.measure is not None and not self.stop_at_first_crash:
            raise ValueError("without `stop_at_first_crash` all are measured: leave `measure` out")
        if self.measure is not None and self.instances + self.measure.more > _MOST_INSTANCES:
            raise ValueError(f"`instances` and `measure.more` are more than {_MOST_INSTANCES}")
        return self

    def inputs(self) -> list[StepInput]:
        """Return the build, and those others that are named."""
        root = self.vm.root
        named: list[tuple[str, StepRef | None, StepKind]] = [
            ("build", self.build, StepKind.BUILD),
            ("baseline", self.baseline, StepKind.REPRODUCE),
            ("capture", self.capture, StepKind.BUILD),
            ("root", root.step if isinstance(root, RootImage) else None, StepKind.REPRODUCE),
        ]
        for number, ref in enumerate(self.syzkaller):
            named.append((syzkaller_input(number), ref, StepKind.SYZKALLER))
        return [StepInput(name, ref, kind) for name, ref, kind in named if ref is not None]

    def unmet(self, result: Strict) -> Failure | None:
        """Return that there is no verdict, where one is required."""
        if not self.required or not isinstance(result, ReproduceResult):
            return None
        if result.verdict is not Verdict.INCONCLUSIVE:
            return None
        why = f"no verdict on this kernel, so nothing further is tried: {result.reason}"
        return Failure(cause="infrastructure", reason="no_verdict", message=why)

    def needs(self) -> Needs:
        """Return what its VMs need: all kernels here are built for x86_64."""
        programs = [] if self.syzkaller else [self.reproducer, *self.others]
        return Needs(
            architecture="x86_64",
            cores=self.vm.cpus,
            memory=_class(self.vm.memory),
            syzkaller=sorted(
                {one.syzkaller or DEFAULT_SYZKALLER for one in programs if one.kind == "syz"}
            ),
            dump=self.dump if self.dump == "hypervisor" else None,
        )


def syzkaller_input(number: int) -> str:
    """Return the name that the input of `ReproduceSpec.syzkaller` with this number has."""
    return f"syzkaller-{number}"


def _class(memory: int) -> int:
    power = 1 << (memory - 1).bit_length()
    return power * 3 // 4 if memory <= power * 3 // 4 else power


class DumpFailure(StrEnum):
    """Why there is no dump of an instance."""

    NO_RESERVATION = "no_reservation"
    """The kernel reserved no memory for the capture kernel."""
    KEXEC_REFUSED = "kexec_refused"
    """The kernel refused to load the capture kernel."""
    NO_PANIC = "no_panic"
    """The kernel went on, or hung, so nothing started the capture kernel."""
    CAPTURE_SILENT = "capture_silent"
    """The capture kernel did not come up in time."""
    VM_LOST = "vm_lost"
    """The VM was gone before the dump was whole, by no fault of its guest."""
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
    seconds: float = Field(0, description="from the end of the instance to the whole dump")


class InstanceResult(Strict):
    """One VM of a reproduce step."""

    number: Count = Field(description="of the instance, from 0")
    outcome: InstanceOutcome
    detail: Line = Field("", description="more about the outcome, in words")
    boot_seconds: float | None = Field(None, description="from its start until it could be used")
    run_seconds: float | None = Field(None, description="how long the reproducer was running")
    reproducer: Count = Field(0, description="which: 0 is `reproducer`, then come `others`")
    runs: Count = Field(0, description="how often the reproducer was started")
    ends: list[RunEnd] = Field([], max_length=1000, description="how its runs ended")
    title: Line | None = Field(None, description="title of its crash")
    alt_titles: list[Line] = Field([], max_length=1000, description="other titles of its crash")
    guilty_file: Line | None = Field(
        None, description="the source file that its crash report blames, if the report has lines"
    )
    verdict_lag: float | None = Field(
        None, description="seconds from the crash's last console line to the verdict"
    )
    dump: InstanceDump | None = Field(None, description="null where none was asked for, or due")


class ReproduceResult(Strict):
    """What N instances came to: the verdict, and the runs, evidence and findings it rests on."""

    kind: Literal[StepKind.REPRODUCE] = StepKind.REPRODUCE
    verdict: Verdict
    reason: Words = Field(description="why it is that verdict")
    title: Line | None = Field(description="of the crash that decided, where one did")
    crashed: Count = Field(description="k: completed instances that crashed")
    completed: Count = Field(description="N: instances that crashed or survived the whole time")
    requested: Count = Field(description="instances that were asked for")
    baseline: Verdict | None = Field(
        None, description="on the unpatched kernel; null where none was named"
    )
    unseen_chance: float | None = Field(
        description="(1 - p)^N at the baseline's crash rate p; null without a baseline"
    )
    time: float | None = Field(None, description="seconds asked of each instance")
    calibration: Calibration | None = Field(None, description="what `confidence` rests on")
    confidence: float | None = Field(
        None,
        description="of `no_crash`: 1 - the chance that the bug, still there, would not have"
        " shown, as far as so few measured runs can tell (`kgym.bugs.calibration`)",
    )
    accelerator: Name = Field(description="what ran the VMs: `kvm`, `tcg`, or a cloud's machines")
    root: UsedRoot = UsedRoot()
    instances: list[InstanceResult] = Field(max_length=1000)
    sample: list[Count] | None = Field(
        None,
        max_length=1000,
        description="the instances whose runs no crash of another one began or ended: only they"
        " may be pooled with other steps' to tell how often the bug shows; null: all",
    )
    findings: list[Finding] = Field(
        [], max_length=10_000, description="of the smoke test and of the evidence"
    )
    evidence: Evidence | None = Field(None, description="null where none was asked for")
    seconds: Seconds
