"""The shortcut is taken only where it builds the kernel that make has built."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kgym.source.patching import Change
from kgym_builder.kbuild.kbuild import Kbuild, Output
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.suitecache.compiled_trees import About
from kgym_builder.suitecache.link_shortcut import Shortcut
from kgym_builder.toolchains.toolchain import installed

pytestmark = pytest.mark.anyio

BOOT = Path("arch/x86/boot/bzImage")
COMPILE = "gcc -c -o main.o main.c"
LINK = 'scripts/link-vmlinux.sh "ld"; true'
NOTES = {
    "main.o": COMPILE,
    "vmlinux": LINK,
    "vmlinux.o": "ld -r -o vmlinux.o main.o",
    "vmlinux.symvers": "touch vmlinux.symvers; echo 'int x;' >.vmlinux.export.c",
}
EXPORTS = {".vmlinux.export.o": "gcc -c -o .vmlinux.export.o .vmlinux.export.c"}
PLAIN = "ld -r -o vmlinux main.o"
BY_WHOLE_OBJECT = "ld -r -o vmlinux vmlinux.o"


class Kernel:
    """A tree as make has left it, and the shortcut in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = Tree((folder / "source",), folder / "tree")

    async def make(
        self,
        notes: Mapping[str, str],
        script: str,
        then: str = "true",
        after_compiling: str = "true",
        build: str = f"{BOOT}:\n\tcp vmlinux $@\n.PHONY: {BOOT}\n",
    ) -> None:
        """Write kbuild's notes, the link's script, and all that they make."""
        await self.tree.write(
            [
                Change("main.c", b"int main(void) { return 0; }\n"),
                *(
                    Change(
                        str(Path(name).with_name(f".{Path(name).name}.cmd")),
                        f"savedcmd_{name} := {command}\n".encode(),
                    )
                    for name, command in notes.items()
                ),
                Change("scripts/link-vmlinux.sh", f"#!/bin/sh\nset -e\n{script}\n".encode()),
                Change("scripts/Makefile.build", build.encode()),
            ]
        )
        made = [f"mkdir -p {BOOT.parent}", COMPILE, after_compiling]
        made += [notes[name] for name in ("vmlinux.o", "vmlinux.symvers")]
        made += [command for name, command in notes.items() if name == ".vmlinux.export.o"]
        made += ["sh scripts/link-vmlinux.sh", then, f"cp vmlinux {BOOT}"]
        await self.tree.run(["sh", "-ec", "\n".join(made)])

    async def shortcut(self, order: str = "") -> Shortcut:
        tools = await installed("gcc")
        assert tools is not None
        about = About.model_validate(
            {
                **dict.fromkeys(("source_identity", "compiler_version", "kernel_release"), ""),
                "config": "",
                "backports": [],
                "environment": {"KBUILD_VMLINUX_LIBS": ""},
                "shortcut": order,
                "image_sha256": "0" * 64,
                "image_bytes": 0,
                "lacking": {},
                "seconds": {},
            }
        )
        kbuild = Kbuild(self.tree, tools, Output(self.folder / "build.log"))
        return Shortcut(self.tree, kbuild, about)

    async def rehearsed(self, linked: Sequence[str] = ("main.o",)) -> str:
        return await (await self.shortcut()).rehearse(linked)

    async def image(self) -> bytes:
        return (await self.tree.read([str(BOOT)]))[str(BOOT)]


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    (tmp_path / "source").mkdir()
    return Kernel(tmp_path)


async def assert_patch_builds(kernel: Kernel, order: str) -> None:
    before = await kernel.image()
    await kernel.tree.write([Change("main.c", b"int main(void) { return 77; }\n")])
    await (await kernel.shortcut(order)).build(["main.o"])
    assert await kernel.image() != before


@pytest.mark.thorough
async def test_a_link_of_objects_goes_beside_the_checks(kernel: Kernel) -> None:
    await kernel.make(NOTES, PLAIN)
    assert await kernel.rehearsed() == "parallel"
    await assert_patch_builds(kernel, "parallel")


@pytest.mark.thorough
@pytest.mark.parametrize("exports", [{}, EXPORTS], ids=["alone", "modules"])
async def test_the_whole_object_is_linked(kernel: Kernel, exports: Mapping[str, str]) -> None:
    table = " .vmlinux.export.o" if exports else ""
    await kernel.make({**NOTES, **exports}, BY_WHOLE_OBJECT + table)
    assert await kernel.rehearsed() == "serial"
    await assert_patch_builds(kernel, "serial")


@pytest.mark.thorough
async def test_other_commands_forbid_the_shortcut(kernel: Kernel) -> None:
    """As a command of another rule than the compiler's, of which nothing is known."""
    await kernel.make(NOTES, "cp main.o vmlinux", after_compiling="echo objtool >>main.o")
    assert await kernel.rehearsed() == ""


# kbuild up to Linux 5.16: the rule has commands that it does not note.
APART = f"""\
{BOOT}:
\tcp vmlinux $@
.PHONY: {BOOT}
cmd_objtool = $(if $(filter core/plain.o,$@),,echo "objtool '$(obj)'" >>$@)
rule = $(call cmd,objtool)
-include $(obj)/Makefile
lib-y := $(addprefix $(obj)/,$(lib-y))
"""
OBJECTS = ("core/deep/main.o", "core/plain.o", "core/lost.o")


