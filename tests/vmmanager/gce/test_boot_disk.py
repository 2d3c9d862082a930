"""Disks that boot one kernel: what they cannot hand on is refused."""

from pathlib import Path

import pytest

from kgym_vmmanager.gce import boot_disk
from tests.refused import refused

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("words", ['dyndbg="file a.c +p"', "a='b c'", "a=\\x41", "a=1 'b"])
async def test_words_for_the_boot_loader(tmp_path: Path, words: str) -> None:
    """Words that the boot loader would change are refused."""
    for name in ("kernel", "initrd"):
        (tmp_path / name).touch()
    with refused("no_cloud_words"):
        await boot_disk.make(tmp_path, tmp_path, tmp_path / "kernel", tmp_path / "initrd", words)
