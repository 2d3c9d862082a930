"""An archive of Debian packages as small as can be: of each suite, what an image asks for.

The packages hold nothing, but for busybox, and for compilers that say who they are.
"""

import hashlib
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

from kgym.api.steps import compilers
from kgym_builder.toolchains.image import Recipe

# What the sandbox starts programs by; of the limit, nothing here is near.
_PRLIMIT = """#include <unistd.h>
int main(int n, char **v) { while (**++v == 45); return execvp(*v, v); }
"""


class SmallArchive:
    """An archive in `folder`; `line` is how the setting names it."""

    def __init__(self, folder: Path, suite: str = "bullseye") -> None:
        self.folder = folder
        self.suite = suite
        self.line = f"{suite}=[trusted=yes] copy://{folder}"
        self._programs = _programs(folder / "made")
        self.publish()

    def publish(self, release: str = "1") -> None:
        """Write the packages with this version, and their index."""
        known = [compiler for compiler in compilers.images() if compiler.suite == self.suite]
        names = sorted({name for each in known for name in Recipe.of(each).packages})
        versions = dict(_versions(self.suite))
        index = ""
        for name in names:
            files = self._files(name, versions)
            deb = self.folder / f"pool/{name}_{release}_amd64.deb"
            deb.parent.mkdir(parents=True, exist_ok=True)
            about = f"Package: {name}\nVersion: {release}\nArchitecture: amd64\nMaintainer: kgym\n"
            about += "Description: for tests\n"
            deb.write_bytes(_deb(about, files))
            content = deb.read_bytes()
            index += f"{about}Filename: pool/{deb.name}\nSize: {len(content)}\n"
            index += f"SHA256: {hashlib.sha256(content).hexdigest()}\n\n"
        place = self.folder / f"dists/{self.suite}"
        packages = place / "main/binary-amd64/Packages"
        packages.parent.mkdir(parents=True, exist_ok=True)
        packages.write_text(index)
        digest = hashlib.sha256(index.encode()).hexdigest()
        (place / "Release").write_text(
            f"Suite: {self.suite}\nCodename: {self.suite}\nArchitectures: amd64\nComponents: main\n"
            f"SHA256:\n {digest} {len(index)} main/binary-amd64/Packages\n"
        )

    def _files(self, name: str, versions: dict[str, str]) -> dict[str, bytes]:
        if name == "coreutils":
            return self._programs
        if name in versions:
            packaged, version = f"Debian {versions[name]}-1", versions[name]
            version_line = f"{name} ({packaged}) {version}"
            if name.startswith("clang-"):
                version_line = f"Debian clang version {version} ({packaged})"
            return {f"usr/bin/{name}": f"#!/usr/bin/sh\necho '{version_line}'\n".encode()}
        return {}


def _versions(suite: str) -> list[tuple[str, str]]:
    of = compilers.table().suites[suite]
    return [(f"{family}-{v.partition('.')[0]}", v) for family, v in of.compilers()]


def _programs(folder: Path) -> dict[str, bytes]:
    busybox = shutil.which("busybox")
    assert busybox is not None
    folder.mkdir(parents=True)
    (folder / "prlimit.c").write_text(_PRLIMIT)
    argv = ["gcc", "-static", "-o", str(folder / "prlimit"), str(folder / "prlimit.c")]
    subprocess.run(argv, check=True, timeout=60)
    files = {"usr/bin/sh": Path(busybox).read_bytes()}  # a shell with programs of its own
    return files | {"usr/bin/prlimit": (folder / "prlimit").read_bytes()}


def _deb(about: str, files: dict[str, bytes]) -> bytes:
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar({"control": about.encode()}),
        "data.tar.gz": _tar(files),
    }
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n"
        parts += [head.encode(), content, b"\n" * (len(content) % 2)]
    return b"".join(parts)


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
