"""The images that VMs boot: the helper, and one for each kernel that the helper cannot start.

Images are uploaded through a bucket. The helper stays; the others are deleted at the end of their
step, or swept after their deadline.
"""

import asyncio
import contextlib
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from kgym import tasks
from kgym.errors import InfrastructureError
from kgym.worker.context import StepContext
from kgym_vmmanager.cloud.labels import instance_name, labels
from kgym_vmmanager.gce import boot_disk
from kgym_vmmanager.gce.calls import Compute
from kgym_vmmanager.gce.helper_image import helper_image

_READY_SECONDS = 900.0
_POLL_SECONDS = 2.0
_DELETE_SECONDS = 120.0


class Images:
    """The images of a worker's project."""

    def __init__(self, compute: Compute, owner: str) -> None:
        """`owner` is the label of the images."""
        self._compute = compute
        self._owner = owner
        self._helper = asyncio.Lock()

    async def helper(self, run: StepContext, cache: Path) -> str:
        """Return the helper's name; create the image if the project has none.

        Raises `no_helper_image` if it cannot be created, e.g. without a bucket.
        """
        async with self._helper:
            name, folder = await helper_image(cache)
            if await self._compute.image_status(name) != "READY":
                marks = {"kgym": self._owner}
                await self._upload(run, name, folder / boot_disk.PACKED, marks, "no_helper_image")
            return name

    @asynccontextmanager
    async def of_step(
        self, run: StepContext, cache: Path, seconds: float
    ) -> AsyncIterator["KernelImages"]:
        """Yield the kernel images of a step that takes at most so many seconds."""
        made = KernelImages(self, run, cache, seconds)
        try:
            yield made
        finally:
            await asyncio.shield(asyncio.create_task(self._delete(run, made)))

    async def make(self, run: StepContext, name: str, folder: Path, deadline: float) -> None:
        """Create an image of the disk in the folder; the sweeper deletes it after `deadline`."""
        marks = labels(self._owner, run.assignment.lease, uuid.uuid4(), deadline)
        await self._upload(run, name, folder / boot_disk.PACKED, marks, "no_kernel_image")

    async def _upload(
        self, run: StepContext, name: str, packed: Path, marks: Mapping[str, str], reason: str
    ) -> None:
        """Upload an image through the bucket; return once it can be used."""
        address = getattr(run.storage, "address", None)
        if address is None:
            message = (
                f"the project has no image {name}, and uploading one needs a bucket: use"
                " --storage gs://BUCKET/PREFIX"
            )
            if reason == "no_helper_image":
                message += ", or name an image by --gce-image"
            raise InfrastructureError(reason, message)
        place = f"images/{name}/{uuid.uuid4().hex}"
        key = f"{place}/{boot_disk.PACKED}"
        try:
            await run.storage.put(key, packed)
            await self._compute.make_image(name, address(key), marks)
            await self._wait(name, reason)
        finally:
            await asyncio.shield(asyncio.create_task(run.storage.remove(place)))

    async def _wait(self, name: str, reason: str) -> None:
        """Wait until an image is ready; another worker may be creating it."""
        begin = time.monotonic()
        while (status := await self._compute.image_status(name)) != "READY":
            if status == "FAILED":
                await self._compute.delete_image(name)
                message = f"the service could not make the image {name}"
                raise InfrastructureError(reason, message)
            if time.monotonic() - begin > _READY_SECONDS:
                message = f"the image {name} is not ready after {_READY_SECONDS:g} s"
                raise InfrastructureError(reason, message)
            await asyncio.sleep(_POLL_SECONDS)

    async def _delete(self, run: StepContext, made: "KernelImages") -> None:
        """Delete a step's images, including those that are still being created."""
        for name, making in made.made.values():
            await asyncio.wait({making}, timeout=_DELETE_SECONDS)
            await tasks.end([making])
            try:
                await self._compute.delete_image(name)
            except InfrastructureError as error:
                run.log(f"the image {name} could not be deleted: {error}")


class KernelImages:
    """The images of one step: one for each kernel, initrd and command line."""

    def __init__(self, images: Images, run: StepContext, cache: Path, seconds: float) -> None:
        self._images = images
        self._run = run
        self._cache = cache
        self._seconds = seconds
        # The name of each, and the task that creates it.
        self.made: dict[tuple[Path, Path, str], tuple[str, asyncio.Task[None]]] = {}

    async def of(self, kernel: Path, initrd: Path, words: str) -> str:
        """Return the name of the image that boots this kernel; raises `no_kernel_image`."""
        key = (kernel, initrd, words)
        if key not in self.made:
            name = instance_name(self._run.assignment.lease, f"image-{len(self.made)}")
            self.made[key] = name, asyncio.create_task(self._make(name, *key))
        name, making = self.made[key]
        await asyncio.shield(making)
        return name

    async def _make(self, name: str, kernel: Path, initrd: Path, words: str) -> None:
        begin, folder = time.monotonic(), self._run.folder / name
        folder.mkdir()
        try:
            await boot_disk.make(self._cache, folder, kernel, initrd, words)
            await self._images.make(self._run, name, folder, time.time() + self._seconds)
        finally:
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)
        self._run.log(f"image {name}: ready after {time.monotonic() - begin:.1f} s")
