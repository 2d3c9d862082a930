"""A shell in a guest that takes one command after the other over one connection."""

import contextlib
import re
import time
from collections.abc import AsyncIterator

from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh, Stream

_READ_SECONDS = 0.5
_MOST_OUTPUT = 4 << 20
_SHOWN = 300


class CommandRefused(Exception):
    """The guest does not do what is asked of it."""


class Shell:
    """Runs our commands in the guest; use `Shell.started`."""

    def __init__(self, stream: Stream, limit: float) -> None:
        self._stream = stream
        self._limit = limit
        self._number = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, ssh: Ssh, limit: float) -> "AsyncIterator[Shell]":
        """Start it; `limit` are the seconds that a command may take unless told otherwise."""
        yield cls(await ssh.start("exec /bin/sh 2>&1", limit), limit)

    async def do(self, command: str, limit: float | None = None) -> tuple[int, str]:
        """Run one line; return its status and what it printed. Raises ConnectionLost, Refused."""
        self._number += 1
        end = re.compile(rb"\nkgym %d ([0-9]{1,3})\n" % self._number)
        line = (
            f"{{ {command.strip().rstrip(';')}; }}; printf '\\nkgym %d %d\\n' {self._number} $?\n"
        )
        await self._stream.send(line.encode())
        until = time.monotonic() + (limit or self._limit)
        output = b"\n"
        while not (match := end.search(output)):
            if time.monotonic() > until:
                raise ConnectionLost(f"the guest's shell does not answer: {command[:_SHOWN]}")
            if len(output) > _MOST_OUTPUT:
                raise CommandRefused(f"the guest's shell prints without end: {command[:_SHOWN]}")
            out, err, more = await self._stream.read(_READ_SECONDS)
            output += out + err
            if not more and not end.search(output):
                raise ConnectionLost("the guest's shell ended")
        return int(match[1]), output[: match.start()].decode(errors="replace").strip()
