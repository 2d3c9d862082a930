"""kGymSuite's jobs as ours. Pure, except for `find`, which reads earlier jobs."""

import re
from collections.abc import Awaitable, Callable, Iterator

from pydantic import ValidationError

from kgym.api import key_value_tags as tags
from kgym.api.faults import first_fault, refused_at
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
from kgym_scheduler.peer_api.requests import (
    BuilderArgument,
    GitCommit,
    NewJob,
    PeerImage,
    PeerReproducer,
    Resource,
    VmArgument,
)

# The key of a step's file in this interface.
KEY = re.compile(r"jobs/([1-9][0-9]{0,17})/steps/([0-9]{1,2})(?:/[\w.-]+)?", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600}
_QEMU = re.compile(r"qemu:([0-9]{1,2})-([0-9]{3,7})", re.ASCII)
_CLOUD = re.compile(r"[a-z][a-z0-9]*-[a-z]+-([0-9]{1,3})", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
_OPTIONS = re.compile(r"(?m)^#\s*\{")
_LINKER = {"", "ld"}
_ARCHITECTURES = {"amd64", "x86_64"}
# Returns a job; raises NotFound.
Find = Callable[[int], Awaitable[JobView]]


async def request_of(new: NewJob, find: Find) -> JobRequest:
    """Return the job to submit; raise UserError `peer_job` for what is not supported here.

    A field without effect is refused only if a verdict may depend on it; see `ignored`.
    """
    steps: list[StepSpec] = []
    for number, stage in enumerate(new.jobWorkers):
        try:
            if isinstance(stage, BuilderArgument):
                steps.append(await _build(stage, find))
            else:
                steps.append(_run(stage, number, steps))
        except ValidationError as error:
            raise _wrong(number, first_fault(error)) from error
    with refused_at("the job", "peer_job"):
        return JobRequest(
            steps=steps, tags=[tags.written(key, value) for key, value in new.tags.items()]
        )


def ignored(new: NewJob) -> str:
    """Return a line for the job's log that names the given fields without effect, if any."""
    names = [
        f"jobWorkers.{number}.{name}"
        for number, stage in enumerate(new.jobWorkers)
        for name in _without_effect(stage)
    ]
    return f"fields without effect on this platform: {', '.join(names)}\n" if names else ""


def _without_effect(stage: BuilderArgument | VmArgument) -> Iterator[str]:
    if isinstance(stage, BuilderArgument):
        if stage.userspaceImage:
            yield "userspaceImage"
        if isinstance(stage.kernelSource, GitCommit) and stage.kernelSource.linker not in _LINKER:
            yield "kernelSource.linker"
        return
    program, names = stage.reproducer, {"syzkallerCheckoutRollback", "syzkallerLatestTag"}
    names |= {"syzkallerCheckout"} if program.reproducerType == "c" else set()
    names |= set() if _takes_options(program) else {"threaded", "nProc"}
    for name in sorted(names & program.model_fields_set):
        if getattr(program, name) != "":
            yield f"reproducer.{name}"
    if stage.machineType and _QEMU.fullmatch(stage.machineType) is None:
        yield "machineType"  # except for the number of its CPUs


def _takes_options(program: PeerReproducer) -> bool:
    """Return whether it is a syzkaller program without options of its own."""
    return program.reproducerType == "log" and not _OPTIONS.search(program.reproducerText)


async def _build(given: BuilderArgument, find: Find) -> BuildSpec:
    patches = [Patch(name="patch", diff=given.patch)] if given.patch.strip() else []
    if isinstance(given.kernelSource, GitCommit):
        source = given.kernelSource
        if source.arch not in _ARCHITECTURES:
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
    # With the same source and config, the earlier job's compiled tree is reused. Its patches stay:
    # without them, runs on the unpatched kernel would be taken for runs on the patched one.
    earlier = view.spec.model_dump(exclude={"name", "files", "ahead", "analyses"})
    named = [patch.model_copy(update={"name": f"patch of job {job}, {step}"}) for patch in patches]
    return BuildSpec.model_validate(
        earlier
        | {"patches": [*view.spec.patches, *named]}
        | {"review": [*view.spec.review, *(patch.name for patch in named)]}
    )


def _run(given: VmArgument, number: int, earlier: list[StepSpec]) -> ReproduceSpec:
    wanted, program = given.image, given.reproducer
    if isinstance(wanted, PeerImage):
        if wanted.arch not in _ARCHITECTURES:
            raise _wrong(number, f"image.arch: kernels here are for amd64, not for {wanted.arch}")
        job, step = _place(wanted.vmImage)
        build = StepRef(job=job, step=step)
    else:
        step = number - 1 if wanted == -1 else wanted
        if not 0 <= step < number or not isinstance(earlier[step], BuildSpec):
            raise _wrong(number, f"image: stage {step} is not an earlier kbuilder stage")
        build = StepRef(step=step)
    is_syz = program.reproducerType == "log"
    commit = program.syzkallerCheckout if is_syz else ""
    if commit and not _COMMIT.fullmatch(commit):
        message = "a commit of syzkaller has 40 hex digits; leave it empty for the worker's own"
        raise _wrong(number, f"reproducer.syzkallerCheckout: {message}")
    text = program.reproducerText
    if _takes_options(program):
        flag = str(program.threaded).lower()
        text = (
            f'# {{"threaded":{flag},"collide":{flag},"repeat":true,"procs":{program.nProc},'
            f'"sandbox":"none"}}\n{text}'
        )
    return ReproduceSpec(
        build=build,
        reproducer=Reproducer(kind="syz" if is_syz else "c", text=text, syzkaller=commit or None),
        vm=_shape(given.machineType),
        instances=program.nInstance,
        time=int(program.restartTime[:-1]) * _UNITS[program.restartTime[-1]],
    )


def _shape(machine: str) -> VmShape:
    """Return the VM of a QEMU machine type, the default one for types of other clouds."""
    if match := _QEMU.fullmatch(machine):
        return VmShape(cpus=int(match[1]), memory=int(match[2]))
    # A race may need as many CPUs as the type of another cloud has, such as e2-standard-4.
    match = _CLOUD.fullmatch(machine)
    return VmShape(cpus=int(match[1])) if match else VmShape()


def _place(resource: Resource) -> tuple[int, int]:
    if (match := KEY.fullmatch(resource.key)) is None:
        raise UserError(
            "peer_job",
            f"{resource.key[:100]!r} is no file of a job of this platform: build it again",
        )
    return int(match[1]), int(match[2])


def _wrong(number: int, message: str) -> UserError:
    return UserError("peer_job", f"jobWorkers.{number}: {message}")
