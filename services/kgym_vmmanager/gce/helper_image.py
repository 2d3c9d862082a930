"""The helper image: the one disk that VMs in the cloud boot, whatever kernel they test.

It fetches the kernel under test and starts it: an image for each kernel would take minutes of
`images.insert`, which is throttled. The helper's own kernel is Debian's for clouds: it has the
drivers and `kexec_file_load`, apt checks its signature, and nobody has to build it or keep it up to
date.
"""

import asyncio
import gzip
import hashlib
from pathlib import Path

from kgym.errors import InfrastructureError
from kgym.host import proc
from kgym.host.folder_cache import FolderCache
from kgym_vmmanager.gce import boot_disk
from kgym_vmmanager.guest import cpio, guest_image

_INSIDE = Path(__file__).parent / "helper"
# In dependency order.
_MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci"),
    *("failover", "net_failover", "virtio_net", "gve"),
)
_WORDS = "console=ttyS0 quiet net.ifnames=0 no_timer_check panic=10"


async def helper_image(cache: Path) -> tuple[str, Path]:
    """Return the image's name, and the folder in the cache that holds it (see `boot_disk.make`)."""
    package = await _kernel_package()
    sources = [Path(__file__), Path(boot_disk.__file__), guest_image.network()]
    whole = hashlib.sha256(package.encode())
    for path in [*sources, *sorted(_INSIDE.iterdir()), Path(proc.require("busybox"))]:
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    name = f"kgym-helper-{whole.hexdigest()[:16]}"

    async def make(folder: Path) -> None:
        await _make(cache, folder, package)

    folder, _ = await FolderCache(cache / "helper").get(name, make)
    return name, folder


async def _kernel_package() -> str:
    """Return the newest of Debian's kernels for clouds: `PACKAGE=VERSION`."""
    argv = ["apt-cache", "depends", "--important", "linux-image-cloud-amd64"]
    dependencies = (await proc.run(argv, timeout=boot_disk.SECONDS, check=False)).text
    names = [
        line.partition("Depends: ")[2] for line in dependencies.splitlines() if "Depends: " in line
    ]
    if not names:
        raise InfrastructureError(
            "no_helper_kernel",
            "apt knows no linux-image-cloud-amd64, which the helper image is made of: make the"
            " image on a Debian host (`apt-get update` first), and name it by --gce-image",
        )
    shown = (await proc.run(["apt-cache", "show", names[0]], timeout=boot_disk.SECONDS)).text
    versions = [line[9:] for line in shown.splitlines() if line.startswith("Version: ")]
    return f"{names[0]}={versions[0]}"


async def _make(cache: Path, folder: Path, package: str) -> None:
    parts = folder / "parts"
    parts.mkdir()
    await boot_disk.unpack(parts, package)
    (kernel,) = (parts / "boot").glob("vmlinuz-*")
    start, initrd = parts / "start", parts / "initrd"
    flags = ("-static", "-O2", "-s", "-Wall", "-Wextra", "-Werror")
    argv: list[str | Path] = ["gcc", *flags, "-o", start, _INSIDE / "start.c"]
    await proc.run(argv, timeout=boot_disk.SECONDS)
    initrd.write_bytes(await asyncio.to_thread(_initrd, parts, start))
    await boot_disk.make(cache, folder, kernel, initrd, _WORDS)
    await proc.run(["rm", "-r", parts], timeout=boot_disk.SECONDS)


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
        module = next((parts / "lib/modules").rglob(f"{name}.ko"), None)
        if module is None:
            message = f"Debian's kernel has no module {name} where it was"
            raise InfrastructureError("no_helper_kernel", message)
        entries.append(cpio.file(f"modules/{name}.ko", module.read_bytes()))
    return gzip.compress(cpio.archive(entries), 6, mtime=0)
