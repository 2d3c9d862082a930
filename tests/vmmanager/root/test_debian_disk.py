"""The root disk that is made once for all workers: what is stored is checked before its use."""

import shutil
from pathlib import Path

import pytest

from kgym.api.steps import Reproducer, ReproduceSpec, StepRef, UsedRoot, VmShape
from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import sha256_of
from kgym.worker.context import StepContext
from kgym_vmmanager.root import debian_disk
from kgym_vmmanager.root.debian_disk import ABOUT, DISK, PACKED
from tests.conftest import NewRun
from tests.refused import refused

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed"),
]


@pytest.fixture
async def run(new_run: NewRun, tmp_path: Path) -> StepContext:
    """A step on a worker that makes no disk, with a small one in storage."""
    program = Reproducer(text="int main(void) { return 0; }")
    run = new_run(ReproduceSpec(build=StepRef(step=0), reproducer=program, vm=VmShape(root="disk")))
    made = tmp_path / "made"
    made.mkdir()
    (made / DISK).write_bytes(b"a disk" * 100_000)
    await debian_disk.pack(made)
    about = UsedRoot(kind="disk", format="raw", sha256=sha256_of(made / DISK))
    (made / ABOUT).write_text(about.model_dump_json())
    name = debian_disk.recipe()
    for file in (PACKED, ABOUT):
        await run.storage.put(f"memo/{name[:2]}/{name}/{file}", made / file)
    return run


@pytest.fixture(autouse=True)
def no_mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what unpacks disks is installed."""
    (tmp_path / "bin").mkdir()
    for name in ("setpriv", "sh", "zstd"):
        program = shutil.which(name)
        assert program is not None
        (tmp_path / "bin" / name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def stored(tmp_path: Path, name: str) -> Path:
    (path,) = (tmp_path / "storage").rglob(name)
    return path


async def test_a_stored_disk_is_taken(run: StepContext, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    await debian_disk.make(run, folder)
    assert (folder / DISK).read_bytes() == b"a disk" * 100_000


@pytest.mark.attack
@pytest.mark.parametrize("damaged", [PACKED, ABOUT])
@pytest.mark.parametrize("content", [b"", b"{}", b"(\xb5/\xfd", None], ids=repr)
async def test_a_damaged_one_is_not_and_who_can_make_none_says_what_to_do(
    run: StepContext, tmp_path: Path, damaged: str, content: bytes | None
) -> None:
    path = stored(tmp_path, damaged)
    good = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(good[:-9] + b"x" + good[-8:] if content is None else content)
    folder = tmp_path / "disk"
    folder.mkdir()
    with refused("no_root_disk", kind=InfrastructureError) as caught:
        await debian_disk.make(run, folder)
    assert "has no mmdebstrap" in caught.value.message
    assert "on one worker" in caught.value.message
