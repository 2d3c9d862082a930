"""The full build of an entry of SuiteCache: everything is compiled, then packed.

The image is made of the unpatched tree alone, before anything else happens to it.
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from kgym.bugs.detectors import WHOLE
from kgym.host import proc
from kgym.host.sandbox import NOBODY, prepare
from kgym.source.patching import Change
from kgym.worker.context import StepContext
from kgym_builder.kbuild import control, kconfig, object_index
from kgym_builder.kbuild.kbuild import Kbuild, Output
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.compiled_trees import About, Identified
from kgym_builder.suitecache.link_shortcut import Shortcut
from kgym_builder.toolchains.toolchain import Toolchain

PACK_SECONDS = 3600.0
# Level 3 packs the tree of a small kernel in 14 s to 560 MB; level 6 in 17 s to 505 MB, level 1 and
# LZ4 in 10 and 5 s to 570 and 845 MB. All are read at the same speed.
_SQUASHFS = (
    *("-comp", "zstd", "-Xcompression-level", "3", "-b", "256K"),
    *("-no-xattrs", "-no-exports", "-no-progress", "-quiet"),
    *("-force-uid", str(NOBODY), "-force-gid", str(NOBODY)),
)
_RELEASE = "include/config/kernel.release"
# Clang's tools read it; where it stands depends on the version.
_COMPILE_COMMANDS = """
for script in scripts/clang-tools/gen_compile_commands.py scripts/gen_compile_commands.py; do
    [ -f $script ] && exec python3 $script
done
:
"""
# The objects that go into vmlinux: members of vmlinux.a (since Linux 6.1), or of the archives that
# stand for it, and of the libraries.
_LINKED = """
set -e
for archive in vmlinux.a $KBUILD_VMLINUX_OBJS $KBUILD_VMLINUX_LIBS; do
    case $archive in
    *.a) [ ! -f $archive ] || ar t $archive ;;
    *) echo $archive ;;
    esac
done
"""


class FullBuild:
    """The full build of a kernel in `tree`, which holds the source with its backports."""

    def __init__(self, tree: Tree, tools: Toolchain, run: StepContext, output: Output) -> None:
        self._tree = tree
        self._tools = tools
        self._run = run
        self._output = output
        self._kbuild = Kbuild(tree, tools, output)
        self._seconds: dict[str, float] = {}

    async def make(self, found: Identified, objects: int | None, folder: Path) -> None:
        """Build; leave the files of the entry in `folder`."""
        with self._run.stage("make", self._seconds):
            await self._tree.write(
                [Change(".config", found.config.encode(errors="surrogateescape"))]
            )
            self._output.count(self._run, "build", objects)

            async def make() -> None:
                await self._kbuild.kernel(found.config)

            lacking = await control.spared(make, make, self._tree, self._output, {})
            await self._tree.run(["sh", "-c", _COMPILE_COMMANDS])
        made = await self._tree.read([_RELEASE, ".config", control.PATH])
        if control.PATH not in made:
            lacking = {WHOLE: f"the source has no {control.MAKEFILE}"}
        for part, words in lacking.items():
            self._run.log(f"control left out: {part}: {words}")
        environment = await self._kbuild.environment()
        with self._run.stage("pack", self._seconds):
            sha256 = await self._pack(folder)
        with self._run.stage("index", self._seconds):
            await self._index(environment, folder)
        about = About(
            source_identity=found.source_identity,
            compiler_version=self._tools.version,
            kernel_release=made[_RELEASE].decode().strip(),
            backports=found.backports,
            config=made[".config"].decode(errors="surrogateescape"),
            environment=environment,
            shortcut="",
            lacking=lacking,
            image_sha256=sha256,
            image_bytes=(folder / compiled_trees.IMAGE).stat().st_size,
            seconds=self._seconds,
        )
        with self._run.stage("rehearsal", self._seconds):
            # A patch may change what the kernel exports: only make sees that modules lack it then.
            linked = () if kconfig.modules(found.config) else compiled_trees.linked_in(folder)
            order = await Shortcut(self._tree, self._kbuild, about).rehearse(linked)
        self._run.log(f"shortcut: {order or 'none, make builds patched kernels'}")
        about = about.model_copy(update={"shortcut": order})
        (folder / compiled_trees.ABOUT).write_text(about.model_dump_json())
        await asyncio.to_thread(shutil.copyfile, self._output.path, folder / compiled_trees.LOG)

    async def _pack(self, folder: Path) -> str:
        """Make the image; return its SHA-256."""
        proc.require("mksquashfs")
        out = prepare(self._run.folder / "packed")
        argv = ["mksquashfs", ".", f"/out/{compiled_trees.IMAGE}", *_SQUASHFS]
        tree = self._tree.with_hosts_programs()  # an old suite's packs without zstd
        await tree.run(argv, timeout=PACK_SECONDS, out=out)
        image = folder / compiled_trees.IMAGE
        await asyncio.to_thread(shutil.move, out / compiled_trees.IMAGE, image)
        if proc.privileged():
            os.chown(image, 0, 0)
        return await asyncio.to_thread(_sha256, image)

    async def _index(self, environment: dict[str, str], folder: Path) -> None:
        """Note what depends on each file, and which objects go into vmlinux."""
        await object_index.build(self._tree, folder / compiled_trees.INDEX)
        (folder / compiled_trees.LINKED).write_bytes(await linked(self._tree, environment))


async def linked(tree: Tree, environment: Mapping[str, str]) -> bytes:
    """Return the paths of the objects that went into vmlinux, a line each."""
    return (await tree.run(["sh", "-c", _LINKED], env=environment)).output


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
