"""How much longer guests take to be ready that start from a disk (see `kernels.py`).

disk_boot_ratio   seconds from QEMU's start to ready, from Debian on ext4 over an initramfs, with
                  the shipped kernel: the medians of rounds that take turns
"""

import asyncio
import statistics
from collections.abc import Mapping
from pathlib import Path

from kgym.api.jobs import JobRequest
from kgym.api.steps import Reproducer, ReproduceResult, ReproduceSpec, StepRef, VmShape
from kgym.bugs import bundle
from kgym.client import Client
from kgym.configs import data_folder
from tests.alone import alone

GOALS = {"disk_boot_ratio": 1.5}
_PROGRAM = "#include <unistd.h>\nint main(void) { pause(); return 0; }\n"


async def measured(work: Path, rounds: int) -> Mapping[str, float]:
    """Return the figures; nothing is left in `work`."""
    del work
    return await asyncio.to_thread(_measured, rounds)


def _measured(rounds: int) -> dict[str, float]:
    build = bundle.load("watch-queue-filter").build.model_copy(update={"patches": []})
    with alone(data_folder()) as client:
        job = client.wait(client.submit(JobRequest(steps=[build])).id)
        kernel = StepRef(job=job.id, step=0)
        _boot(client, kernel, "disk")  # makes the disk
        turns = [
            (_boot(client, kernel, "initramfs"), _boot(client, kernel, "disk"))
            for _ in range(rounds)
        ]
    initramfs, disk = (statistics.median(turn) for turn in zip(*turns, strict=True))
    return {"initramfs_s": initramfs, "disk_s": disk, "disk_boot_ratio": disk / initramfs}


def _boot(client: Client, kernel: StepRef, root: str) -> float:
    spec = ReproduceSpec(
        build=kernel,
        reproducer=Reproducer(text=_PROGRAM),
        instances=1,
        time=1,
        bundle="none",
        vm=VmShape.model_validate({"root": root}),
    )
    job = client.wait(client.submit(JobRequest(steps=[spec])).id)
    result = job.steps[-1].result
    if not isinstance(result, ReproduceResult) or result.instances[0].boot_seconds is None:
        raise SystemExit(f"job {job.id}: {job.state}: {job.steps[-1].failure or result}")
    return result.instances[0].boot_seconds
