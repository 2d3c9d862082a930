"""A trial with a trace of what the kernel did before it crashed: its job and its result."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field

from kgym.api import trusted_tags
from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import (
    BuildSpec,
    DumpMethod,
    DumpPart,
    InstanceDump,
    MinimalTrace,
    MinimizeResult,
    MinimizeSpec,
    StepRef,
    StepSpec,
    Strict,
)
from kgym.bugs import bundle as bugs
from kgym.bugs.bug import BEFORE, BUILD_BEFORE, Bug
from kgym.bugs.conclusion import reproduced
from kgym.errors import UserError
from kgym.source import patching

_DWARF = re.compile(r"^CONFIG_DEBUG_INFO(?:_DWARF\w{1,30})?=y", re.MULTILINE)
_BUILD_CAPTURE, _MINIMIZE = "build_capture", "minimize"
# The capture kernel's name in configs/kernels.
CAPTURE = "capture"


@dataclass(frozen=True, slots=True)
class Tracing:
    """The instrumented files, and the way in which the trace leaves the crashed kernel."""

    files: tuple[str, ...]
    method: DumpMethod


def tracing(bug: Bug, files: Sequence[str], method: DumpMethod) -> Tracing:
    """Return the files to trace: `files`, or the C files of the bug's fix, or of its bundle.

    Raises UserError `no_files` if none of them names any.
    """
    known = patching.files(bug.fix) if bug.fix else []
    named = [*files] or [name for name in known or bug.file.files if name.endswith(".c")]
    if not named:
        raise UserError("no_files", f"{bug.name}: name the C files to trace with --files")
    return Tracing(tuple(named), method)


def untraceable(build: BuildSpec) -> str | None:
    """Return why a dump of this kernel could not be read, as its config says; None if it can."""
    # Readers of dumps need DWARF for types. No base of kconfig enables it by itself.
    if any(_DWARF.search(text) for text in build.config.texts):
        return None
    return "its config has no debug information (CONFIG_DEBUG_INFO_DWARF5)"


def traced(request: JobRequest, how: Tracing) -> JobRequest:
    """Return the job of a trial with a trace of its first crash.

    The first build is instrumented, and the first reproduce step leaves dumps. For `kdump`, the
    capture kernel, an ordinary kernel of `configs/kernels`, is built between the two.
    """
    # The minimize step comes last, so that the verdicts do not wait for it; a dump decides nothing.
    # The bug is not measured: each crash would leave a dump, and trace records change the timing.
    steps: list[StepSpec] = []
    for spec in request.steps:
        more: dict[str, object] = {}
        if isinstance(spec, BuildSpec):
            more = {"for_dump": how.method}
            more |= {"instrument": list(how.files)} if spec.name == BUILD_BEFORE else {}
        elif spec.name == BEFORE:
            more = {"dump": how.method, "measure": None}
            if how.method == "kdump":
                kernel = bugs.kernel(CAPTURE).model_copy(update={"name": _BUILD_CAPTURE})
                steps.append(kernel)
                more |= {"capture": StepRef(step=_BUILD_CAPTURE)}
        steps.append(spec.model_copy(update=more))
    minimize = MinimizeSpec(
        name=_MINIMIZE,
        build=StepRef(step=BUILD_BEFORE),
        reproduce=StepRef(step=BEFORE),
        files=list(how.files),
    )
    # An instrumented kernel is another kernel: the calibration tag no longer holds.
    untrue = trusted_tags.false(request.tags, [*steps, minimize])
    tags = [tag for tag in request.tags if tag not in untrue]
    return request.model_copy(update={"steps": [*steps, minimize], "tags": tags})


class TraceResult(Strict):
    """What the kernel did before its first crash; if `trace` is null, `reason` says why."""

    instance: int | None = Field(None, description="whose dump was read")
    title: str | None = Field(None, description="of the crash")
    trace: MinimalTrace | None
    parts: list[DumpPart] = Field([], description="further parts of the dump, read or not")
    seconds: dict[str, float] = Field({}, description="duration of reading it, by stage")
    dumps: list[InstanceDump] = Field(description="of each instance that should leave one")
    reason: str | None = Field(description="why there is no trace")

    @classmethod
    def of(cls, job: JobView) -> Self:
        """Return the result of a job made by `traced`."""
        result = reproduced(job.step(BEFORE))
        dumps = [
            instance.dump for instance in (result.instances if result else []) if instance.dump
        ]
        last = job.step(_MINIMIZE)
        if last is None:
            raise ValueError(f"job {job.id} has no trace: it has no step `{_MINIMIZE}`")
        if not isinstance(last.result, MinimizeResult):
            why = last.failure.message if last.failure else f"the minimize step is {last.state}"
            return cls(trace=None, dumps=dumps, reason=why)
        fields = dict(last.result)
        del fields["kind"]
        return cls(**fields, dumps=dumps, reason=None)
