"""The archive that runs the same by hand."""

import asyncio
import json
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from kgym.api.steps import UsedRoot, VmShape
from kgym_vmmanager.reproduce import bundle_archive
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from kgym_vmmanager.vm.accelerator import Accelerator, Probed
from tests.vmmanager.conftest import NewStep
from tests.vmmanager.reproduce.test_instances import program

PROBED = Probed(
    accelerator=Accelerator.TCG, tsc_khz=2_000_000, host="boot | QEMU emulator version 7.2 | -"
)
SECONDS = 200


def qemu_words(tmp_path: Path, text: str, folder: Path, *arguments: str) -> list[str]:
    """Run a script in the folder; return where it starts QEMU, and with which words."""
    stand_in, script = tmp_path / "qemu-system-x86_64", folder / "reproduce.sh"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
    stand_in.chmod(0o755)
    script.write_text(text)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = ["sh", script, *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=20, check=True)
    return done.stdout.decode().splitlines()


def test_the_script_is_the_command_of_the_vm_on_the_terminal(tmp_path: Path) -> None:
    text = bundle_archive.script(VmShape(memory=700, append="quiet 'a\"b"), PROBED, 2)
    (tmp_path / "at home").mkdir()
    where, *words = qemu_words(tmp_path, text, tmp_path / "at home", "1")
    assert where == str(tmp_path / "at home")
    assert words[words.index("-initrd") + 1] == "initrd-1.cpio"
    assert words[words.index("-m") + 1] == "700"
    for name, content in (("initrd-1.cpio", "image"), ("variant-77.cpio", " and orders")):
        (tmp_path / "at home" / name).write_text(content)
    _, *changed = qemu_words(tmp_path, text, tmp_path / "at home", "1", "77")
    initrd = tmp_path / "at home" / changed[changed.index("-initrd") + 1]
    assert initrd.read_text() == "image and orders"
    command_line = words[words.index("-append") + 1].split()
    assert "kgym.autorun" in command_line
    assert command_line[-2:] == ["quiet", "'a\"b"]
    assert "restrict=on" in words[words.index("-netdev") + 1]
    assert not any("monitor" in word for word in words)
    assert not any("tsc" in word for word in command_line)


def test_a_script_of_a_host_with_kvm_goes_without() -> None:
    probed = PROBED.model_copy(update={"accelerator": Accelerator.KVM, "tsc_khz": None})
    text = bundle_archive.script(VmShape(), probed, 1)
    assert "-accel kvm -accel tcg,thread=multi,tb-size=256 -cpu max" in text


@pytest.mark.anyio
async def test_the_archive_holds_the_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    kernel, script = tmp_path / "bzImage", tmp_path / "script"
    kernel.write_bytes(b"kernel")
    script.write_text("#!/bin/sh\n")
    archive = await bundle_archive.pack(
        tmp_path / "work", {"kernel": kernel, "reproduce.sh": script}
    )
    with tarfile.open(archive, "r:gz") as packed:
        members = {member.name: member for member in packed.getmembers()}
        assert set(members) == {"bundle", "bundle/kernel", "bundle/reproduce.sh"}
        assert members["bundle/reproduce.sh"].mode & 0o111
        content = packed.extractfile("bundle/kernel")
        assert content is not None
        assert content.read() == b"kernel"
    assert list((tmp_path / "work").iterdir()) == [archive]


@pytest.mark.anyio
async def test_it_is_packed_while_vms_that_boot_the_same_kernel_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    kernel, link = tmp_path / "bzImage", tmp_path / "of a vm"
    kernel.write_bytes(os.urandom(1 << 20) * 4)
    packing = asyncio.create_task(bundle_archive.pack(tmp_path / "work", {"kernel": kernel}))
    while not packing.done():
        os.link(kernel, link)
        await asyncio.sleep(0.005)
        link.unlink()
    with tarfile.open(await packing) as packed:
        assert packed.getmember("bundle/kernel").size == 4 << 20


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.timeout(600)
async def test_bundle_runs(new_step: NewStep, cache: Path, tmp_path: Path, kernel: Path) -> None:
    """A bundle that is unpacked elsewhere runs to the crash."""
    run = await new_step(
        program("sleep(1); crash(); return 0;"), time=30, titles=["any"], bundle="whole"
    )
    built = run.assignment.inputs["build"]
    vmlinux = await run.storage.put("steps/0/vmlinux", kernel.with_name("vmlinux"))
    run.assignment.inputs["build"] = built.model_copy(
        update={"artifacts": [*built.artifacts, vmlinux]}
    )
    result = await Reproduce(cache)(run)
    assert result.crashed == 1, result.reason
    (kept,) = [artifact for artifact in run.artifacts if artifact.name == bundle_archive.NAME]
    await run.storage.get(kept.key, tmp_path / bundle_archive.NAME)

    away = tmp_path / "another machine"
    away.mkdir()
    subprocess.run(
        ["tar", "-xf", tmp_path / bundle_archive.NAME, "-C", away], check=True, timeout=60
    )
    shutil.rmtree(run.folder)
    assert {path.name for path in (away / "bundle").iterdir()} == {
        *("kernel", "vmlinux", "initrd-0.cpio", "reproducer.c", "reproducer"),
        *("reproduce.sh", "about.json"),
    }
    assert json.loads((away / "bundle" / "about.json").read_text())["titles"] == ["any"]
    assert b"sysrq: Trigger a crash" in _console(away / "bundle" / "reproduce.sh")


def _console(script: Path) -> bytes:
    """Run the script to the panic; return what came on the terminal."""
    with subprocess.Popen(
        [script], env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        try:
            return _read_until(process, b"Kernel panic")
        finally:
            process.kill()


def _read_until(process: "subprocess.Popen[bytes]", words: bytes) -> bytes:
    assert process.stdout is not None
    console, limit = b"", time.monotonic() + SECONDS
    while words not in console:
        line = process.stdout.readline()
        assert line, console[-2000:]
        assert time.monotonic() < limit, console[-2000:]
        console += line
    return console


def test_a_script_of_guests_with_a_disk_unpacks_it_and_keeps_it_as_it_is(tmp_path: Path) -> None:
    disk = UsedRoot(kind="disk", format="qcow2", sha256="0" * 64)
    text = bundle_archive.script(VmShape(root="disk"), PROBED, 1, disk)
    (tmp_path / "disk-as-it-was").write_bytes(b"disk")
    packed = ["zstd", "-q", tmp_path / "disk-as-it-was", "-o", tmp_path / "root.zst"]
    subprocess.run(packed, check=True, timeout=20)
    for _ in range(2):
        words = qemu_words(tmp_path, text, tmp_path)
    assert (tmp_path / "disk").read_bytes() == b"disk"
    drive = words[words.index("-drive") + 1]
    assert "snapshot=on" in drive
    assert json.loads(
        drive.removeprefix("file=json:").rpartition("},")[0].replace(",,", ",") + "}"
    ) == {"driver": "qcow2", "backing": None, "file": {"driver": "file", "filename": "disk"}}
    assert "kgym_root=disk" in words[words.index("-append") + 1].split()
