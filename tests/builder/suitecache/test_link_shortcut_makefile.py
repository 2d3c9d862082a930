"""The shortcut's makefile on a tree of two objects with the notes of kbuild."""

import subprocess
from pathlib import Path

import pytest

import kgym_builder.suitecache.link_shortcut

MAKEFILE = (
    Path(kgym_builder.suitecache.link_shortcut.__file__).with_name("link_shortcut.mk").read_text()
)
COMPILE = "gcc -g -c -o {0}.o {0}.c ; : objtool {0}.o"
LINK = 'scripts/link-vmlinux.sh "gcc"; true'
LINK_SCRIPT = "#!/bin/sh\nset -e\ngcc -nostdlib -no-pie -Wl,-e,main -o vmlinux main.o helper.o\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "main.c").write_text("int helper(void);\nint main(void) { return helper(); }\n")
    (tmp_path / "helper.c").write_text("int helper(void) { return 1; }\n")
    for name in ("main", "helper"):
        (tmp_path / f".{name}.o.cmd").write_text(f"savedcmd_{name}.o := {COMPILE.format(name)}\n")
    (tmp_path / ".vmlinux.cmd").write_text(f"savedcmd_vmlinux := {LINK}\n")
    script = tmp_path / "scripts" / "link-vmlinux.sh"
    script.parent.mkdir()
    script.write_text(LINK_SCRIPT)
    assert linked(tmp_path, "main", "helper").returncode == 0
    return tmp_path


def linked(
    tree: Path, *names: str, goal: str = "link", after: str = ""
) -> "subprocess.CompletedProcess[str]":
    objects = " ".join(f"{name}.o" for name in names)
    variables = f"OBJECTS := {objects}\nLIBRARIES :=\nAFTER := {after}\n"
    return subprocess.run(
        ["make", "-j2", "-f", "-", goal],
        cwd=tree,
        input=variables + MAKEFILE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_change_is_compiled_and_linked(tree: Path) -> None:
    before = (tree / "vmlinux").read_bytes()
    (tree / "helper.c").write_text("int helper(void) { return 2; }\n")
    assert linked(tree, "helper").returncode == 0
    assert (tree / "vmlinux").read_bytes() != before


def test_an_object_that_does_not_compile_is_not_linked_as_it_was_before(tree: Path) -> None:
    (tree / "helper.c").write_text("int helper(void) { return no_such_variable; }\n")
    done = linked(tree, "helper")
    assert done.returncode != 0
    assert "no_such_variable" in done.stderr


def test_a_link_that_fails_is_a_failure(tree: Path) -> None:
    (tree / "helper.c").write_text("int other(void) { return 1; }\n")
    done = linked(tree, "helper")
    assert done.returncode != 0
    assert "helper" in done.stderr


# What a kernel with modules is made of besides: modpost writes a table of what is exported, which
# is linked, and the image is made of all.
MODPOST = r"""#!/bin/sh
touch vmlinux.symvers
exec sed -n 's,^/.EXPORT \(.*\)./,int \1(void); void *e_\1 = \1;,p' *.c >.vmlinux.export.c
"""
NOTES = {
    "vmlinux": 'scripts/link-vmlinux.sh "gcc"; true',
    "vmlinux.o": "ld -r -o vmlinux.o main.o helper.o",
    "vmlinux.symvers": "sh scripts/modpost",
    ".vmlinux.export.o": "gcc -c -o .vmlinux.export.o .vmlinux.export.c",
}
EXPORTED = "int helper(void) { return 1; }\n/*EXPORT helper*/\n"
IMAGE = "arch/x86/boot/bzImage:\n\tcp vmlinux $@\n.PHONY: arch/x86/boot/bzImage\n"


@pytest.fixture
def exporting(tree: Path) -> Path:
    (tree / "helper.c").write_text(EXPORTED)
    script = LINK_SCRIPT.replace("main.o", "main.o .vmlinux.export.o")
    (tree / "scripts" / "link-vmlinux.sh").write_text(script)
    (tree / "scripts" / "Makefile.build").write_text(IMAGE)
    (tree / "arch" / "x86" / "boot").mkdir(parents=True)
    for name, command in NOTES.items():
        (tree / f".{name}.cmd").write_text(f"savedcmd_{name} := {command}\n")
    (tree / "scripts" / "modpost").write_text(MODPOST)
    (tree / ".vmlinux.export.o").touch()
    (tree / ".vmlinux.export.c").touch()
    done = linked(tree, "main", "helper", goal="all", after="vmlinux.symvers")
    assert done.returncode == 0, done.stderr
    assert exports(tree) == {"e_helper"}
    assert b".debug_info" in (tree / "vmlinux.o").read_bytes()  # this order links it
    return tree


def exports(tree: Path) -> set[str]:
    """Return what the table in the image exports."""
    argv = ["nm", tree / "arch" / "x86" / "boot" / "bzImage"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)
    return {line.split()[-1] for line in done.stdout.splitlines() if " e_" in line}


def test_a_kernel_that_exports_the_same_is_linked_once(exporting: Path) -> None:
    script = exporting / "scripts" / "link-vmlinux.sh"
    script.write_text(f"{script.read_text()}echo >>links\n")
    (exporting / "helper.c").write_text(EXPORTED.replace("1", "2"))
    done = linked(exporting, "helper", goal="all")
    assert done.returncode == 0, done.stderr
    assert exports(exporting) == {"e_helper"}
    assert (exporting / "links").read_text() == "\n"
    assert b".debug_info" in (exporting / "vmlinux").read_bytes()
    assert b".debug_info" not in (exporting / "vmlinux.o").read_bytes()


@pytest.mark.parametrize("after", ["", "vmlinux.symvers"])
@pytest.mark.parametrize(
    ("text", "exported"),
    [
        (EXPORTED + "int more(void) { return 3; }\n/*EXPORT more*/\n", {"e_helper", "e_more"}),
        (EXPORTED.replace("EXPORT", ""), set()),
    ],
)
def test_exports_of_a_change(exporting: Path, after: str, text: str, exported: set[str]) -> None:
    (exporting / "helper.c").write_text(text)
    done = linked(exporting, "helper", goal="all", after=after)
    assert done.returncode == 0, done.stderr
    assert exports(exporting) == exported


@pytest.mark.parametrize("after", ["", "vmlinux.symvers"])
def test_an_exported_function_may_go(exporting: Path, after: str) -> None:
    (exporting / "main.c").write_text("int main(void) { return 4; }\n")
    (exporting / "helper.c").write_text("int other(void) { return 1; }\n/*EXPORT other*/\n")
    done = linked(exporting, "main", "helper", goal="all", after=after)
    assert done.returncode == 0, done.stderr
    assert "helper" not in done.stderr
    assert exports(exporting) == {"e_other"}


@pytest.mark.parametrize("after", ["", "vmlinux.symvers"])
def test_a_link_that_fails_is_a_failure_with_exports_too(exporting: Path, after: str) -> None:
    (exporting / "helper.c").write_text("int other(void) { return 1; }\n")
    done = linked(exporting, "helper", goal="all", after=after)
    assert done.returncode != 0
    assert "undefined reference to `helper'" in done.stderr
