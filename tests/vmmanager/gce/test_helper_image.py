"""The image that all VMs boot: made of Debian's packages, and given to the project by a bucket."""

import tarfile
from pathlib import Path

import pytest

from kgym.errors import InfrastructureError
from kgym.transport.gcs.connection import connect
from kgym.transport.gcs.storage import CALLS, GcsStorage
from kgym.worker.context import StepContext
from kgym_vmmanager.gce.boot_disk import DISK, GIB, PACKED
from kgym_vmmanager.gce.helper_image import helper_image
from tests.google.cloud_compute.server import CloudCompute
from tests.google.cloud_storage.server import CloudStorage
from tests.refused import refused
from tests.vmmanager.gce.conftest import Opened

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.exhaustive
async def test_the_image(
    cloud: CloudCompute, opened: Opened, run: StepContext, tmp_path: Path
) -> None:
    """It is made once, and given to the project by the bucket."""
    with refused("no_helper_image", kind=InfrastructureError):  # its storage is a folder
        async with opened(run, image=None):
            pass
    with CloudStorage(tmp_path / "buckets") as buckets:
        buckets.buckets.create("kgym-test")
        cloud.storage = buckets.url
        run.storage = GcsStorage("kgym-test", "x", tmp_path / "held", connect(CALLS, buckets.url))
        async with opened(run, image=None):
            pass
        assert buckets.buckets.page("kgym-test", most=10).objects == []
        async with opened(run, image=None):
            pass
        run.storage.close()
    name, folder = await helper_image(tmp_path)
    assert cloud.images[name].stat().st_size == GIB
    with (folder / DISK).open("rb") as disk:
        assert disk.read(512)[510:] == b"\x55\xaa"
    with tarfile.open(folder / PACKED) as packed:
        assert packed.getnames() == [DISK]
