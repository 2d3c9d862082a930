"""How long it takes from millions of records to a minimal trace.

ring   parse the ring-buffer bytes and minimise
text   the same from the text of tracefs
The records are made up: threads that go through calls of a few files, two CPUs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgym.api.steps import TraceStack
from kgym.configs import data_folder
from kgym.crash.report import Frame
from kgym.trace import trace_files
from kgym.trace.minimal_trace import Crash, minimize
from kgym.trace.records import Function, Trace
from kgym.trace.ring_buffer import Key, Layout, RingParser
from tests.figures import parser, show

ROOT = Path(__file__).resolve().parents[2]
CPUS = 2
PAGE = 4096
PIDS = (311, 312, 313, 314, 315)
FUNCTIONS = [(f"fs/file{n % 7}.c", f"function_{n}") for n in range(300)]
FORMATS = 0xFFFFFFFF82000000
CODE = 0xFFFFFFFF81000000
# The crash's frames by number, the innermost first.
STACK = (3, 17, 41)
CHUNK = 1_000_000

_EVENT = np.dtype(
    {
        "names": ["head", "type", "pid", "ip", "fmt", "counter"],
        "formats": ["<u4", "<u2", "<i4", "<u8", "<u8", "<u4"],
        "offsets": [0, 4, 8, 12, 20, 28],
    }
)
_PER_PAGE = (PAGE - 16) // _EVENT.itemsize


@dataclass(frozen=True)
class Records:
    """Made-up records of one CPU, 2 µs apart on the average; the last ones are the crash."""

    cpu: int
    time: NDArray[np.int64]
    pid: NDArray[np.int32]
    function: NDArray[np.int32]

    @classmethod
    def make(cls, cpu: int, count: int) -> "Records":
        random = np.random.default_rng(cpu)
        # Multiples of a microsecond, which is what the text shows.
        time = np.cumsum(random.integers(1, 4, count)) * 1000 + 10**9
        # A thread runs for a while, and most of what it runs is one of a few paths.
        pid = np.repeat(random.choice(PIDS, count // 50 + 1), 50)[:count].astype(np.int32)
        paths = random.integers(0, len(FUNCTIONS), (20, 25))
        function = paths[random.integers(0, len(paths), count // 25 + 1)].reshape(-1)[:count]
        function[-len(STACK) :] = STACK[::-1]
        pid[-len(STACK) :] = PIDS[0]
        return cls(cpu, time, pid, function.astype(np.int32))

    def pages(self) -> NDArray[np.uint8]:
        """Return them as sub-buffers."""
        count = -(-len(self.time) // _PER_PAGE)
        events = np.zeros(count * _PER_PAGE, _EVENT)
        mine = events[: len(self.time)]
        mine["head"] = np.diff(self.time, prepend=self.time[0]).astype(np.uint32) << 5 | 7
        mine["type"], mine["pid"] = 6, self.pid
        mine["ip"] = CODE + 64 * self.function.astype(np.uint64)
        mine["fmt"] = FORMATS + 64 * self.function.astype(np.uint64)
        mine["counter"] = np.arange(len(mine))
        pages = np.zeros((count, PAGE), np.uint8)
        pages[:, 16 : 16 + _PER_PAGE * _EVENT.itemsize] = events.view(np.uint8).reshape(count, -1)
        words = pages.view("<u8")
        words[:, 0] = self.time[::_PER_PAGE]
        pages.view("<u4")[:, 4] = 7  # the page's own time is that of its first event
        words[:, 1] = _PER_PAGE * _EVENT.itemsize
        words[-1, 1] = (len(mine) - (count - 1) * _PER_PAGE) * _EVENT.itemsize
        return pages


def load_ring(folder: Path) -> Trace:
    """Parse the sub-buffers of all CPUs."""
    parser = RingParser(Layout())
    for path in folder.iterdir():
        parser.feed(int(path.stem), np.load(path, mmap_mode="r"))
    return parser.trace(_function)


def _function(key: Key) -> Function:
    file, name = FUNCTIONS[(int(key.value) - FORMATS) // 64]
    return Function(file, name)


def write_text(cpus: list[Records], path: Path) -> None:
    """Write the records as tracefs shows them."""
    with path.open("w") as file:
        file.write("# tracer: nop\n#\n")
        file.writelines(_lines(cpus))


def _lines(cpus: list[Records]) -> Iterator[str]:
    time = np.concatenate([cpu_.time for cpu_ in cpus])
    order = np.argsort(time, kind="stable")
    cpu = np.repeat([cpu_.cpu for cpu_ in cpus], [len(cpu_.time) for cpu_ in cpus])
    columns = [
        time,
        cpu,
        *(np.concatenate([getattr(c, n) for c in cpus]) for n in ("pid", "function")),
    ]
    columns.append(np.concatenate([np.arange(len(cpu_.time)) for cpu_ in cpus]))
    names = [f"{name}: kgym:{file}:{name}" for file, name in FUNCTIONS]
    for start in range(0, len(order), CHUNK):
        part = order[start : start + CHUNK]
        for at, cpu_, pid, function, counter in zip(
            *(c[part].tolist() for c in columns), strict=True
        ):
            stamp = f"{at // 10**9:5}.{at // 1000 % 10**6:06}"
            yield f"{'repro':>16}-{pid:<7} [{cpu_:03}] ..... {stamp}: {names[function]} {counter}\n"


def measure(path: Path) -> dict[str, Any]:
    """Load and minimise, in this process."""
    crash = Crash(
        {TraceStack.CRASH: [Frame(FUNCTIONS[n][1], 1, 2) for n in STACK]},
        {TraceStack.CRASH: PIDS[0]},
    )
    start, used = time.monotonic(), time.process_time()
    trace = load_ring(path) if path.is_dir() else trace_files.load(path)
    loaded = time.monotonic()
    minimal = minimize(trace, crash, [file for file, _ in FUNCTIONS])
    return {
        "seconds": time.monotonic() - start,
        "cpu_s": time.process_time() - used,
        "minimize_s": time.monotonic() - loaded,
        "records": len(trace),
        "frames": len(minimal.anchor.frames),
        "minimal_records": minimal.statistics.minimal_records,
        "peak_rss_mb": _peak_kb() / 1024,
    }


def _peak_kb() -> int:
    """Return this process's own peak: `ru_maxrss` starts with that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def measured(path: Path) -> dict[str, Any]:
    """Measure in a process of its own, on one CPU."""
    module = [sys.executable, "-m", "tests.bench.trace", "--measure", str(path)]
    argv = ["taskset", "-c", "0", *module]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, cwd=ROOT, timeout=600)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def one_size(count: int, folder: Path) -> dict[str, Any]:
    """Measure ring and text of `count` records."""
    cpus = [Records.make(cpu, count // CPUS) for cpu in range(CPUS)]
    ring = folder / "ring"
    ring.mkdir(exist_ok=True)
    for cpu_ in cpus:
        np.save(ring / f"{cpu_.cpu}.npy", cpu_.pages())
    write_text(cpus, folder / "trace.txt")
    del cpus
    return {"ring": measured(ring), "text": measured(folder / "trace.txt")}


def main() -> None:
    """Measure, and print what was measured."""
    words = parser(__doc__)
    words.add_argument("--records", type=int, default=10_000_000)
    words.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.measure:
        sys.stdout.write(json.dumps(measure(options.measure)) + "\n")
        return
    data_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=data_folder()) as folder:
        quarter = one_size(options.records // 4, Path(folder))
        whole = one_size(options.records, Path(folder))
    results = {
        "records": whole["ring"]["records"],
        "ring_s": whole["ring"]["seconds"],
        "text_s": whole["text"]["seconds"],
        "peak_rss_mb": max(whole[form]["peak_rss_mb"] for form in ("ring", "text")),
        # 1 is linear: four times the records took four times the time.
        **{
            f"{form}_growth": whole[form]["seconds"] / quarter[form]["seconds"] / 4
            for form in ("ring", "text")
        },
    }
    show(results, options)


if __name__ == "__main__":
    main()
