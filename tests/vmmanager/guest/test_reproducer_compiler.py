"""Reproducers are compiled where they can do no harm."""

import resource
import subprocess
from pathlib import Path

import pytest

from kgym.errors import UserError
from kgym.host.reproducer_compiler import compile_reproducer
from kgym_vmmanager.guest.guest_image import GuestImage
from kgym_vmmanager.guest.reproducer_images import initrd
from tests.refused import refused

pytestmark = pytest.mark.anyio


async def compiled(tmp_path: Path, text: str) -> Path:
    source = tmp_path / "source" / "reproducer.c"
    source.parent.mkdir()
    source.write_text(text)
    return await compile_reproducer(source, tmp_path / "program")


async def test_a_program_comes_out_static(tmp_path: Path) -> None:
    program = await compiled(
        tmp_path, '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }'
    )
    done = subprocess.run([program], check=True, capture_output=True, timeout=10)
    assert done.stdout == b"hello\n"
    assert (
        b"INTERP"
        not in subprocess.run(
            ["readelf", "-l", program], check=True, capture_output=True, timeout=10
        ).stdout
    )


@pytest.mark.thorough
async def test_sloppy_old_c_compiles_but_needs_its_functions(tmp_path: Path) -> None:
    await compiled(tmp_path, "loop() { usleep(1); }\nint main() { loop(); printf(0); }")
    secret = tmp_path / "secret.h"
    secret.write_text("int secret;")
    for number, (text, words) in enumerate(
        [
            ("int main(void) { return no_such_function(); }", "no_such_function"),
            # the sandbox does not see the host's files
            (f'#include "{secret}"\nint main(void) {{ return secret; }}', r"secret\.h"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(UserError, match=words):
            await compiled(folder, text)


async def test_an_error_is_the_users_with_its_line(tmp_path: Path) -> None:
    with refused("reproducer_does_not_compile") as caught:
        await compiled(tmp_path, "int main(void)\n{\n\treturn nothing;\n}\n")
    assert "reproducer.c:3: " in caught.value.message
    assert "nothing" in str(caught.value.details["diagnostics"])


@pytest.mark.thorough
@pytest.mark.parametrize("size", ["70u << 20", "1500u << 20"])
@pytest.mark.attack
async def test_a_large_program_is_refused_unread(tmp_path: Path, size: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refused("reproducer_too_large", "64 MiB"):
        await compiled(tmp_path, f"char b[{size}] = {{1}};\nint main(void) {{ return b[1]; }}\n")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


@pytest.mark.thorough
async def test_a_large_program_comes_to_the_guest_without_being_read_whole(tmp_path: Path) -> None:
    program, image = tmp_path / "program", GuestImage(tmp_path)
    image.initrd.write_bytes(b"image")
    with program.open("wb") as file:
        file.truncate(300 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = await initrd(image, {"/kgym/reproducer": program}, tmp_path / "made")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert made.stat().st_size > 300 << 20
