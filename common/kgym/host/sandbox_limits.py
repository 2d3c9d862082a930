"""Resource limits of a sandbox, and the error for exceeding one."""

from dataclasses import dataclass

from kgym.errors import UserError
from kgym.host.resources import Host

# Distance in bytes of the hard limits of memory from the watchdog's, which shall act first.
SLACK = 1 << 30

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one sandbox."""

    memory: int
    """Bytes of all processes, and of files in /tmp and /dev/shm."""
    processes: int
    """Processes and threads."""
    disk: int
    """Bytes in the writable folders and overlays."""
    files: int
    """Files in the writable folders and overlays."""
    output: int
    """Bytes printed; a line counts as at least 100."""
    seconds: float
    """Time for programs whose caller sets no time limit, such as make."""

    @classmethod
    def of_host(cls) -> "SandboxLimits":
        """Return limits that let honest builds pass and keep the host alive.

        Memory: a job of make takes 0.2 to 0.5 GB, linking 1 to 3 GB, and hosts
        have 2 GB and more per core; a quarter stays for the worker. Processes:
        kbuild has five per job (two makes, sh, gcc, cc1), linkers a thread per
        core; more would only keep the watch from its CPU. Disk: a tree with
        debug information holds 5 to 50 GB in at most 300,000 files.
        """
        host = Host.here()
        return cls(
            memory=host.memory // 4 * 3,
            processes=256 + 32 * host.cores,
            disk=64 << 30,
            files=1_000_000,
            output=128 * MIB,
            seconds=4 * 3600.0,
        )


class LimitExceeded(UserError):
    """A sandbox was killed at one of its limits; a retry cannot help."""


def exceeded(limit: str, allowed: str, used: str) -> LimitExceeded:
    """Return the error of a sandbox that was killed over a limit."""
    return LimitExceeded(
        "sandbox_limit",
        f"killed at the sandbox's limit of {limit}: {used}, {allowed} allowed",
        limit=limit,
        allowed=allowed,
        used=used,
    )


class Meter:
    """Counts the output of a program, line by line."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._used = 0

    def __call__(self, line: bytes) -> None:
        """Count a line; raise UserError `sandbox_limit` over the limit."""
        # Each line costs time, even an empty one: it is passed on and stored.
        self._used += max(len(line) + 1, 100)
        if self._used > self._allowed:
            raise exceeded("output", mib(self._allowed), "more printed")


def mib(size: int) -> str:
    """Return a number of bytes as text in MiB."""
    return f"{size / MIB:,.0f} MiB"
