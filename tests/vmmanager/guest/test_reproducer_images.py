"""From a reproducer to what the guest executes."""

import subprocess
from pathlib import Path

import pytest

from kgym.api.capabilities import Capabilities, lacking
from kgym.api.steps import Reproducer, ReproduceSpec, StepRef
from kgym.errors import InfrastructureError, UserError
from kgym.host.detection import detect
from kgym_vmmanager.guest.guest_image import GuestImage
from kgym_vmmanager.guest.reproducer_images import initrd, program

pytestmark = pytest.mark.anyio

HEADER = '#{"threaded":true,"repeat":true,"procs":3,"sandbox":"setuid"}'
COMMIT = "3ab38479ab60b50d5b27332bd001c78382877ecd"


def reproducer(calls: str = "getpid()\n", syzkaller: str | None = None) -> Reproducer:
    return Reproducer(kind="syz", text=f"{HEADER}\n{calls}", syzkaller=syzkaller)


async def made(one: Reproducer, folder: Path, syzkaller: Path | None) -> dict[str, Path]:
    return await program(one, folder / "reproducer.syz", folder / "program", syzkaller)


async def test_a_program_of_syzkallers_is_run_with_its_options(
    tmp_path: Path, syzkaller: Path
) -> None:
    files = await made(reproducer(), tmp_path, syzkaller)
    assert set(files) == {
        "/kgym/reproducer",
        "/kgym/program.syz",
        "/kgym/syz-execprog",
        "/kgym/syz-executor",
    }
    lines = files["/kgym/reproducer"].read_text().splitlines()
    assert lines[0] == "#!/bin/sh"
    words = lines[1].split()
    assert words[:3] == ["exec", "/kgym/syz-execprog", "-executor=/kgym/syz-executor"]
    assert {"-procs=3", "-repeat=0", "-sandbox=setuid", "-threaded=true"} <= set(words)
    assert not any(word.startswith("-collide") for word in words)  # this syz-execprog has none
    assert words[-1] == "/kgym/program.syz"


async def test_the_script_runs_the_program(tmp_path: Path, syzkaller: Path) -> None:
    files = await made(reproducer(), tmp_path, syzkaller)
    script = files["/kgym/reproducer"].read_text()
    for inside, path in files.items():
        script = script.replace(inside, str(path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=20, check=True)
    assert done.stderr.endswith(b"getpid()\n")
    assert b"-procs=3" in done.stderr


async def test_binaries_are_taken_by_commit(tmp_path: Path, syzkaller: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / COMMIT).symlink_to(syzkaller)
    found = await made(reproducer(syzkaller=COMMIT), tmp_path, tmp_path / "all")
    assert found["/kgym/syz-executor"].parent.name == COMMIT
    with pytest.raises(UserError, match="--syzkaller DIR") as caught:
        await made(reproducer(), tmp_path / "other", tmp_path / "all")
    assert caught.value.reason == "no_syzkaller"


@pytest.mark.parametrize("commit", [None, COMMIT])
async def test_without_binaries_it_is_refused(tmp_path: Path, commit: str | None) -> None:
    with pytest.raises(UserError, match="syzkaller's binaries") as caught:
        await made(reproducer(syzkaller=commit), tmp_path, None)
    assert caught.value.reason == "no_syzkaller"


async def test_another_program_of_that_name_is_told(tmp_path: Path) -> None:
    for name in ("syz-execprog", "syz-executor"):
        (tmp_path / name).write_text("#!/bin/sh\necho something else\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(InfrastructureError, match="something else"):
        await made(reproducer(), tmp_path, tmp_path)


async def test_the_program_follows_the_image(tmp_path: Path) -> None:
    (tmp_path / "initrd.cpio").write_bytes(b"image")
    (tmp_path / "program").write_bytes(b"the program")
    path = tmp_path / "whole"
    await initrd(GuestImage(tmp_path), {"/kgym/reproducer": tmp_path / "program"}, path)
    whole = path.read_bytes()
    assert whole.startswith(b"image070701")
    argv = ["cpio", "--quiet", "--to-stdout", "-i", "kgym/reproducer"]
    done = subprocess.run(argv, input=whole[5:], capture_output=True, timeout=20, check=True)
    assert done.stdout == b"the program"


def test_a_step_needs_what_its_programs_need(syzkaller: Path) -> None:
    spec = ReproduceSpec(
        build=StepRef(step=0),
        reproducer=Reproducer(text="int main(void) { return 0; }"),
        others=[reproducer(), reproducer(syzkaller=COMMIT)],
    )
    wanted = spec.needs()
    assert wanted.syzkaller == [COMMIT, "default"]
    has = Capabilities(cores=64, memory=1 << 20)
    assert lacking(wanted, has) == [
        f"syzkaller's binaries of commit {COMMIT}",
        "syzkaller's binaries",
    ]
    assert detect(syzkaller=syzkaller).syzkaller == ["default"]
    assert detect().syzkaller == []
