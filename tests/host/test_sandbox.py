"""What runs in the sandbox sees and changes only what it was given."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kgym.errors import InfrastructureError, UserError
from kgym.host import pid_namespace, proc
from kgym.host.sandbox import Overlay, Sandbox, prepare, remove
from kgym.host.sandbox_limits import SandboxLimits
from tests.conftest import ROOT
from tests.refused import refused
from tests.tables import json_rows

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


async def test_none_of_its_processes_shows_the_environment_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KGYM_TEST_SECRET", "the secret")
    seen = await sh(Sandbox(), "cat /proc/[0-9]*/environ; ls /proc/1/environ")
    assert "/proc/1/environ" in seen
    assert "the secret" not in seen


async def test_it_inherits_no_file_of_the_worker(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        seen = await sh(Sandbox(), "readlink /proc/[1-9]*/fd/* || :")
    assert "pipe:" in seen
    assert "open" not in seen
    assert "memfd" not in seen


async def test_a_relative_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await sh(Sandbox(writable={"/out": prepare(Path("out"))}), "touch /out/file")
    assert (tmp_path / "out" / "file").exists()


async def test_it_writes_nowhere_but_to_its_folders_and_temporary_files() -> None:
    script = "for d in / /usr /dev /proc /tmp /dev/shm; do touch $d/x && echo in $d; done 2>&-; :"
    assert await sh(Sandbox(), script) == "in /tmp\nin /dev/shm\n"


@pytest.mark.parametrize("call", json_rows(__file__, "uncovered_calls.jsonl"))
async def test_system_calls_that_namespaces_do_not_cover_are_refused(
    tmp_path: Path, call: str
) -> None:
    headers = ("errno.h", "sys/ptrace.h", "sys/socket.h", "sys/syscall.h", "unistd.h")
    includes = "".join(f"#include <{header}>\n" for header in headers)
    source = f"{includes}int main(void) {{ return {call} < 0 && errno == EPERM ? 7 : 0; }}\n"
    folder = prepare(tmp_path / "w")
    (folder / "x.c").write_text(source)
    sandbox = Sandbox(writable={"/w": folder})
    await sh(sandbox, "cc -w -D_GNU_SOURCE -o /w/x /w/x.c")
    assert (await sandbox.run(["/w/x"], timeout=20, check=False)).returncode == 7


async def test_ordinary_sockets_work_within_it() -> None:
    script = "import socket\nfor f in (1, 2, 10): socket.socket(f)\nprint('made')"
    assert "made" in (await Sandbox().run(["python3", "-c", script], timeout=20)).text


SMALL = replace(
    SandboxLimits.of_host(), processes=20, memory=64 << 20, disk=8 << 20, output=1 << 20
)


@pytest.mark.parametrize(("limit", "script"), json_rows(__file__, "greedy_scripts.jsonl"))
async def test_over_a_limit_it_is_killed_and_the_error_says_which(
    tmp_path: Path, limit: str, script: str
) -> None:
    sandbox = Sandbox(writable={"/w": prepare(tmp_path / "w")}, limits=SMALL)
    with pytest.raises(UserError, match=f"^killed at the sandbox's limit of {limit}") as caught:
        await sh(sandbox, script)
    assert (caught.value.reason, caught.value.details["limit"]) == ("sandbox_limit", limit)


@pytest.mark.thorough
async def test_without_a_time_limit_of_the_caller_its_own_holds() -> None:
    with pytest.raises(UserError, match=r"limit of time: not at its end, 0\.5 s allowed"):
        await Sandbox(limits=replace(SMALL, seconds=0.5)).run(["sleep", "9"])
    with pytest.raises(proc.ProgramTimedOut):
        await Sandbox(limits=SMALL).run(["sleep", "9"], timeout=0.5)


@pytest.mark.thorough
async def test_folders_nested_too_deeply_for_a_path_are_removed(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "w")
    script = "import os\nfor i in range(3000): os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)"
    sandbox = Sandbox(writable={"/w": folder})
    with pytest.raises(UserError, match="depth"):
        await sandbox.run(["python3", "-c", f"{script}; __import__('time').sleep(9)"], cwd="/w")
    remove(folder)
    assert not folder.exists()


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


USE = """
import asyncio, sys
from pathlib import Path
from kgym.errors import KgymError
from kgym.host.sandbox import Overlay, Sandbox, prepare

