"""The process that reads a dump: `python -m kgym_tracer.dump_reader`, with a request on stdin.

It runs in the sandbox, since a guest can forge its memory. Each part is written as soon as it is
done, so that a part that fails or never ends costs no other.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import drgn
from drgn.helpers.linux.printk import get_dmesg

from kgym.api.steps import DumpPart, MinimalTrace, TraceStack
from kgym.crash import report as reports
from kgym.errors import KgymError, UserError
from kgym.trace import trace_files
from kgym.trace.minimal_trace import Crash, minimize
from kgym.trace.records import Trace
from kgym_tracer.dumped_ring_buffer import read_trace
from kgym_tracer.opened_dump import open_dump
from kgym_tracer.reader_request import (
    ANSWER,
    DMESG,
    LOCKS,
    MINIMAL,
    STACK,
    TRACE,
    Answer,
    Minimize,
    Request,
)
from kgym_tracer.tasks import crashed_stack, held_locks


class _Work:
    """The work on one request."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer = Answer()
        self.trace: Trace | None = None
        self.is_dump = trace_files.is_dump(request.source)

    def run(self) -> None:
        self._part("trace", TRACE, self._read_trace)
        if self.request.minimize is not None:
            self._part("minimize", MINIMAL, self._minimize)
        if self.is_dump:
            self._part("dmesg", DMESG, self._dmesg)
            self._part("stack", STACK, self._stack)
            self._part("locks", LOCKS, self._locks)

    @cached_property
    def program(self) -> drgn.Program:
        if self.request.vmlinux is None:
            raise UserError("no_vmlinux", "a dump is read with the vmlinux of its kernel")
        return open_dump(self.request.source, self.request.vmlinux)

    @cached_property
    def crash(self) -> Crash:
        report = reports.parse((self.request.report or "").encode())
        return Crash() if report is None else Crash.of(report)

    def _part(self, stage: str, name: str, make: Callable[[Path], None]) -> None:
        start = time.monotonic()
        error = None
        with _failures() as failures:
            make(self.request.out / name)
        error = failures[0] if failures else None
        if error:
            (self.request.out / name).unlink(missing_ok=True)
        seconds = {**self.answer.seconds, stage: round(time.monotonic() - start, 3)}
        changes = {
            "parts": [*self.answer.parts, DumpPart(name=name, error=error)],
            "seconds": seconds,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        self.answer = self.answer.model_copy(update=changes)
        # Replaced as a whole, in case the process is killed while it writes.
        whole = self.request.out / f"{ANSWER}.part"
        whole.write_text(self.answer.model_dump_json())
        whole.replace(self.request.out / ANSWER)

    def _read_trace(self, path: Path) -> None:
        trace = read_trace(self.program) if self.is_dump else trace_files.load(self.request.source)
        self.trace = trace
        about = {"records": len(trace), "lost": trace.lost, "notes": list(trace.notes)}
        self.answer = self.answer.model_copy(update=about)
        trace_files.save(trace, path)

    def _minimize(self, path: Path) -> None:
        if self.trace is None:
            raise UserError("no_trace", "there is no trace to minimize")
        how = self.request.minimize or Minimize()
        minimal: MinimalTrace = minimize(
            self.trace, self.crash, how.files, limit=how.limit, past_repeats=how.past_repeats
        )
        path.write_text(minimal.model_dump_json())

    def _dmesg(self, path: Path) -> None:
        path.write_bytes(get_dmesg(self.program) + b"\n")

    def _stack(self, path: Path) -> None:
        path.write_text(crashed_stack(self.program, self.crash.pids.get(TraceStack.CRASH)))

    def _locks(self, path: Path) -> None:
        path.write_text(held_locks(self.program))


@contextmanager
def _failures() -> Iterator[list[str]]:
    """Collect the message of any exception: forged memory can raise every kind."""
    failures: list[str] = []
    try:
        yield failures
    except KgymError as error:
        failures.append(error.message)
    except MemoryError:
        failures.append("it needs more memory than allowed")
    except Exception as error:  # noqa: BLE001 - one part must not cost the others
        failures.append(f"{type(error).__name__}: {error}"[:1000])


def main() -> None:
    """Carry out the request on stdin."""
    _Work(Request.model_validate(json.load(sys.stdin))).run()


if __name__ == "__main__":
    main()
