"""What this host has, as workers declare it."""

import os
import platform
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from kgym.api.capabilities import Capabilities
from kgym.api.steps import DEFAULT_SYZKALLER, SyzkallerArtifact
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
    found = set()
    for folder in os.get_exec_path():
        for pattern in ("gcc*", "clang*"):
            found |= {path.name for path in Path(folder).glob(pattern)}
    named = re.compile(r"(gcc|clang)(-[0-9]+)?")
    host = Host.here()
    return Capabilities(
        architecture=platform.machine(),
        compilers=[
            *sorted(name for name in found if named.fullmatch(name) and shutil.which(name)),
            *in_images,
        ],
        accelerator=accelerator,
        cores=host.cores,
        memory=host.memory >> 20,
        syzkaller=sorted(syzkallers(syzkaller)),
    )
