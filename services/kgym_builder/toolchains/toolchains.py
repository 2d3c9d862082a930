"""The toolchains of this host's workers: the host's own compilers, and images.

An image is fetched from storage; if there is none, the first step that needs it makes it while
others wait.
"""

import asyncio
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

from kgym.api.capabilities import NO_COMPILER
from kgym.api.steps import compilers
from kgym.api.steps.compilers import ImageCompiler
from kgym.errors import InfrastructureError, UserError
from kgym.host import detection, sandbox
from kgym.host.folder_cache import FolderCache
from kgym.transport.artifact_storage import Storage
from kgym.worker.context import StepContext
from kgym_builder.toolchains import image
from kgym_builder.toolchains.archives import SETTING, Archives
from kgym_builder.toolchains.image import Recipe
from kgym_builder.toolchains.toolchain import Toolchain, described, installed

# Bytes of images that a host keeps for its workers; one has 100 to 250 MB.
MOST = 10 << 30
_POLL_SECONDS = 1.0


class Toolchains:
    """The toolchains of this host; images are kept below `cache`, and made from `archives`."""

    def __init__(self, cache: Path, archives: Archives = Archives()) -> None:  # noqa: B008 - frozen
        self._folders = FolderCache(cache / "toolchains", image.check)
        self._archives = archives

    async def get(self, compiler: str, run: StepContext) -> Toolchain:
        """Return the compiler of a spec; its image is held for the attempt.

        Raises UserError `no_compiler` if it is not available here. The scheduler's lanes avoid
        that for workers that report their compilers.
        """
        # The worker chooses where to take the compiler from, in the spec's order. Lanes only name
        # all possible places, as one host has it installed while another must make its image.
        for place in compilers.places(compiler):
            wanted = compilers.image(place)
            if wanted is None:
                toolchain = await installed(place)
            else:
                toolchain = await self._in_image(wanted, run)
            if toolchain is not None:
                substitution = compilers.substitution(
                    compiler, toolchain.version, toolchain.number, toolchain.name
                )
                if substitution:
                    run.log(f"compiler: {substitution}")
                return replace(toolchain, substitution=substitution)
        there = ", ".join([*detection.detect().compilers, *await self.offered(run.storage)])
        raise UserError(
            "no_compiler",
            f"this builder has no {compilers.places(compiler)[0]}; its compilers:"
            f" {there or 'none'}; {NO_COMPILER}",
            tool=compiler,
        )

    async def offered(self, storage: Storage) -> list[str]:
        """Return the compilers whose images are here or in storage, or can be made here."""
        there = {*self._folders.sizes(), *await _stored(storage)}
        made = await self._made_here()
        return [
            str(compiler)
            for compiler in compilers.images()
            if compiler.suite in made or Recipe.of(compiler).name in there
        ]

    async def _made_here(self) -> set[str]:
        """Return the suites whose images this worker can make."""
        return await self._archives.suites() if all(map(shutil.which, image.PROGRAMS)) else set()

    async def _in_image(self, wanted: ImageCompiler, run: StepContext) -> Toolchain | None:
        recipe = Recipe.of(wanted)
        there = recipe.name in self._folders.sizes() or await image.find(run, recipe) is not None
        if not there and wanted.suite not in await self._made_here():
            return None

        async def make(folder: Path) -> None:
            await self._take(recipe, folder, run)

        folder, _ = await self._folders.get(recipe.name, make, held=run.held)
        await asyncio.to_thread(self._folders.trim, MOST)
        about = image.read_about(folder)
        return replace(
            described(str(wanted), about.compilers[wanted.name]),
            image=folder / image.IMAGE,
            identity=about.identity,
            doubt=partial(self._folders.doubt, recipe.name),
        )

    async def _take(self, recipe: Recipe, folder: Path, run: StepContext) -> None:
        """Fetch the image, or make it; wait if another step is making it."""
        waits = False
        while True:
            ours = await run.hold(f"{image.PREFIX}/{recipe.name}")
            about = await image.find(run, recipe)
            if about is not None:
                run.progress("fetch the toolchain", 0, about.image_bytes, "bytes")
                if await image.fetch(run, recipe, about, folder):
                    run.log(f"fetched the toolchain image {recipe.name} from storage")
                    return
                run.log("the stored toolchain image is damaged")
            if ours:
                break
            if not waits:
                run.log("waiting for the step that makes this toolchain image now")
                run.progress("waiting for the toolchain")
            waits = True
            await asyncio.sleep(_POLL_SECONDS)
        # Checked again: the image that was stored when the step began may have turned out damaged.
        if recipe.suite not in await self._made_here():
            raise InfrastructureError(
                "no_toolchain_image",
                f"the stored toolchain image of {recipe.suite} ({', '.join(recipe.compilers)}) is"
                " damaged or gone, and this worker cannot make one: use another worker, or install"
                f" mmdebstrap here, and set {SETTING}={recipe.suite}=http://… to an archive of this"
                " suite",
            )
        run.log(f"making the toolchain image {recipe.name}: {', '.join(recipe.compilers)}")
        run.progress("make the toolchain")
        work = run.folder / "toolchain"
        work.mkdir(exist_ok=True)
        try:
            await image.make(recipe, await self._archives.source(recipe.suite), folder, work)
        finally:
            await asyncio.to_thread(sandbox.remove, work)
        await image.store(run, recipe, folder)


async def _stored(storage: Storage) -> set[str]:
    """Return the recipes' names of the images that are stored whole."""
    folders = {key.rpartition("/")[2] for key in await storage.sizes(image.PREFIX, 1)}
    return {name for name in folders if await image.is_stored(storage, name)}
