"""What storage in a bucket costs over bare HTTP with the same server, on loopback.

put_ratio     storing a file of 500 MB, over a bare PUT of it
get_ratio     fetching it, over a bare GET into a file
meta_per_s    looks at objects, 32 at a time, from a server that answers after 30 ms
meta_ratio    the same over one at a time: at most 32
vm_overhead_s        what a VM in the cloud takes to be asked for and deleted, beside its boot
console_calls_per_s  looks at the consoles of 100 VMs, which may be 20 a second
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from kgym.api.steps import Reproducer, ReproduceSpec, StepRef
from kgym.api.worker_calls import Assignment
from kgym.transport.artifact_storage import LocalStorage
from kgym.transport.gcs.connection import connect
from kgym.transport.gcs.storage import CALLS, GcsStorage
from kgym.worker.context import StepContext
from kgym_vmmanager.cloud.zones import Place
from kgym_vmmanager.gce.calls import Compute
from kgym_vmmanager.gce.machine import GceVm
from kgym_vmmanager.gce.options import GceOptions
from kgym_vmmanager.gce.provider import Gce
from kgym_vmmanager.vm.provider import Boot
from tests.google.cloud_compute.server import CloudCompute

PARTS = ("bodies", "meta", "gce")
BUCKET = "bench"
# Seconds: about what the service takes from within its own region.
DELAY = 0.03
LOOKS = 640
VMS = 5
CONSOLES = 100
CONSOLE_SECONDS = 10.0


@contextmanager
def served(folder: Path, delay: float = 0.0) -> Iterator[str]:
    """Run the server, in a process of its own; yield its URL."""
    words = ["-m", "tests.google.cloud_storage.server", BUCKET, "--folder", str(folder)]
    words += ["--delay", str(delay)]
    started = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        yield started.stdout.readline().strip()
    finally:
        started.terminate()
        started.communicate(timeout=30)


@contextmanager
def storage(folder: Path, delay: float = 0.0) -> Iterator[tuple[GcsStorage, str]]:
    """Open a storage in a bucket of a new server; yield it, and the server's URL."""
    with served(folder / "cloud", delay) as url:
        os.environ["STORAGE_EMULATOR_HOST"] = url
        opened = GcsStorage(BUCKET, "kgym", folder / "cache", connect(CALLS))
        try:
            yield opened, url
        finally:
            opened.close()


def bare(url: str, method: str, path: Path) -> None:
    """Send or fetch a file, and nothing else."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, blocksize=1 << 20)
    if method == "PUT":
        with path.open("rb") as file:
            length = {"Content-Length": str(path.stat().st_size)}
            connection.request("PUT", "/bare/file", file, length)
            connection.getresponse().read()
    else:
        connection.request("GET", "/bare/file")
        answer = connection.getresponse()
        with path.open("wb") as sink:
            while data := answer.read(1 << 20):
                sink.write(data)
    connection.close()


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds that it takes."""
    start = time.monotonic()
    await work()
    return time.monotonic() - start


async def bodies(
    opened: GcsStorage, url: str, folder: Path, size: int, rounds: int
) -> dict[str, float]:
    """Compare puts and gets with bare ones, in turn."""
    file, copy = folder / "file", folder / "copy"
    with file.open("wb") as sink:
        for _ in range(0, size, 1 << 20):
            sink.write(os.urandom(1 << 20))
    tries: dict[str, list[float]] = {"put": [], "bare_put": [], "get": [], "bare_get": []}
    for number in range(rounds):
        key = f"steps/{number}/vmlinux"
        tries["bare_put"].append(await timed(lambda: asyncio.to_thread(bare, url, "PUT", file)))
        tries["put"].append(await timed(lambda key=key: opened.put(key, file)))  # type: ignore[misc]
        tries["bare_get"].append(await timed(lambda: asyncio.to_thread(bare, url, "GET", copy)))
        tries["get"].append(await timed(lambda key=key: opened.get(key, copy)))  # type: ignore[misc]
        await opened.remove(f"steps/{number}")
    took = {name: statistics.median(seconds) for name, seconds in tries.items()}
    return {
        "put_ratio": took["put"] / took["bare_put"],
        "get_ratio": took["get"] / took["bare_get"],
        **{f"{name}_s": seconds for name, seconds in took.items()},
    }


