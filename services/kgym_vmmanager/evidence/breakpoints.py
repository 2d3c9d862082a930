"""Breakpoints in a running VM, set by QEMU's gdb stub: nothing in the guest can see them.

Protocol: "GDB Remote Serial Protocol" in GDB's manual.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping

_REPLY_SECONDS = 10.0
# rip follows 16 registers of 16 hexadecimal digits in the answer to `g` (x86-64).
_RIP = slice(16 * 16, 17 * 16)
_MOST_BYTES = 1 << 16
# Stops at no breakpoint of ours before we give up.
_MOST_STRAY = 100
_INTERRUPT = b"\x03"


class StubFailed(Exception):
    """The stub refused a packet or broke off."""


class Breakpoints:
    """Breakpoints of a running VM; use `Breakpoints.armed`.

    `hit` are the functions that were reached; `failed` says why the watch ended early.
    """

    def __init__(self, stub: "_Stub", places: Mapping[str, tuple[int, ...]], most: int) -> None:
        self.hit: set[str] = set()
        self.failed: str | None = None
        self._stub = stub
        self._most = most
        self._waiting = dict(places)
        self._armed: dict[str, tuple[int, ...]] = {}
        self._stray = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def armed(
        cls, connect: Callable[[], socket.socket], places: Mapping[str, tuple[int, ...]], most: int
    ) -> "AsyncIterator[Breakpoints]":
        """Watch the functions at these addresses, `most` addresses at a time.

        At the end of the block all are removed and the VM goes on. Raises StubFailed or OSError.
        """
        reader, writer = await asyncio.open_unix_connection(sock=connect(), limit=_MOST_BYTES)
        points = cls(_Stub(reader, writer), places, most)
        task: asyncio.Task[None] | None = None
        try:
            await points._stub.start()
            await points._arm()
            await points._stub.send("c")
            task = asyncio.create_task(points._follow())
            yield points
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(StubFailed, OSError, TimeoutError):
                await points._leave()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _follow(self) -> None:
        try:
            while self._armed:
                await self._stub.stopped()
                await self._take(await self._stub.instruction())
                await self._stub.send("c")
        except (StubFailed, OSError, TimeoutError) as error:
            self.failed = str(error) or type(error).__name__
            with contextlib.suppress(StubFailed, OSError, TimeoutError):
                await self._leave()  # a stopped VM would look like a kernel that hangs

    async def _arm(self) -> None:
        for name in list(self._waiting):
            if sum(map(len, self._armed.values())) + len(self._waiting[name]) > self._most:
                return
            places = self._armed[name] = self._waiting.pop(name)
            for place in places:
                # A hardware breakpoint (Z1): under KVM, software ones are written into the guest's
                # code, where the guest could see them.
                await self._stub.ask(f"Z1,{place:x},1")

    async def _take(self, place: int) -> None:
        names = [name for name, places in self._armed.items() if place in places]
        self._stray += not names  # another CPU came to the same place at the same time
        if self._stray > _MOST_STRAY:
            raise StubFailed(f"the VM keeps stopping at {place:#x}, where no breakpoint is")
        # One hit is enough: without its breakpoint, a hot function costs no more than a cold one.
        for name in names:
            self.hit.add(name)
            for address in self._armed.pop(name):
                await self._stub.ask(f"z1,{address:x},1")
        await self._arm()

    async def _leave(self) -> None:
        """Stop the VM, remove the other breakpoints, and disconnect; the VM goes on."""
        await self._stub.interrupt()
        for places in self._armed.values():
            for place in places:
                await self._stub.ask(f"z1,{place:x},1")
        self._armed = {}
        await self._stub.ask("D")


class _Stub:
    """Packets to and from the stub."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._thread = ""
        self._runs = False

    async def start(self) -> None:
        """Start talking to the VM, which stops when a debugger connects."""
        self._thread = _thread(await self.ask("?", "T"))

    async def send(self, packet: str) -> None:
        data = packet.encode()
        self._writer.write(b"$%s#%02x" % (data, sum(data) & 0xFF))
        await self._writer.drain()
        self._runs = packet == "c" or self._runs

    async def ask(self, packet: str, begin: str = "OK") -> str:
        """Send a packet; return the answer, which must start with `begin`."""
        await self.send(packet)
        async with asyncio.timeout(_REPLY_SECONDS):
            answer = await self._read()
            while answer.startswith("T") and begin != "T":  # QEMU reports a stop twice
                answer = await self._read()
        if not answer.startswith(begin):
            raise StubFailed(f"QEMU's gdb stub answers {packet} with {answer[:80]!r}")
        return answer

    async def stopped(self) -> None:
        """Wait until the VM stops, however long."""
        while not (answer := await self._read()).startswith("T"):
            if answer[:1] in "WX":
                raise StubFailed("the VM ended")
        self._runs = False
        self._thread = _thread(answer)

    async def instruction(self) -> int:
        """Return the instruction pointer of the CPU that stopped."""
        if self._thread:
            await self.ask(f"Hg{self._thread}")
        value = (await self.ask("g", ""))[_RIP]
        try:
            return int.from_bytes(bytes.fromhex(value), "little")
        except ValueError as error:
            raise StubFailed(f"QEMU's gdb stub says that rip is {value!r}") from error

    async def interrupt(self) -> None:
        if self._runs:
            self._writer.write(_INTERRUPT)
            async with asyncio.timeout(_REPLY_SECONDS):
                await self.stopped()

    async def _read(self) -> str:
        try:
            await self._reader.readuntil(b"$")
            data = (await self._reader.readuntil(b"#"))[:-1]
            await self._reader.readexactly(2)
            self._writer.write(b"+")  # QEMU sends nothing more before the acknowledgement
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise StubFailed(f"QEMU's gdb stub breaks off: {error}") from error
        return data.decode("ascii", "replace")


def _thread(stop: str) -> str:
    """Return the CPU that a stop reply names: `T05thread:01;`."""
    for part in stop[3:].split(";"):
        name, _, value = part.partition(":")
        if name == "thread":
            return value
    return ""
