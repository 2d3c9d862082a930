"""The sections of an ELF file, by their hashes (elf(5)): two kernels are the same if these are."""

import hashlib
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from kgym.errors import UserError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOBITS = 8
# Sections; a kernel's vmlinux has some 80.
_MOST = 100_000


def section_hashes(path: Path) -> dict[str, str]:
    """Return, by name, what tells a section's content and address from others.

    Sections with the same name are told together. Raises UserError `bad_kernel` for what is no
    64-bit little-endian ELF file.
    """
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                hashes: dict[str, str] = {}
                for name, words in _sections(data):
                    hashes[name] = f"{hashes.get(name, '')}{words};"
                return hashes
        except (ValueError, struct.error, IndexError) as error:
            raise UserError("bad_kernel", f"{path.name} is no ELF file: {error}") from error


def _sections(data: mmap.mmap) -> Iterator[tuple[str, str]]:
    ident, _, _, _, _, _, at, _, _, _, _, size, number, names = _HEADER.unpack_from(data)
    if ident[:6] != b"\x7fELF\x02\x01" or size != _SECTION.size or number > _MOST:
        raise ValueError("its header is another one's")
    rows = [_SECTION.unpack_from(data, at + n * size) for n in range(number)]
    _, _, _, _, text, length, *_ = rows[names]
    strings = data[text : text + length]
    for name, kind, flags, address, offset, length, *_ in rows:
        end = strings.index(b"\0", name)
        digest = hashlib.sha256()
        if kind != _NOBITS:
            if offset + length > len(data):
                raise ValueError("a section lies behind its end")
            with memoryview(data) as view, view[offset : offset + length] as part:
                digest.update(part)
        description = f"{kind:x} {flags:x} {address:x} {length:x} {digest.hexdigest()}"
        yield strings[name:end].decode(errors="replace"), description
