"""Images stay mounted for the next user, unseen by the host, and go with their process."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from kgym.host.sandbox import Overlay, Sandbox
from kgym.host.squashfs import KEPT, Images, Mounted, Way
from tests.chaos import traces

pytestmark = pytest.mark.anyio

WAYS: list[Way] = ["mount", "squashfuse"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    way: Way = request.param
    if way == "mount" and os.geteuid() != 0:
        pytest.skip("only root mounts images")
    if way == "squashfuse" and shutil.which("squashfuse") is None:
        pytest.skip("squashfuse is not installed")
    return way


@pytest.fixture
def images(way: Way) -> Iterator[Images]:
    images = Images((way,))
    yield images
    images.close()


def packed(folder: Path, text: str = "from the image") -> Path:
    """Make an image of one file, which nobody owns."""
    tree, image = folder / "tree", folder / "image.squashfs"
    tree.mkdir(parents=True)
    (tree / "file").write_text(text)
    owner = ["-force-uid", "65534", "-force-gid", "65534"]
    subprocess.run(
        ["mksquashfs", tree, image, *owner, "-quiet", "-no-progress"], check=True, timeout=20
    )
    return image


def mounted(images: Images, image: Path, held: ExitStack) -> Mounted:
    mount = images.mount(image, held)
    assert mount is not None, images.refusal
    return mount


async def gone(keeper: int) -> bool:
    """Whether the keeper ends within some seconds."""
    end = time.monotonic() + 10
    while Path(f"/proc/{keeper}").exists() and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return not Path(f"/proc/{keeper}").exists()


async def run(mounted: Mounted, folder: Path, script: str) -> str:
    sandbox = Sandbox(overlays={"/tree": Overlay((mounted,), folder).create()})
    return (await sandbox.run(["sh", "-c", script], cwd="/tree", timeout=20)).text


@pytest.mark.thorough
async def test_each_use_writes_to_its_own_overlay(images: Images, tmp_path: Path) -> None:
    image = packed(tmp_path)
    with ExitStack() as held:
        shared = mounted(images, image, held)
        script = "cat file; echo changed >file; sleep 0.2; cat file"
        outputs = await asyncio.gather(*(run(shared, tmp_path / str(n), script) for n in range(3)))
    assert outputs == ["from the imagechanged\n"] * 3


async def test_fuse_makes_the_same_view_where_the_kernel_makes_none(
    images: Images, tmp_path: Path
) -> None:
    if shutil.which("fuse-overlayfs") is None:
        pytest.skip("fuse-overlayfs is not installed")
    with ExitStack() as held:
        image = replace(mounted(images, packed(tmp_path), held), overlay="fuse-overlayfs")
        script = "cat file; echo changed >file; cat file; rm file; ls"
        assert await run(image, tmp_path / "use", script) == "from the imagechanged\n"
        assert await run(image, tmp_path / "other", "cat file") == "from the image"


async def test_an_image_stays_mounted_for_the_next_user(images: Images, tmp_path: Path) -> None:
    image = packed(tmp_path)
    keepers = set()
    for _ in range(3):
        with ExitStack() as held:
            keepers.add(mounted(images, image, held).keeper)
    assert len(keepers) == 1


async def test_a_file_that_was_replaced_is_another_image(images: Images, tmp_path: Path) -> None:
    image = packed(tmp_path / "a")
    with ExitStack() as held:
        before = mounted(images, image, held)
        packed(tmp_path / "b", "from another image").replace(image)
        after = mounted(images, image, held)
        assert await run(before, tmp_path / "1", "cat file") == "from the image"
        assert await run(after, tmp_path / "2", "cat file") == "from another image"


@pytest.mark.thorough
async def test_who_uses_an_image_keeps_it_when_another_doubts_it(
    images: Images, tmp_path: Path
) -> None:
    image = packed(tmp_path)
    with ExitStack() as held:
        forgotten = mounted(images, image, held)
        images.forget(forgotten)
        another = mounted(images, image, held)
        assert another.keeper != forgotten.keeper
        assert await run(forgotten, tmp_path / "1", "cat file") == "from the image"
        assert await run(another, tmp_path / "2", "cat file") == "from the image"
    assert await gone(forgotten.keeper)


@pytest.mark.thorough
async def test_of_the_images_that_nobody_uses_few_stay_mounted(
    images: Images, tmp_path: Path
) -> None:
    keepers = []
    for number in range(KEPT + 3):
        with ExitStack() as held:
            keepers.append(mounted(images, packed(tmp_path / str(number)), held).keeper)
    ended, kept = keepers[:-KEPT], keepers[-KEPT:]
    assert all([await gone(keeper) for keeper in ended])
    assert all(Path(f"/proc/{keeper}").exists() for keeper in kept)


async def test_nothing_is_mounted_where_the_host_sees_it(images: Images, tmp_path: Path) -> None:
    image = packed(tmp_path)
    with ExitStack() as held:
        mount = mounted(images, image, held)
        assert await run(mount, tmp_path / "use", "cat file") == "from the image"
        assert not traces.mounts("squash")


async def test_a_file_that_is_no_image_is_refused_with_the_reason(way: Way, tmp_path: Path) -> None:
    (tmp_path / "image").write_text("no image")
    images = Images((way,))
    with ExitStack() as held:
        assert images.mount(tmp_path / "image", held) is None
    assert way in images.refusal


@pytest.mark.parametrize(("seconds", "mounts"), [(0, True), (600, False)])
async def test_a_way_that_failed_is_tried_again_later(
    way: Way, tmp_path: Path, seconds: float, mounts: bool
) -> None:
    (tmp_path / "image").write_text("no image")
    images = Images((way,), refused_seconds=seconds)
    with ExitStack() as held:
        assert images.mount(tmp_path / "image", held) is None
        assert (images.mount(packed(tmp_path / "good"), held) is not None) is mounts
    images.close()


KEEPING = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from kgym.host.squashfs import Images
images = Images((sys.argv[2],))
with ExitStack() as held:
    print(images.mount(Path(sys.argv[1]), held).keeper, flush=True)
    time.sleep(60)
"""


def test_a_killed_process_leaves_neither_mounts_nor_processes(way: Way, tmp_path: Path) -> None:
    image = packed(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", KEEPING, image, way], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        keeper = process.stdout.readline().strip()
        assert Path(f"/proc/{keeper}").exists()
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + 5
    while left := traces.processes(str(image)):
        assert time.monotonic() < end, left
        time.sleep(0.05)
    assert (
        str(image)
        not in subprocess.run(
            ["losetup", "-a"], check=True, capture_output=True, text=True, timeout=10
        ).stdout
    )
