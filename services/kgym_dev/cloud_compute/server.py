"""The HTTP server: so much of the REST interface as VMs for reproducers take.

with CloudCompute(folder) as cloud:
    cloud.reachable["169.254.10.1", 8431] = ("127.0.0.1", 8431)
    ...  # clients are given cloud.url as their endpoint
"""

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from kgym_dev.cloud_compute.routes import Routes
from kgym_dev.cloud_compute.state import State
from kgym_dev.cloud_storage.exchange import Http


class CloudCompute(State):
    """The server, in threads of this process, while the context lasts; then no machine runs."""

    def __init__(self, folder: Path, storage: str = "", port: int = 0) -> None:
        super().__init__(folder, storage)
        self._http = Http(("127.0.0.1", port), Routes)
        self._http.cloud = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self.end_all()
