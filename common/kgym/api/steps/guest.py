"""A guest's root file system, and the program that shows a bug.

The root is an initramfs, a disk made by the platform, or the user's own disk.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api import syz_program
from kgym.api.steps.base import Line, Sha256, StepRef, Strict

# Symbols that a kernel must have built in to boot from a root disk.
DISK_SYMBOLS = ("BLK_DEV_INITRD", "DEVTMPFS", "EXT4_FS", "VIRTIO_BLK", "VIRTIO_PCI")


class RootImage(Strict):
    """The user's own root disk: an ext4 file system without partitions.

    It needs /bin/sh, and space for the platform's programs, the reproducer, the kernel's modules,
    and 8 MiB more. Each instance writes to a temporary overlay. The platform adds its own SSH
    server and init.
    """

    url: str | None = Field(
        None,
        max_length=2000,
        description="http(s) URL; or an absolute path or file URL on the VM manager's host, below"
        " a folder that its operator allows",
    )
    sha256: Sha256 | None = Field(None, description="of the file at `url`")
    step: StepRef | None = Field(
        None, description="instead of `url`: a reproduce step whose root disk is used"
    )
    format: Literal["raw", "qcow2"] | None = Field(
        None,
        description="of the file at `url`; it is never guessed. A qcow2 image must not have a"
        " backing file",
    )

    @model_validator(mode="after")
    def _one_place(self) -> "RootImage":
        if (self.url is None) == (self.step is None):
            raise ValueError("give either `url`, or `step`")
        file = [self.sha256, self.format]
        if self.url is not None and None in file:
            raise ValueError("with `url`, give `sha256` and `format`: raw or qcow2")
        if self.step is not None and file != [None, None]:
            raise ValueError("`sha256` and `format` go with `url`")
        return self


Root = Annotated[
    Literal["initramfs", "disk"] | RootImage,
    Field(
        description="the guests' root: `initramfs`, the fastest; `disk`, Debian on ext4, as"
        " syzbot's machines have it; or an image"
    ),
]


def on_disk(root: Literal["initramfs", "disk"] | RootImage) -> bool:
    """Return whether guests boot from a disk."""
    return root != "initramfs"


class UsedRoot(Strict):
    """The root file system of a step's guests."""

    kind: Literal["initramfs", "disk", "image"] = "initramfs"
    format: Literal["raw", "qcow2"] | None = Field(None, description="of the disk")
    sha256: Sha256 | None = Field(None, description="of the disk, unpacked")
    system: Line = Field("", description="its content, if the platform made it")


class Reproducer(Strict):
    """A program that crashes the kernel: C, or syzkaller's with its options in the header."""

    kind: Literal["c", "syz"] = "c"
    text: str = Field(min_length=1, max_length=1 << 20, description="the source")
    syzkaller: str | None = Field(
        None,
        max_length=40,
        pattern=r"^[0-9a-f]{40}$",
        description="commit of the syzkaller binaries that run it; null: the worker's own",
    )

    @model_validator(mode="after")
    def _is_well_formed(self) -> "Reproducer":
        if self.kind == "syz":
            syz_program.check(self.text)
        elif self.syzkaller is not None:
            raise ValueError("`syzkaller` goes with the kind `syz`")
        return self
