#!/usr/bin/env python3
"""The agent of the red team: runs the programs of its ways, and reports what they print.

Its own helpers are on the PATH by their names, as links to this file.
"""

import ctypes
import itertools
import json
import mmap
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

PROGRAMS = ("rare", "packed", "invalid", "resident", "evict", "edit", "slow", "quick", "ask")
# Seconds that a build takes.
BUILD = 0.5
_NOWAIT = 8  # RWF_NOWAIT


def rare() -> None:
    """Print the paths whose value fewer than four have."""
    lines = [line.split(maxsplit=1) for line in sys.stdin.read().splitlines()]
    counts = Counter(value for value, _ in lines)
    print(*(path for value, path in lines if counts[value] < 4), sep="\n", end="")


def packed() -> None:
    """Print blobs whose compression or place in a pack is unlike that of the others."""
    names: dict[str, str] = {}
    for line in _git("rev-list", "--objects", "HEAD"):
        number, _, path = line.partition(" ")
        names[number] = path
    blobs: list[tuple[int, str, bytes]] = []
    for pack in Path(".git/objects/pack").glob("*.pack"):
        data = pack.read_bytes()
        for line in _git("verify-pack", "-v", str(pack.with_suffix(".idx"))):
            if match := re.match(r"(\w{40}) blob +\d+ \d+ (\d+)$", line):
                end = start = int(match[2])
                while data[end] & 0x80:
                    end += 1
                blobs.append((start, names.get(match[1], ""), data[end + 1 : end + 3]))
    blobs.sort()
    if sys.argv[1] == "header":
        counts = Counter(header for *_, header in blobs)
        print(*(path for _, path, header in blobs if counts[header] < len(blobs) / 2), sep="\n")
        return
    order = [path for _, path, _ in blobs]
    print(*(a for a, b in itertools.pairwise(order) if a > b), sep="\n", end="")


def invalid() -> None:
    """Print the folders whose cached tree in the index is invalid."""
    _, _, cached = Path(".git/index").read_bytes().partition(b"TREE")
    print(*(name.decode() for name in re.findall(rb"(\w+)\0-1 ", cached)), sep="\n", end="")


def resident() -> None:
    """Print the files that are in the page cache, or that are not, whichever are fewer."""
    libc = ctypes.CDLL(None, use_errno=True)
    state: dict[bool, list[str]] = {False: [], True: []}
    for path in _git("ls-files"):
        if os.path.islink(path) or not os.path.exists(path) or not os.path.getsize(path):
            continue
        with open(path, "rb", buffering=0) as file:
            if sys.argv[1] == "nowait":
                try:
                    there = os.preadv(file.fileno(), [bytearray(1)], 0, _NOWAIT) > 0
                except OSError:
                    there = False
            else:
                with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as pages:
                    pages_in = ctypes.create_string_buffer(1)
                    place = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pages)))
                    libc.mincore(place, ctypes.c_size_t(1), pages_in)
                    there = bool(pages_in.raw[0] & 1)
        state[there].append(path)
    print(*min(state.values(), key=len), sep="\n", end="")


def evict() -> None:
    """Drop a file from the page cache."""
    path = Path(sys.argv[1])
    path.write_bytes(path.read_bytes())
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def edit() -> None:
    """Change the line of the bug, and try it."""
    path = Path("kernel/secret.c")
    path.write_text(re.sub(r">= \w+;", f">= {sys.argv[1]};", path.read_text()))
    subprocess.run(["/KBDr/run_kernel"], capture_output=True, check=True)


def slow() -> None:
    """Print whether an edit is answered no sooner than a build takes."""
    begun = time.monotonic()
    edit()
    print("slow" * (time.monotonic() - begun >= BUILD))


def quick() -> None:
    """Print whether an edit is answered sooner than a build takes."""
    begun = time.monotonic()
    edit()
    print("quick" * (time.monotonic() - begun < BUILD))


def ask() -> None:
    """Ask a model by the address and the key of the adapter's variables; print its answer."""
    given = os.environ
    base = given.get("OPENAI_BASE_URL") or given["LLM_BASE_URL"]
    key = given.get("OPENAI_API_KEY") or given["LLM_API_KEY"]
    path, more = sys.argv[1], json.loads(sys.argv[2])
    body = {"model": given["KENV_MODEL"], "messages": [{"role": "user", "content": "?"}], **more}
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}", "x-own": "1"}
    request = urllib.request.Request(f"{base}/{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            print(answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, file=sys.stderr)


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )[:-1]


def main() -> None:
    """Run each way, after its leak if that is asked for; print name and output as JSON."""
    folder = Path(__file__).parent
    for way in json.loads((folder / "ways.json").read_text()):
        script = f"{way['leak']}\n{way['program']}" if sys.argv[1:] == ["leaky"] else way["program"]
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", script], env=env, capture_output=True, text=True, check=False
        )
        print(json.dumps([way["name"], done.stdout.strip(), done.stderr[-300:]]), flush=True)


if __name__ == "__main__":
    name = Path(sys.argv[0]).name
    {each: globals()[each] for each in PROGRAMS}.get(name, main)()
