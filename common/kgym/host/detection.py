"""Detection of this host's capabilities, as workers declare them."""

import platform
from collections.abc import Collection
from pathlib import Path

from kgym.api.capabilities import Capabilities
from kgym.api.steps import DEFAULT_SYZKALLER, GUEST_PROGRAMS
from kgym.host import installed_compilers
from kgym.host.resources import Host


def syzkallers(folder: Path | None) -> dict[str, Path]:
    """Return the folders that hold `syz-execprog` and `syz-executor`, by commit.

    Programs in `folder` itself are `default`; subfolders are named after commits.
    """
    if folder is None or not folder.is_dir():
        return {}
    folders = {DEFAULT_SYZKALLER: folder} | {
        path.name: path for path in folder.iterdir() if path.is_dir()
    }
    return {
        name: path
        for name, path in folders.items()
        if all((path / program).is_file() for program in GUEST_PROGRAMS)
    }


def detect(
    accelerator: str | None = None, syzkaller: Path | None = None, in_images: Collection[str] = ()
) -> Capabilities:
    """Return this host's capabilities. The caller finds a working accelerator by trying.

    `in_images` are the compilers in toolchain images.
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
