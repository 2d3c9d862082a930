"""The shortcut: a patched kernel by the commands that kbuild saved, instead of a walk by make.

Make looks at every folder before it compiles one file. Where a patch changes
only what goes into objects of vmlinux, the same commands follow from kbuild's
own notes (`object_index.py`, `link_shortcut.mk`). That they build the same kernel, byte
for byte, is tried out once for each entry. Where CONFIG_MODVERSIONS is set, the versions of
exported symbols stay as they were: no module asks for them.
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

_MAKEFILE = Path(__file__).with_name("link_shortcut.mk").read_text()
# Written where no makefile lists an object; what is said of it may drown in warnings.
_ONLY_MAKE = ".kgym-only-make"
# Objects that the rehearsal compiles, of folders that lie far from each other.
_TRIED = 8
# What make has made is compared with, in each order; what an earlier order has left is not.
_ASIDE = """set -e
[ -e .kgym-vmlinux ] || { mv vmlinux .kgym-vmlinux; mv arch/x86/boot/bzImage .kgym-bzImage; }
rm -f vmlinux vmlinux.unstripped vmlinux.o vmlinux.symvers Module.symvers System.map
rm -f arch/x86/boot/bzImage
"""
_COMPARE = "cmp vmlinux .kgym-vmlinux && cmp arch/x86/boot/bzImage .kgym-bzImage"


def objects(changes: Sequence[Change], index: Index, linked: Collection[str]) -> list[str] | None:
    """Return the objects that the changes make it necessary to compile; None: only make knows."""
    needed: set[str] = set()
    known = index.dependents(change.path for change in changes)
    for change in changes:
        dependents = known[change.path]
        paths = {object_.path for object_ in dependents.objects}
        if change.content is None or dependents.made or not paths <= set(linked):
            return None
        if ONLY_MAKE.match(change.path):
            return None
        # A header that nothing read may be new, and hide another: make finds out.
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
        """Compile these objects, and link; fail as `Kbuild.make` does.

        Return whether that was possible: False where only make knows how one of them is made.
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
        """Build the unpatched kernel once more; return the order in which that gives the same."""
        if not linked:
            return ""
        some = sorted(linked)[:: -(-len(linked) // _TRIED)]
        orders: tuple[Order, ...] = ("parallel", "serial")
        for order in orders:
            try:
                await self._tree.run(["sh", "-c", _ASIDE])
                # A link that needs vmlinux.o has to fail now, when it is surely not there.
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