async def meta(opened: GcsStorage) -> dict[str, float]:
    """Look at objects, 32 at a time and one after the other."""

    async def together() -> None:
        await asyncio.gather(*(opened.has_base(f"{number:064x}") for number in range(LOOKS)))

    async def one_by_one() -> None:
        for number in range(LOOKS // 16):
            await opened.has_base(f"{number:064x}")

    await one_by_one()
    alone = LOOKS // 16 / await timed(one_by_one)
    many = LOOKS / await timed(together)
    return {"meta_per_s": many, "meta_ratio": many / alone}


def machines(folder: Path) -> dict[str, float]:
    """Start and delete VMs that boot nothing, and follow many consoles."""
    with CloudCompute(folder / "compute") as cloud:
        cloud.operation_seconds = 0.0
        cloud.images["empty"] = folder / "empty.raw"
        (folder / "empty.raw").write_bytes(bytes(1 << 20))
        options = GceOptions(
            project="bench",
            zones=("zone",),
            address="169.254.10.1",
            listen="127.0.0.1",
            image="empty",
            endpoint=cloud.url,
        )
        return asyncio.run(_machines(folder, options, cloud))


async def _machines(folder: Path, options: GceOptions, cloud: CloudCompute) -> dict[str, float]:
    program = Reproducer(text="int main(void) { return 0; }")
    spec = ReproduceSpec(build=StepRef(step=0), reproducer=program)
    assignment = Assignment(
        step_id=1, job_id=1, number=0, attempt=1, lease=uuid.uuid4(), spec=spec, inputs={}
    )
    run = StepContext(assignment, folder, LocalStorage(folder / "storage"))
    kernel, initrd = folder / "kernel", folder / "initrd"
    for path in (kernel, initrd):
        path.write_bytes(bytes(1 << 20))
    gce, took = Gce(options), []
    async with gce.host(run, folder) as host:
        for number in range(VMS):
            boot = Boot(str(number), folder / "vm", kernel, initrd, spec.vm)
            asked = time.monotonic()
            async with host.running(boot, lambda _: None):
                began = ended = time.monotonic()
            took.append(began - asked + time.monotonic() - ended)
    await gce.close()
    rate = await consoles(options, cloud)
    return {"vm_overhead_s": statistics.median(took), "console_calls_per_s": rate}


async def consoles(options: GceOptions, cloud: CloudCompute) -> float:
    """Follow a hundred consoles at once; return how many looks there are in a second."""
    compute = Compute(options)
    disks = [{"boot": True, "initialize_params": {"source_image": "empty"}}]
    await compute.insert("zone", {"name": "one", "disks": disks}, "one")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(CONSOLES):
            place = Place("zone", spot=False)
            vm = GceVm(compute, place, "one", 1, ("127.0.0.1", 1), lambda _: None)
            await stack.enter_async_context(vm.followed())
        await asyncio.sleep(1)
        before = sum("serialPort" in request for request in cloud.requests)
        await asyncio.sleep(CONSOLE_SECONDS)
        looks = sum("serialPort" in request for request in cloud.requests) - before
    compute.close()
    return looks / CONSOLE_SECONDS


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="all by default")
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "bodies" in options.parts:
            with storage(folder) as (opened, url):
                size = options.mb * 1_000_000
                figures |= asyncio.run(bodies(opened, url, folder, size, options.rounds))
        if "meta" in options.parts:
            with storage(folder, DELAY) as (opened, _):
                figures |= asyncio.run(meta(opened))
        if "gce" in options.parts:
            figures |= machines(folder)
    figures = {name: round(value, 2) for name, value in figures.items()}
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:12} {value:g}")


if __name__ == "__main__":
    main()
