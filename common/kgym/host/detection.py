"""What this host has, as workers declare it."""

import platform
from collections.abc import Collection
from pathlib import Path

from kgym.api.capabilities import Capabilities
from kgym.api.steps import DEFAULT_SYZKALLER, SyzkallerArtifact
from kgym.host import installed_compilers
from kgym.host.resources import Host


def syzkallers(folder: Path | None) -> dict[str, Path]:
    """Return the folders that hold `syz-execprog` and `syz-executor`, by commit.

    The given folder's own are `default`; those of a commit are in the folder of its name below.
    """
    if folder is None or not folder.is_dir():
        return {}
    folders = {DEFAULT_SYZKALLER: folder} | {
        path.name: path for path in folder.iterdir() if path.is_dir()
    }
    return {
        name: path
        for name, path in folders.items()
        if all((path / program).is_file() for program in SyzkallerArtifact)
    }


def detect(
    accelerator: str | None = None,
    syzkaller: Path | None = None,
    in_images: Collection[str] = (),
) -> Capabilities:
    """Return what this host has. Which accelerator works has to be found out by trying.

    `in_images` are the compilers that toolchain images have for it.
    """
    host = Host.here()
    return Capabilities(
        architecture=platform.machine(),
        compilers=[*installed_compilers.names(), *in_images],
        accelerator=accelerator,
        cores=host.cores,
        memory=host.memory >> 20,
        syzkaller=sorted(syzkallers(syzkaller)),
    )
