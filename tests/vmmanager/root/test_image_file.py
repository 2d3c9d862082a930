"""A submitter's own image: what it claims to be is checked, and what it names is never opened."""

import asyncio
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import RootImage
from kgym.errors import UserError
from kgym_vmmanager.root.image_file import LARGEST, check
from tests.refused import refused
from tests.tables import json_rows


def qcow2(
    *,
    version: int = 3,
    ground: int = 0,
    size: int = 1 << 30,
    encryption: int = 0,
    features: int = 0,
) -> bytes:
    head = struct.pack(
        ">4sIQIIQI", b"QFI\xfb", version, ground, 9 * bool(ground), 16, size, encryption
    )
    return head.ljust(72, b"\0") + struct.pack(">Q", features) + bytes(24) + b"/etc/passwd"


def complaint(tmp_path: Path, content: bytes, form: str = "qcow2") -> str:
    image = tmp_path / "image"
    image.write_bytes(content)
    with refused("bad_root_image") as error:
        asyncio.run(check(image, form))
    assert error.value.message.isprintable()
    assert len(error.value.message) < 600
    return error.value.message


def whole(tmp_path: Path, version: int = 3) -> Path:
    """An image as qemu-img makes it, with data in some of its clusters."""
    raw, image = tmp_path / "raw", tmp_path / "image"
    raw.write_bytes(bytes(1 << 16) + b"\1" * (3 << 16) + bytes(1 << 20))
    how = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2"]
    subprocess.run(
        [*how, "-o", f"compat={'1.1' if version == 3 else '0.10'}", raw, image],
        check=True,
        timeout=60,
    )
    raw.unlink()
    return image


@pytest.mark.parametrize("version", [2, 3])
def test_an_image_that_stands_alone_is_taken(tmp_path: Path, version: int) -> None:
    image = whole(tmp_path, version)
    image.chmod(0o600)
    asyncio.run(check(image, "qcow2"))


@pytest.mark.attack
@pytest.mark.parametrize(("at", "value", "words"), json_rows(__file__, "damaged_tables.jsonl"))
def test_damaged_tables(tmp_path: Path, at: int | str, value: int, words: str) -> None:
    """An image with damaged tables is the submitter's error."""
    content = bytearray(whole(tmp_path).read_bytes())
    if at == "L2":
        (first,) = struct.unpack_from(">Q", content, 40)
        (table,) = struct.unpack_from(">Q", content, first)
        at = (table & ((1 << 56) - 512)) + 8
    assert isinstance(at, int)
    struct.pack_into(">I" if at == 20 else ">Q", content, at, value)
    assert words in (message := complaint(tmp_path, bytes(content)))
    assert "qemu-img check says: " in message
    assert "qemu-img check says: " in complaint(tmp_path, content[: len(content) // 2])


@pytest.mark.attack
@pytest.mark.parametrize(
    ("words", "content"),
    [
        *(("backing file", qcow2(version=version, ground=104)) for version in (2, 3)),
        *(("its data lie", qcow2(features=1 << feature)) for feature in (0, 1, 2, 5, 63)),
        *(("GiB", qcow2(size=size)) for size in (0, LARGEST + 512, 1 << 62)),
        ("encrypted", qcow2(encryption=1)),
    ],
)
def test_headers_that_are_complaint(tmp_path: Path, words: str, content: bytes) -> None:
    assert words in complaint(tmp_path, content)


def _extension(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", kind, len(data)) + data.ljust(-(-len(data) // 8) * 8, b"\0")


# Fields of the header, and its extensions, which begin at byte 112.
@pytest.mark.attack
@pytest.mark.parametrize(
    "forged",
    [
        {60: b"\0\1\0\1"},  # more snapshots than QEMU allows
        {60: b"\xff" * 4, 64: struct.pack(">Q", 1 << 20)},
        {60: b"\0\0\0\1", 64: struct.pack(">Q", 0x50000)},  # a snapshot table of data
        {60: b"\0\0\0\3", 64: struct.pack(">Q", 1 << 60)},
        {96: b"\0\0\0\7"},  # the width of reference counts
        {100: b"\xff" * 4},  # the header's length
        {100: b"\0\0\0\x50"},
        {100: b"\0\0\0\x71"},
        {104: b"\x09"},  # an unknown compression
        {36: b"\x7f\xff\xff\xff"},  # entries of the L1 table
        {36: bytes(4)},
        {40: bytes(8)},  # the L1 table is the header
        {40: struct.pack(">Q", 0x10000)},  # the L1 table is the one of reference counts
        {56: b"\xff" * 4},
        {20: bytes(4)},
        {20: b"\0\0\0\x1f"},
        {24: struct.pack(">Q", LARGEST)},  # a larger disk than the tables have room for
        {72: struct.pack(">Q", 1 << 4)},  # subclusters, in tables without
        {8: struct.pack(">Q", 104)},  # a backing file's place without its length
        {16: b"\0\0\0\x0b"},
        {8: struct.pack(">QI", 112, 37), 112: b'json:{"driver":"nbd","host":"127.1"}'},
        {88: struct.pack(">Q", 2), 112: _extension(0x44415441, b"/etc/passwd")},
        {112: _extension(0x0537BE77, struct.pack(">QQ", 0, 1 << 40))},  # keys of encryption
        {
            88: struct.pack(">Q", 1),
            112: _extension(0x23852875, struct.pack(">IIQQ", 0xFFFF, 0, 1 << 40, 1 << 20)),
        },
        {112: struct.pack(">II", 0x12345678, 0x7FFFFFFF)},
    ],
    ids=str,
)
def test_forged_fields_of_a_header(tmp_path: Path, forged: dict[int, bytes]) -> None:
    content = bytearray(whole(tmp_path).read_bytes())
    for at, value in forged.items():
        content[at : at + len(value)] = value
    complaint(tmp_path, bytes(content))


@pytest.mark.attack
def test_a_raw_image_is_never_taken_for_another(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(qcow2(ground=104).ljust(512, b"\0"))
    asyncio.run(check(image, "raw"))  # its bytes are the disk's: nothing in them is followed
    assert "raw" in complaint(tmp_path, bytes(512))
    for content, words in ((b"", "0 bytes"), (bytes(1000), "multiple of 512")):
        assert words in complaint(tmp_path, content, "raw")


@pytest.mark.thorough
@given(st.binary(max_size=120))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """They are refused or taken."""
    image = tmp_path_factory.mktemp("any") / "image"
    image.write_bytes(data)
    with suppress(UserError):
        asyncio.run(check(image, "qcow2"))
        assert data.startswith(b"QFI\xfb")


@pytest.mark.parametrize("fields", json_rows(__file__, "bad_root_images.jsonl"))
def test_an_image_has_one_place_and_a_stated_format(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"url|format"):
        RootImage.model_validate(fields)
