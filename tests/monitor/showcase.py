"""Jobs of all sorts, as pages show them: what their steps answer is given here."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kgym.api.jobs import JobRequest
from kgym.api.steps import (
    BuildResult,
    BuildSpec,
    InstanceOutcome,
    InstanceResult,
    ReproduceResult,
    ReproduceSpec,
    StepKind,
    StepResult,
    Verdict,
)
from kgym.bugs import bundle
from kgym.crash.report.parser import parse
from kgym.errors import UserError
from kgym.worker.context import StepContext
from tests.results import built, ran

BUG = bundle.load("watch-queue-filter")
CONSOLE = """\
[    4.201331] ==================================================================
[    4.202110] BUG: KASAN: slab-out-of-bounds in watch_queue_set_filter+0x4c9/0x5b0
[    4.203050] Write of size 4 at addr ffff888004a1c3c8 by task repro/71
[    4.203771]
[    4.203990] CPU: 0 PID: 71 Comm: repro Not tainted 6.1.192 #1
[    4.204702] Call Trace:
[    4.205012]  <TASK>
[    4.205290]  dump_stack_lvl+0x34/0x44 lib/dump_stack.c:106
[    4.205772]  print_report+0x171/0x471 mm/kasan/report.c:284
[    4.206250]  kasan_report+0xaf/0xe0 mm/kasan/report.c:495
[    4.206733]  watch_queue_set_filter+0x4c9/0x5b0 kernel/watch_queue.c:401
[    4.207266]  pipe_ioctl+0x8b/0x110 fs/pipe.c:632
[    4.207729]  __x64_sys_ioctl+0xb4/0xf0 fs/ioctl.c:856
[    4.208244]  do_syscall_64+0x35/0x80 arch/x86/entry/common.c:80
[    4.208727]  entry_SYSCALL_64_after_hwframe+0x63/0xcd
[    4.209300]  </TASK>
[    4.209520]
[    4.209740] Allocated by task 71:
[    4.210110]  kasan_save_stack+0x1c/0x40 mm/kasan/common.c:45
[    4.210640]  __kmalloc+0x54/0xc0 mm/slab_common.c:968
[    4.211130]  watch_queue_set_filter+0x1d2/0x5b0 kernel/watch_queue.c:371
[    4.211700]  pipe_ioctl+0x8b/0x110 fs/pipe.c:632
[    4.212200] ==================================================================
"""
HOSTILE = (
    "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\x1b[31m"
)
"""What pages have to show as it is."""


@dataclass(slots=True)
class Showcase:
    """Answers steps by the job's tags; a build that is `held` runs until it is let go."""

    let_go: threading.Event = field(default_factory=threading.Event)
    lines: int = 400
    """That a build logs,"""
    text: str = ""
    """and what it logs before."""

    @property
    def answers(self) -> dict[StepKind, Callable[[StepContext], StepResult]]:
        """What each kind of step does."""
        return {StepKind.BUILD: self._build, StepKind.REPRODUCE: self._reproduce}

    def _build(self, run: StepContext) -> BuildResult:
        spec = run.spec(BuildSpec)
        config = "\n".join(spec.config.fragments)
        if self.text:
            run.log(self.text)
        for number in range(self.lines):
            run.log(f"  CC      kernel/part{number}.o")
        if "HOSTILE" in config:
            run.log(HOSTILE)
            raise UserError("does_not_compile", f"{HOSTILE}: error: expected ';'")
        if "BROKEN" in config:
            run.log("kernel/watch_queue.c:362:3: error: expected ';' before 'return'")
            raise UserError(
                "does_not_compile",
                "kernel/watch_queue.c:362:3: error: expected ';' before 'return'",
            )
        if "HELD" in config:
            run.progress("make", 240, 1308, "objects")
            run.log("held")
            number = 0
            while not self.let_go.wait(0.2):
                number += 1
                run.log(f"  CC      fs/held{number}.o")
                run.progress("make", 240 + number, 1308, "objects")
        (run.folder / "build.log").write_text("  CC      kernel/fork.o\n" * 50)
        (run.folder / "vmlinux").write_bytes(b"\x7fELF" * 1000)
        return built(
            source_identity="package:linux-source-6.1=6.1.192-1",
            kernel_release="6.1.192",
            compiler_version="gcc 12.2.0",
            objects_compiled=1 if spec.patches else 1308,
        )

    def _reproduce(self, run: StepContext) -> ReproduceResult:
        spec = run.spec(ReproduceSpec)
        time.sleep(0.2)
        crashes = spec.baseline is None
        number = spec.instances
        report = parse(CONSOLE, running=True)
        assert report is not None
        instances = []
        for one in range(number):
            (run.folder / f"console-{one}.log").write_text(CONSOLE if crashes else "booted\n")
            if crashes:
                text = json.dumps(report.as_dict())
                (run.folder / f"report-{one}.json").write_text(text)
            outcome = InstanceOutcome.CRASH if crashes else InstanceOutcome.SURVIVED
            instances.append(
                InstanceResult(
                    number=one,
                    outcome=outcome,
                    boot_seconds=4.2 + one / 10,
                    run_seconds=1.3 if crashes else 30.0,
                    runs=1 if crashes else 214,
                    title=report.title if crashes else None,
                )
            )
        if crashes:
            return ran(
                Verdict.SAME_CRASH,
                report.title,
                reason=f"{number} of {number} completed instances crashed: {report.title}",
                crashed=number,
                completed=number,
                requested=number,
                instances=instances,
            )
        return ran(
            Verdict.NO_CRASH,
            reason="the reproducer ran for the whole time on all instances, without a crash",
            completed=number,
            requested=number,
            instances=instances,
            confidence=0.952,
            unseen_chance=0.0,
            baseline=Verdict.SAME_CRASH,
        )


def trial(*marks: str, tags: tuple[str, ...] = (), group: str | None = None) -> JobRequest:
    """Return a trial of the demo's bug; its builds do as the marks say (HELD, BROKEN, HOSTILE)."""
    request = BUG.job(BUG.fix)
    steps = []
    for step in request.steps:
        marked = isinstance(step, BuildSpec) and (step.review or "BROKEN" not in marks)
        steps.append(_marked(step, marks) if marked else step)
    true = [tag for tag in request.tags if tag.startswith("bug=")]
    return JobRequest(steps=steps, tags=[*true, *tags], group=group)


def _marked(step: BuildSpec, marks: tuple[str, ...]) -> BuildSpec:
    fragments = [*step.config.fragments, *(f"# {mark}\n" for mark in marks)]
    config = step.config.model_copy(update={"fragments": fragments})
    return step.model_copy(update={"config": config})
