"""Jobs of all sorts, as pages show them: what their steps answer is given here.

The bugs, patches and programs are the shipped ones. Consoles are in `consoles/`, source is in
`sources/`.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kgym.api.jobs import JobRequest
from kgym.api.steps import (
    BuildResult,
    BuildSpec,
    CheckResult,
    CheckSpec,
    Control,
    ControlName,
    ControlOutcome,
    Diagnostic,
    Evidence,
    FileCheck,
    FileOutcome,
    Finding,
    InstanceOutcome,
    InstanceResult,
    PatchCheck,
    PatchOutcome,
    ReproduceResult,
    ReproduceSpec,
    Severity,
    StepKind,
    StepResult,
    StepSpec,
    VariantRun,
    Verdict,
)
from kgym.bugs import bundle
from kgym.bugs.bug import Bug
from kgym.crash.report.parser import parse
from kgym.errors import InfrastructureError, UserError
from kgym.worker.context import StepContext
from tests import results
from tests.demo import checked_patches
from tests.demo.traced_calls import REPORT, crash, lines

BUG = bundle.load("watch-queue-filter")
# What a guest's console shows, by the title of the crash.
CONSOLES = {
    bundle.load(path.stem).file.title: path.read_text()
    for path in sorted((Path(__file__).parent / "consoles").glob("*.log"))
}
CONSOLE = CONSOLES[BUG.file.title]
# Kernel sources that the patches of the demo change.
SOURCES = Path(__file__).parent / "sources"
# The entry of SuiteCache that builds use.
ENTRY = "5c0ffee5" * 5
KERNEL = {
    "source_identity": "package:linux-source-6.1=6.1.192-1",
    "kernel_release": "6.1.192",
    "compiler_version": "gcc 12.2.0",
    "tree": ENTRY,
}
# What pages have to show as it is.
HOSTILE = (
    "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\x1b[31m"
)
OBJECTS = (
    "kernel/fork.o",
    "kernel/sched/core.o",
    "kernel/watch_queue.o",
    "mm/slab_common.o",
    "mm/kasan/report.o",
    "fs/pipe.o",
    "fs/namei.o",
    "fs/eventpoll.o",
    "security/keys/keyctl.o",
    "io_uring/rw.o",
    "net/core/skbuff.o",
    "drivers/virtio/virtio_ring.o",
)
ERROR = "kernel/watch_queue.c:362:3: error: expected ';' before 'return'"
FINDINGS = {
    "HIDES": Finding(
        check="detector",
        severity=Severity.BLOCKING,
        reason="attribute",
        message="the patch hides code from KASAN",
        file="kernel/watch_queue.c",
        line=320,
    ),
    "GUTS": Finding(
        check="amputation",
        reason="body_removed",
        message="watch_queue_set_filter(): little of it is left",
        file="kernel/watch_queue.c",
        line=301,
    ),
}
OUTCOMES = {
    "SAME": Verdict.SAME_CRASH,
    "OTHER": Verdict.OTHER_CRASH,
    "UNSURE": Verdict.INCONCLUSIVE,
    "MIXED": Verdict.SAME_CRASH,
}


@dataclass(slots=True)
class Showcase:
    """Answers steps by the marks of their job (`trial`); a build that is HELD waits for `let_go`.

    The other marks: BROKEN, HOSTILE: the build with the fix fails; AWAY: the platform fails it;
    SAME, OTHER, UNSURE: the verdict on the fix, which else mends the bug; MIXED: as
    SAME, though not on each instance; TRACED: with a trace; HIDES: the build with the fix finds
    that it hides code from KASAN, which blocks; GUTS: it notes that little of a function is left.
    """

    let_go: threading.Event = field(default_factory=threading.Event)
    lines: int = 400
    """That a build logs,"""
    text: str = ""
    """and what it logs before."""
    seconds: float = 0.2
    """That a step takes."""

    @property
    def answers(self) -> dict[StepKind, Callable[[StepContext], StepResult]]:
        """What each kind of step does."""
        return {
            StepKind.BUILD: self._build,
            StepKind.CHECK: self._check,
            StepKind.REPRODUCE: self._reproduce,
        }

    def _build(self, run: StepContext) -> BuildResult:
        spec = run.spec(BuildSpec)
        marks = [line[2:] for line in spec.config.fragments[-1].splitlines() if line[:2] == "# "]
        if self.text:
            run.log(self.text)
        for number in range(self.lines):
            run.log(f"  CC      {OBJECTS[number % len(OBJECTS)]}")
        time.sleep(self.seconds)
        if "HOSTILE" in marks:
            run.log(HOSTILE)
            raise UserError("does_not_compile", f"{HOSTILE}: error: expected ';'")
        if "BROKEN" in marks:
            run.log(ERROR)
            raise UserError("does_not_compile", ERROR)
        if "AWAY" in marks:
            raise InfrastructureError("download_failed", "the mirror of the package is away")
        if "HELD" in marks:
            self._hold(run)
        (run.folder / "build.log").write_text("  CC      kernel/fork.o\n" * 50)
        (run.folder / "vmlinux").write_bytes(b"\x7fELF" * 1000)
        (run.folder / "bzImage").write_bytes(b"MZ" * 2000)
        (run.folder / "config").write_text("CONFIG_WATCH_QUEUE=y\n")
        return results.built(
            **KERNEL,
            findings=[FINDINGS[mark] for mark in marks if spec.review and mark in FINDINGS],
            tree_cached=bool(spec.review),
            dump_symbols=marks,  # which no page shows: for the step that runs this kernel
            objects_compiled=1 if spec.patches else 1308,
            seconds={"source": 0.1, "tree": 0.2, "make": self.seconds},
        )

    def _hold(self, run: StepContext) -> None:
        run.progress("make", 240, 1308, "objects")
        run.log("held")
        number = 0
        while not self.let_go.wait(0.2):
            number += 1
            run.log(f"  CC      fs/held{number}.o")
            run.progress("make", min(240 + number, 1308), 1308, "objects")

    def _check(self, run: StepContext) -> CheckResult:
        time.sleep(self.seconds)
        patches = run.spec(CheckSpec).patches
        answers = [checked_patches.check(patch) or _checked(patch.name) for patch in patches]
        return results.checked(answers, **KERNEL, seconds={"patches": self.seconds})

    def _reproduce(self, run: StepContext) -> ReproduceResult:
        spec = run.spec(ReproduceSpec)
        marks = run.input("build", BuildResult).dump_symbols
        time.sleep(self.seconds)
        if "TRACED" in marks:
            (run.folder / "trace-0.txt").write_text("\n".join(lines(crash())) + "\n")
            (run.folder / "report-0.txt").write_text(REPORT)
        (run.folder / "reproduce.sh").write_text("#!/bin/sh\nexec qemu-system-x86_64\n")
        (run.folder / "initrd-0.cpio").write_bytes(b"070701" * 1000)
        if spec.baseline is None:
            return _crashed(run, Verdict.SAME_CRASH)
        outcomes = [OUTCOMES[mark] for mark in marks if mark in OUTCOMES]
        verdict = outcomes[0] if outcomes else Verdict.NO_CRASH
        if "MIXED" in marks:
            return _mixed(run, verdict)
        crashes = verdict in {Verdict.SAME_CRASH, Verdict.OTHER_CRASH}
        return _crashed(run, verdict) if crashes else _quiet(run, verdict)


def trial(
    *marks: str, tags: tuple[str, ...] = (), group: str | None = None, bug: Bug = BUG
) -> JobRequest:
    """Return a trial of a bug's fix; its steps do as the marks say (`Showcase`)."""
    request = bug.job(bug.fix)
    steps: list[StepSpec] = []
    for step in request.steps:
        if isinstance(step, BuildSpec) and (step.review or "BROKEN" not in marks):
            steps.append(_marked(step, marks))
        else:
            steps.append(step)
    true = [tag for tag in request.tags if tag.startswith(("bug=", "patch="))]
    return JobRequest(steps=steps, tags=[*true, *tags], group=group)


