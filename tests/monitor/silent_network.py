"""A proxy on loopback whose network can fall silent: nothing is forwarded, nothing is closed."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class SilentNetwork:
    """Forwards connections to a server; while it is `cut`, it takes what is sent, and loses it."""

    def __init__(self, server: str) -> None:
        host, _, port = server.removeprefix("http://").rpartition(":")
        self._server = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._cut = False
        self._links: list[_Link] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._listening.close()
        for link in self._links:
            link.close()

    def cut(self) -> None:
        """Lose all that is sent from now on, of new connections, too."""
        self._cut = True
        for link in self._links:
            link.dead = True

    def mend(self) -> None:
        """Forward new connections again; those that were cut stay silent for ever."""
        self._cut = False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listening.accept()
                link = _Link(near, socket.create_connection(self._server))
                link.dead = self._cut
                self._links.append(link)
                link.start()


class _Link:
    """One connection, and the one to the server that belongs to it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._near, self._far = near, far
        self.dead = False

    def start(self) -> None:
        for source, sink in ((self._near, self._far), (self._far, self._near)):
            threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def close(self) -> None:
        for socket_ in (self._near, self._far):
            with contextlib.suppress(OSError):
                socket_.shutdown(socket.SHUT_RDWR)
            socket_.close()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self.dead:
                    sink.sendall(data)
            if not self.dead:
                sink.shutdown(socket.SHUT_WR)
