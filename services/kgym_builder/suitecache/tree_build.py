"""Build an entry's tree: let make compile, then pack the tree.

In a fresh source tree, make compiles everything; in a tree that began as another entry's, it
compiles what differs (`near_build.py`). The image holds the unpatched tree only: it is packed
before any patch is applied.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from kgym.bugs.detectors import WHOLE
from kgym.host import proc
from kgym.host.sandbox import NOBODY, prepare
from kgym.host.sandbox_limits import SandboxLimits
from kgym.source.patching import Change
from kgym.transport.artifact_storage import sha256_of
from kgym.worker.context import StepContext
from kgym_builder.kbuild import control, kconfig, object_index
from kgym_builder.kbuild.kbuild import MODULES, Kbuild, MakeBounds, Output
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.compiled_trees import About, Identified, Order
from kgym_builder.suitecache.link_shortcut import Shortcut
from kgym_builder.toolchains.toolchain import Toolchain

PACK_SECONDS = 3600.0
# Level 1 packs the tree of a small kernel in 10 s to 570 MB; level 3 in 14 s to 560 MB, level 6 in
# 17 s to 505 MB, LZ4 in 5 s to 845 MB. All can be read at the same speed.
_SQUASHFS = (
    *("-comp", "zstd", "-Xcompression-level", "1", "-b", "256K"),
    *("-no-xattrs", "-no-exports", "-no-progress", "-quiet"),
    *("-force-uid", str(NOBODY), "-force-gid", str(NOBODY)),
)
_RELEASE = "include/config/kernel.release"
# Writes compile_commands.json, which Clang's tools read. The script moved in Linux 5.10.
_COMPILE_COMMANDS = """
for script in scripts/clang-tools/gen_compile_commands.py scripts/gen_compile_commands.py; do
    [ -f $script ] && exec python3 $script
done
:
"""
# Prints the objects that go into vmlinux: members of vmlinux.a (since Linux 6.1), or of the
# archives that earlier kernels have instead, and of the libraries.
_LINKED = """
set -e
for archive in vmlinux.a $KBUILD_VMLINUX_OBJS $KBUILD_VMLINUX_LIBS; do
    case $archive in
    *.a) [ ! -f $archive ] || ar t $archive ;;
    *) echo $archive ;;
    esac
done
"""
# Prints the modules, which modules.order lists, and their objects, which `.mod` files list.
_OF_MODULES = """
[ ! -f modules.order ] || while read -r one; do
    base=${one%.*}
    [ ! -f "$base.mod" ] || tr ' ' '\\n' <"$base.mod" | grep '\\.o$'
    printf '%s\\n' "$base.o" "$base.mod.o" "$base.ko"
done <modules.order
"""
# Removes build results together with kbuild's notes on them.
_REMOVE = """
for path; do
    name=${path##*/}
    rm -f -- "$path" "${path%"$name"}.$name.cmd"
    case $path in *.ko) rm -f -- "${path%.ko}.mod" "${path%.ko}.mod.c" ;; esac
done
"""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Facts about a tree after its build."""

    config: str
    """The final .config."""
    release: str
    lacking: dict[str, str]
    environment: dict[str, str]
    linked: bytes
    """Paths of the objects in vmlinux, one per line."""
    objects: int
    """Number of compiled objects."""
    seconds: float


