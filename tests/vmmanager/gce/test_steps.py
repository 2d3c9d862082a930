"""Whole steps on VMs that boot no kernel: what happens to their VMs is never a verdict."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kgym.errors import InfrastructureError
from kgym.worker.context import StepContext
from kgym_vmmanager.cloud.sweeper import sweep
from kgym_vmmanager.gce.calls import Compute
from kgym_vmmanager.gce.options import GceOptions
from kgym_vmmanager.gce.provider import Gce
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from tests.conftest import ROOT
from tests.google.cloud_compute.server import CloudCompute
from tests.vmmanager.gce.conftest import with_kernel

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

WORKER = """
import asyncio, sys
from pathlib import Path
from kgym.api.steps import Reproducer, ReproduceSpec, StepRef
from kgym_vmmanager.gce.options import GceOptions
from kgym_vmmanager.gce.provider import Gce
from kgym_vmmanager.vm.provider import Boot
from tests.conftest import attempt

async def work(endpoint, folder):
    program = Reproducer(text="int main(void) { return 0; }")
    spec = ReproduceSpec(build=StepRef(step=0), reproducer=program, time=60)
    gce = Gce(GceOptions("test", ("zone-a",), "169.254.10.1", image="waits", endpoint=endpoint,
                         listen="127.0.0.1"))
    file = folder / "kernel"
    file.write_bytes(b"x")
    async with gce.host(attempt(folder, spec), folder) as host:
        async with host.running(Boot("0", folder, file, file, spec.vm), lambda data: None):
            print("runs", flush=True)
            await asyncio.Event().wait()

asyncio.run(work(sys.argv[1], Path(sys.argv[2])))
"""


async def test_vms_that_are_taken_back_while_they_boot_are_the_infrastructures(
    cloud: CloudCompute, options: GceOptions, new_attempt: Callable[..., StepContext], cache: Path
) -> None:
    cloud.preempt_after += [0.2] * 20
    run, gce = await with_kernel(new_attempt(instances=1)), Gce(options)
    with pytest.raises(InfrastructureError) as caught:
        await Reproduce(cache, provider=gce)(run)
    await gce.close()
    assert caught.value.reason == "vm_preempted"
    assert len(cloud.made) == 6  # it began anew five times
    assert cloud.all() == []


async def test_the_vm_of_a_killed_worker_is_swept_by_another_at_its_time(
    cloud: CloudCompute, compute: Compute, options: GceOptions, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", WORKER, cloud.url, str(tmp_path)]
    worker = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)  # noqa: ASYNC220
    assert worker.stdout is not None
    with worker.stdout:
        assert await asyncio.to_thread(worker.stdout.readline) == "runs\n"
        worker.send_signal(signal.SIGKILL)
        await asyncio.to_thread(worker.wait)
    (left,) = cloud.all()
    deadline = int(left.resource["labels"]["kgym-deadline"])
    assert 0 < deadline - time.time() < 3600
    assert await sweep(compute.owned()) == []  # the worker may still live
    later = time.time() - deadline - 1  # as many seconds before now as the deadline is after it
    assert await sweep(compute.owned(), grace=later) == [left.name]
    assert cloud.all() == []
