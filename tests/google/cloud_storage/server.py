"""The HTTP server: the JSON API's objects and uploads, and the XML API's downloads by signed URL.

    with CloudStorage(folder) as cloud:
        cloud.buckets.create("artifacts")
        ...  # clients find it as STORAGE_EMULATOR_HOST = cloud.url

Beside these, `/bare/NAME` takes and gives files with nothing else done to them: a baseline.
"""

import argparse
import shutil
import signal
import tempfile
import threading
from pathlib import Path

from tests.google.cloud_storage.exchange import Served
from tests.google.cloud_storage.routes import Routes
from tests.google.cloud_storage.state import State


class CloudStorage(State, Served):
    """The server, in threads of this process, while the context lasts."""

    routes: type[Routes] = Routes

    def __init__(self, folder: Path, port: int = 0, delay: float = 0.0) -> None:
        super().__init__(folder)
        self.delay = delay
        self.serve(port, self.routes)


def end_signal() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended


def main() -> None:
    """Serve one bucket until SIGTERM or SIGINT; print the address."""
    ended = end_signal()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bucket")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="cloud-storage-"))
    try:
        with CloudStorage(folder, chosen.port, chosen.delay) as cloud:
            cloud.buckets.create(chosen.bucket)
            print(cloud.url, flush=True)
            ended.wait()
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
