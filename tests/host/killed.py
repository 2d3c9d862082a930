"""Kills processes that start sandboxes: `killed.py IMAGE FOLDER WAY SEED TIMES`.

Each is a fork of this one, so that it costs milliseconds. It mounts the image
and starts sandboxes on it, until it is killed at a random moment, half of the
times after one of its descendants. Whatever outlives it becomes this process's
child (PR_SET_CHILD_SUBREAPER). Prints what is left after LIMIT seconds, a line each.
"""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from kgym.host.sandbox import Overlay, Sandbox
from kgym.host.squashfs import Images

LIMIT = 20.0
# Seconds until the kill, at most: a sandbox on a new image is up in less.
LONGEST = 0.12
_SUBREAPER = 36


async def work(image: Path, folder: Path, way: str) -> None:
    images = Images((way,))  # type: ignore[arg-type]
    with ExitStack() as held:
        mounted = images.mount(image, held)
        assert mounted is not None, images.refusal
        for number in range(1000):
            overlay = Overlay((mounted,), folder / str(number)).create()
            command = ["sh", "-c", f"cat file; sleep {number % 2}00"]
            with contextlib.suppress(Exception):
                await Sandbox(overlays={"/tree": overlay}).run(command, cwd="/tree", timeout=0.02)


def descendants() -> dict[int, str]:
    """The processes that come from this one, dead ones included, with their words."""
    parents, words = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(entry.name)
            words[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: words[pid] for pid in family - {os.getpid()}}


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    image, folder, way = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    rng = random.Random(int(sys.argv[4]))
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    for number in range(int(sys.argv[5])):
        own = folder / str(number)
        own.mkdir()
        if (pid := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                asyncio.run(work(image, own, way))
            os._exit(0)
        time.sleep(rng.uniform(0, LONGEST))
        if number % 2 and (others := sorted(descendants().keys() - {pid})):
            with contextlib.suppress(OSError):
                os.kill(rng.choice(others), signal.SIGKILL)
            time.sleep(rng.uniform(0, 0.005))
        os.kill(pid, signal.SIGKILL)
        reap()
    end = time.monotonic() + LIMIT
    while (left := descendants()) and time.monotonic() < end:
        time.sleep(0.02)
        reap()
    for pid, words in left.items():
        sys.stdout.write(f"{pid}: {words}\n")


if __name__ == "__main__":
    main()
