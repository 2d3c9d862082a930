"""A bug's dictionary: the constants of the functions that crash, read from their machine code.

A bound that is off by one looks right to every program except the one that uses the bound's own
value, and that stands in the code as an immediate operand. Macros, enumerators and `sizeof` have
their real values there.
"""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

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
# Addresses of strings that are looked at.
_MOST_ADDRESSES = 60
_SECONDS = 120.0
# Both read a line `START STOP` for each range.
_DISASSEMBLE = """
set -e
while read -r start stop; do
    objdump -d --no-show-raw-insn --start-address="$start" --stop-address="$stop" "$1"
done
"""
_DUMP = """
set -e
while read -r start stop; do
    objdump -s --start-address="$start" --stop-address="$stop" "$1"
done
"""

# A function passes a string by its address: `mov $0xffffffff826f1c40,%rdi`, or relative to %rip.
_ADDRESS = re.compile(r"(?:\$0x|# )(ffffffff[89ab][0-9a-f]{7})\b")
_DUMPED = re.compile(r"^ ([0-9a-f]{8,16}) ((?:[0-9a-f]{2,8} ){1,4})", re.MULTILINE)
_TEXT = re.compile(rb"[\x20-\x7e]{2,}\0")
# KASAN's description of a stack frame, such as `1 32 8 5 key:20`.
_FRAME = re.compile(rb"\d+ \d+ \d+ \d+ \w+")


async def of_kernel(vmlinux: Path, functions: Collection[str]) -> Dictionary:
    """Return the dictionary of these functions of a kernel. Raises ProgramFailed, LimitExceeded.

    Names that are missing or not unique are left out.
    """
    # A patched kernel is hostile, so binutils read it in the sandbox.
    box = Sandbox(readonly={"/in": vmlinux.parent})
    listing = await _output(box, ["nm", "-n", f"/in/{vmlinux.name}"])
    ranges = _ranges(listing.splitlines(), functions)
    code = await _each_range(box, _DISASSEMBLE, vmlinux, ranges)
    addresses = dict.fromkeys(int(match, 16) for match in _ADDRESS.findall(code))
    places = [(at, at + _STRING_BYTES) for at in list(addresses)[:_MOST_ADDRESSES]]
    dump = await _each_range(box, _DUMP, vmlinux, places)
    # By function: the first ones, in which the kernel crashes, count most.
    functions_code = code.split("Disassembly of section")
    dictionaries = [of_code(each.splitlines()) for each in functions_code]
    return merged(*dictionaries, of_code([], _strings(dump, addresses)))


def merged(*dictionaries: Dictionary) -> Dictionary:
    """Return one dictionary with the entries of all, the first ones first, up to the limits."""
    return Dictionary(
        values=_unique((each.values for each in dictionaries), MOST_VALUES),
        fields=_unique((each.fields for each in dictionaries), MOST_FIELDS),
        strings=_unique((each.strings for each in dictionaries), MOST_STRINGS),
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


async def _each_range(
    box: Sandbox, script: str, vmlinux: Path, ranges: Iterable[tuple[int, int]]
) -> str:
    stdin = "".join(f"{start:#x} {stop:#x}\n" for start, stop in ranges)
    return await _output(box, ["sh", "-c", script, "sh", f"/in/{vmlinux.name}"], stdin)


def _ranges(listing: Iterable[str], functions: Collection[str]) -> list[tuple[int, int]]:
    """Return the addresses of unique functions, in the given order, from the output of `nm -n`."""
    symbols: list[tuple[int, str]] = []
    for line in listing:
        address, _, rest = line.partition(" ")
        kind, _, name = rest.partition(" ")
        if kind in tuple("tTwW") and re.fullmatch(r"[0-9a-f]{16}", address):
            symbols.append((int(address, 16), name))
    addresses = sorted({start for start, _ in symbols})
    # Of aliases, both end where the next address begins.
    ends = dict(itertools.pairwise(addresses))
    places: dict[str, list[tuple[int, int]]] = {}
    for start, name in symbols:
        if start in ends:
            stop = min(ends[start], start + _MOST_FUNCTION_BYTES)
            places.setdefault(name, []).append((start, stop))
    known = [places[name][0] for name in functions if len(places.get(name, ())) == 1]
    return known[:_MOST_FUNCTIONS]


def _strings(dump: str, addresses: Iterable[int]) -> Iterator[bytes]:
    """Yield the strings at these addresses, from the output of `objdump -s`."""
    memory: dict[int, int] = {}
    for match in _DUMPED.finditer(dump):
        for offset, byte in enumerate(bytes.fromhex(match[2].replace(" ", ""))):
            memory[int(match[1], 16) + offset] = byte
    for address in addresses:
        text = bytes(memory.get(address + offset, 255) for offset in range(_STRING_BYTES))
        ending = _TEXT.match(text)
        if ending and not _FRAME.match(ending[0]):
            yield ending[0]
