"""Our jobs in kGymSuite's format. Pure."""

# kGymSuite's clients take a finished job without a crash for "not reproduced", i.e. for a fix. So
# an inconclusive run is shown as a failed stage: an unknown result must never look like a fix.

from typing import Any

from kgym.api import key_value_tags as tags
from kgym.api.jobs import JobView, StepView
from kgym.api.states import State
from kgym.api.steps import (
    BuildResult,
    BuildSpec,
    GitSource,
    InstanceOutcome,
    ReproduceResult,
    ReproduceSpec,
    StepKind,
    Verdict,
)

_TYPES = {StepKind.BUILD: "kbuilder", StepKind.REPRODUCE: "kvmmanager"}
_FILES = {
    "kernelConfig": "config",
    "kBuilderStdout": "build.log",
    "kBuilderStderr": "build.log",
    "kernelImage": "bzImage",
    "vmlinux": "vmlinux",
    "vmImage": "bzImage",
    "kernelCompileCommands": "compile_commands.json",
}
_SILENT = {InstanceOutcome.HUNG, InstanceOutcome.SSH_LOST}


def job_id(number: int) -> str:
    """Return a job's number in their format: eight hex digits."""
    return f"{number:08x}"


def digest(job: JobView) -> dict[str, Any]:
    """Return a job as an item of their lists."""
    unfinished = (s for s in job.steps if s.state is not State.SUCCEEDED or _unsure(s))
    step = next(unfinished, None)
    return {
        "jobId": job_id(job.id),
        "createdTime": job.created_at,
        "modifiedTime": job.updated_at,
        "status": _status(job),
        "currentWorkerHostname": (step.worker or "") if step is not None else "",
        "currentWorker": len(job.steps) if step is None else step.number,
    }


def context(job: JobView) -> dict[str, Any]:
    """Return a job with its stages; `kgym` is the conclusion in our terms."""
    return digest(job) | {
        "jobWorkers": [_worker(job, step) for step in job.steps],
        "tags": tags.read(job.tags),
        "kGymEvaluation": evaluation(job),
        "kgym": {
            "job": job.id,
            "state": job.state,
            "outcome": job.outcome,
            "verdict": job.verdict,
            "title": job.title,
            "reason": job.reason,
        },
    }


def evaluation(job: JobView) -> str | None:
    """Return a job's result in their terms; None while it has not ended."""
    if job.state not in {State.SUCCEEDED, State.FAILED, State.ABORTED}:
        return None
    failed = next((step for step in job.steps if step.state is State.FAILED), None)
    if failed is not None and failed.failure is not None:
        by_user = failed.failure.cause == "user"
        return "compilationError" if by_user and failed.kind is StepKind.BUILD else "error"
    results = [step.result for step in job.steps if isinstance(step.result, ReproduceResult)]
    return _word(results[-1]) if results and job.state is State.SUCCEEDED else "error"


def _word(result: ReproduceResult) -> str:
    match result.verdict:
        case Verdict.NO_CRASH:
            return "notReproduced"
        case Verdict.SAME_CRASH | Verdict.OTHER_CRASH:
            return "reproduced"
    outcomes = {instance.outcome for instance in result.instances}
    if outcomes & _SILENT:
        return "timeout"
    return "imageError" if outcomes == {InstanceOutcome.BOOT_FAILED} else "error"


def worker_type(kind: StepKind) -> str:
    """Return their name for a kind of step."""
    return _TYPES.get(kind, f"kgym.{kind}")


def _unsure(step: StepView) -> bool:
    result = step.result
    return isinstance(result, ReproduceResult) and result.verdict is Verdict.INCONCLUSIVE


def _status(job: JobView) -> str:
    match job.state:
        case State.SUCCEEDED:
            return "aborted" if any(map(_unsure, job.steps)) else "finished"
        case State.FAILED | State.ABORTED:
            return "aborted"
        case State.RUNNING:
            return "inProgress"
    begun = any(step.state is State.SUCCEEDED for step in job.steps)
    return "waiting" if begun else "pending"


def _worker(job: JobView, step: StepView) -> dict[str, Any]:
    kind = worker_type(step.kind)
    argument: dict[str, Any] = {"workerType": kind}
    if isinstance(step.spec, BuildSpec):
        argument |= _build_argument(step.spec)
    elif isinstance(step.spec, ReproduceSpec):
        argument |= _run_argument(step.spec)
    return {"workerType": kind, "workerArgument": argument, "workerResult": _result(job, step)}


