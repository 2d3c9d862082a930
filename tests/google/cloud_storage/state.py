"""What the server knows: objects, uploads, accounts, the faults to come, and what it was asked."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.google.cloud_storage.accounts import Accounts
from tests.google.cloud_storage.buckets import Buckets, Conditions, Stored
from tests.google.cloud_storage.faults import Faults
from tests.google.cloud_storage.uploads import Uploads


class Requests:
    """The requests that a server was sent, what is to go wrong with them, and its `url`."""

    def __init__(self) -> None:
        self.url = ""
        # Seconds before each request is looked at: as if the server were far away.
        self.delay = 0.0
        self.faults = Faults()
        # Method and target of each request, in order.
        self.requests: list[str] = []
        # What each showed as its authorization.
        self.shown: list[str | None] = []
        self.at_once = 0
        # How many requests were under way at the same time.
        self.most_at_once = 0
        self.lock = threading.Lock()
        self.stopping = threading.Event()

    @contextlib.contextmanager
    def counted(self, request: str, shown: str | None) -> Iterator[None]:
        """Count a request while it is under way."""
        with self.lock:
            self.requests.append(request)
            self.shown.append(shown)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield
        finally:
            with self.lock:
                self.at_once -= 1


class State(Requests):
    """All that the server knows."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.buckets = Buckets(folder)
        self.uploads = Uploads()
        self.accounts = Accounts()
        # What one call of a rewrite copies.
        self.rewrite_bytes = 1 << 40
        self.rewrites: dict[str, tuple[Stored, int]] = {}

    def account(self, name: str, path: Path) -> str:
        """Make a service account, whose key file is at `path`; from now on callers need a token."""
        return self.accounts.create(name, f"{self.url}/token", path)

    def replace(self, bucket: str, name: str, data: bytes) -> None:
        """Store bytes as somebody else would."""
        file = self.buckets.new_file()
        file.write_bytes(data)
        self.buckets.insert(bucket, name, file, {}, Conditions())

    def damage(self, bucket: str, name: str, data: bytes) -> None:
        """Let an object have other bytes than it should: the disk's fault, which nobody noticed."""
        stored = self.buckets.get(bucket, name)
        stored.file.unlink()
        stored.file.write_bytes(data)
