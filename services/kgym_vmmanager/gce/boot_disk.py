"""A disk that boots one kernel in the cloud's machines, and the archive for an image of it.

Nothing needs root or further packages on the host: mke2fs fills the file system, and GRUB's two
parts, from Debian's packages in the cache, are written where the BIOS looks. The kernel needs no
driver for the disk, as GRUB reads it through the BIOS.
"""

import asyncio
import os
import shutil
import struct
from pathlib import Path

from kgym.errors import InfrastructureError, UserError
from kgym.host import proc
from kgym.host.folder_cache import FolderCache

DISK = "disk.raw"
PACKED = "image.tar.gz"
GIB = 1 << 30
# GRUB prints this on the serial port before it starts the kernel: a second one means a reset.
BEGINS = "kgym: machine begins"
# Limit of each program that helps to make a disk.
SECONDS = 300.0
_MIB = 1 << 20
_FIRST_SECTOR = 2048
_SECTOR = 512
# Bytes of the file system besides its two files and the fiftieth of them that metadata takes.
_SPARE = 8 * _MIB
# GRUB, not syslinux: that installs itself into a FAT with tools which a host would have to have.
_GRUB = """\
serial --unit=0 --speed=115200
terminal_output serial
echo '{begins}'
linux (hd0,msdos1)/kernel {words}
initrd (hd0,msdos1)/initrd
boot
"""
_GRUB_MODULES = ("biosdisk", "part_msdos", "ext2", "linux", "serial", "terminal", "echo")
# The last is a library of grub-common's tools, which not every host has.
_GRUB_PACKAGES = ("grub-pc-bin", "grub-common", "libdevmapper1.02.1")


async def make(cache: Path, folder: Path, kernel: Path, initrd: Path, words: str) -> None:
    """Make the disk in the folder, as DISK and as PACKED; `words` are the kernel's command line.

    Raises UserError `no_cloud_words` for words that GRUB would change.
    """
    start = _start(words)
    grub = await _grub(cache)
    disk, content = folder / DISK, folder / "content"
    content.mkdir()
    for source, inside in ((kernel, "kernel"), (initrd, "initrd")):
        await asyncio.to_thread(shutil.copyfile, source, content / inside)
    held = sum(path.stat().st_size for path in content.iterdir())
    room = -(-(held + held // 50 + _SPARE) // _MIB) * _MIB
    with disk.open("wb") as file:
        file.truncate(-(-(_FIRST_SECTOR * _SECTOR + room) // GIB) * GIB)
    argv: list[str | Path] = [
        *("mke2fs", "-q", "-F", "-t", "ext2", "-m", "0", "-d", content),
        *("-E", f"offset={_FIRST_SECTOR * _SECTOR}", disk, f"{room >> 10}k"),
    ]
    await proc.run(argv, timeout=SECONDS)
    await _make_bootable(grub, folder, disk, start, room)
    shutil.rmtree(content)
    # The service wants the disk alone in a tar of the oldgnu format; --sparse leaves out its holes.
    argv = ["tar", "--format=oldgnu", "--sparse", "-C", folder, "-I", "gzip -1"]
    await proc.run([*argv, "-cf", folder / PACKED, DISK], timeout=SECONDS)


async def unpack(folder: Path, *packages: str) -> None:
    """Fetch Debian packages by apt, which checks signatures, and unpack them in the folder."""
    argv = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *packages]
    await proc.run(argv, cwd=folder, timeout=SECONDS)
    for package in sorted(folder.glob("*.deb")):  # noqa: ASYNC240 - a few
        await proc.run(["dpkg-deb", "-x", package, folder], timeout=SECONDS)
        package.unlink()


def _start(words: str) -> str:
    """Return GRUB's script; raises UserError for words that GRUB would change."""
    if changed := sorted(set(words) & set("'\"\\")):
        message = (
            f"the kernel's command line has {' '.join(changed)}, which the boot loader of an image"
            " would change: leave them out, or let the helper image start the kernel"
        )
        raise UserError("no_cloud_words", message)
    quoted = " ".join(f"'{word}'" for word in words.split())
    return _GRUB.format(begins=BEGINS, words=quoted)


async def _grub(cache: Path) -> Path:
    """Return the folder in the cache with GRUB's packages."""
    shown = await proc.run(
        ["apt-cache", "show", "--no-all-versions", *_GRUB_PACKAGES], timeout=SECONDS, check=False
    )
    versions = [line[9:] for line in shown.text.splitlines() if line.startswith("Version: ")]
    if len(versions) != len(_GRUB_PACKAGES):
        message = f"apt does not know all of {', '.join(_GRUB_PACKAGES)} (`apt-get update` first)"
        raise InfrastructureError("no_boot_loader", message)
    named = [f"{name}={version}" for name, version in zip(_GRUB_PACKAGES, versions, strict=True)]

    async def fetch(folder: Path) -> None:
        await unpack(folder, *named)

    folder, _ = await FolderCache(cache / "grub").get("_".join(versions), fetch)
    return folder


async def _make_bootable(grub: Path, folder: Path, disk: Path, start: str, room: int) -> None:
    """Write GRUB before the one partition: the boot sector, and its core right behind it."""
    modules = grub / "usr/lib/grub/i386-pc"
    config, core = folder / "grub.cfg", folder / "core.img"
    config.write_text(start)
    argv: list[str | Path] = [
        *(grub / "usr/bin/grub-mkimage", "-d", modules, "-O", "i386-pc", "-o", core),
        *("-p", "/", "-c", config, *_GRUB_MODULES),
    ]
    libraries = str(grub / "lib/x86_64-linux-gnu")
    env = {**proc.environment(), "LD_LIBRARY_PATH": libraries}
    await proc.run(argv, timeout=SECONDS, env=env)
    loaded = core.read_bytes()
    if len(loaded) > (_FIRST_SECTOR - 1) * _SECTOR:
        raise InfrastructureError("no_boot_loader", "GRUB is larger than the room before disks")
    first = bytearray((modules / "boot.img").read_bytes())
    partition = struct.pack(
        "<B3sB3sII", 0x80, b"\0\2\0", 0x83, b"\xff\xff\xff", _FIRST_SECTOR, room // _SECTOR
    )
    first[446:] = partition + bytes(48) + b"\x55\xaa"
    with disk.open("r+b") as file:
        file.write(first)
        file.write(loaded)
    for made in (config, core):
        os.unlink(made)
