"""What the platform costs over bare `qemu`, measured in one run. Of builds, `build` tells.

vm      a reproducer that runs for its time, submitted to verdict, against QEMU booting
        the same kernel into an initramfs that starts the same runner
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kgym.api.jobs import JobRequest
from kgym.api.steps import Reproducer, ReproduceSpec, StepRef, VmShape
from kgym.bugs import bundle
from kgym.client import Client
from kgym.configs import data_folder
from kgym_vmmanager.guest import cpio
from kgym_vmmanager.guest.guest_image import guest_image
from kgym_vmmanager.guest.paths import RUNNER
from kgym_vmmanager.vm.accelerator import best_accelerator
from kgym_vmmanager.vm.qemu import FOLDER, qemu_arguments
from tests.alone import alone

PROGRAM = "int main(void) { return 0; }\n"
DONE = b"bench: done"


class Bench:
    """The measurements, on a data folder whose platform runs."""

    def __init__(self, client: Client, cache: Path, work: Path) -> None:
        self.client = client
        self.cache = cache
        self.work = work
        self.build = bundle.load("watch-queue-filter").build

    def submitted(self, request: JobRequest) -> tuple[float, Any]:
        """Return the seconds from submission to the end, and the last step's result."""
        start = time.monotonic()
        job = self.client.wait(self.client.submit(request).id)
        seconds = time.monotonic() - start
        last = job.steps[-1]
        if last.result is None:
            raise SystemExit(f"job {job.id}: {job.state}: {last.failure}")
        return seconds, last.result

    def vm(self, seconds: float) -> dict[str, float]:
        """Compare one instance whose reproducer runs for `seconds`."""
        reproduce = ReproduceSpec(
            build=StepRef(step=0), reproducer=Reproducer(text=PROGRAM), instances=1, time=seconds
        )
        unpatched = self.build.model_copy(update={"patches": []})
        job = self.client.wait(self.client.submit(JobRequest(steps=[unpatched])).id)
        ref = StepRef(job=job.id, step=0)
        kernel = self.work / "kernel"
        self.client.download(job.id, 0, "bzImage", kernel)
        request = JobRequest(steps=[reproduce.model_copy(update={"build": ref})])
        platform, _ = self.submitted(request)
        bare = bare_qemu(kernel, reproduce.vm, seconds, self.cache, self.work)
        return {"bare": bare, "platform": platform}


def bare_qemu(kernel: Path, vm: VmShape, seconds: float, cache: Path, work: Path) -> float:
    """Return the seconds until QEMU has booted and the runner has run for `seconds`."""
    program = work / "program"
    (work / "program.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-static", "-o", program, work / "program.c"], check=True, timeout=60)
    image = asyncio.run(guest_image(cache))
    start_runner = (
        f"#!/bin/busybox sh\n/bin/busybox mkdir /tmp\n"
        f"/bin/busybox sleep {seconds} | {RUNNER} /tmp/run /program\n"
        f"echo {DONE.decode()}\n/bin/busybox sleep 1000\n"
    )
    extra = cpio.archive(
        [
            cpio.file("program", program.read_bytes(), 0o755),
            cpio.file("bench", start_runner.encode(), 0o755),
        ]
    )
    (work / "initrd").write_bytes(image.initrd.read_bytes() + extra)
    probed = asyncio.run(best_accelerator(cache))
    argv = [word.replace(FOLDER, str(work)) for word in qemu_arguments(vm, probed)]
    argv[argv.index("-append") + 1] += " rdinit=/bench"
    start = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as qemu:
        assert qemu.stdout is not None
        if not any(DONE in line for line in qemu.stdout):
            raise SystemExit("bare QEMU ended before its time")
        took = time.monotonic() - start
        qemu.kill()
    return took


def main() -> None:
    """Measure, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="the reproducer's time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="bench-", dir=data_folder()))
    try:
        with alone(data_folder()) as client:
            bench = Bench(client, data_folder() / "cache", work)
            results = {"vm": bench.vm(options.seconds)}
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for result in results.values():
        result["ratio"] = result["platform"] / result["bare"]
    if options.json:
        sys.stdout.write(json.dumps(results) + "\n")
        return
    for name, result in results.items():
        figures = "  ".join(f"{key} {value:.2f}" for key, value in result.items())
        sys.stdout.write(f"{name:6}{figures}\n")


if __name__ == "__main__":
    main()
