"""The shortcut: link a patched kernel by kbuild's saved commands, without make's tree walk.

Make visits every folder before it compiles one file. If a patch changes only objects of vmlinux,
the same commands follow from kbuild's own notes (`object_index.py`, `link_shortcut.mk`). Each
entry rehearses the shortcut once: it is used only if it gives `vmlinux` and `bzImage` byte for
byte. With CONFIG_MODVERSIONS, versions of exported symbols stay as they were; kernels with modules
do not use the shortcut.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from kgym.errors import KgymError
from kgym.source.patching import Change
from kgym_builder.kbuild.kbuild import DoesNotCompile, Kbuild
from kgym_builder.kbuild.object_index import Index
from kgym_builder.kbuild.path_rules import NO_CODE, ONLY_MAKE
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.suitecache.compiled_trees import About, Order

# It asks the folder's makefile for what follows the compiler (objtool): up to Linux 5.16, kbuild
# does not save that. It makes thin archives anew, as binutils 2.35 trusts the sizes in them. Faster
# ways were rejected: `lld` links another kernel than the config's linker, and booting `vmlinux`
# directly needs CONFIG_PVH and saves a second at most.
_MAKEFILE = Path(__file__).with_name("link_shortcut.mk").read_text()
# Created if no makefile lists an object. It is a file because messages may drown in warnings.
_ONLY_MAKE = ".kgym-only-make"
# Objects that the rehearsal compiles, taken from all over the tree.
_TRIED = 8
# Keeps make's own kernel aside, once, as each order is compared with it; removes the other results.
_ASIDE = """set -e
[ -e .kgym-vmlinux ] || { mv vmlinux .kgym-vmlinux; mv arch/x86/boot/bzImage .kgym-bzImage; }
rm -f vmlinux vmlinux.unstripped vmlinux.o vmlinux.symvers Module.symvers System.map
rm -f arch/x86/boot/bzImage
"""
_COMPARE = "cmp vmlinux .kgym-vmlinux && cmp arch/x86/boot/bzImage .kgym-bzImage"


def objects(changes: Sequence[Change], index: Index, linked: Collection[str]) -> list[str] | None:
    """Return the objects to compile for these changes; None if only make can tell."""
    needed: set[str] = set()
    known = index.dependents(change.path for change in changes)
    for change in changes:
        dependents = known[change.path]
        paths = {obj.path for obj in dependents.objects}
        # Removed files, assembly and generated files have effects that no dependency file records.
        if change.content is None or dependents.made or not paths <= set(linked):
            return None
        if ONLY_MAKE.match(change.path):
            return None
        # An unused header may be new and hide another one: only make notices that.
        if not paths and not (change.path.endswith(".c") or NO_CODE.match(change.path)):
            return None
        needed |= paths
    return sorted(needed)


class Shortcut:
    """The shortcut in one tree of an entry."""

    def __init__(self, tree: Tree, kbuild: Kbuild, about: About) -> None:
        self._tree = tree
        self._kbuild = kbuild
        self._environment = about.environment
        self._order = about.shortcut

    async def build(self, changed: Sequence[str]) -> bool:
        """Compile these objects and link; raise what `Kbuild.make` raises.

        Return False if only make knows how to build one of them.
        """
        if not changed:
            return True
        try:
            await self._make(changed, "all", self._order)
        except DoesNotCompile:
            if _ONLY_MAKE not in await self._tree.read([_ONLY_MAKE]):
                raise
            return False
        return True

    async def rehearse(self, linked: Collection[str]) -> Order:
        """Build the unpatched kernel again; return the order that gives the same bytes, or ""."""
        if not linked:
            return ""
        some = sorted(linked)[:: -(-len(linked) // _TRIED)]
        orders: tuple[Order, ...] = ("parallel", "serial")
        for order in orders:
            try:
                await self._tree.run(["sh", "-c", _ASIDE])
                # A link that needs vmlinux.o must fail here, where vmlinux.o is certainly absent.
                await self._make(some, "boot", order)
                await self._tree.run(["sh", "-c", _COMPARE])
                await self._make(some[:1], "check", order)
            except KgymError:
                continue
            return order
        return ""

    async def _make(self, changed: Sequence[str], goal: str, order: Order) -> None:
        libraries = self._environment.get("KBUILD_VMLINUX_LIBS", "").split()
        variables = {
            "OBJECTS": changed,
            "LIBRARIES": [library for library in libraries if library.endswith(".a")],
            "AFTER": ["vmlinux.symvers"] if order == "serial" else [],
        }
        lines = [f"{name} := {' '.join(values)}\n" for name, values in variables.items()]
        await self._kbuild.make_file("".join(lines) + _MAKEFILE, goal, self._environment)
