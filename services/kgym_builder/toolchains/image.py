"""A toolchain image: compilers of a Debian suite with all that a kernel's build runs, packed.

Its packages are downloaded and checked by apt, and unpacked: nothing of them runs, so any user
can make one, in any container. Everything is below usr/ (merged), as all suites can be used so.

In storage, an image lies in `toolchains/RECIPE/`, in a folder named by its SHA-256; beside it, and
stored last, `about.json`, which names it. So it is whole or absent. The recipe names suite,
packages and how they are packed; which versions they had is its identity, in `about.json`.
"""

import asyncio
import hashlib
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
from kgym.transport.artifact_storage import ArtifactMissing, Storage
from kgym.worker.context import StepContext
from kgym_builder import memo
from kgym_builder.toolchains.archives import SETTING

# Version of what an image holds; part of its recipe.
LAYOUT = 1
PREFIX = "toolchains"
IMAGE = "root.squashfs"
ABOUT = "about.json"
# For some 300 MB of downloads.
MAKE_SECONDS = 1800.0
PACK_SECONDS = 600.0
# By which images are made.
PROGRAMS = ("mmdebstrap", "apt-get", "mksquashfs")
# Packages are unpacked into usr/, whatever they say, as on a host with a merged /usr.
_MERGE = """
for name in bin sbin lib lib32 lib64 libx32; do
    mkdir -p "$1/usr/$name" && ln -s "usr/$name" "$1/$name" || exit 1
done
"""
_NOTE = 'ls "$1/var/cache/apt/archives" >"$1/packages"'
# What the packages' scripts would have linked.
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
    """What is known of an image: `about.json`, written when the rest of it is whole."""

    suite: str
    packages: list[str]
    """With their versions, as they were downloaded."""
    compilers: dict[str, str]
    """What each says of itself."""
    image_sha256: Sha256
    image_bytes: int

    @property
    def identity(self) -> str:
        """Tells images apart that are made of other versions of the same packages."""
        return memo.digest(self.suite, self.packages)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image is made of: all compilers of GCC that a suite has, or one of Clang."""

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
        """Return the names of its packages; those that they depend on come with them."""
        return sorted({*compilers.table().packages, *self._of_compilers()})

    @property
    def name(self) -> str:
        """Return what the image is kept under."""
        digest = memo.digest(LAYOUT, self.suite, self.packages, _LINKS, _LEFT_OUT)
        return f"{self.suite}-{digest[:32]}"

    def _of_compilers(self) -> Iterator[str]:
        for name in self.compilers:
            yield name
            family, _, number = name.partition("-")
            if family == "clang":
                yield from (f"lld-{number}", f"llvm-{number}")


async def make(recipe: Recipe, source: str, folder: Path, work: Path) -> None:
    """Make the image from a suite's archive; leave its files in `folder`.

    Raises InfrastructureError `no_toolchain_image` where that fails, with the words of apt.
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
        image_sha256=await asyncio.to_thread(_sha256, image),
        image_bytes=image.stat().st_size,
    )
    (folder / ABOUT).write_text(about.model_dump_json())


async def store(run: StepContext, recipe: Recipe, folder: Path) -> None:
    """Store the files of a new image."""
    about = read_about(folder)
    await run.storage.put(f"{_prefix(recipe, about)}/{IMAGE}", folder / IMAGE)
    await run.storage.put(f"{PREFIX}/{recipe.name}/{ABOUT}", folder / ABOUT)


async def find(run: StepContext, recipe: Recipe) -> About | None:
    """Return what is stored of an image, or None if there is none."""
    path = run.folder / f"{ABOUT}-{uuid.uuid4().hex}"
    try:
        await run.storage.get(f"{PREFIX}/{recipe.name}/{ABOUT}", path)
        return About.model_validate_json(path.read_bytes())
    except (ArtifactMissing, ValidationError):
        return None
    finally:
        path.unlink(missing_ok=True)


async def is_stored(storage: Storage, name: str) -> bool:
    """Return whether the image of this recipe is stored whole: who was killed leaves a part."""
    try:
        async for _ in storage.read(f"{PREFIX}/{name}/{ABOUT}", 0, 1):
            pass
    except ArtifactMissing:
        return False
    return True


async def fetch(run: StepContext, recipe: Recipe, about: About, folder: Path) -> bool:
    """Fetch the image's files; return False, and forget the stored ones, if they are damaged."""
    try:
        await run.storage.get(f"{_prefix(recipe, about)}/{IMAGE}", folder / IMAGE)
    except ArtifactMissing:
        return False
    if await asyncio.to_thread(_sha256, folder / IMAGE) != about.image_sha256:
        await run.storage.remove(f"{PREFIX}/{recipe.name}")
        (folder / IMAGE).unlink()
        return False
    (folder / ABOUT).write_text(about.model_dump_json())
    # Fetched: retention shall see that it is in use.
    await run.storage.put(f"{PREFIX}/{recipe.name}/{ABOUT}", folder / ABOUT)
    return True


def read_about(folder: Path) -> About:
    """Read what is known of the image in this folder."""
    return About.model_validate_json((folder / ABOUT).read_bytes())


def check(folder: Path, thorough: bool) -> bool:
    """Whether the image in this folder is the one that was packed (see `sealed_image`)."""
    try:
        sha256 = read_about(folder).image_sha256
        return sealed_image.matches(folder / IMAGE, sha256, thorough=thorough)
    except (OSError, ValueError):
        return False


def _link(root: Path) -> None:
    """Add the names that packages' scripts would have made, and plain ones of LLVM's programs."""
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
    # Frozen suites have outlived the date until which their index is valid.
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
    """Return by which proxies this host's apt downloads: mmdebstrap does not read its settings."""
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
        f" {archive}: {why}; if that archive has the suite no more, {SETTING}={recipe.suite}=http://…"
        " on the worker names another",
    )


async def _version(root: Path, name: str) -> str:
    done = await Sandbox(root=root).run([name, "--version"], timeout=60)
    return done.text.splitlines()[0][:1000]


def _prefix(recipe: Recipe, about: About) -> str:
    return f"{PREFIX}/{recipe.name}/{about.image_sha256[:32]}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
