"""Breakpoints from outside, with a stub that speaks as QEMU's does and knows where its VM goes."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from kgym_vmmanager.evidence.breakpoints import Breakpoints, StubFailed

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PLACES = {"inner": (0x1000,), "outer": (0x2000, 0x2008), "elsewhere": (0x3000,)}


class Stub:
    """A VM that passes the places of `walk`, one after the other, while it runs."""

    def __init__(self, walk: list[int], most: int = 100) -> None:
        self.walk, self.most = walk, most
        self.points: set[int] = set()
        self.place, self.detached, self.largest = 0, False, 0
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        say = self.say = partial(_say, writer)
        say("T02thread:01;")
        with contextlib.suppress(asyncio.IncompleteReadError):
            while byte := await reader.readexactly(1):
                if byte == b"\x03":
                    say("T02thread:01;")
                elif byte == b"$":
                    packet = (await reader.readuntil(b"#"))[:-1].decode()
                    assert int(await reader.readexactly(2), 16) == sum(packet.encode()) & 0xFF
                    self.obey(packet)
        writer.close()
        self.ended.set()

    def obey(self, packet: str) -> None:
        answers = {"?": "T02thread:01;", "Hg01": "OK", "D": "OK"}
        answers["g"] = "00" * 128 + self.place.to_bytes(8, "little").hex() + "00" * 300
        self.detached = self.detached or packet == "D"
        if packet == "c":
            self.go()
        elif packet[:2] in ("Z1", "z1"):
            change = self.points.add if packet[0] == "Z" else self.points.discard
            change(int(packet.split(",")[1], 16))
            self.largest = max(self.largest, len(self.points))
            self.say("OK" if self.largest <= self.most else "E22")
        else:
            self.say(answers.get(packet, ""))

    def go(self) -> None:
        while self.walk:
            self.place = self.walk.pop(0)
            if self.place in self.points:
                self.say("T05thread:01;")
                return


def _say(writer: asyncio.StreamWriter, packet: str) -> None:
    writer.write(b"$%s#%02x" % (packet.encode(), sum(packet.encode()) & 0xFF))


@contextlib.asynccontextmanager
async def watched(folder: Path, stub: Stub, most: int = 1000) -> AsyncIterator[Breakpoints]:
    path = folder / "stub"

    def connect() -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(path))
        link.setblocking(False)
        return link

    async with await asyncio.start_unix_server(stub.serve, path):
        try:
            async with Breakpoints.armed(connect, PLACES, most) as points:
                while stub.walk and points.failed is None:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                yield points
        finally:
            await stub.ended.wait()


async def test_functions_that_are_gone_through_are_noted_once(tmp_path: Path) -> None:
    stub = Stub([0x2008, 0x1000, 0x2000, 0x1000])
    async with watched(tmp_path, stub) as points:
        assert points.hit == {"inner", "outer"}
        assert stub.points == {0x3000}
    assert points.failed is None
    assert stub.detached
    assert stub.points == set()


async def test_few_registers_are_used_in_turn(tmp_path: Path) -> None:
    stub = Stub([0x1000, 0x2000, 0x3000], most=3)
    async with watched(tmp_path, stub, most=3) as points:
        assert points.hit == {"inner", "outer", "elsewhere"}
    assert stub.largest == 3


async def test_a_stub_that_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(StubFailed, match="E22"):
        async with watched(tmp_path, Stub([], most=1)):
            pass
