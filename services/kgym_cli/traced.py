"""`bug reproduce --trace`: the job that also tells what the kernel did before it crashed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kgym import bug as bugs
from kgym import patch as patching
from kgym.errors import UserError
from kgym.jobs import JobRequest, JobView
from kgym.steps import (
    BuildSpec,
    DumpMethod,
    MinimizeResult,
    MinimizeSpec,
    ReproduceResult,
    ReproduceSpec,
    StepKind,
    StepRef,
    StepSpec,
)

CAPTURE = "capture"
"""The capture kernel's name in configs/kernels."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Which files are instrumented, and how the trace gets out of the crashed kernel."""

    files: tuple[str, ...]
    method: DumpMethod


def tracing(bug: bugs.Bug, files: Sequence[str], method: DumpMethod) -> Tracing:
    """Return what to trace: by default the C files that the bug's fix touches, else its own.

    Raises UserError `no_files` where nothing tells which.
    """
    known = patching.files(bug.fix) if bug.fix else []
    named = [*files] or [name for name in known or bug.file.files if name.endswith(".c")]
    if not named:
        raise UserError("no_files", f"{bug.name}: name the C files to trace with --files")
    return Tracing(tuple(named), method)


def traced(request: JobRequest, how: Tracing) -> JobRequest:
    """Return the job of a trial with a trace of its first crash.

    The first build is instrumented, the first reproduce step leaves dumps; for
    `kdump`, the capture kernel is built between the two. A minimize step comes
    last: the verdicts do not wait for it.
    """
    moved = int(how.method == "kdump")
    steps: list[StepSpec] = []
    for number, spec in enumerate(request.steps):
        if isinstance(spec, BuildSpec):
            first = {"instrument": list(how.files)} if number == 0 else {}
            steps.append(spec.model_copy(update={"for_dump": how.method, **first}))
        elif isinstance(spec, ReproduceSpec):
            later = {"build": _moved(spec.build, moved)}
            if spec.baseline is not None:
                later["baseline"] = _moved(spec.baseline, moved)
            dump = {"dump": how.method, "capture": StepRef(step=1) if moved else None}
            steps.append(spec.model_copy(update={**later, **(dump if number == 1 else {})}))
    if moved:
        steps.insert(1, bugs.kernel(CAPTURE))
    minimize = MinimizeSpec(
        build=StepRef(step=0), reproduce=StepRef(step=1 + moved), files=list(how.files)
    )
    return JobRequest(steps=[*steps, minimize], tags=request.tags, priority=request.priority)


def summary(job: JobView) -> dict[str, Any]:
    """Return what is told of the trace: of which instance, its dump, and the minimal trace.

    Without a minimal trace, `reason` says why.
    """
    reproduced = next(step for step in job.steps if step.kind is StepKind.REPRODUCE).result
    dumps = reproduced.instances if isinstance(reproduced, ReproduceResult) else []
    shown = {"dumps": [one.dump.model_dump(mode="json") for one in dumps if one.dump]}
    last = job.steps[-1]
    if isinstance(last.result, MinimizeResult):
        return {**last.result.model_dump(mode="json", exclude={"kind"}), **shown, "reason": None}
    failure = last.failure
    reason = failure.message if failure else f"the minimize step is {last.state}"
    return {"trace": None, **shown, "reason": reason}


def _moved(ref: StepRef, by: int) -> StepRef:
    """Return a reference to a step of this job that comes `by` later, unless it is the first."""
    if ref.job is not None or ref.step == 0:
        return ref
    return ref.model_copy(update={"step": ref.step + by})
