"""What a guest that has broken out of its QEMU finds: nothing to read, nobody to call."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from kgym.api.steps import VmShape
from kgym.errors import InfrastructureError
from kgym.host import proc, sandbox
from kgym_vmmanager.vm.accelerator import Accelerator, Probed
from kgym_vmmanager.vm.qemu import QemuVm, qemu_arguments
from kgym_vmmanager.vm.qemu_jail import confined
from tests.conftest import ROOT
from tests.host.test_sandbox import NOT_ROOT
from tests.refused import refused
from tests.vmmanager.conftest import without_kernel

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

SECRETS = {"KGYM_TOKEN": "kgym_1_token", "KGYM_BUS": "amqp://kgym:busword@host/"}
LIMIT = 30


async def said_in_jail(folder: Path, script: str) -> str:
    """What a script prints in the jail."""
    async with confined(["sh", "-c", script], sandbox.prepare(folder), "/vm") as jail:
        assert jail.process.stdout is not None
        async with asyncio.timeout(LIMIT):
            return (await jail.process.stdout.read()).decode()


async def test_no_process_shows_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process in the jail shows the worker's environment."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    seen = await said_in_jail(tmp_path / "vm", "cat /proc/[0-9]*/environ; ls /proc/1/environ")
    assert "/proc/1/environ" in seen
    assert not [value for value in SECRETS.values() if value in seen]


async def test_no_program_gets_the_secrets_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, "AWS_SECRET": "cloud", "HTTPS_PROXY": "http://proxy"}.items():
        monkeypatch.setenv(name, value)
    seen = (await proc.run(["env"], timeout=LIMIT)).text
    assert "PATH=" in seen
    assert "HTTPS_PROXY=http://proxy" in seen
    assert not [word for word in (*SECRETS.values(), "cloud") if word in seen]


async def test_its_network_is_a_loopback_of_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        script = f"""
            tail -n +3 /proc/net/dev | cut -d: -f1
            python3 -c 'import socket; socket.create_connection(("127.0.0.1", {port}), 5)' 2>&1
            cat /proc/net/unix
        """
        seen = await said_in_jail(tmp_path / "vm", script)
    assert seen.split()[0] == "lo"
    assert "ConnectionRefusedError" in seen
    assert len(seen[seen.index("Inode Path") :].splitlines()) == 1
    assert "eth" not in seen


@pytest.mark.parametrize("space", ["user", "user --mount", "user --net", "user --pid --fork"])
async def test_it_can_make_no_further_namespace(tmp_path: Path, space: str) -> None:
    seen = await said_in_jail(tmp_path / "vm", f"unshare --{space} true && echo made; echo end")
    assert seen.endswith("end\n")
    assert "made" not in seen


async def test_it_is_nobody_and_sees_nothing_but_its_folder(tmp_path: Path) -> None:
    script = "id -u; ls / /vm; grep -E '^Cap(Prm|Eff|Bnd)|^NoNewPrivs' /proc/self/status"
    seen = (await said_in_jail(tmp_path / "vm", script)).split()
    assert seen[0] == "65534"
    assert not {"root", "home", "work", "etc/shadow"} & set(seen)
    assert seen[seen.index("CapEff:") + 1] == "0" * 16
    assert seen[seen.index("NoNewPrivs:") + 1] == "1"


ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 2222))
print("up", flush=True)
while True:
    link = server.accept()[0]
    link.sendall(link.recv(100).upper())
"""


async def test_a_port_in_it_is_reached_from_here_and_by_nobody_else(tmp_path: Path) -> None:
    argv = ["/usr/bin/python3", "-c", ECHO]
    async with confined(argv, sandbox.prepare(tmp_path / "vm"), "/vm") as jail:
        assert jail.process.stdout is not None
        async with asyncio.timeout(LIMIT):
            assert await jail.process.stdout.readline() == b"up\n"
        with await asyncio.to_thread(jail.connect, 2222, LIMIT) as link:
            link.sendall(b"hello")
            assert link.recv(100) == b"HELLO"
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(jail.connect, 2223, LIMIT)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", 2222), LIMIT)
    with pytest.raises(OSError):  # noqa: PT011 - whichever of its parts is found gone first
        await asyncio.to_thread(jail.connect, 2222, LIMIT)


async def test_all_that_holds_for_a_worker_that_is_not_root(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("this one is not root")
    wanted = [name for name in globals() if name.startswith("test_") and "not_root" not in name]
    argv = [*NOT_ROOT, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    argv += ["-n", "0", __file__, "-k", " or ".join(wanted)]
    done = await proc.run(argv, timeout=120, cwd=ROOT, env={**proc.environment(), "HOME": "/tmp"})
    assert "passed" in done.text


async def test_an_early_death_of_qemu_is_told_in_its_words(tmp_path: Path) -> None:
    argv = qemu_arguments(VmShape(memory=256), Probed(accelerator=Accelerator.TCG))
    with refused("qemu_died", "could not open kernel file", kind=InfrastructureError):
        async with QemuVm.running(argv, sandbox.prepare(tmp_path / "vm"), lambda _: None, 0):
            pass


async def test_a_qemu_that_dies_at_any_moment_is_a_named_error(tmp_path: Path) -> None:
    """Killed while its monitor is opened: by then it may have a socket, an answer, or neither."""
    argv = qemu_arguments(VmShape(memory=256), Probed(accelerator=Accelerator.TCG))
    argv = without_kernel(argv)
    for number in range(12):
        folder = sandbox.prepare(tmp_path / f"vm-{number}")
        killer = threading.Timer(0.02 * number, kill_users_of, [str(folder), argv[0]])
        killer.start()
        with refused("qemu_died", kind=InfrastructureError):
            async with (
                QemuVm.running(argv, folder, lambda _: None, 0) as vm,
                asyncio.timeout(LIMIT),
            ):
                raise await vm.died()
        killer.join()


def kill_users_of(folder: str, program: str) -> None:
    """Kill the QEMU whose folder this is, as soon as it runs."""
    for _ in range(500):
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0] == program.encode() and folder in (process / "mountinfo").read_text():
                    os.kill(int(process.name), signal.SIGKILL)
                    return
        time.sleep(0.01)