def _marked(step: BuildSpec, marks: tuple[str, ...]) -> BuildSpec:
    fragments = [*step.config.fragments, "".join(f"# {mark}\n" for mark in marks)]
    config = step.config.model_copy(update={"fragments": fragments})
    return step.model_copy(update={"config": config})


def _checked(name: str) -> PatchCheck:
    """Return what becomes of a patch of this name: BROKEN, UNFIT, or any other."""
    path = "kernel/watch_queue.c"
    if "UNFIT" in name:
        why = f"{path}: hunk 1 does not apply: its first line is nowhere in the file"
        return PatchCheck(name=name, outcome=PatchOutcome.DOES_NOT_APPLY, reason=why, seconds=0.01)
    broken = "BROKEN" in name
    file = FileOutcome.DOES_NOT_COMPILE if broken else FileOutcome.COMPILES
    error = Diagnostic(
        file=path, line=362, column=3, severity="error", message="expected ';' before 'return'"
    )
    return PatchCheck(
        name=name,
        outcome=PatchOutcome.DOES_NOT_COMPILE if broken else PatchOutcome.COMPILES,
        reason=ERROR if broken else "",
        files=[FileCheck(path=path, outcome=file, objects=1, dependents=1)],
        diagnostics=[error] if broken else [],
        output=ERROR if broken else "",
        seconds=0.9,
    )


