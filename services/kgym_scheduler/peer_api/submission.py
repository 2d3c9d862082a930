"""kGymSuite's jobs as ours. Pure, except for `find`, which reads earlier jobs."""

import re
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import (
    BuildSpec,
    GitSource,
    KernelConfig,
    Patch,
    Reproducer,
    ReproduceSpec,
    StepRef,
    StepSpec,
    VmShape,
)
from kgym.errors import UserError
from kgym_scheduler.peer_api import tags
from kgym_scheduler.peer_api.requests import (
    BuilderArgument,
    GitCommit,
    NewJob,
    PeerImage,
    Resource,
    VmArgument,
)

# The key of a step's file in this interface.
KEY = re.compile(r"jobs/([1-9][0-9]{0,17})/steps/([0-9]{1,2})(?:/[\w.-]+)?", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600}
_QEMU = re.compile(r"qemu:([0-9]{1,2})-([0-9]{3,7})", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
# Returns a job; raises NotFound.
Find = Callable[[int], Awaitable[JobView]]


async def request_of(new: NewJob, find: Find) -> JobRequest:
    """Return the job to submit; raise UserError `peer_job` for what is not supported here."""
    steps: list[StepSpec] = []
    for number, stage in enumerate(new.jobWorkers):
        try:
            if isinstance(stage, BuilderArgument):
                steps.append(await _build(stage, find))
            else:
                steps.append(_run(stage, number, steps))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise _wrong(number, f"{where}: {first['msg']}") from error
    try:
        return JobRequest(
            steps=steps, tags=[tags.written(key, value) for key, value in new.tags.items()]
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise UserError("peer_job", first["msg"]) from error


async def _build(given: BuilderArgument, find: Find) -> BuildSpec:
    patches = [Patch(name="patch", diff=given.patch)] if given.patch.strip() else []
    if isinstance(given.kernelSource, GitCommit):
        source = given.kernelSource
        if source.arch not in {"amd64", "x86_64"}:
            raise UserError("peer_job", f"kernels here are for amd64, not for {source.arch}")
        return BuildSpec(
            source=GitSource(url=source.gitUrl, commit=source.commitId),
            config=KernelConfig(full=source.kConfig),
            compiler=source.compiler or "gcc",
            patches=patches,
            review=[patch.name for patch in patches],
        )
    job, step = _place(given.kernelSource)
    view = (await find(job)).step(step)
    if view is None or not isinstance(view.spec, BuildSpec):
        raise UserError("peer_job", f"step {step} of job {job} has built no kernel")
    # The same source and config find the compiled tree of the earlier job.
    own = {"patches": patches, "review": [patch.name for patch in patches], "name": None}
    return view.spec.model_copy(update={**own, "files": [], "ahead": None})


def _run(given: VmArgument, number: int, earlier: list[StepSpec]) -> ReproduceSpec:
    wanted, program = given.image, given.reproducer
    if isinstance(wanted, PeerImage):
        job, step = _place(wanted.vmImage)
        build = StepRef(job=job, step=step)
    else:
        step = number - 1 if wanted == -1 else wanted
        if not 0 <= step < number or not isinstance(earlier[step], BuildSpec):
            raise _wrong(number, f"image: stage {step} is not an earlier kbuilder stage")
        build = StepRef(step=step)
    commit = program.syzkallerCheckout
    is_syz = program.reproducerType == "log"
    named = commit if is_syz and _COMMIT.fullmatch(commit) else None
    return ReproduceSpec(
        build=build,
        reproducer=Reproducer(
            kind="syz" if is_syz else "c", text=program.reproducerText, syzkaller=named
        ),
        vm=_shape(given.machineType),
        instances=program.nInstance,
        time=int(program.restartTime[:-1]) * _UNITS[program.restartTime[-1]],
    )


def _shape(machine: str) -> VmShape:
    """Return the VM of a QEMU machine type, the default one for types of other clouds."""
    if (match := _QEMU.fullmatch(machine)) is None:
        return VmShape()
    return VmShape(cpus=int(match[1]), memory=int(match[2]))


def _place(resource: Resource) -> tuple[int, int]:
    if (match := KEY.fullmatch(resource.key)) is None:
        raise UserError(
            "peer_job",
            f"{resource.key[:100]!r} is no file of a job of this platform: build it again",
        )
    return int(match[1]), int(match[2])


def _wrong(number: int, message: str) -> UserError:
    return UserError("peer_job", f"jobWorkers.{number}: {message}")
