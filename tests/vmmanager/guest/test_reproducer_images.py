"""From a reproducer to what the guest executes."""

import subprocess
from pathlib import Path

import pytest

from kgym.api.capabilities import Capabilities, lacking
from kgym.api.steps import Reproducer, ReproduceSpec, StepRef
from kgym.api.syz_program import Executed
from kgym.errors import UserError
from kgym.host.detection import detect, syzkallers
from kgym_vmmanager.guest.guest_image import GuestImage
from kgym_vmmanager.guest.reproducer_images import initrd, program
from tests.refused import refused

pytestmark = pytest.mark.anyio

HEADER = '#{"threaded":true,"repeat":true,"procs":3,"sandbox":"setuid"}'
COMMIT = "3ab38479ab60b50d5b27332bd001c78382877ecd"


def reproducer(calls: str = "getpid()\n", syzkaller: str | None = None) -> Reproducer:
    return Reproducer(kind="syz", text=f"{HEADER}\n{calls}", syzkaller=syzkaller)


async def made(reproducer: Reproducer, folder: Path, syzkaller: Path | None) -> dict[str, Path]:
    binaries = syzkallers(syzkaller)
    return await program(reproducer, folder / "reproducer.syz", folder / "program", binaries)


async def test_options_of_syzkallers_programs(tmp_path: Path, syzkaller: Path) -> None:
    files = await made(reproducer(), tmp_path, syzkaller)
    assert set(files) == {
        "/kgym/reproducer",
        "/kgym/program.syz",
        "/kgym/syz-execprog",
        "/kgym/syz-executor",
    }
    lines = files["/kgym/reproducer"].read_text().splitlines()
    assert lines[0] == "#!/bin/sh"
    first, words = lines[-2].split(), lines[-1].split()
    assert first[:2] == ['"./p$name"', '"-executor=./e$name"']
    assert first[-2:] == ["||", "exit"]
    # Once, it tells what it executes.
    assert {"-output=true", "-vv=1", "-procs=1", "-repeat=1", "-sandbox=setuid"} <= set(first)
    assert words[:3] == ["exec", '"./p$name"', '"-executor=./e$name"']
    assert {"-procs=3", "-repeat=0", "-sandbox=setuid", "-threaded=true"} <= set(words)
    assert not {"-output=true", "-vv=1"} & set(words)
    assert not any(word.startswith("-collide") for word in words)  # this syz-execprog has none
    assert words[-1] == "/kgym/program.syz"


@pytest.mark.thorough
async def test_the_script_runs_the_program(tmp_path: Path, syzkaller: Path) -> None:
    files = await made(reproducer(), tmp_path, syzkaller)
    script = files["/kgym/reproducer"].read_text()
    for inside, path in files.items():
        script = script.replace(inside, str(path))
    argv = ["sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, timeout=20, check=True, cwd=tmp_path)
    assert done.stderr.endswith(b"getpid()\n")
    assert b"-procs=3" in done.stderr


async def test_features_that_this_syzkaller_does_not_know_are_told(
    tmp_path: Path, syzkaller: Path
) -> None:
    text = '#{"procs":1,"tun":true,"swap":true}\ngetpid()\n'
    files = await made(Reproducer(kind="syz", text=text), tmp_path, syzkaller)
    script = files["/kgym/reproducer"].read_text()
    assert "-enable=close_fds,tun " in script
    notes = [line for line in script.splitlines() if line.startswith("echo ")]
    done = subprocess.run(["sh", "-c", *notes], capture_output=True, timeout=20, check=True)
    executed = Executed.read(done.stderr + b"executing program 0:\ngetpid()\n")
    assert executed.lacking == {"swap": "this syzkaller does not know it"}


async def test_binaries_are_taken_by_commit(tmp_path: Path, syzkaller: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / COMMIT).symlink_to(syzkaller)
    files = await made(reproducer(syzkaller=COMMIT), tmp_path, tmp_path / "all")
    assert files["/kgym/syz-executor"].parent.name == COMMIT
    for commit, folder in ((None, tmp_path / "all"), (None, None), (COMMIT, None)):
        with refused("no_syzkaller", "--syzkaller DIR"):
            await made(reproducer(syzkaller=commit), tmp_path / "other", folder)


async def test_a_program_that_is_not_repeated_runs_once(tmp_path: Path, syzkaller: Path) -> None:
    repeated = Reproducer(kind="syz", text="#{}\ngetpid()\n")
    files = await made(repeated, tmp_path, syzkaller)
    line = files["/kgym/reproducer"].read_text().splitlines()[-1]
    assert {"exec", "-output=true", "-vv=1", "-procs=1", "-repeat=1"} <= set(line.split())


@pytest.mark.attack
async def test_a_built_execprog_reaches_nothing_of_the_host(tmp_path: Path) -> None:
    # Whoever submits a source of syzkaller's decides what its programs do.
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "syz-executor").touch()
    execprog = folder / "syz-execprog"
    execprog.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-here\necho '  -executor string'\n")
    execprog.chmod(0o755)
    await made(reproducer(), tmp_path, folder)
    assert not (tmp_path / "was-here").exists()


@pytest.mark.attack
@pytest.mark.parametrize(
    ("script", "words"), [("yes", "more printed"), ("echo something else", "something else")]
)
async def test_another_program_is_refused(tmp_path: Path, script: str, words: str) -> None:
    for name in ("syz-execprog", "syz-executor"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(UserError, match=words):
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
