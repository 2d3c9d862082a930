"""Forward a program's connections from a sandbox without network to the worker.

Arguments: SOCKET PROGRAM…. It listens on a local port and forwards each connection to the Unix
socket. ALL_PROXY tells the program to use that port as a SOCKS proxy. The exit status is the
program's. The sandbox's own Python runs this file's text, so it imports only the standard library.
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
