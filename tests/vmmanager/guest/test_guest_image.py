"""The guest image is made once, whole, and anew when it was damaged."""

import asyncio
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgym_vmmanager.guest import cpio
from kgym_vmmanager.guest import guest_image as guest_image_module
from kgym_vmmanager.guest.guest_image import guest_image
from tests.conftest import ROOT

pytestmark = pytest.mark.anyio


def listing(archive: bytes, *options: str) -> list[str]:
    argv = ["cpio", "--list", "--quiet", *options]
    done = subprocess.run(argv, input=archive, capture_output=True, check=True, timeout=20)
    return done.stdout.decode().splitlines()


NAMES = st.text("abcdefghij._-", min_size=1, max_size=40).filter(lambda name: name.strip("."))


@settings(max_examples=30)  # each starts a process
@given(st.dictionaries(NAMES, st.binary(max_size=50), max_size=8))
def test_cpio_lists_what_was_archived(files: dict[str, bytes]) -> None:
    archive = cpio.archive(cpio.file(name, data) for name, data in files.items())
    assert listing(archive) == list(files)


def test_folders_and_devices_keep_their_kind() -> None:
    archive = cpio.archive([cpio.folder("dev", 0o700), cpio.character_device("dev/console", 5, 1)])
    folder, device = listing(archive, "--verbose", "--numeric-uid-gid")
    assert folder.startswith("drwx------")
    assert device.startswith("crw-------")
    assert "5,   1" in device


@pytest.mark.thorough
async def test_it_holds_what_the_guest_needs(cache: Path) -> None:
    image = await guest_image(cache)
    names = set(listing(image.initrd.read_bytes()))
    assert {"init", "dev/console", "bin/busybox", "bin/dropbear", "kgym/run"} <= names
    assert {"bin/dash", "bin/iproute2", "lib/libmnl.so.0"} <= names  # what reproducers call
    assert {"etc/host_key", "root/.ssh/authorized_keys", "lib/libc.so.6"} <= names
    assert image.host_key.startswith("ssh-ed25519 ")
    assert image.client_key.stat().st_mode & 0o077 == 0


@pytest.mark.thorough
async def test_the_page_says_what_room_its_programs_take_on_a_disk(cache: Path) -> None:
    page = (ROOT / "docs" / "own-bug.md").read_text()
    ours = re.search(r"(\d+) MiB for kGymSuite", page)
    spare = re.search(r"(\d+) MiB that stay free", page)
    assert ours
    assert spare
    size = (await guest_image(cache)).initrd.stat().st_size
    assert size <= int(ours[1]) << 20 <= 2 * size
    script = (Path(guest_image_module.__file__).parent / "inside" / "init").read_text()
    assert f"\nspare={int(spare[1]) * 1024}\n" in script


@pytest.mark.thorough
async def test_it_is_made_once(cache: Path) -> None:
    first, second = await asyncio.gather(guest_image(cache), guest_image(cache))
    assert first.folder == second.folder
    stamp = first.initrd.stat().st_mtime_ns
    assert (await guest_image(cache)).initrd.stat().st_mtime_ns == stamp


@pytest.mark.thorough
async def test_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    image = await guest_image(tmp_path)
    whole = image.initrd.stat().st_size
    image.initrd.write_bytes(image.initrd.read_bytes()[:1000])
    image.client_key.unlink()
    assert (await guest_image(tmp_path)).folder == image.folder
    assert image.initrd.stat().st_size == whole
    assert image.client_key.is_file()
