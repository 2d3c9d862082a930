"""A trace that is made up: what tracefs would say of a kernel before it crashed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPORT = Path(__file__).with_name("traced_report.txt").read_text()
LINE = "{:>16}-{:<7} [{:03}] ..... {:5}.{:06}: f: kgym:{}:{} {}"


@dataclass(frozen=True)
class Call:
    """What is recorded: the time in microseconds, by whom, and which function of which file."""

    time: int
    name: str
    file: str = "kernel/watch_queue.c"
    pid: int = 71
    task: str = "repro"


def lines(calls: Sequence[Call]) -> Iterator[str]:
    """Yield what tracefs says of them."""
    for number, call_ in enumerate(sorted(calls, key=lambda call: call.time)):
        whole, part = divmod(call_.time, 10**6)
        cpu = call_.pid % 2
        yield LINE.format(call_.task, call_.pid, cpu, whole, part, call_.file, call_.name, number)


def crash(before: int = 0, others: int = 2, pause: int = 3_000_000) -> list[Call]:
    """Return a thread that crashes after a pause, and others that work meanwhile.

    `before` calls of the thread come first, of which no pattern repeats.
    """
    start = 100_000_000
    calls = [
        Call(start + n, f"step_{n * n % 1009}", "fs/pipe.c", task="repro") for n in range(before)
    ]
    at = start + before + 10
    names = ("__x64_sys_pipe2", "do_pipe2", "create_pipe_files", "alloc_file", "alloc_file")
    calls += [Call(at + 5 * n, name, "fs/pipe.c") for n, name in enumerate(names)]
    at += pause
    calls += [
        Call(at, "__x64_sys_ioctl", "fs/ioctl.c"),
        Call(at + 3, "vfs_ioctl", "fs/ioctl.c"),
        Call(at + 5, "pipe_ioctl", "fs/pipe.c"),
        Call(at + 9, "watch_queue_set_size"),
        *(Call(at + 10 + n, "watch_queue_note") for n in range(6)),
        Call(at + 20, "watch_queue_set_filter"),
        Call(at + 24, "memdup_user"),
        Call(at + 60, "__x64_sys_close", "fs/open.c"),
        Call(at + 62, "filp_close", "fs/open.c"),
    ]
    for other in range(others):
        calls += [
            Call(
                at + 7 * n + other, f"worker_{n % 13}", "kernel/workqueue.c", 200 + other, "kworker"
            )
            for n in range(40)
        ]
    return calls
