"""A bug's dictionary: the constants of the functions that crash, read from their machine code.

A bound that is off by one shows only in a program that uses exactly the bound's value, and that
value is an immediate operand in the code. Macros, enumerators and `sizeof` have their actual values
there.
"""

import asyncio
import itertools
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

from kgym.api.steps import Dictionary
from kgym.host.sandbox import Sandbox
from kgym_vmmanager.variants.code_constants import Constants

T = TypeVar("T")
K = TypeVar("K", int, tuple[int, int])
# Entries of a dictionary: a long list makes each entry rare.
MOST_VALUES = 400
MOST_FIELDS = 40
MOST_STRINGS = 200
_STRING_BYTES = 64
_MOST_FUNCTIONS = 24
_MOST_FUNCTION_BYTES = 1 << 16
# Functions whose neighbours are looked at, and bytes of code before and behind each: the linker
# puts a folder's objects next to each other (scripts/Makefile.build, built-in.a).
_MOST_CENTRES = 3
_AROUND = 32 << 10
# Addresses of strings and tables that are looked at, and bytes of a table.
_MOST_ADDRESSES = 400
_TABLE_BYTES = 512
# Names of a subsystem that are kept: among too many, the functions' own strings would be rare.
_MOST_NAMES = 60
_SECONDS = 120.0
# Reads a line `START STOP` for each range.
_DISASSEMBLE = """
set -e
while read -r start stop; do
    objdump -d --no-show-raw-insn --start-address="$start" --stop-address="$stop" "$1"
done
"""

# A function passes a string by its address: `mov $0xffffffff826f1c40,%rdi`, or relative to %rip.
_ADDRESS = re.compile(r"(?:\$0x|# )(ffffffff[89ab][0-9a-f]{7})\b")
_ADDRESSES = range(0xFFFFFFFF80000000, 0xFFFFFFFFC0000000)
_TEXT = re.compile(rb"[\x20-\x7e]{2,}\0")
# Names of types, operations, mount options: `keyring`, `source`, `enc=%s`; messages have spaces.
_NAME = re.compile(rb"[A-Za-z0-9][\w.:=%+-]{1,31}\0")
# KASAN's description of a stack frame, such as `1 32 8 5 key:20`.
_FRAME = re.compile(rb"\d+ \d+ \d+ \d+ \w+")


async def of_kernel(
    vmlinux: Path, functions: Collection[str], *, subsystem: bool = False
) -> Dictionary:
    """Return the dictionary of these functions of a kernel. Raises ProgramFailed, LimitExceeded.

    Names that are missing or not unique are left out. With `subsystem`, the names in the code and
    the tables around the first functions follow.
    """
    # A patched kernel is hostile, so binutils read it in the sandbox.
    box = Sandbox(readonly={"/in": vmlinux.parent})
    listing = await _output(box, ["nm", "-n", f"/in/{vmlinux.name}"])
    ranges = _ranges(listing.splitlines(), functions)
    code = await _disassembled(box, vmlinux, ranges)
    # By function: the first ones, in which the kernel crashes, count most.
    functions_code = code.split("Disassembly of section")
    dictionaries = [of_code(function_code.splitlines()) for function_code in functions_code]
    around = [(max(0, at - _AROUND), at + _AROUND) for at, _ in ranges[:_MOST_CENTRES]]
    near = await _disassembled(box, vmlinux, around if subsystem else [])
    strings = await asyncio.to_thread(_strings, vmlinux, code, near)
    return merged(*dictionaries, of_code([], strings))


def merged(*dictionaries: Dictionary) -> Dictionary:
    """Return one dictionary with the entries of all, the first ones first, up to the limits."""
    return Dictionary(
        values=_unique((dictionary.values for dictionary in dictionaries), MOST_VALUES),
        fields=_unique((dictionary.fields for dictionary in dictionaries), MOST_FIELDS),
        strings=_unique((dictionary.strings for dictionary in dictionaries), MOST_STRINGS),
    )


def lines(dictionary: Dictionary) -> str:
    """Return the file that the guest's engine (guest/inside/vary.c) reads."""
    rows = [f"value {value:x}" for value in dictionary.values]
    rows += [f"field {shift} {width}" for shift, width in dictionary.fields]
    rows += [f"string {text}" for text in dictionary.strings]
    return "".join(f"{row}\n" for row in rows)


