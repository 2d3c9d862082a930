"""The server process of an emulated project: `python -m tests.google.cloud_project FOLDER`.

`kgym gcp up --emulated` starts it. It serves until SIGTERM or SIGINT, and holds the lock of FOLDER.
"""

import os
import shutil
import sys
from pathlib import Path

from kgym.errors import UserError
from kgym_cli.platforms.running_platform import Running, announce, take
from kgym_cli.platforms.servers import free_port
from tests.google.cloud_project.local_hosts import LocalHosts
from tests.google.cloud_project.server import CloudProject
from tests.google.cloud_storage.server import end_signal

# The operator's word on which kernel sources may be used.
_KEPT = {"KGYM_SOURCES", "KGYM_SOURCE_NETWORKS", "KGYM_MIRRORS", "KGYM_ARCHIVES"}


def main() -> None:
    """Serve the project of the folder that the command line names."""
    folder, ended = Path(sys.argv[1]), end_signal()
    try:
        lock = take(folder)
    except UserError:  # another command was quicker
        return
    _forget_platforms()
    for name in ("hosts", "cloud"):  # of a project whose server was killed
        shutil.rmtree(folder / name, ignore_errors=True)
    port = free_port()
    (folder / "scheduler").write_text(f"http://127.0.0.1:{port}")
    scheduler = [sys.executable, "-m", "kgym_cli", "scheduler", "--port", str(port)]
    with (
        LocalHosts(folder / "hosts", scheduler) as hosts,
        CloudProject(folder / "cloud", machines=hosts) as cloud,
    ):
        hosts.url = cloud.url
        announce(lock, Running(cloud.url))
        ended.wait()
    lock.close()


def _forget_platforms() -> None:
    """Drop the variables by which hosts, which inherit them, would find another platform."""
    for name in list(os.environ):
        if name.startswith(("KGYM_", "GOOGLE_", "STORAGE_EMULATOR", "GCE_")) and name not in _KEPT:
            del os.environ[name]


main()