def _crashed(run: StepContext, verdict: Verdict) -> ReproduceResult:
    spec = run.spec(ReproduceSpec)
    own = spec.titles[0] if spec.titles and spec.titles[0] in CONSOLES else BUG.file.title
    others = [title for title in CONSOLES if title != own]
    console = CONSOLES[own if verdict is Verdict.SAME_CRASH else others[0]]
    report = parse(console, running=True)
    assert report is not None
    number = spec.instances
    instances = []
    for n in range(number):
        (run.folder / f"console-{n}.log").write_text(console)
        (run.folder / f"report-{n}.json").write_text(json.dumps(report.as_dict()))
        instances.append(
            InstanceResult(
                number=n,
                outcome=InstanceOutcome.CRASH,
                boot_seconds=4.2 + n / 10,
                run_seconds=1.3,
                runs=1,
                title=report.title,
                stack=[frame.function for frame in report.frames],
            )
        )
    return results.ran(
        verdict,
        report.title,
        reason=f"{number} of {number} completed instances crashed: {report.title}",
        crashed=number,
        completed=number,
        requested=number,
        instances=instances,
        baseline=Verdict.SAME_CRASH if spec.baseline else None,
        unseen_chance=0.0 if spec.baseline else None,
        seconds={"run": 5.6},
    )


def _mixed(run: StepContext, verdict: Verdict) -> ReproduceResult:
    """Have the last instance end without the crash of the others."""
    result = _crashed(run, verdict)
    *others, last = result.instances
    (run.folder / f"console-{last.number}.log").write_text("booted\n")
    (run.folder / f"report-{last.number}.json").unlink()
    survived = last.model_copy(update={"outcome": InstanceOutcome.SURVIVED, "title": None})
    changed = {"instances": [*others, survived], "crashed": len(others)}
    return result.model_copy(update=changed)


def _quiet(run: StepContext, verdict: Verdict) -> ReproduceResult:
    number = run.spec(ReproduceSpec).instances
    lost = verdict is Verdict.INCONCLUSIVE
    for n in range(number):
        (run.folder / f"console-{n}.log").write_text("booted\n")
    instances = [
        InstanceResult(
            number=n,
            outcome=InstanceOutcome.SSH_LOST if lost else InstanceOutcome.SURVIVED,
            boot_seconds=4.2 + n / 10,
            run_seconds=2.0 if lost else 30.0,
            runs=14 if lost else 214,
        )
        for n in range(number)
    ]
    reported = [Control(name=name, outcome=ControlOutcome.REPORTED) for name in ControlName]
    return results.ran(
        verdict,
        reason="no instance ran for the whole time: the guests stopped answering"
        if lost
        else "the reproducer ran for the whole time on all instances, without a crash",
        completed=0 if lost else number,
        requested=number,
        instances=instances,
        baseline=Verdict.SAME_CRASH,
        unseen_chance=0.0,
        confidence=None if lost else 0.952,
        evidence=Evidence(controls=[] if lost else reported[:7], seconds=3.4),
        variants=None if lost else VariantRun(ran=300, compared=20, same=20, losses=[]),
        seconds={"run": 34.3},
    )