def of_code(lines: Iterable[str], strings: Iterable[bytes] = ()) -> Dictionary:
    """Return the dictionary of the output of `objdump -d` for a bug's functions.

    Frequent constants come first: the lists are bounded.
    """
    constants = Constants.read(lines)
    texts = dict.fromkeys(text[:_STRING_BYTES].hex() for text in strings if text)
    return Dictionary(
        values=_frequent(constants.values, MOST_VALUES),
        fields=_frequent(constants.fields, MOST_FIELDS),
        strings=list(texts)[:MOST_STRINGS],
    )


def _frequent(counts: Counter[K], most: int) -> list[K]:
    return sorted(counts, key=lambda key: (-counts[key], key))[:most]


def _unique(lists: Iterable[Sequence[T]], most: int) -> list[T]:
    return list(dict.fromkeys(itertools.chain.from_iterable(lists)))[:most]


async def _output(box: Sandbox, argv: Sequence[str], stdin: str = "") -> str:
    lines: list[str] = []

    def keep(line: bytes) -> None:
        lines.append(line.decode(errors="replace"))

    await box.run(argv, timeout=_SECONDS, stdin=stdin.encode(), on_line=keep)
    return "\n".join(line.rstrip("\n") for line in lines)


async def _disassembled(box: Sandbox, vmlinux: Path, ranges: Collection[tuple[int, int]]) -> str:
    if not ranges:
        return ""
    stdin = "".join(f"{start:#x} {stop:#x}\n" for start, stop in ranges)
    return await _output(box, ["sh", "-c", _DISASSEMBLE, "sh", f"/in/{vmlinux.name}"], stdin)


def _ranges(listing: Iterable[str], functions: Collection[str]) -> list[tuple[int, int]]:
    """Return the addresses of unique functions, in the given order, from the output of `nm -n`."""
    symbols: list[tuple[int, str]] = []
    for line in listing:
        address, _, rest = line.partition(" ")
        kind, _, name = rest.partition(" ")
        if kind in tuple("tTwW") and re.fullmatch(r"[0-9a-f]{16}", address):
            symbols.append((int(address, 16), name))
    addresses = sorted({start for start, _ in symbols})
    # Aliases share their end, which is the next higher address of a symbol.
    ends = dict(itertools.pairwise(addresses))
    places: dict[str, list[tuple[int, int]]] = {}
    for start, name in symbols:
        if start in ends:
            stop = min(ends[start], start + _MOST_FUNCTION_BYTES)
            places.setdefault(name, []).append((start, stop))
    known = [places[name][0] for name in functions if len(places.get(name, ())) == 1]
    return known[:_MOST_FUNCTIONS]


def _addresses(code: str) -> list[int]:
    """Return the addresses of data that code refers to, in the order of the code."""
    addresses = dict.fromkeys(int(match, 16) for match in _ADDRESS.findall(code))
    return list(addresses)[:_MOST_ADDRESSES]


class _Image:
    """A kernel's memory by its ELF file (elf(5)); a hostile file gives any bytes, or none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._segments: list[tuple[int, int, int]] = []
        header = file.read(64).ljust(64, b"\0")
        [place] = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        for number in range(min(count, 64)):
            part = self._part(place + number * size, 56)
            if len(part) == 56:
                kind, offset, address, length = struct.unpack("<I4xQQ8xQ16x", part)
                if kind == 1:  # PT_LOAD
                    self._segments.append((address, offset, length))

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address, fewer at the end of a segment."""
        for begin, offset, length in self._segments:
            if begin <= address < begin + length:
                return self._part(offset + address - begin, min(size, begin + length - address))
        return b""

    def _part(self, offset: int, size: int) -> bytes:
        if offset >= 1 << 40:  # no file is so large
            return b""
        self._file.seek(offset)
        return self._file.read(size)


def _strings(vmlinux: Path, code: str, near: str) -> list[bytes]:
    """Return the strings of a bug's functions, then the names in the code near them."""
    with vmlinux.open("rb") as file:
        image = _Image(file)
        texts = [text for text in _strings_at(image, _addresses(code)) if not _FRAME.match(text)]
        names = dict.fromkeys(filter(_NAME.fullmatch, _strings_at(image, _addresses(near))))
    return [*texts, *itertools.islice(names, _MOST_NAMES)]


def _strings_at(image: _Image, addresses: Iterable[int]) -> Iterator[bytes]:
    """Yield the strings at these addresses, and those to which tables at these addresses point."""
    for address in addresses:
        content = image.read(address, _TABLE_BYTES)
        if text := _TEXT.match(content[:_STRING_BYTES]):
            yield text[0]
            continue
        for [word] in struct.iter_unpack("<Q", content[: len(content) // 8 * 8]):
            if word in _ADDRESSES and (text := _TEXT.match(image.read(word, _STRING_BYTES))):
                yield text[0]
