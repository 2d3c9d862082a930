"""Runs in a sandbox that has no network, and leads a program's connections to the worker.

Arguments: SOCKET PROGRAM…; the program finds the port, on which every connection is one to the
Unix socket, in ALL_PROXY, as that of a SOCKS proxy. Its status is ours. This file's text is given
to the sandbox's own Python: it imports nothing but the standard library.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _serve(listening: socket.socket, path: str) -> None:
    while True:
        near, _ = listening.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(path)
        for pair in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=pair, daemon=True).start()


def main() -> int:
    """Run the program; return its status."""
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = f"socks5h://127.0.0.1:{listening.getsockname()[1]}"
    threading.Thread(target=_serve, args=(listening, sys.argv[1]), daemon=True).start()
    environment = {**os.environ, "ALL_PROXY": proxy}
    return subprocess.run(sys.argv[2:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
