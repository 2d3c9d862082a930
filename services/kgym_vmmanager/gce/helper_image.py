"""The helper image: the one disk that all VMs in the cloud boot, whatever kernel they try.

Its kernel is Debian's for clouds, whose drivers know the service's machines and which can start
another kernel (`kexec_file_load`); one of our own would have to be built for that, and kept up to
date. It is fetched by apt, which checks its signature, as is GRUB; the host's own packages stay as
they are. Nothing needs root: the file system is filled while it is made, and GRUB's two parts are
put where the BIOS looks.
"""

import asyncio
import gzip
import hashlib
import os
import struct
import tarfile
from pathlib import Path

from kgym.errors import InfrastructureError
from kgym.host import proc
from kgym.host.folder_cache import FolderCache
from kgym_vmmanager.guest import cpio, guest_image

DISK = "disk.raw"
PACKED = "image.tar.gz"
GIB = 1 << 30
_INSIDE = Path(__file__).parent / "helper"
_FIRST_SECTOR = 2048
_SECTOR = 512
_ROOM = 48 << 20
"""Bytes of the file system."""
_SECONDS = 300.0
_MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci"),
    *("failover", "net_failover", "virtio_net", "gve"),
)
"""In the order in which they need each other."""
_GRUB = """\
linux (hd0,msdos1)/kernel console=ttyS0 quiet net.ifnames=0 no_timer_check panic=10
initrd (hd0,msdos1)/initrd
boot
"""
_GRUB_MODULES = ("biosdisk", "part_msdos", "ext2", "linux")


async def helper_image(cache: Path) -> tuple[str, Path]:
    """Return the image's name, and the folder in the cache that holds it as DISK and as PACKED."""
    package = await _kernel_package()
    sources = [Path(__file__), guest_image.network(), *sorted(_INSIDE.iterdir())]
    whole = hashlib.sha256(package.encode())
    for path in [*sources, Path(proc.require("busybox"))]:
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    name = f"kgym-helper-{whole.hexdigest()[:16]}"

    async def make(folder: Path) -> None:
        await _make(folder, package)

    folder, _ = await FolderCache(cache / "helper").get(name, make)
    return name, folder


async def _kernel_package() -> str:
    """Return the newest of Debian's kernels for clouds: `PACKAGE=VERSION`."""
    argv = ["apt-cache", "depends", "--important", "linux-image-cloud-amd64"]
    said = (await proc.run(argv, timeout=_SECONDS, check=False)).text
    names = [line.partition("Depends: ")[2] for line in said.splitlines() if "Depends: " in line]
    if not names:
        raise InfrastructureError(
            "no_helper_kernel",
            "apt knows no linux-image-cloud-amd64, which the helper image is made of: make the"
            " image on a Debian host (`apt-get update` first), and name it by --gce-image",
        )
    shown = (await proc.run(["apt-cache", "show", names[0]], timeout=_SECONDS)).text
    versions = [line[9:] for line in shown.splitlines() if line.startswith("Version: ")]
    return f"{names[0]}={versions[0]}"


async def _make(folder: Path, package: str) -> None:
    parts = folder / "parts"
    parts.mkdir()
    await _unpack(parts, [package, "grub-pc-bin", "grub-common"])
    content = parts / "content"
    content.mkdir()
    (kernel,) = (parts / "boot").glob("vmlinuz-*")
    kernel.rename(content / "kernel")
    start = parts / "start"
    flags = ("-static", "-O2", "-s", "-Wall", "-Wextra", "-Werror")
    await proc.run(["gcc", *flags, "-o", start, _INSIDE / "start.c"], timeout=_SECONDS)
    archive = await asyncio.to_thread(_initrd, parts, start)
    (content / "initrd").write_bytes(archive)
    disk = folder / DISK
    with disk.open("wb") as file:
        file.truncate(GIB)
    argv: list[str | Path] = [
        *("mke2fs", "-q", "-F", "-t", "ext2", "-d", content),
        *("-E", f"offset={_FIRST_SECTOR * _SECTOR}", disk, f"{_ROOM >> 10}k"),
    ]
    await proc.run(argv, timeout=_SECONDS)
    await _make_bootable(parts, disk)
    await asyncio.to_thread(_pack, disk, folder / PACKED)
    await proc.run(["rm", "-r", parts], timeout=_SECONDS)


async def _unpack(parts: Path, packages: list[str]) -> None:
    """Fetch Debian packages into a folder, and unpack them there."""
    argv = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *packages]
    await proc.run(argv, cwd=parts, timeout=_SECONDS)
    for package in sorted(parts.glob("*.deb")):  # noqa: ASYNC240 - a few
        await proc.run(["dpkg-deb", "-x", package, parts], timeout=_SECONDS)
        package.unlink()


def _initrd(parts: Path, start: Path) -> bytes:
    entries = [
        *(cpio.folder(name) for name in ("bin", "dev", "modules")),
        cpio.character_device("dev/console", 5, 1),
        cpio.file("bin/busybox", Path(proc.require("busybox")).read_bytes(), 0o755),
        cpio.file("init", (_INSIDE / "init").read_bytes(), 0o755),
        cpio.file("network", guest_image.network().read_bytes(), 0o755),
        cpio.file("start", start.read_bytes(), 0o755),
        cpio.file("modules/order", "".join(f"{name}.ko\n" for name in _MODULES).encode()),
    ]
    for name in _MODULES:
        found = next((parts / "lib/modules").rglob(f"{name}.ko"), None)
        if found is None:
            message = f"Debian's kernel has no module {name} where it was"
            raise InfrastructureError("no_helper_kernel", message)
        entries.append(cpio.file(f"modules/{name}.ko", found.read_bytes()))
    return gzip.compress(cpio.archive(entries), 6, mtime=0)


async def _make_bootable(parts: Path, disk: Path) -> None:
    """Put GRUB before the one partition: its first sector, and what that loads, right behind it."""
    modules = parts / "usr/lib/grub/i386-pc"
    (parts / "grub.cfg").write_text(_GRUB)
    core = parts / "core.img"
    argv: list[str | Path] = [
        *(parts / "usr/bin/grub-mkimage", "-d", modules, "-O", "i386-pc", "-o", core),
        *("-p", "/", "-c", parts / "grub.cfg", *_GRUB_MODULES),
    ]
    await proc.run(argv, timeout=_SECONDS)
    loaded = core.read_bytes()
    if len(loaded) > (_FIRST_SECTOR - 1) * _SECTOR:
        raise InfrastructureError("no_helper_kernel", "GRUB is larger than the room before disks")
    first = bytearray((modules / "boot.img").read_bytes())
    partition = struct.pack(
        "<B3sB3sII", 0x80, b"\0\2\0", 0x83, b"\xff\xff\xff", _FIRST_SECTOR, _ROOM // _SECTOR
    )
    first[446:] = partition + bytes(48) + b"\x55\xaa"
    with disk.open("r+b") as file:
        file.write(first)
        file.write(loaded)


def _pack(disk: Path, packed: Path) -> None:
    """Pack the disk as the service wants images: one `disk.raw`, in a tar of GNU's older form."""
    with tarfile.open(packed, "w:gz", compresslevel=1, format=tarfile.GNU_FORMAT) as archive:
        about = tarfile.TarInfo(DISK)
        about.size = os.stat(disk).st_size
        with disk.open("rb") as file:
            archive.addfile(about, file)
