"""The shortcut's makefile on a tree of two objects with the notes of kbuild."""

import subprocess
from pathlib import Path

import pytest

import kgym_builder.suitecache.link_shortcut

MAKEFILE = (
    Path(kgym_builder.suitecache.link_shortcut.__file__).with_name("link_shortcut.mk").read_text()
)
COMPILE = "gcc -c -o {0}.o {0}.c ; : objtool {0}.o"
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


def linked(tree: Path, *names: str) -> "subprocess.CompletedProcess[str]":
    variables = f"OBJECTS := {' '.join(f'{name}.o' for name in names)}\nLIBRARIES :=\nAFTER :=\n"
    return subprocess.run(
        ["make", "-f", "-", "link"],
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
