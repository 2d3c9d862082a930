"""What runs in the sandbox sees and changes only what it was given."""

import os
from pathlib import Path

import pytest

from kgym import proc
from kgym.sandbox import Overlay, Sandbox, prepare, remove

pytestmark = pytest.mark.anyio


async def sh(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.run(["sh", "-c", script], timeout=20)).text


async def test_it_is_nobody_without_network_or_environment() -> None:
    os.environ["KGYM_TEST_SECRET"] = "secret"
    try:
        seen = await sh(Sandbox(), "id -u; env; tail -n +3 /proc/net/dev | cut -d: -f1; ls /")
    finally:
        del os.environ["KGYM_TEST_SECRET"]
    assert seen.startswith("65534\n")
    assert "secret" not in seen
    assert "\n    lo\n" in seen
    assert "eth0" not in seen
    assert "home" not in seen
    assert "root" not in seen


async def test_processes_of_the_host_are_out_of_sight() -> None:
    pids = (await sh(Sandbox(), "ls -d /proc/[0-9]*")).split()
    assert len(pids) < 6


async def test_writable_folders_are_written_and_others_are_not(tmp_path: Path) -> None:
    ours, theirs = prepare(tmp_path / "ours"), tmp_path / "theirs"
    theirs.mkdir()
    sandbox = Sandbox(writable={"/ours": ours}, readonly={"/theirs": theirs})
    await sh(sandbox, "echo x > /ours/file; echo x > /theirs/file || :; echo x > /usr/file || :")
    assert (ours / "file").read_text() == "x\n"
    assert list(theirs.iterdir()) == []


async def test_an_overlay_keeps_its_changes_and_its_layers_stay_as_they_were(
    tmp_path: Path,
) -> None:
    lower = prepare(tmp_path / "lower")
    await sh(Sandbox(writable={"/l": lower}), "echo old > /l/file; echo gone > /l/other")
    overlay = Overlay((lower,), tmp_path / "over").create()
    sandbox = Sandbox(overlays={"/tree": overlay})
    await sh(sandbox, "echo new > /tree/file; rm /tree/other")
    assert await sh(sandbox, "cat /tree/file; ls /tree") == "new\nfile\n"
    assert (lower / "file").read_text() == "old\n"
    assert (lower / "other").exists()
    remove(overlay.folder)
    assert not overlay.folder.exists()


async def test_nothing_stays_mounted(tmp_path: Path) -> None:
    overlay = Overlay((prepare(tmp_path / "lower"),), tmp_path / "over").create()
    await sh(Sandbox(overlays={"/tree": overlay}), "true")
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


async def test_a_daemon_does_not_outlive_the_program() -> None:
    await sh(Sandbox(), "setsid sleep 7361.1 >/dev/null 2>&1 &")
    found = await proc.run(["pgrep", "-f", "^sleep 7361.1"], timeout=10, check=False)
    assert found.returncode == 1


async def test_an_error_names_the_program_not_the_way_into_the_sandbox() -> None:
    with pytest.raises(proc.ProgramFailed, match=r"^`cat /nowhere` ended with status 1"):
        await Sandbox().run(["cat", "/nowhere"], timeout=20)
