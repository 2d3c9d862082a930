"""A kernel's modules, as an archive that is unpacked over the guest image."""

import asyncio
from pathlib import Path, PurePosixPath

from kgym.api.steps import BuildArtifact
from kgym.errors import UserError
from kgym.source import module_archive
from kgym.worker.context import StepContext
from kgym_vmmanager.guest import cpio

_MOST_BYTES = 256 << 20
"""Of one file: it is held in memory."""


async def modules(run: StepContext, folder: Path) -> Path | None:
    """Return the archive, made in `folder`; None for a kernel without modules.

    Raises UserError `bad_modules`.
    """
    if BuildArtifact.MODULES not in {one.name for one in run.input_artifacts("build")}:
        return None
    fetched = folder / BuildArtifact.MODULES
    await run.fetch("build", BuildArtifact.MODULES, fetched)
    return await asyncio.to_thread(_archive, fetched, folder / "modules.cpio")


def _archive(fetched: Path, path: Path) -> Path:
    made: set[str] = {"lib"}
    with path.open("wb") as sink:
        for name, content, size in module_archive.files(fetched):
            if size > _MOST_BYTES:
                raise UserError("bad_modules", f"{name} has more than {_MOST_BYTES >> 20} MiB")
            parents = [str(one) for one in PurePosixPath(name).parents][-2::-1]
            new = [cpio.folder(one) for one in parents if one not in made]
            made.update(parents)
            for entry in (*new, cpio.file(name, content.read())):
                sink.writelines(cpio.pack(1, entry))
        sink.write(cpio.archive([]))
    return path
