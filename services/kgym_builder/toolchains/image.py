"""A toolchain image: compilers of a Debian suite, with all other programs of a kernel's build.

apt downloads and verifies the packages; they are unpacked, not installed. No maintainer script
runs, so any user can make an image in any container, without root or subordinate ids; the few
links that scripts would make are made here. Everything is below usr/ (merged), which works for all
suites.

In storage, an image is in `toolchains/RECIPE/`, in a folder named by its SHA-256. `about.json`
beside it names that folder and is stored last, so an image is whole or absent. The recipe names the
suite, the packages and how they are packed; their versions are the identity in `about.json`.
"""

import asyncio
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kgym.api.steps import Sha256, Strict, compilers
from kgym.api.steps.compilers import ImageCompiler
from kgym.errors import InfrastructureError
from kgym.host import proc, sealed_image
from kgym.host.sandbox import NOBODY, Sandbox
from kgym.transport.artifact_storage import ArtifactMissing, Storage, sha256_of
from kgym.worker import memo
from kgym.worker.context import StepContext
from kgym_builder.toolchains.archives import SETTING

# Version of an image's content; part of its recipe.
LAYOUT = 1
PREFIX = "toolchains"
IMAGE = "root.squashfs"
ABOUT = "about.json"
# Time for about 300 MB of downloads.
MAKE_SECONDS = 1800.0
PACK_SECONDS = 600.0
# Programs that make images.
PROGRAMS = ("mmdebstrap", "apt-get", "mksquashfs")
# Links that make packages unpack into usr/, as on a host with a merged /usr.
_MERGE = """
for name in bin sbin lib lib32 lib64 libx32; do
    mkdir -p "$1/usr/$name" && ln -s "usr/$name" "$1/$name" || exit 1
done
"""
_NOTE = 'ls "$1/var/cache/apt/archives" >"$1/packages"'
# Links that the packages' scripts would have made.
_LINKS = (
    *(("awk", "mawk"), ("lzma", "xz"), ("unlzma", "xz"), ("lzcat", "xz")),
    *(("which", "which.debianutils"), ("sh", "dash")),
)
_LEFT_OUT = (
    *("boot", "dev", "home", "proc", "run", "sys", "tmp", "var", "packages"),
    *(f"usr/share/{name}" for name in ("doc", "info", "locale", "man", "zoneinfo")),
)
_SQUASHFS = (
    *("-comp", "zstd", "-Xcompression-level", "6", "-b", "256K"),
    *("-no-xattrs", "-no-exports", "-no-progress", "-quiet", "-noappend"),
    *("-force-uid", str(NOBODY), "-force-gid", str(NOBODY)),
)
_SHOWN = 6


class About(Strict):
    """Metadata of an image: `about.json`, written when its other files are complete."""

    suite: str
    packages: list[str]
    """File names with versions, as downloaded."""
    compilers: dict[str, str]
    """The version line of each compiler."""
    image_sha256: Sha256
    image_bytes: int

    @property
    def identity(self) -> str:
        """Hash that tells images with other versions of the same packages apart."""
        return memo.digest(self.suite, self.packages)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The content of an image: all GCCs of a suite, or one Clang.

    All GCCs of bookworm take 135 MB, each Clang 215 MB; a single image would have 1 GB.
    """

    suite: str
    compilers: tuple[str, ...]

    @classmethod
    def of(cls, wanted: ImageCompiler) -> "Recipe":
        """Return the recipe of the image that has this compiler."""
        if wanted.name.startswith("clang-"):
            return cls(wanted.suite, (wanted.name,))
        named = (compiler.name for compiler in compilers.images() if compiler.suite == wanted.suite)
        return cls(wanted.suite, tuple(name for name in named if name.startswith("gcc-")))

    @property
    def packages(self) -> list[str]:
        """Return the names of its packages; apt adds their dependencies."""
        return sorted({*compilers.table().packages, *self._of_compilers()})

    @property
    def name(self) -> str:
        """Return the image's name in storage."""
        digest = memo.digest(LAYOUT, self.suite, self.packages, _LINKS, _LEFT_OUT)
        return f"{self.suite}-{digest[:32]}"

    def _of_compilers(self) -> Iterator[str]:
        for name in self.compilers:
            yield name
            family, _, number = name.partition("-")
            if family == "clang":
                yield from (f"lld-{number}", f"llvm-{number}")


async def make(recipe: Recipe, source: str, folder: Path, work: Path) -> None:
    """Make the image from a suite's archive; write its files to `folder`.

    Raises InfrastructureError `no_toolchain_image` with apt's messages.
    """
    for program in PROGRAMS:
        proc.require(program)
    root = work / f"root-{uuid.uuid4().hex}"
    await _bootstrap(recipe, source, root)
    names = (root / "packages").read_text().split()
    _link(root)
    versions = {name: await _version(root, name) for name in recipe.compilers}
    image = folder / IMAGE
    left_out = ("-e", *_LEFT_OUT)
    await proc.run(["mksquashfs", root, image, *_SQUASHFS, *left_out], timeout=PACK_SECONDS)
    about = About(
        suite=recipe.suite,
        packages=sorted(name.removesuffix(".deb") for name in names if name.endswith(".deb")),
        compilers=versions,
        image_sha256=await asyncio.to_thread(sha256_of, image),
        image_bytes=image.stat().st_size,
    )
    (folder / ABOUT).write_text(about.model_dump_json())


