"""Looks into a vmlinux: the machine code of a place, and the layout of a type."""

import subprocess
from pathlib import Path

import pytest

from kgym.crash import symbolize
from kgym.host.proc import ProgramFailed

CODE = """struct foo { int a; char b; long c; };
int helper(struct foo *foo) { return foo->a + foo->b; }
int main(void) { struct foo foo = {1, 2, 3}; return helper(&foo); }
"""


@pytest.mark.anyio
@pytest.mark.thorough
async def test_code_and_types_are_read_from_debug_information(tmp_path: Path) -> None:
    folder = tmp_path / "kernel"  # pytest's own folder is closed to the sandbox's user
    folder.mkdir()
    (folder / "main.c").write_text(CODE)
    for options, name in (("-g", "vmlinux"), ("-g0", "bare")):
        argv = ["gcc", options, "-O1", "-no-pie", "main.c", "-o", name]
        subprocess.run(argv, cwd=folder, check=True, timeout=60)
    code = await symbolize.machine_code(folder / "vmlinux", "helper", 4)
    assert code.startswith("helper ")
    assert "main.c:2\n" in code
    assert " <helper>:\n" in code
    assert await symbolize.machine_code(folder / "vmlinux", "absent", 4) == ""
    layout = await symbolize.layout(folder / "vmlinux", "foo")
    assert "/*     4     1 */" in layout
    assert "'absent' not found" in await symbolize.layout(folder / "vmlinux", "absent")
    with pytest.raises(ProgramFailed):
        await symbolize.layout(folder / "bare", "foo")
