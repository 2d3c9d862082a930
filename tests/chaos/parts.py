"""What the tests of the distributed platform share: waiting, and builds that take long."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec, Edit, Patch


def until(happened: Callable[[], object], seconds: float = 60) -> None:
    """Wait until it happened."""
    limit = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)


@dataclass(frozen=True)
class Nap:
    """A build that sleeps, as a process that no other test on this machine is."""

    seconds: int
    mark: str = field(default_factory=lambda: f"{random.SystemRandom().randrange(10**9):09}")

    def request(self, build: BuildSpec) -> JobRequest:
        """A job of one such build."""
        line = '@echo "Kernel: $@ is ready"'
        sleep = f"@sleep {self.seconds}.{self.mark}"
        edit = Edit(file="Makefile", original=line, replacement=sleep)
        return JobRequest(steps=[build.model_copy(update={"patches": [Patch(edits=[edit])]})])

    def lasts(self) -> bool:
        """Whether the process is there."""
        words = f"sleep\0{self.seconds}.{self.mark}\0".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes() == words:
                    return True
            except OSError:  # it has ended
                continue
        return False