@dataclass(frozen=True, slots=True)
class TreeBuild:
    """A build in `tree`, which holds the source with its backports."""

    tree: Tree
    tools: Toolchain
    run: StepContext
    output: Output
    bounds: MakeBounds
    limits: SandboxLimits | None
    """Limits of the sandboxes that work on the tree."""

    async def compile(
        self, identified: Identified, objects: int | None, there: Collection[str] = ()
    ) -> Compiled:
        """Make the kernel; `objects` is the expected number of objects to compile.

        Of `there`, the objects and modules of an earlier build, remove those no longer in use.
        """
        kbuild = Kbuild(self.tree, self.tools, self.output, self.bounds)
        before, begin = self.output.objects, time.monotonic()
        config = Change(".config", identified.config.encode(errors="surrogateescape"))
        await self.tree.write([config])
        self.output.count(self.run, "build", objects)

        async def make() -> None:
            await kbuild.kernel(identified.config)

        lacking = await control.spared(make, make, self.tree, self.output, {})
        seconds = round(time.monotonic() - begin, 3)
        made = await self.tree.read([_RELEASE, ".config", control.PATH])
        if control.PATH not in made:
            lacking = {WHOLE: f"the source has no {control.MAKEFILE}"}
        for part, words in lacking.items():
            self.run.log(f"control left out: {part}: {words}")
        environment = await kbuild.environment()
        paths = await linked(self.tree, environment)
        if there:
            now = set(compiled_trees.linked_paths(paths))
            if kconfig.modules(identified.config):
                now.update(await of_modules(self.tree))
            else:
                await self.tree.run(["rm", "-f", "modules.order", MODULES])
            await self.tree.run_on(sorted(set(there) - now), "sh", "-c", _REMOVE, "sh")
        await self.tree.run(["sh", "-c", _COMPILE_COMMANDS])
        return Compiled(
            config=made[".config"].decode(errors="surrogateescape"),
            release=made[_RELEASE].decode().strip(),
            lacking=lacking,
            environment=environment,
            linked=paths,
            objects=self.output.objects - before,
            seconds=seconds,
        )

    async def keep(
        self,
        identified: Identified,
        compiled: Compiled,
        folder: Path,
        seconds: dict[str, float],
        *,
        shortcut: Order | None,
    ) -> About:
        """Write the entry's files to `folder`; `seconds` are the times of its stages so far.

        `shortcut` comes from a kernel linked by the same rules; if None, it is rehearsed.
        """
        with self.run.stage("pack", seconds):
            sha256 = await self._pack(folder)
        with self.run.stage("index", seconds):
            await object_index.build(self.tree, folder / compiled_trees.INDEX)
            (folder / compiled_trees.LINKED).write_bytes(compiled.linked)
        about = About(
            source_identity=identified.source_identity,
            compiler_version=self.tools.version,
            kernel_release=compiled.release,
            backports=identified.backports,
            config=compiled.config,
            environment=compiled.environment,
            shortcut="",
            lacking=compiled.lacking,
            image_sha256=sha256,
            image_bytes=(folder / compiled_trees.IMAGE).stat().st_size,
            seconds=seconds,
        )
        order = await self._rehearsed(identified, about, folder) if shortcut is None else shortcut
        self.run.log(f"shortcut: {order or 'none, make builds patched kernels'}")
        about = about.model_copy(update={"shortcut": order})
        (folder / compiled_trees.ABOUT).write_text(about.model_dump_json())
        await asyncio.to_thread(shutil.copyfile, self.output.path, folder / compiled_trees.LOG)
        return about

    async def _rehearsed(self, identified: Identified, about: About, folder: Path) -> Order:
        """Rehearse the shortcut, which changes the tree; return the order that works."""
        # Not for kernels with modules: a patch may remove an export, and only modpost, which make
        # runs, notices that a module still imports it.
        paths = () if kconfig.modules(identified.config) else compiled_trees.linked_in(folder)
        with self.run.stage("rehearsal", about.seconds):
            kbuild = Kbuild(self.tree, self.tools, self.output, self.bounds)
            return await Shortcut(self.tree, kbuild, about).rehearse(paths)

    async def _pack(self, folder: Path) -> str:
        """Pack the tree into the image; return its SHA-256."""
        proc.require("mksquashfs")
        out = prepare(self.run.folder / "packed")
        argv = ["mksquashfs", ".", f"/out/{compiled_trees.IMAGE}", *_SQUASHFS]
        tree = self.tree.with_hosts_programs()  # an old suite's mksquashfs lacks zstd
        await tree.run(argv, timeout=PACK_SECONDS, out=out)
        image = folder / compiled_trees.IMAGE
        await asyncio.to_thread(shutil.move, out / compiled_trees.IMAGE, image)
        if proc.privileged():
            os.chown(image, 0, 0)
        return await asyncio.to_thread(sha256_of, image)


async def linked(tree: Tree, environment: Mapping[str, str]) -> bytes:
    """Return the paths of the objects in vmlinux, one per line."""
    return (await tree.run(["sh", "-c", _LINKED], env=environment)).output


async def of_modules(tree: Tree) -> list[str]:
    """Return the paths of all modules and their objects."""
    lines = (await tree.run(["sh", "-c", _OF_MODULES])).output
    return lines.decode(errors="surrogateescape").splitlines()
