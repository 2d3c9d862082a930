"""The machine of one instance: a QEMU that boots a disk, its serial port, its metadata server."""

import contextlib
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

METADATA = "169.254.169.254"
# Of an instance's address: to listen on 22 would take root.
SSH_PORT = 2222
_METADATA_PORT = 8099
_GUEST = "169.254.0.15"
# Bytes of the serial port's output that the service keeps.
_KEPT = 1 << 20
# However this process ends, its machines end with it.
_WHILE_STDIN = """exec 3<&0
"$@" </dev/null &
machine=$!
{ read -r _ <&3; kill -9 $machine; } &
wait $machine
kill $! 2>/dev/null
"""


class Console:
    """What a serial port has said: the last 1 MiB of it, by the places of its bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._first = 0

    def feed(self, data: bytes) -> None:
        """Add what it says."""
        with self._lock:
            self._kept += data
            self._drop(len(self._kept) - _KEPT)

    def lose(self, count: int) -> None:
        """Forget so many of the first bytes that are kept, as if much more had come since."""
        with self._lock:
            self._drop(min(count, len(self._kept)))

    def read(self, start: int) -> tuple[int, bytes]:
        """Return the place of the first byte that is there from `start` on, and what follows."""
        with self._lock:
            first = max(start, self._first)
            return first, bytes(self._kept[first - self._first :])

    def _drop(self, count: int) -> None:
        if count > 0:
            del self._kept[:count]
            self._first += count


class Machine:
    """Runs from its creation to `end`."""

    def __init__(
        self,
        address: str,
        disk: Path,
        shape: tuple[int, int],
        attributes: dict[str, str],
        reachable: dict[tuple[str, int], tuple[str, int]],
    ) -> None:
        """`shape` is CPUs and MiB; `reachable` are the addresses in its network, and here."""
        self.console = Console()
        self._metadata = _metadata(address, attributes)
        ways = {**reachable, (METADATA, 80): (address, _METADATA_PORT)}
        self._process = subprocess.Popen(
            ["sh", "-c", _WHILE_STDIN, "sh", *_argv(address, disk, shape, ways)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def runs(self) -> bool:
        """Whether the guest has not powered itself off."""
        return self._process.poll() is None

    def end(self) -> None:
        """Switch it off."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join(5)
        self._metadata.shutdown()
        self._metadata.server_close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as source:
            while data := source.read1(1 << 16):  # type: ignore[attr-defined]
                self.console.feed(data)


def shape_of(machine_type: str) -> tuple[int, int]:
    """Return the CPUs and MiB of a machine type's name; custom types say them."""
    if custom := re.search(r"custom-(\d+)-(\d+)", machine_type):
        return int(custom[1]), int(custom[2])
    if standard := re.search(r"standard-(\d+)$", machine_type):
        return int(standard[1]), 2048
    return 2, 1024


def _argv(
    address: str, disk: Path, shape: tuple[int, int], ways: dict[tuple[str, int], tuple[str, int]]
) -> list[str]:
    nc = shutil.which("busybox") or "busybox"
    network = [
        # What an instance reaches of its network, and nothing else: a reproducer runs in it.
        *(f"user,id=net,net=169.254.0.0/16,dhcpstart={_GUEST},host=169.254.0.2".split()),
        "dns=169.254.0.3,restrict=on",
        f"hostfwd=tcp:{address}:{SSH_PORT}-{_GUEST}:22",
        *(
            f"guestfwd=tcp:{there}:{port}-cmd:{nc} nc {here} {local}"
            for (there, port), (here, local) in ways.items()
        ),
    ]
    cpus, memory = shape
    return [
        *("qemu-system-x86_64", "-no-user-config", "-nodefaults", "-nographic"),
        *("-display", "none", "-machine", "q35", "-accel", "tcg,thread=multi"),
        *("-smp", str(cpus), "-m", str(memory), "-serial", "stdio"),
        *("-netdev", ",".join(network), "-device", "virtio-net-pci,netdev=net,romfile="),
        *("-device", "virtio-rng-pci", "-device", "virtio-scsi-pci"),
        *("-drive", f"if=none,id=disk,format=raw,snapshot=on,file={disk}"),
        *("-device", "scsi-hd,drive=disk"),
    ]


class _Metadata(BaseHTTPRequestHandler):
    """The metadata server of one instance."""

    attributes: dict[str, str]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer who shows the header that keeps others' requests out."""
        name = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
        allowed = self.headers.get("Metadata-Flavor") == "Google"
        body = self.attributes.get(name, "").encode()
        self.send_response(403 if not allowed else 200 if name in self.attributes else 404)
        self.send_header("Content-Length", str(len(body) if allowed else 0))
        self.end_headers()
        if allowed:
            with contextlib.suppress(OSError):
                self.wfile.write(body)


def _metadata(address: str, attributes: dict[str, str]) -> ThreadingHTTPServer:
    kind = type("Metadata", (_Metadata,), {"attributes": attributes})
    server = ThreadingHTTPServer((address, _METADATA_PORT), kind)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server
