"""The job that also tells what the kernel did before it crashed."""

import dataclasses

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec, DumpMethod, MinimizeSpec, ReproduceSpec, StepKind, StepRef
from kgym.bugs import bundle, tracing_job
from kgym.bugs.bug import BEFORE, BUILD_AFTER, BUILD_BEFORE
from kgym.errors import UserError

BUG = bundle.load("watch-queue-filter")
FILE = "kernel/watch_queue.c"


def job(method: DumpMethod, *, fix: bool = True) -> JobRequest:
    request = BUG.job(BUG.fix if fix else None)
    made = tracing_job.traced(request, tracing_job.tracing(BUG, [], method))
    return JobRequest.model_validate(made.model_dump())  # the references look back


def test_the_files_are_those_that_the_fix_changes() -> None:
    assert tracing_job.tracing(BUG, [], "hypervisor").files == (FILE,)
    assert tracing_job.tracing(BUG, ["fs/pipe.c"], "hypervisor").files == ("fs/pipe.c",)


def test_a_traced_bug_is_not_measured_nor_said_to_be() -> None:
    request = job("hypervisor")
    assert not any(isinstance(step, ReproduceSpec) and step.measure for step in request.steps)
    assert request.tags == [f"bug={BUG.name}", "patch=fix"]


def test_without_any_file_it_is_refused() -> None:
    file = BUG.file.model_copy(update={"files": ["include/linux/fs.h"]})
    with pytest.raises(UserError, match="--files"):
        tracing_job.tracing(dataclasses.replace(BUG, fix=None, file=file), [], "hypervisor")


def test_the_first_build_has_records_and_the_first_reproduce_step_dumps() -> None:
    steps = job("hypervisor").steps
    builds = [step for step in steps if isinstance(step, BuildSpec)]
    reproduced = [step for step in steps if isinstance(step, ReproduceSpec)]
    assert [step.instrument for step in builds] == [[FILE], []]
    assert [step.dump for step in reproduced] == ["hypervisor", "none"]
    build, run = StepRef(step=BUILD_BEFORE), StepRef(step=BEFORE)
    assert steps[-1] == MinimizeSpec(name="minimize", build=build, reproduce=run, files=[FILE])


def test_both_kernels_have_the_config_that_the_dump_needs() -> None:
    builds = [step for step in job("hypervisor").steps if isinstance(step, BuildSpec)]
    assert [step.for_dump for step in builds] == ["hypervisor"] * 2


def test_for_kdump_the_capture_kernel_comes_between() -> None:
    steps = job("kdump").steps
    kinds = [step.kind for step in steps]
    B, R = StepKind.BUILD, StepKind.REPRODUCE
    assert kinds == [B, B, R, B, R, StepKind.MINIMIZE]
    assert steps[1] == bundle.kernel("capture").model_copy(update={"name": "build_capture"})
    before, after = steps[2], steps[4]
    assert isinstance(before, ReproduceSpec)
    assert isinstance(after, ReproduceSpec)
    assert before.build == StepRef(step=BUILD_BEFORE)
    assert before.capture == StepRef(step="build_capture")
    assert after.build == StepRef(step=BUILD_AFTER)
    assert after.baseline == StepRef(step=BEFORE)
    assert (after.dump, after.capture) == ("none", None)


def test_without_a_fix_there_is_only_the_crash() -> None:
    kinds = [step.kind for step in job("hypervisor", fix=False).steps]
    assert kinds == [StepKind.BUILD, StepKind.REPRODUCE, StepKind.MINIMIZE]
