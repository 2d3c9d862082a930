"""The HTTP server: so much of the REST interface as VMs for reproducers take.

with CloudCompute(folder) as cloud:
    cloud.reachable["169.254.10.1", 8431] = ("127.0.0.1", 8431)
    ...  # clients are given cloud.url as their endpoint
"""

import argparse
from pathlib import Path
from types import TracebackType

from tests.google.cloud_compute.routes import Routes
from tests.google.cloud_compute.state import State
from tests.google.cloud_storage.exchange import Served
from tests.google.cloud_storage.server import end_signal


class CloudCompute(State, Served):
    """The server, in threads of this process, while the context lasts; then no machine runs."""

    def __init__(self, folder: Path, storage: str = "", port: int = 0) -> None:
        super().__init__(folder, storage)
        self.serve(port, Routes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, _)
        self.end_all()


def main() -> None:
    """Serve until SIGTERM or SIGINT; then no machine runs."""
    ended = end_signal()
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--storage", default="", help="URL of the server that has the buckets")
    parser.add_argument(
        "--reachable",
        metavar="ADDRESS:PORT",
        action="append",
        default=[],
        help="an address in the machines' network that leads to this port of 127.0.0.1",
    )
    chosen = parser.parse_args()
    with CloudCompute(chosen.folder, chosen.storage, chosen.port) as cloud:
        for place in chosen.reachable:
            address, _, port = place.rpartition(":")
            cloud.reachable[address, int(port)] = ("127.0.0.1", int(port))
        ended.wait()


if __name__ == "__main__":
    main()
