"""A job with a trace: what its kernel executed is made up; a real minimize step reads it."""

from collections.abc import Sequence

from kgym.api.jobs import JobRequest
from kgym.api.steps import MinimizeSpec, ReproduceResult, ReproduceSpec, StepKind, StepRef, Verdict
from kgym.worker.context import StepContext
from kgym_tracer.minimize_step import Minimizer
from tests.demo.given_steps import Answer
from tests.demo.showcase import trial
from tests.demo.traced_calls import REPORT, Call, lines
from tests.results import built, ran

# What a worker does by itself.
REAL = {StepKind.MINIMIZE: Minimizer()}


def answers(calls: Sequence[Call], report: str = REPORT) -> dict[StepKind, Answer]:
    """Return what the steps before the minimize step do."""

    def build(run: StepContext) -> object:
        (run.folder / "vmlinux").write_bytes(b"\x7fELF" * 1000)
        return built(kernel_release="6.1.192")

    def reproduce(run: StepContext) -> ReproduceResult:
        text = "\n".join(lines(calls))
        (run.folder / "trace-0.txt").write_text(text + "\n")
        (run.folder / "report-0.txt").write_text(report)
        return ran(Verdict.SAME_CRASH, "KASAN: slab-out-of-bounds", crashed=1, completed=1)

    return {StepKind.BUILD: build, StepKind.REPRODUCE: reproduce}  # type: ignore[dict-item]


def traced_job(**spec: object) -> JobRequest:
    """Return a job that builds, reproduces and minimizes."""
    steps = trial().steps
    run = next(step for step in steps if isinstance(step, ReproduceSpec))
    minimize = MinimizeSpec(build=run.build, reproduce=StepRef(step=1), **spec)  # type: ignore[arg-type]
    return JobRequest(steps=[steps[0], run, minimize])
