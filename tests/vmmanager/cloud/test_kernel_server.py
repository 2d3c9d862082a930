"""The HTTP server that VMs get their kernels from."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from kgym_vmmanager.cloud.kernel_server import KernelServer

pytestmark = pytest.mark.anyio


async def asked(url: str, request: bytes) -> bytes:
    """Send this to where the URL points; return all that comes."""
    host, _, port = url.split("/")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    await writer.drain()
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_a_file_is_there_by_its_name_as_long_as_it_is_served(tmp_path: Path) -> None:
    file = tmp_path / "kernel"
    file.write_bytes(b"x" * 3_000_000)
    async with KernelServer("127.0.0.1", 0, "127.0.0.1").listening() as server:
        with server.served(file) as url:
            request = f"GET /{url.rpartition('/')[2]} HTTP/1.0\r\n\r\n".encode()
            head, _, body = (await asked(url, request)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.0 200 OK")
            assert body == file.read_bytes()
        assert (await asked(url, request)).startswith(b"HTTP/1.0 404")


async def test_two_names_of_one_file_differ(tmp_path: Path) -> None:
    server = KernelServer("10.0.0.1", 80)
    with server.served(tmp_path) as first, server.served(tmp_path) as other:
        assert first != other
        assert len(first.rpartition("/")[2]) >= 32


@pytest.mark.attack
@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.0\r\n\r\n", b"GET /../etc/passwd HTTP/1.0\r\n\r\n", b"\r\n\r\n"]
)
async def test_what_was_not_named_is_not_there(tmp_path: Path, request_: bytes) -> None:
    async with KernelServer("127.0.0.1", 0, "127.0.0.1").listening() as server:
        with server.served(tmp_path / "kernel") as url:
            assert (await asked(url, request_)).startswith(b"HTTP/1.0 404")


@pytest.mark.attack
async def test_who_holds_many_connections_keeps_only_himself_from_more(tmp_path: Path) -> None:
    (tmp_path / "kernel").write_bytes(b"x")
    async with KernelServer("127.0.0.1", 0, "127.0.0.1").listening() as server:
        with server.served(tmp_path / "kernel") as url:
            host, _, port = url.split("/")[2].partition(":")
            held = [
                await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
                for _ in range(200)
            ]
            request = f"GET /{url.rpartition('/')[2]} HTTP/1.0\r\n\r\n".encode()
            assert (await asked(url, request)).endswith(b"\r\n\r\nx")
            assert await held[-1][0].read() == b""
            for _, writer in held:
                writer.close()


@pytest.mark.attack
async def test_a_head_without_end_is_cut_off(tmp_path: Path) -> None:
    async with KernelServer("127.0.0.1", 0, "127.0.0.1").listening() as server:
        with server.served(tmp_path / "kernel") as url, contextlib.suppress(ConnectionError):
            assert await asked(url, b"GET /" + b"x" * 100_000) == b""
