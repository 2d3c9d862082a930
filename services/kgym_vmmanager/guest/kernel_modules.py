"""A kernel's modules, as an archive that is unpacked over the guest image."""

import asyncio
from pathlib import Path, PurePosixPath

from kgym.api.steps import BuildArtifact
from kgym.source import module_archive
from kgym.worker.context import StepContext
from kgym_vmmanager.guest import cpio


async def modules(run: StepContext, folder: Path) -> Path | None:
    """Return the archive, made in `folder`; None for a kernel without modules.

    Raises what `module_archive.files` raises, before anything is made.
    """
    if BuildArtifact.MODULES not in {artifact.name for artifact in run.input_artifacts("build")}:
        return None
    fetched = folder / BuildArtifact.MODULES
    await run.fetch("build", BuildArtifact.MODULES, fetched)
    return await asyncio.to_thread(_archive, fetched, folder / "modules.cpio")


def _archive(fetched: Path, path: Path) -> Path:
    modules = module_archive.files(fetched)
    made: set[str] = {"lib"}
    with fetched.open("rb") as source, path.open("wb") as sink:
        for module in modules:
            parents = [str(each) for each in PurePosixPath(module.name).parents][-2::-1]
            new = [cpio.folder(each) for each in parents if each not in made]
            made.update(parents)
            source.seek(module.begin)
            for entry in (*new, cpio.file(module.name, source.read(module.size))):
                sink.writelines(cpio.pack(1, entry))
        sink.write(cpio.archive([]))
    return path