async def store(run: StepContext, recipe: Recipe, folder: Path) -> None:
    """Store the files of a new image."""
    about = read_about(folder)
    await run.storage.put(f"{_prefix(recipe, about)}/{IMAGE}", folder / IMAGE)
    await run.storage.put(f"{PREFIX}/{recipe.name}/{ABOUT}", folder / ABOUT)


async def find(run: StepContext, recipe: Recipe) -> About | None:
    """Return the metadata of the stored image, or None if there is none."""
    path = run.folder / f"{ABOUT}-{uuid.uuid4().hex}"
    try:
        await run.storage.get(f"{PREFIX}/{recipe.name}/{ABOUT}", path)
        return About.model_validate_json(path.read_bytes())
    except (ArtifactMissing, ValidationError):
        return None
    finally:
        path.unlink(missing_ok=True)


async def is_stored(storage: Storage, name: str) -> bool:
    """Return whether the image of this recipe is stored whole; a killed worker leaves a part."""
    try:
        async for _ in storage.read(f"{PREFIX}/{name}/{ABOUT}", 0, 1):
            pass
    except ArtifactMissing:
        return False
    return True


async def fetch(run: StepContext, recipe: Recipe, about: About, folder: Path) -> bool:
    """Fetch the image's files. If they are damaged, remove them from storage and return False."""
    try:
        await run.storage.get(f"{_prefix(recipe, about)}/{IMAGE}", folder / IMAGE)
    except ArtifactMissing:
        return False
    if await asyncio.to_thread(sha256_of, folder / IMAGE) != about.image_sha256:
        await run.storage.remove(f"{PREFIX}/{recipe.name}")
        (folder / IMAGE).unlink()
        return False
    (folder / ABOUT).write_text(about.model_dump_json())
    # Stored again, so that retention sees that the image is in use.
    await run.storage.put(f"{PREFIX}/{recipe.name}/{ABOUT}", folder / ABOUT)
    return True


def read_about(folder: Path) -> About:
    """Read the metadata of the image in this folder."""
    return About.model_validate_json((folder / ABOUT).read_bytes())


def check(folder: Path, thorough: bool) -> bool:
    """Return whether the image in this folder is the one that was packed (`sealed_image`)."""
    try:
        sha256 = read_about(folder).image_sha256
        return sealed_image.matches(folder / IMAGE, sha256, thorough=thorough)
    except (OSError, ValueError):
        return False


def _link(root: Path) -> None:
    """Add links that packages' scripts would have made, and plain names for LLVM's programs."""
    programs = root / "usr/bin"
    llvm = (
        (path.name, f"../lib/{path.parent.parent.name}/bin/{path.name}")
        for path in sorted(root.glob("usr/lib/llvm-*/bin/*"))
    )
    for name, target in (*_LINKS, *llvm):
        link = programs / name
        if not link.is_symlink() and not link.exists() and (programs / target).exists():
            link.symlink_to(target)


async def _bootstrap(recipe: Recipe, source: str, root: Path) -> None:
    options = ["--mode=chrootless", "--variant=extract", "--format=directory"]
    hooks = [f"--setup-hook={_MERGE}", f"--extract-hook={_NOTE}"]
    # The indexes of archived suites have passed their expiry dates.
    apt = ['APT::Sandbox::User "root"', 'Acquire::Check-Valid-Until "false"', *await _proxies()]
    settings = [f"--aptopt={setting}" for setting in apt]
    include = f"--include={','.join(recipe.packages)}"
    asked = [include, recipe.suite, str(root), source]
    argv = ["mmdebstrap", *options, *hooks, *settings, *asked]
    try:
        done = await proc.run(argv, timeout=MAKE_SECONDS, check=False)
    except proc.ProgramTimedOut as error:
        raise _not_made(recipe, source, f"no end after {MAKE_SECONDS:g} s") from error
    if done.returncode == 0:
        return
    if "No space left on device" in done.text:
        raise InfrastructureError(
            "disk_full", f"the disk has no room for the toolchain image of {recipe.suite}"
        )
    lines = [line.strip() for line in done.text.splitlines()]
    errors = [line for line in lines if re.match(r"(E|Err(:\d+)?)[: ]", line)] or lines[-_SHOWN:]
    raise _not_made(recipe, source, " / ".join(errors[:_SHOWN])[:2000])


async def _proxies() -> list[str]:
    """Return the proxy settings of this host's apt: mmdebstrap does not read them itself."""
    names = ("Acquire::http::Proxy", "Acquire::https::Proxy")
    argv = ["apt-config", "dump", "--format", '%F "%v";%n', *names]
    dumped = await proc.run(argv, timeout=30, check=False)
    lines = (line.rstrip(";") for line in dumped.text.splitlines())
    return [line for line in lines if re.fullmatch(r'Acquire::https?::Proxy "[^"\s]{1,500}"', line)]


def _not_made(recipe: Recipe, source: str, why: str) -> InfrastructureError:
    address = re.search(r"(\w+://)(?:[^/@\s]*@)?(\S+)", source)  # without a password
    archive = "".join(address.groups()) if address else source
    return InfrastructureError(
        "no_toolchain_image",
        f"the toolchain image of {recipe.suite} ({', '.join(recipe.compilers)}) cannot be made from"
        f" {archive}: {why}; if that archive no longer has it, {SETTING}={recipe.suite}=http://…"
        " on the worker names another",
    )


async def _version(root: Path, name: str) -> str:
    done = await Sandbox(root=root).run([name, "--version"], timeout=60)
    return done.text.splitlines()[0][:1000]


def _prefix(recipe: Recipe, about: About) -> str:
    return f"{PREFIX}/{recipe.name}/{about.image_sha256[:32]}"
