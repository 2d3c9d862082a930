"""The guest's root file system: an initramfs of Debian's busybox, dropbear and ip, and our runner.

It is built once for each set of its parts and cached. The capture kernel has an image of its own,
with makedumpfile if the host has that.
"""

import asyncio
import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from kgym.errors import InfrastructureError
from kgym.host import proc
from kgym.host.folder_cache import FolderCache
from kgym_vmmanager.guest import cpio
from kgym_vmmanager.guest.paths import CAPTURE, MAKEDUMPFILE, NETWORK, RUNNER, TRACER, VARIER

# Files of this host, by their paths in the guest.
Parts = Mapping[str, Path]
# The guest prints this on its console just before it starts its SSH server.
READY = b"kgym: guest ready"
# It prints this and a reason instead if it cannot start from its root disk.
REFUSED = b"kgym: root disk refused: "


# The host's own packages, which `./run` has installed. Their versions are part of the identity.
_PACKAGES = ("busybox-static", "dash", "dropbear-bin", "iproute2")
_INSIDE = Path(__file__).parent / "inside"
_LOADER = "/lib64/ld-linux-x86-64.so.2"
_FOLDERS = ("bin", "dev", "etc", "kgym", "lib", "lib64", "new", "root")
_ETC = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/ash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/shells": "/bin/ash\n",
    "etc/hosts": "127.0.0.1 localhost kgym\n::1 localhost\n",
}
_TOOL_SECONDS = 60.0


class GuestImage:
    """A guest image in the cache, with the keys that open it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The cpio archive that the kernel unpacks as its root file system.
        self.initrd = folder / "initrd.cpio"
        # The smoke test, a static program.
        self.smoke = folder / "smoke"
        # The cpio archive for the capture kernel, and its loader, a static program.
        self.capture, self.kexec = folder / "capture.cpio", folder / "kexec"
        # The private key (OpenSSH, ed25519) that the guest's root accepts.
        self.client_key = folder / "client_key"

    @property
    def host_key(self) -> str:
        """The guest's public key: `ssh-ed25519 BASE64`."""
        return (self.folder / "host_key.pub").read_text().strip()


async def guest_image(cache: Path, held: ExitStack | None = None) -> GuestImage:
    """Return the guest image; build it if the cache has none of these parts.

    The cache keeps it until `held` is closed. Raises InfrastructureError if a package or tool is
    missing.
    """
    busybox = {"bin/busybox": Path(proc.require("busybox"))}
    parts = busybox | await _with_libraries(Path(proc.require("dropbear")))
    # Programs that reproducers call by `system`, e.g. to set up network devices. Busybox does not
    # do: its shell prefers its own applets to any program, and its `ip` cannot add neighbours.
    shell, ip = Path(proc.require("dash")), Path(proc.require("ip"))
    called = await _with_libraries(shell, "dash") | await _with_libraries(ip, "iproute2")
    makedumpfile = shutil.which(MAKEDUMPFILE)
    captures = await _with_libraries(Path(makedumpfile)) if makedumpfile else {}
    identity = await _identity({**parts, **called, **captures})
    make = partial(_make, parts=parts, called=called, captures=captures)
    folder, _ = await FolderCache(cache / "guest").get(identity, make, held=held)
    return GuestImage(folder)


def network() -> Path:
    """Return the script that configures a guest's network."""
    return _INSIDE / "network"


async def _with_libraries(program: Path, name: str | None = None) -> dict[str, Path]:
    parts = {f"bin/{name or program.name}": program}
    for library in _libraries((await proc.run(["ldd", program], timeout=_TOOL_SECONDS)).text):
        loader = str(library) == _LOADER
        parts[_LOADER.lstrip("/") if loader else f"lib/{library.name}"] = library
    return parts


def _libraries(text: str) -> Iterator[Path]:
    """Yield the files in the output of ldd: `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`."""
    if "not found" in text:
        raise InfrastructureError("missing_library", f"a program lacks a library: {text.strip()}")
    for match in re.finditer(r"(?:^|\s)(/\S+) \(0x", text):
        yield Path(match[1])


async def _identity(parts: Parts) -> str:
    query = ["dpkg-query", "--show", "--showformat=${Package}=${Version}\n", *_PACKAGES]
    versions = await proc.run(query, timeout=_TOOL_SECONDS, check=False)
    if versions.returncode != 0:
        needed = " and ".join(_PACKAGES)
        raise InfrastructureError("missing_tool", f"the Debian packages {needed} are needed")
    sources = {path.name: path for path in sorted(_INSIDE.iterdir())}
    sources["guest_image.py"] = Path(__file__)
    return await asyncio.to_thread(_digest, versions.output, {**parts, **sources})


def _digest(versions: bytes, files: Mapping[str, Path]) -> str:
    whole = hashlib.sha256(versions)
    for name, path in sorted(files.items()):
        whole.update(f"{name}={hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


async def _make(folder: Path, parts: Parts, called: Parts, captures: Parts) -> None:
    inside = {RUNNER: folder / "run", TRACER: folder / "trace", VARIER: folder / "vary"}
    image = GuestImage(folder)
    flags = ("-static", "-pthread", "-O2", "-s", "-Wall", "-Wextra", "-Werror")
    for program in (*inside.values(), image.smoke, image.kexec):
        source = _INSIDE / f"{program.name}.c"
        await proc.run(["gcc", *flags, "-o", program, source], timeout=_TOOL_SECONDS)
    host = await _key(folder / "host_key")
    client = await _key(folder / "dropbear_client_key")
    (folder / "host_key.pub").write_text(host + "\n")
    convert = ["dropbearconvert", "dropbear", "openssh"]
    await proc.run(
        [*convert, folder / "dropbear_client_key", image.client_key], timeout=_TOOL_SECONDS
    )
    common = [
        *(cpio.folder(name, 0o700 if name == "root" else 0o755) for name in _FOLDERS),
        cpio.character_device("dev/console", 5, 1),
        *_programs(parts),
        *(cpio.file(path, text.encode()) for path, text in _ETC.items()),
        cpio.file("etc/host_key", (folder / "host_key").read_bytes(), 0o600),
        *_programs({NETWORK: network()}),
        cpio.folder("root/.ssh", 0o700),
        cpio.file("root/.ssh/authorized_keys", f"{client}\n".encode(), 0o600),
    ]
    own = [
        *_programs({path: file for path, file in called.items() if path not in parts}),
        *_programs({"init": _INSIDE / "init", **inside}),
    ]
    # Uncompressed, so that it boots on kernels without any decompressor.
    image.initrd.write_bytes(cpio.archive([*common, *own]))
    capture = _programs({CAPTURE: _INSIDE / "capture", **captures})
    image.capture.write_bytes(cpio.archive([*common, *capture]))
    for leftover in (*inside.values(), folder / "host_key", folder / "dropbear_client_key"):
        leftover.unlink()


def _programs(parts: Parts) -> Iterator[cpio.CpioFile]:
    return (
        cpio.file(path.lstrip("/"), source.read_bytes(), 0o755) for path, source in parts.items()
    )


async def _key(path: Path) -> str:
    """Make a key in dropbear's format; return its public part, `ssh-ed25519 BASE64`."""
    done = await proc.run(["dropbearkey", "-t", "ed25519", "-f", path], timeout=_TOOL_SECONDS)
    match = re.search(r"^ssh-ed25519 \S+", done.text, re.MULTILINE)
    if match is None:
        raise InfrastructureError("no_key", f"dropbearkey printed no public key: {done.text}")
    return match[0]
