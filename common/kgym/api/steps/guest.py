"""What a guest runs: its root file system, and the program that shows a bug.

The root is an initramfs, a disk that is made here, or a disk of one's own.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api import syz_program
from kgym.api.steps.base import Line, Sha256, StepRef, Strict

# What a kernel has to have built in to start from a root disk.
DISK_SYMBOLS = ("BLK_DEV_INITRD", "DEVTMPFS", "EXT4_FS", "VIRTIO_BLK", "VIRTIO_PCI")


class RootImage(Strict):
    """A root disk of one's own: an ext4 file system without partitions.

    It needs /bin/sh, and room for what runs in it: our programs, the reproducer's, the kernel's
    modules, and 8 MiB that stay free. Each instance writes to an overlay that is
    thrown away. The SSH server and what starts it are ours, so the image needs none.
    """

    url: str | None = Field(
        None,
        max_length=2000,
        description="http(s) URL; or an absolute path or file URL on the VM manager's host, below"
        " a folder that its operator allows",
    )
    sha256: Sha256 | None = Field(None, description="of the file at `url`")
    step: StepRef | None = Field(
        None, description="instead of `url`: a reproduce step, of which the root disk is taken"
    )
    format: Literal["raw", "qcow2"] | None = Field(
        None,
        description="of the file at `url`; it is never guessed. A qcow2 image must stand alone:"
        " without a backing file",
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
    """Return whether guests start from a disk."""
    return root != "initramfs"


class UsedRoot(Strict):
    """What the guests of a step had as their root file system."""

    kind: Literal["initramfs", "disk", "image"] = "initramfs"
    format: Literal["raw", "qcow2"] | None = Field(None, description="of the disk")
    sha256: Sha256 | None = Field(None, description="of the disk, unpacked")
    system: Line = Field("", description="what is on it, where it was made here")


class Reproducer(Strict):
    """A program that makes the kernel crash: C, or syzkaller's with its options in the header."""

    kind: Literal["c", "syz"] = "c"
    text: str = Field(min_length=1, max_length=1 << 20, description="the source")
    syzkaller: str | None = Field(
        None,
        max_length=40,
        pattern=r"^[0-9a-f]{40}$",
        description="commit of the syzkaller whose binaries run it; null: the worker's own",
    )

    @model_validator(mode="after")
    def _is_well_formed(self) -> "Reproducer":
        if self.kind == "syz":
            syz_program.check(self.text)
        elif self.syzkaller is not None:
            raise ValueError("`syzkaller` goes with the kind `syz`")
        return self
