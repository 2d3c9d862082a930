"""Disks that boot one kernel: what they cannot hand on is refused."""

from pathlib import Path

import pytest

from kgym.errors import UserError
from kgym_vmmanager.gce import boot_disk

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("words", ['dyndbg="file a.c +p"', "a='b c'", "a=\\x41", "a=1 'b"])
async def test_words_that_the_boot_loader_would_change_are_refused(
    tmp_path: Path, words: str
) -> None:
    for name in ("kernel", "initrd"):
        (tmp_path / name).touch()
    with pytest.raises(UserError) as caught:
        await boot_disk.make(tmp_path, tmp_path, tmp_path / "kernel", tmp_path / "initrd", words)
    assert caught.value.reason == "no_cloud_words"
