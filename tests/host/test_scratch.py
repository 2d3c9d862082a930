"""Folders for temporary files, of processes that were killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from kgym.host.scratch import scratch

_KEEP = """
import sys
from kgym.host.scratch import scratch
with scratch("test") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def started() -> tuple["subprocess.Popen[str]", Path]:
    """Return a process that keeps a folder, and the folder."""
    words = [sys.executable, "-c", _KEEP]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    return process, folder


@pytest.mark.thorough
def test_a_killed_process_leaves_its_folder_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (killed, left), (running, kept) = started(), started()
    with killed, running:
        (left / "deep").mkdir()
        killed.kill()
        killed.wait(20)
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "kgym-test-link").symlink_to("elsewhere")
        with scratch("test") as own:
            assert sorted(tmp_path.glob("kgym-test-*")) == sorted(
                [own, kept, tmp_path / "kgym-test-link"]
            )
        running.communicate(timeout=20)
    assert [path.name for path in tmp_path.glob("kgym-test-*")] == ["kgym-test-link"]
    assert (tmp_path / "elsewhere").is_dir()