folder = Path(sys.argv[1])
(prepare(folder / "lower") / "file").write_text("old")
(folder / "lower/file").chmod(0o666)
overlay = Overlay((folder / "lower",), folder / "over").create()
script = "id -u; cat file; echo -n new >file; cat file"
try:
    run = Sandbox(overlays={"/t": overlay}).run(["sh", "-c", script], cwd="/t", timeout=20)
    print(asyncio.run(run).text, (overlay.upper / "file").read_text())
except KgymError as error:
    print(error.cause, error.reason, error)
"""


def used_by(worker: list[str], folder: Path) -> str:
    """Run a worker that is started by these words; return what it says of a sandbox with a tree."""
    argv = [*worker, sys.executable, "-c", USE, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "common")}
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=60, check=True)
    return done.stdout.decode()


# Another user; to read is left to it, as the interpreter may lie in the home of root.
NOT_ROOT = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
NOT_ROOT += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
# The kernel gives no user namespace to who lives in a chroot (user_namespaces(7)).
IN_CHROOT = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount --rbind / /mnt && exec chroot /mnt "$@"',
    "sh",
]
as_root = pytest.mark.skipif(not proc.privileged(), reason="only root can become another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of everybody's, where everybody can walk to."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@as_root
def test_it_works_for_a_worker_that_is_not_root(folder: Path) -> None:
    assert used_by(NOT_ROOT, folder) == "65534\noldnew new\n"


@as_root
def test_root_without_roots_rights_whose_processes_nothing_limits_is_refused(
    tmp_path: Path,
) -> None:
    report = used_by(["unshare", "--user", "--map-root-user"], tmp_path)
    assert report.startswith("infrastructure no_sandbox this worker is the host's root")


@as_root
def test_where_no_namespaces_can_be_made_nothing_runs_and_the_error_says_why(folder: Path) -> None:
    report = used_by([*IN_CHROOT, *NOT_ROOT], folder)
    assert report.startswith("infrastructure no_sandbox no sandbox can be made here")
    assert "unshare failed" in report


@pytest.mark.thorough
@as_root
def test_where_the_kernel_refuses_an_overlay_fuse_makes_it(tmp_path: Path) -> None:
    proc.require("fuse-overlayfs")
    script = """mount -t tmpfs t "$1" && cd "$1" && shift
    mkdir l u w m && mount -t overlay -o lowerdir=l,upperdir=u,workdir=w o m && exec "$@" """
    overlaid = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path)]
    assert used_by(overlaid, tmp_path / "m") == "65534\noldnew new\n"


async def test_a_sandbox_that_is_killed_gives_no_status_of_its_program() -> None:
    sleeping = asyncio.create_task(Sandbox().run(["sleep", "7362.1"], timeout=20, check=False))
    while (await proc.run(["pgrep", "-f", "^sleep 7362.1"], timeout=5, check=False)).returncode:
        await asyncio.sleep(0.1)
    pids = await proc.run(["pgrep", "-f", "^bwrap.* sleep 7362.1"], timeout=5)
    for process in pids.text.split():
        os.kill(int(process), signal.SIGKILL)
    with refused("no_sandbox", kind=InfrastructureError):
        await sleeping


async def test_nothing_stays_mounted(tmp_path: Path) -> None:
    overlay = Overlay((prepare(tmp_path / "lower"),), tmp_path / "over").create()
    await sh(Sandbox(overlays={"/tree": overlay}), "true")
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


async def test_a_daemon_does_not_outlive_the_program() -> None:
    await sh(Sandbox(), "setsid sleep 7361.1 >/dev/null 2>&1 &")
    search = await proc.run(["pgrep", "-f", "^sleep 7361.1"], timeout=10, check=False)
    assert search.returncode == 1


async def test_orphans_leave_no_zombies() -> None:
    await sh(Sandbox(), "setsid sleep 7361.2 >/dev/null 2>&1 &")
    first = pid_namespace.current().first
    for _ in range(100):
        listed = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        states = [Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in listed]
        if "Z" not in states:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(states)


async def test_an_error_names_the_program_not_the_way_into_the_sandbox() -> None:
    with pytest.raises(proc.ProgramFailed, match=r"^`cat /nowhere` ended with status 1"):
        await Sandbox().run(["cat", "/nowhere"], timeout=20)