def _build_argument(spec: BuildSpec) -> dict[str, Any]:
    source, config = spec.source, spec.config
    is_git = isinstance(source, GitSource)
    commit = {
        "gitUrl": source.url if isinstance(source, GitSource) else "",
        "commitId": source.commit if isinstance(source, GitSource) else "",
        "kConfig": config.full or "\n".join(config.fragments),
        "arch": "amd64",
        "compiler": spec.compiler,
        "linker": "ld",
    }
    other = {} if is_git else {"kgymSource": source.model_dump(mode="json")}
    diffs = [patch.diff for patch in spec.patches if patch.diff]
    return {"kernelSource": commit | other, "userspaceImage": "", "patch": "\n".join(diffs)}


def _run_argument(spec: ReproduceSpec) -> dict[str, Any]:
    program, build = spec.reproducer, spec.build
    resource = _resource(build.job or 0, int(build.step), "bzImage") if build.job else None
    image: Any = build.step
    if resource is not None:
        image = {"vmImage": resource, "vmlinux": resource, "arch": "amd64"}
    return {
        "reproducer": {
            "reproducerType": "log" if program.kind == "syz" else "c",
            "reproducerText": program.text,
            "syzkallerCheckout": program.syzkaller or "",
            "restartTime": f"{spec.time:.0f}s",
            "nInstance": spec.instances,
        },
        "image": image,
        "machineType": f"qemu:{spec.vm.cpus}-{spec.vm.memory}",
    }


def _result(job: JobView, step: StepView) -> dict[str, Any] | None:
    result: dict[str, Any] = {"workerType": worker_type(step.kind)}
    result |= {"jobException": None, "workerException": None}
    if step.state is State.ABORTED:
        return result | {"workerException": _fault("kworker.AbortedException", "aborted", "")}
    if step.state not in {State.SUCCEEDED, State.FAILED}:
        return None
    if step.kind is StepKind.BUILD:
        names = {artifact.name for artifact in step.artifacts}
        files = {name: file for name, file in _FILES.items() if file in names}
        result |= {name: _resource(job.id, step.number, file) for name, file in files.items()}
    if step.failure is not None and step.state is State.FAILED:
        failure = step.failure
        if failure.cause == "user":
            # Their name for a failure that a patch may cause.
            reason = {"does_not_compile": "KernelBuildError"}.get(failure.reason, failure.reason)
            code = f"{worker_type(step.kind)}.{reason}"
            exception = {"code": code, "traceback": "", "content": failure.message}
            return result | {"jobException": exception}
        fault = _fault("kworker.GeneralException", failure.reason, failure.message)
        return result | {"workerException": fault}
    if isinstance(step.result, BuildResult):
        stages = step.result.seconds
        # These two are parts of `make`.
        taken = sum(stages.values()) - stages.get("link", 0.0) - stages.get("image", 0.0)
        tree = _resource(job.id, step.number, "tree")
        result |= {"compilationTime": taken, "kernelArch": "amd64", "kCache": tree}
    elif isinstance(step.result, ReproduceResult):
        result |= _run_result(job, step, step.result)
    return result


def _run_result(job: JobView, step: StepView, result: ReproduceResult) -> dict[str, Any]:
    names = {artifact.name for artifact in step.artifacts}
    by_title: dict[str, list[dict[str, Any]]] = {}
    for instance in result.instances:
        if instance.outcome is InstanceOutcome.CRASH:
            number = instance.number
            files = {"log": f"console-{number}.log", "report": f"report-{number}.txt"}
            incident = {
                name: _resource(job.id, step.number, file) if file in names else None
                for name, file in files.items()
            }
            by_title.setdefault(instance.title or "crash", []).append(incident)
    unsure = result.verdict is Verdict.INCONCLUSIVE
    fault = _fault("kworker.GeneralException", "inconclusive", result.reason) if unsure else None
    return {
        "crashes": [
            {"crashId": number, "title": title, "crashType": "crash", "incidents": incidents}
            for number, (title, incidents) in enumerate(by_title.items())
        ],
        "imageAbility": "error" if unsure else "normal",
        "finalSyzkallerCheckout": None,
        "workerException": fault,
        "kgym": {"verdict": result.verdict, "crashed": result.crashed, "of": result.completed},
    }


def _fault(code: str, kind: str, message: str) -> dict[str, str]:
    return {"code": code, "exceptionType": kind, "traceback": message}


def _resource(job: int, step: int, name: str) -> dict[str, str]:
    """Return a file of a step: the key by which new jobs name it, and its URL."""
    path = f"jobs/{job}/steps/{step}"
    return {"key": f"{path}/{name}", "storageUri": f"/v1/{path}/artifacts/{name}"}
