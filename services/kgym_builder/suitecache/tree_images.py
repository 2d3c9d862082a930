"""Images of entries and toolchains on this host: mounted, or unpacked where no mount works."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

from kgym.host.folder_cache import FolderCache
from kgym.host.sandbox import Layer, Sandbox, prepare
from kgym.host.squashfs import Images, Mounted, Way
from kgym.worker.context import StepContext
from kgym_builder.suitecache import compiled_trees
from kgym_builder.toolchains.image import read_about
from kgym_builder.toolchains.toolchain import Toolchain

# An unpacked tree is about so many times as large as its image.
_UNPACKED = 5
_UNPACK_SECONDS = 1200.0


class TreeImages:
    """The images in use on this host.

    They are mounted in the first of the `ways` that works. If none does, they are unpacked below
    `cache`, which then keeps trees of images of `most` bytes in all.
    """

    def __init__(self, cache: Path, ways: tuple[Way, ...], most: int) -> None:
        self._images = Images(ways)
        self._unpacked = FolderCache(cache)
        self._most = most

    async def layers(
        self, folder: Path, tools: Toolchain, run: StepContext, held: ExitStack
    ) -> tuple[Layer, Layer | None]:
        """Return the tree of the entry in `folder`, and the root that has its toolchain.

        A mount lasts until `held` is closed.
        """
        image = folder / compiled_trees.IMAGE
        # One keeper mounts both: a sandbox enters one mount namespace, and mounts cannot be
        # handed from one namespace to another.
        mounted = self._images.mount(image, held, tools.image)
        if mounted is not None:
            run.log(f"tree: mounted by {mounted.way} and {mounted.overlay}")
            return mounted, mounted if tools.image else None
        run.log(f"tree: unpacked, as no image can be mounted here ({self._images.refusal})")
        sha256 = compiled_trees.read_about(folder).image_sha256
        return await self._unpack(image, sha256, run), await self._unpack_root(tools, run)

    async def root(self, tools: Toolchain, run: StepContext) -> Layer | None:
        """Return the root that has the toolchain; None for the host's own."""
        if tools.image is None:
            return None
        mounted = self._images.mount(None, run.held, tools.image)
        return mounted or await self._unpack_root(tools, run)

    def forget(self, layer: Layer) -> None:
        """Mount this layer's image anew for the next step: this mount could not be read."""
        if isinstance(layer, Mounted):
            self._images.forget(layer)

    async def _unpack_root(self, tools: Toolchain, run: StepContext) -> Path | None:
        if tools.image is None:
            return None
        sha256 = read_about(tools.image.parent).image_sha256
        return await self._unpack(tools.image, sha256, run)

    async def _unpack(self, image: Path, sha256: str, run: StepContext) -> Path:
        """Return the folder with the unpacked image."""

        async def make(unpacked: Path) -> None:
            # In the sandbox, as images come from other workers by way of storage.
            tree = prepare(unpacked / "tree")
            sandboxed = Sandbox(readonly={"/image": image.parent}, writable={"/tree": tree})
            argv = ["unsquashfs", "-quiet", "-no-progress", "-force", "-dest", "/tree"]
            await sandboxed.run([*argv, f"/image/{image.name}"], timeout=_UNPACK_SECONDS)

        unpacked, _ = await self._unpacked.get(sha256[:32], make, held=run.held)
        await asyncio.to_thread(self._unpacked.trim, _UNPACKED * self._most)
        return unpacked / "tree"
