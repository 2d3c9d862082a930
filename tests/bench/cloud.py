"""What storage in a bucket costs over bare HTTP with the same server, on loopback.

put_ratio     storing a file of 500 MB, over a bare PUT of it
get_ratio     fetching it, over a bare GET into a file
meta_per_s    looks at objects, 32 at a time, from a server that answers after 30 ms
meta_ratio    the same over one at a time: at most 32
"""

import asyncio
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from kgym.transport.gcs.connection import connect
from kgym.transport.gcs.storage import CALLS, GcsStorage
from tests.figures import parser, show

PARTS = ("bodies", "meta")
BUCKET = "bench"
# Seconds: about what the service takes from within its own region.
DELAY = 0.03
LOOKS = 640


@contextmanager
def served(folder: Path, delay: float = 0.0) -> Iterator[str]:
    """Run the server, in a process of its own; yield its URL."""
    words = ["-m", "tests.google.cloud_storage.server", BUCKET, "--folder", str(folder)]
    words += ["--delay", str(delay)]
    started = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        yield started.stdout.readline().strip()
    finally:
        started.terminate()
        started.communicate(timeout=30)


@contextmanager
def storage(folder: Path, delay: float = 0.0) -> Iterator[tuple[GcsStorage, str]]:
    """Open a storage in a bucket of a new server; yield it, and the server's URL."""
    with served(folder / "cloud", delay) as url:
        os.environ["STORAGE_EMULATOR_HOST"] = url
        opened = GcsStorage(BUCKET, "kgym", folder / "cache", connect(CALLS))
        try:
            yield opened, url
        finally:
            opened.close()


def bare(url: str, method: str, path: Path) -> None:
    """Send or fetch a file, and nothing else."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, blocksize=1 << 20)
    if method == "PUT":
        with path.open("rb") as file:
            length = {"Content-Length": str(path.stat().st_size)}
            connection.request("PUT", "/bare/file", file, length)
            connection.getresponse().read()
    else:
        connection.request("GET", "/bare/file")
        answer = connection.getresponse()
        with path.open("wb") as sink:
            while data := answer.read(1 << 20):
                sink.write(data)
    connection.close()


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds that it takes."""
    start = time.monotonic()
    await work()
    return time.monotonic() - start


async def bodies(
    opened: GcsStorage, url: str, folder: Path, size: int, rounds: int
) -> dict[str, float]:
    """Compare puts and gets with bare ones, in turn."""
    file, copy = folder / "file", folder / "copy"
    with file.open("wb") as sink:
        for _ in range(0, size, 1 << 20):
            sink.write(os.urandom(1 << 20))
    tries: dict[str, list[float]] = {"put": [], "bare_put": [], "get": [], "bare_get": []}
    for number in range(rounds):
        key = f"steps/{number}/vmlinux"
        tries["bare_put"].append(await timed(lambda: asyncio.to_thread(bare, url, "PUT", file)))
        tries["put"].append(await timed(lambda key=key: opened.put(key, file)))  # type: ignore[misc]
        tries["bare_get"].append(await timed(lambda: asyncio.to_thread(bare, url, "GET", copy)))
        tries["get"].append(await timed(lambda key=key: opened.get(key, copy)))  # type: ignore[misc]
        await opened.remove(f"steps/{number}")
    took = {name: statistics.median(seconds) for name, seconds in tries.items()}
    return {
        "put_ratio": took["put"] / took["bare_put"],
        "get_ratio": took["get"] / took["bare_get"],
        **{f"{name}_s": seconds for name, seconds in took.items()},
    }


async def meta(opened: GcsStorage) -> dict[str, float]:
    """Look at objects, 32 at a time and one after the other."""

    async def together() -> None:
        await asyncio.gather(*(opened.has_base(f"{number:064x}") for number in range(LOOKS)))

    async def one_by_one() -> None:
        for number in range(LOOKS // 16):
            await opened.has_base(f"{number:064x}")

    await one_by_one()
    alone = LOOKS // 16 / await timed(one_by_one)
    many = LOOKS / await timed(together)
    return {"meta_per_s": many, "meta_ratio": many / alone}


def main() -> None:
    """Print what was measured."""
    words = parser(__doc__)
    words.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="all by default")
    words.add_argument("--mb", type=int, default=500)
    words.add_argument("--rounds", type=int, default=5)
    options = words.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "bodies" in options.parts:
            with storage(folder) as (opened, url):
                size = options.mb * 1_000_000
                figures |= asyncio.run(bodies(opened, url, folder, size, options.rounds))
        if "meta" in options.parts:
            with storage(folder, DELAY) as (opened, _):
                figures |= asyncio.run(meta(opened))
    show(figures, options)


if __name__ == "__main__":
    main()