@pytest.mark.thorough
@pytest.mark.parametrize("lost", [False, True], ids=["known", "unknown"])
async def test_commands_that_kbuild_does_not_note(kernel: Kernel, *, lost: bool) -> None:
    """As objtool's. An object's makefile may lie above it; where there is none, make is left."""
    listed = [name.removeprefix("core/") for name in OBJECTS[:2]]
    sources = {name: f"{name.removesuffix('.o')}.c" for name in OBJECTS}
    text = b"int %s(void) { return 0; }\n"
    await kernel.tree.write(
        [
            Change("core/Makefile", f"lib-y := {' '.join(listed)}\n".encode()),
            Change("core/deep/Makefile", b"# flags for all that is below\n"),
            *(
                Change(source, text % source[5:-2].replace("/", "_").encode())
                for source in sources.values()
            ),
        ]
    )
    compiled = {name: f"gcc -c -o {name} {source}" for name, source in sources.items()}
    link = f"ld -r -o vmlinux {' '.join(OBJECTS)}; cat {OBJECTS[0]} >>vmlinux"
    then = f"echo \"objtool 'core'\" >>{OBJECTS[0]}"
    steps = [*compiled.values(), then]
    await kernel.make({**NOTES, **compiled}, link, after_compiling="\n".join(steps), build=APART)
    assert await kernel.rehearsed(OBJECTS[:2]) == "parallel"
    before = await kernel.image()
    await kernel.tree.write([Change(sources[OBJECTS[0]], b"int deep_main;\n")])
    changed = [OBJECTS[0], *OBJECTS[2:]] if lost else OBJECTS[:1]
    was = await kernel.tree.read([OBJECTS[2]])
    assert await (await kernel.shortcut("parallel")).build(changed) is not lost
    assert await kernel.tree.read([OBJECTS[2]]) == was
    if not lost:
        assert await kernel.image() != before
        assert (await kernel.image()).endswith(b"objtool 'core'\n")


# binutils 2.35 reads an object of a thin archive by the size that the archive has noted.
BY_NOTED_SIZE = """\
ar tv vmlinux.a | while read -r _ _ size _ _ _ _ name; do
    [ "$size" = "$(stat -c %s "$name")" ] || { echo "$name is not an object"; exit 1; }
done
ld -r -o vmlinux $(ar t vmlinux.a)"""


@pytest.mark.thorough
async def test_archives_that_hold_an_objects_size_are_made_anew(kernel: Kernel) -> None:
    archives = {
        "core/deep/built-in.a": "core/deep/main.o",
        "core/built-in.a": "core/deep/built-in.a",
        "built-in.a": "core/built-in.a",
        "vmlinux.a": "built-in.a",
    }
    compiled = {"core/deep/main.o": "gcc -c -o core/deep/main.o core/deep/main.c"}
    packed = {name: f"rm -f {name}; ar cDPrST {name} {of}" for name, of in archives.items()}
    main = "core/deep/main.c"
    await kernel.tree.write([Change(main, b"int main(void) { return 0; }\n")])
    steps = "\n".join([*compiled.values(), *packed.values()])
    await kernel.make({**NOTES, **compiled, **packed}, BY_NOTED_SIZE, after_compiling=steps)
    assert await kernel.rehearsed(list(compiled)) == "parallel"
    before = await kernel.image()
    await kernel.tree.write([Change(main, b"int main(void) { return 0; }\nint more[99] = {1};\n")])
    assert await (await kernel.shortcut("parallel")).build(list(compiled))
    assert await kernel.image() != before


UNSTRIPPED = {
    "vmlinux.unstripped": LINK,
    "vmlinux": "objcopy --remove-section=.comment vmlinux.unstripped vmlinux",
}


@pytest.mark.thorough
async def test_a_kernel_that_is_a_copy_of_what_is_linked_is_linked_first(kernel: Kernel) -> None:
    """As since Linux 6.15."""
    script = "ld -r -o vmlinux.unstripped main.o"
    await kernel.make({**NOTES, **UNSTRIPPED}, script, then=UNSTRIPPED["vmlinux"])
    assert await kernel.rehearsed() == "parallel"
    await assert_patch_builds(kernel, "parallel")


@pytest.mark.thorough
async def test_a_link_that_is_not_known_forbids_the_shortcut(kernel: Kernel) -> None:
    other = {"vmlinux": "objcopy --remove-section=.comment vmlinux.linked vmlinux"}
    script = "ld -r -o vmlinux.linked main.o"
    await kernel.make({**NOTES, **other}, script, then=other["vmlinux"])
    assert await kernel.rehearsed() == ""


async def test_a_list_of_initcalls_forbids_the_shortcut(kernel: Kernel) -> None:
    """As with LTO: a patch that moves lines would leave initcalls out."""
    await kernel.make(NOTES, BY_WHOLE_OBJECT, then="touch .tmp_initcalls.lds")
    assert await kernel.rehearsed() == ""


async def test_a_table_of_exports_without_its_command_forbids_the_shortcut(kernel: Kernel) -> None:
    await kernel.make(NOTES, PLAIN, then="touch .vmlinux.export.o")
    assert await kernel.rehearsed() == ""
