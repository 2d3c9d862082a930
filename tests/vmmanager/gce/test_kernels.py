"""Real kernels in the emulated cloud, each in an image of its own; their VMs are taken back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kgym.api.steps import ReproduceResult, StepRef, Verdict
from kgym.transport.gcs.connection import connect
from kgym.transport.gcs.storage import CALLS, GcsStorage
from kgym.worker.context import StepContext
from kgym_vmmanager.gce.options import GceOptions
from kgym_vmmanager.gce.provider import Gce
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from tests.google.cloud_compute.server import CloudCompute
from tests.google.cloud_storage.server import CloudStorage
from tests.vmmanager.conftest import NewStep
from tests.vmmanager.dump.test_dump_methods import CRASHES, begins_with, capture, with_capture
from tests.vmmanager.reproduce.test_instances import program

__all__ = ["capture"]

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(1800)]

BUCKET = "kgym-test"


@pytest.fixture
def bucket(cloud: CloudCompute, tmp_path: Path) -> Iterator[CloudStorage]:
    """The bucket of which the cloud's images are made."""
    with CloudStorage(tmp_path / "buckets") as buckets:
        buckets.buckets.create(BUCKET)
        cloud.storage = buckets.url
        yield buckets


async def performed(
    run: StepContext, options: GceOptions, bucket: CloudStorage, cache: Path
) -> ReproduceResult:
    """Perform a step whose storage is the bucket."""
    kept, folder = run.storage, run.folder / "fetched-for-bucket"
    run.storage = GcsStorage(BUCKET, "x", cache / "held", connect(CALLS, bucket.url))
    for given in run.assignment.inputs.values():
        for artifact in given.artifacts:
            await kept.get(artifact.key, folder)
            await run.storage.put(artifact.key, folder)
    gce = Gce(options)
    try:
        return await Reproduce(cache, provider=gce)(run)
    finally:
        await gce.close()
        run.storage.close()


@asynccontextmanager
async def preempting(cloud: CloudCompute, *moments: bytes) -> AsyncIterator[None]:
    """Take one VM after the other back, each when it has said the next of these words."""

    async def preempt() -> None:
        for words in moments:
            while not (
                ready := [
                    instance.name
                    for instance in cloud.all()
                    if has_printed(cloud, instance.name, words)
                ]
            ):
                await asyncio.sleep(0.2)
            cloud.preempt(ready[0])

    preempting = asyncio.create_task(preempt())
    try:
        yield
    finally:
        assert preempting.done()
        await preempting


def has_printed(cloud: CloudCompute, name: str, words: bytes) -> bool:
    """Return whether an instance's serial port has said this."""
    machines = [instance.machine for instance in cloud.all() if instance.name == name]
    return any(machine is not None and words in machine.console.read(0)[1] for machine in machines)


@pytest.mark.exhaustive
async def test_a_kernel_that_the_helper_refuses_is_tried_in_an_image_of_its_own(
    cloud: CloudCompute, options: GceOptions, bucket: CloudStorage, new_step: NewStep, cache: Path
) -> None:
    before = set(cloud.images)
    run = await new_step(program("sleep(1); crash(); sleep(60); return 0;"), time=60)
    result = await performed(run, replace(options, image="refuses"), bucket, cache)
    assert result.verdict is Verdict.SAME_CRASH
    assert "helper_refused" in (run.folder / "step.log").read_text()
    sources = [request["disks"][0]["initializeParams"]["sourceImage"] for request in cloud.made]
    assert len(sources) == 2
    assert sources[1].rpartition("/")[2].startswith("kgym-")
    assert set(cloud.images) == before  # it went with the step
    assert not [stored.name for stored in bucket.buckets.page(BUCKET, "x/images", most=10).objects]


@pytest.mark.exhaustive
async def test_vms_that_are_taken_back_in_a_run_and_in_a_dump_begin_anew(
    cloud: CloudCompute,
    options: GceOptions,
    bucket: CloudStorage,
    new_step: NewStep,
    cache: Path,
    capture: Path,
) -> None:
    run = await new_step(CRASHES, time=60, dump="kdump", capture=StepRef(step=1))
    run = await with_capture(run, capture)
    own = replace(options, image=None, image_per_kernel=True)
    async with preempting(cloud, b"kgym: guest ready", b"kgym: capture kernel ready"):
        result = await performed(run, own, bucket, cache)
    assert result.verdict is Verdict.SAME_CRASH
    assert len(cloud.made) == 3
    run.storage = GcsStorage(BUCKET, "x", cache / "held", connect(CALLS, bucket.url))
    assert await begins_with(run, result.instances[0]) == b"KDUMP   "
    run.storage.close()
