"""What the tests of the distributed platform share: waiting, and builds that take long."""

import time
from collections.abc import Callable
from pathlib import Path

from kgym.jobs import JobRequest
from kgym.steps import BuildSpec, Edit, Patch


def until(happened: Callable[[], object], seconds: float) -> None:
    """Wait until it happened."""
    limit = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)


def sleeping(build: BuildSpec, seconds: int) -> JobRequest:
    """A job whose build, once it runs, is seen as a process of these words: sleep SECONDS."""
    line = '@echo "Kernel: $@ is ready"'
    edit = Edit(file="Makefile", original=line, replacement=f"@sleep {seconds}")
    return JobRequest(steps=[build.model_copy(update={"patches": [Patch(edits=[edit])]})])


def sleeps(seconds: int) -> bool:
    words = f"sleep\0{seconds}\0".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == words:
                return True
        except OSError:  # it has ended
            continue
    return False
