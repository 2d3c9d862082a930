"""A cloud whose VMs boot a sector that only says so: what a provider does needs no kernel."""

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import Reproducer, ReproduceSpec, StepRef, VmShape
from kgym.api.worker_calls import Input
from kgym.worker.context import StepContext
from kgym_vmmanager.gce.calls import Compute
from kgym_vmmanager.gce.options import GceOptions
from kgym_vmmanager.gce.provider import Gce
from kgym_vmmanager.vm.provider import Boot, VmHost
from tests.conftest import NewRun
from tests.google.cloud_compute.machine import SSH_PORT
from tests.google.cloud_compute.server import CloudCompute
from tests.vmmanager.conftest import BUILT

_ACTION = 508


@pytest.fixture(scope="session")
def sector(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The boot sector."""
    path = tmp_path_factory.mktemp("sector") / "sector"
    flags = ("-Wl,--oformat=binary,-Ttext=0x7c00,--build-id=none", "-nostdlib", "-static")
    source = Path(__file__).with_name("boot_sector.S")
    subprocess.run(["gcc", *flags, "-o", path, source], check=True, timeout=60)
    return path.read_bytes()


@pytest.fixture
def cloud(sector: bytes, tmp_path: Path) -> Iterator[CloudCompute]:
    """The server, with images that do as the boot sector is told."""
    with CloudCompute(tmp_path / "cloud") as cloud:
        for action, name in enumerate(("waits", "resets", "refuses", "fails")):
            disk = tmp_path / f"{name}.raw"
            data = bytearray(sector)
            data[_ACTION] = action
            disk.write_bytes(data + bytes(1 << 20))
            cloud.images[name] = disk
        yield cloud


@pytest.fixture
def options(cloud: CloudCompute) -> GceOptions:
    """What a worker is told of it."""
    return GceOptions(
        project="test",
        zones=("zone-a", "zone-b"),
        address="169.254.10.1",
        listen="127.0.0.1",
        image="waits",
        endpoint=cloud.url,
        calls_per_second=1000,
        ssh_port=SSH_PORT,
    )


@pytest.fixture
def compute(options: GceOptions) -> Iterator[Compute]:
    """The calls, which give up soon."""
    compute = Compute(options, patience=1.0)
    yield compute
    compute.close()


async def with_kernel(run: StepContext) -> StepContext:
    """Give the attempt what it takes for a kernel."""
    path = run.folder / "bzImage"
    path.write_bytes(b"a kernel")
    image = await run.storage.put("steps/0/bzImage", path)
    run.assignment.inputs["build"] = Input(result=BUILT, artifacts=[image])
    return run


Opened = Callable[..., AbstractAsyncContextManager[VmHost]]


@pytest.fixture
def new_attempt(new_run: NewRun) -> Callable[..., StepContext]:
    """Make an attempt at a step that nothing is to run in."""

    def make(**more: Any) -> StepContext:
        program = Reproducer(text="int main(void) { return 0; }")
        return new_run(ReproduceSpec(build=StepRef(step=0), reproducer=program, time=60, **more))

    return make


@pytest.fixture
def run(new_attempt: Callable[..., StepContext]) -> StepContext:
    """An attempt at such a step."""
    return new_attempt()


@pytest.fixture
def opened(options: GceOptions, new_attempt: Callable[..., StepContext], tmp_path: Path) -> Opened:
    """Open the provider for a step."""

    @asynccontextmanager
    async def opened(run: StepContext | None = None, **other: Any) -> AsyncIterator[VmHost]:
        gce = Gce(replace(options, **other))
        try:
            async with gce.host(run or new_attempt(), tmp_path) as host:
                yield host
        finally:
            await gce.close()

    return opened


@pytest.fixture
def boot(tmp_path: Path) -> Boot:
    """What a VM is to boot, which these never do."""
    for name in ("kernel", "initrd"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
    shape = VmShape(memory=512)
    return Boot("0", tmp_path / "vm-0", tmp_path / "kernel", tmp_path / "initrd", shape)
