"""Whether two compiled trees are the same kernel, and whether later builds see the same in them.

Kernels are compared by the hashes of their ELF sections (elf(5)).
"""

import asyncio
import hashlib
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from kgym.errors import UserError
from kgym.host import sandbox
from kgym.transport.artifact_storage import sha256_of
from kgym_builder.kbuild import object_index
from kgym_builder.kbuild.kbuild import MODULES
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.suitecache.tree_build import Compiled

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOBITS = 8
# Sections; a kernel's vmlinux has some 80.
_MOST = 100_000


async def fingerprint(tree: Tree, compiled: Compiled) -> dict[str, str]:
    """Return the kernel, and all that later builds take from the tree, as hashes by name."""
    out = tree.overlay.folder / "compared"
    hashes: dict[str, str] = {}
    for path in await tree.export(["vmlinux", "System.map", MODULES], out):
        if path.name == "vmlinux":
            hashes |= _named("vmlinux", await asyncio.to_thread(_section_hashes, path))
        else:
            hashes[path.name] = await asyncio.to_thread(sha256_of, path)
    await asyncio.to_thread(sandbox.remove, out)
    hashes |= {"config": compiled.config, "release": compiled.release}
    hashes |= {"linked objects": compiled.linked.decode(errors="replace")}
    hashes |= _named("environment", compiled.environment)
    hashes |= _named("control", compiled.lacking)
    return hashes | _named("command of", await object_index.commands(tree))


def _named(what: str, values: Mapping[str, str]) -> dict[str, str]:
    return {f"{what} {name}": value for name, value in values.items()}


def _section_hashes(path: Path) -> dict[str, str]:
    """Return hashes of the sections' content, with their addresses, by name.

    Sections of the same name share an entry. Raises UserError `bad_kernel` if the file is not a
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
