"""Guests that start from a disk: where the program runs, what is kept, what is refused."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from kgym.api.steps import InstanceOutcome, ReproduceResult, RootImage, Verdict
from kgym.worker.context import StepContext
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from tests.vmmanager.conftest import NewStep

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(1800)]

WHERE = Path(__file__).with_name("on_ext4.c").read_text()
NOTHING = "int main(void) { return 0; }"


async def take(run: StepContext, url: str, digest: str, target: Path, most: int) -> None:
    del run, digest, most
    shutil.copyfile(url, target)


async def perform(cache: Path, run: StepContext) -> ReproduceResult:
    return await Reproduce(cache, fetch=take)(run)


def image(tmp_path: Path, size: str, *, free: bool = True) -> RootImage:
    """An ext4 file system with a static shell, and nothing else: no SSH, no init, no users."""
    folder, path = tmp_path / "content", tmp_path / "disk.img"
    (folder / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", folder / "bin" / "sh")
    if not free:
        with (folder / "full").open("wb") as file:
            file.write(b"\1" * (18 << 20))
    subprocess.run(["mkfs.ext4", "-q", "-F", "-d", folder, path, size], check=True, timeout=60)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return RootImage(url=str(path), sha256=digest, format="raw")


@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed")
@pytest.mark.exhaustive
async def test_a_program_runs_on_debian(new_step: NewStep, cache: Path) -> None:
    done = await perform(cache, await new_step(WHERE, root="disk", instances=2, time=4))
    assert done.verdict is Verdict.NO_CRASH, done
    assert (done.root.kind, done.root.format) == ("disk", "raw")
    assert done.root.sha256 is not None
    assert done.root.system


@pytest.mark.exhaustive
async def test_an_image_needs_a_shell(new_step: NewStep, cache: Path, tmp_path: Path) -> None:
    """It needs nothing else, and is left unchanged."""
    root = image(tmp_path, "64M")
    done = await perform(cache, await new_step(WHERE, root=root, time=4))
    assert done.verdict is Verdict.NO_CRASH, done
    assert (done.root.kind, done.root.sha256) == ("image", root.sha256)
    kept = (path.read_bytes() for path in (cache / "roots").glob("*/disk"))
    assert root.sha256 in {hashlib.sha256(content).hexdigest() for content in kept}


@pytest.mark.attack
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("size", "free", "words"),
    [("24M", False, "room"), ("", True, "no ext4")],
    ids=["full", "no file system"],
)
async def test_an_image_of_no_use_is_told_and_is_no_verdict(
    new_step: NewStep, cache: Path, tmp_path: Path, size: str, free: bool, words: str
) -> None:
    root = image(tmp_path, size or "24M", free=free)
    if not size:
        path = Path(str(root.url))
        path.write_bytes(bytes(1 << 20))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        root = root.model_copy(update={"sha256": digest})
    done = await perform(cache, await new_step(NOTHING, root=root, time=4))
    assert done.verdict is Verdict.INCONCLUSIVE
    assert done.instances[0].outcome is InstanceOutcome.BOOT_FAILED
    assert words in done.instances[0].detail
