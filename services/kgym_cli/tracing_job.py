"""`bug reproduce --trace`: the job that also tells what the kernel did before it crashed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import (
    BuildSpec,
    DumpMethod,
    MinimizeResult,
    MinimizeSpec,
    ReproduceResult,
    StepRef,
    StepSpec,
)
from kgym.bugs import bundle as bugs
from kgym.errors import UserError
from kgym.source import patching

_BUILD_CAPTURE, _MINIMIZE = "build_capture", "minimize"
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
    steps: list[StepSpec] = []
    for spec in request.steps:
        more: dict[str, object] = {}
        if isinstance(spec, BuildSpec):
            more = {"for_dump": how.method}
            more |= {"instrument": list(how.files)} if spec.name == bugs.BUILD_BEFORE else {}
        elif spec.name == bugs.BEFORE:
            more = {"dump": how.method}
            if how.method == "kdump":
                kernel = bugs.kernel(CAPTURE).model_copy(update={"name": _BUILD_CAPTURE})
                steps.append(kernel)
                more |= {"capture": StepRef(step=_BUILD_CAPTURE)}
        steps.append(spec.model_copy(update=more))
    minimize = MinimizeSpec(
        name=_MINIMIZE,
        build=StepRef(step=bugs.BUILD_BEFORE),
        reproduce=StepRef(step=bugs.BEFORE),
        files=list(how.files),
    )
    return JobRequest(steps=[*steps, minimize], tags=request.tags, priority=request.priority)


def summary(job: JobView) -> dict[str, Any]:
    """Return what is told of the trace: of which instance, its dump, and the minimal trace.

    Without a minimal trace, `reason` says why.
    """
    reproduced = job.step(bugs.BEFORE)
    result = reproduced.result if reproduced else None
    dumps = result.instances if isinstance(result, ReproduceResult) else []
    shown = {"dumps": [one.dump.model_dump(mode="json") for one in dumps if one.dump]}
    last = job.step(_MINIMIZE)
    assert last is not None, "every traced job has the step"
    if isinstance(last.result, MinimizeResult):
        return {**last.result.model_dump(mode="json", exclude={"kind"}), **shown, "reason": None}
    failure = last.failure
    reason = failure.message if failure else f"the minimize step is {last.state}"
    return {"trace": None, **shown, "reason": reason}
