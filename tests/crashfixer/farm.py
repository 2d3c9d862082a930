"""A platform whose workers answer by what a patch says, and remember what they were asked."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kgym.api import steps
from kgym.bugs import bundle
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, UserError
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_cli.platforms.embedded_platform import Platform as Scheduler
from kgym_cli.platforms.step_registry import Equipment, handlers
from kgym_crashfixer.run_jobs import Options, RunJobs
from tests.cli.worked import working
from tests.results import GOOD, SILENT, built, checked, crash, ran

BUG = bundle.load("watch-queue-filter")
NO_RECORDS = steps.TraceStatistics(
    **dict.fromkeys(("records", "candidate_records", "thread_records"), 9),
    **dict.fromkeys(("minimal_records", "represented_records"), 2),
    **dict.fromkeys(("threads", "anchors", "match_records"), 1),
    lost=0,
)
CONSOLE = "kgym: guest ready\r\n[ 1.0] step 1\r\n[ 2.0] kgym: word\r\n[ 3.0] BUG: bad\r\n"
T = TypeVar("T")


def call(
    name: str, part: steps.TracePart = steps.TracePart.MATCH, **fields: Any
) -> steps.TraceCall:
    pattern = [steps.TracedFunction(file="drivers/a.c", name=name)]
    return steps.TraceCall(pattern=pattern, time=0, cpu=0, part=part, **fields)


@dataclass
class Farm:
    """Workers whose results the words in patches choose."""

    # Whether the unpatched kernel crashes.
    shows: bool = True
    traces: bool = True
    # Steps that the platform fails before it answers any.
    fails: int = 0
    done: list[str] = field(default_factory=list)
    # Of the unpatched kernel's crash, if not a short one.
    report: str = ""
    # The compiler's commands of each build.
    compiled: str = ""
    # What waits until `hold` is set.
    hold_at: str = ""
    hold: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)

    @property
    def answers(self) -> dict[steps.StepKind, Callable[[StepContext], steps.StepResult]]:
        return {
            steps.StepKind.CHECK: self.check,
            steps.StepKind.BUILD: self.build,
            steps.StepKind.REPRODUCE: self.reproduce,
            steps.StepKind.MINIMIZE: self.minimize,
        }

    def _begins(self, what: str) -> None:
        self.done.append(what)
        if self.fails:
            self.fails -= 1
            raise UserError("broken", "no") if what == "user" else InfrastructureError("lost", "?")
        if what == self.hold_at and not self.hold.is_set():
            self.held.set()
            assert self.hold.wait(60)

    def check(self, run: StepContext) -> steps.StepResult:
        spec = run.assignment.spec
        assert isinstance(spec, steps.CheckSpec)
        self._begins(f"check {len(spec.patches)}")
        return checked([_checked(patch.name, patch.diff or "") for patch in spec.patches])

    def build(self, run: StepContext) -> steps.StepResult:
        spec = run.assignment.spec
        assert isinstance(spec, steps.BuildSpec)
        text = (spec.patches[-1].diff or "") if spec.patches else ""
        self._begins("traced build" if spec.instrument else f"build {word(text)}")
        if self.compiled:
            (run.folder / "compile_commands.json").write_text(self.compiled)
        if "unlinked" in text:
            error = steps.Diagnostic(file="a.c", line=7, severity="error", message="no such label")
            raise UserError("does_not_compile", "make failed", diagnostics=[error.model_dump()])
        note = steps.Severity.BLOCKING if "silences" in text else steps.Severity.NOTE
        about = steps.Finding(
            check="amputation", severity=note, reason="check_removed", message="BUG_ON"
        )
        (run.folder / "config").write_text("CONFIG_KASAN=y\nCONFIG_NET=y\n")
        return built(tree=text, findings=[about] if spec.review and "silences" in text else [])

    def reproduce(self, run: StepContext) -> steps.StepResult:
        spec, kernel = run.assignment.spec, run.assignment.inputs["build"].result
        assert isinstance(spec, steps.ReproduceSpec)
        text, title = getattr(kernel, "tree", ""), spec.titles[0]
        traced = spec.dump != "none"
        patched = spec.baseline is not None or (traced and "drivers/a.c" in text)
        self._begins(f"{'traced run' if traced else 'run'} {word(text) if patched else ''}".strip())
        more: dict[str, Any] = {"evidence": steps.Evidence()}
        if spec.baseline is not None:
            more["baseline"] = steps.Verdict.SAME_CRASH
        if not patched and not self.shows:
            return ran(**more)
        if patched and "quiet" in text:
            return ran(**{**more, "evidence": SILENT})
        if patched and "undone" in text:
            return ran(steps.Verdict.INCONCLUSIVE, **more)
        if patched and "partly" in text and spec.variants:
            return self._varied(run, title)
        if patched and any(end in text for end in ("mends", "silences", "partly")):
            return ran(**{**more, "evidence": GOOD, "confidence": 0.96})
        if patched and "noisy" in text:
            return ran(steps.Verdict.INCONCLUSIVE, "SYZFAIL: no", **more)
        if patched and "moves" in text and not traced:
            title = "general protection fault in other"
        (run.folder / "console-0.log").write_bytes(CONSOLE.replace("word", word(text)).encode())
        (run.folder / "report-0.txt").write_text(self.report or f"BUG: {title}\n {word(text)}\n")
        verdict = steps.Verdict.SAME_CRASH if title == spec.titles[0] else steps.Verdict.OTHER_CRASH
        return ran(verdict, title, instances=[crash(title)], **more)

    def _varied(self, run: StepContext, title: str) -> steps.StepResult:
        (run.folder / "report-variants-0-alone.txt").write_text(f"BUG: {title}\n variant\n")
        how = "futex (call 1) passes argument 6 0x20 instead of 0xfff"
        same = steps.VariantCrashKind.SAME
        crashed = steps.VariantCrash(
            title=title, kind=same, changes=[how], instance="variants-0-alone"
        )
        refutes = steps.Finding(
            check="variants",
            severity=steps.Severity.BLOCKING,
            reason="variant_crashes",
            message=f"a program close to the reproducer still crashes: {title}: {how}",
        )
        return ran(
            evidence=GOOD,
            confidence=0.96,
            baseline=steps.Verdict.SAME_CRASH,
            findings=[refutes],
            variants=steps.VariantRun(ran=9, crashes=[crashed]),
        )

    def minimize(self, run: StepContext) -> steps.StepResult:
        self._begins("minimize")
        if not self.traces:
            raise UserError("no_dump", "the kernel went on")
        calls = [
            call("begins", steps.TracePart.BACKWARD),
            call("outer", anchor=True, frame=1),
            call("helper"),
            call("inner", anchor=True, frame=0),
        ]
        trace = steps.MinimalTrace(
            pid=7,
            anchor=steps.TraceAnchor(stack=steps.TraceStack.CRASH),
            calls=calls,
            statistics=NO_RECORDS,
        )
        return steps.MinimizeResult(instance=0, title="", trace=trace, parts=[], seconds={})


def word(text: str) -> str:
    """Return the word of a patch."""
    lines = [line for line in text.splitlines() if line.startswith("+int ")]
    return lines[-1][5:-1] if lines else ""


def _checked(name: str, text: str) -> steps.PatchCheck:
    if "broken" in text:
        return steps.PatchCheck(
            name=name, outcome=steps.PatchOutcome.DOES_NOT_COMPILE, reason="no", seconds=0
        )
    if "unused" in text:
        return steps.PatchCheck(name=name, outcome=steps.PatchOutcome.NOT_BUILT, seconds=0)
    return steps.PatchCheck(name=name, outcome=steps.PatchOutcome.COMPILES, seconds=0)


@contextmanager
def farming(data: Path, farm: Farm, port: int = 0) -> Iterator[Scheduler]:
    """Run a scheduler with these workers; sources are read as they really are."""
    has = Equipment(data / "cache", Origins.named((), (), (Path("/"),)))
    real = handlers([steps.StepKind.SOURCE, steps.StepKind.HISTORY], has)
    with (
        Scheduler(data, work=False, port=port) as scheduler,
        working(scheduler, data, farm.answers, real),
    ):
        try:
            yield scheduler
        finally:
            farm.hold.set()


def using(url: str, use: Callable[[RunJobs, AsyncClient], Awaitable[T]], **options: Any) -> T:
    """Use the platform as a run does; return what that comes to."""

    async def submitted(name: str, job: int) -> None:
        """Nobody is told."""

    async def run() -> T:
        async with AsyncClient(url) as client:
            chosen = Options(**{"key": "r1", "group": "fix-1", **options})
            return await use(RunJobs(client, BUG, chosen, submitted), client)

    return asyncio.run(run())
