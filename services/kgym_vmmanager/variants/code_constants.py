"""Constants of machine code: the values, bit fields and bounds in a disassembly. Pure."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t(?:[a-z]+ )??([a-z0-9]+)\s+([^#<]*)")
_IMMEDIATE = re.compile(r"\$(-?)0x([0-9a-f]+)")
_REGISTER = re.compile(r"%(\w+)$")
_COPY = re.compile(r"%(\w+),%\w+$")
_COMPARES = re.compile(r"(cmp|sub|test|or|xor|add|mov)[bwlq]?|movabs")
# KASAN's shadow offset (whole, and as it is shifted into place), the mark of its stack frames, list
# poison, slab poison: constants of detectors, which no program passes in (include/linux/poison.h,
# mm/kasan/kasan.h).
_POISON = frozenset(
    {
        *(0xDFFFFC0000000000, 0xDEAD000000000100, 0xDEAD000000000122, 0x6B6B6B6B6B6B6B6B),
        *(0x5A5A5A5A5A5A5A5A, 0x41B58AB3, 0x37FFFF),
    }
)
# Addresses of the kernel: pointers to its data and code, above the user's half.
_KERNEL = 0xFFFF800000000000
_ERRORS = 0xFFFFFFFFFFFFF000  # small negative numbers
_ALL = (1 << 64) - 1
# KASAN's shadow of a stack: red zones, and how many bytes of 8 are accessible.
_RED_ZONES = frozenset({0xF1, 0xF2, 0xF3, 0xF8})
# KASAN's check of an access shifts its address by 3 and masks it by 7 (mm/kasan/kasan.h).
_SHADOW = frozenset({(3, 61), (0, 3)})
_SHIFTS = ("sh", "sa", "shl", "shr", "sar", "sal", "ro", "rol", "ror")


@dataclass(slots=True)
class Constants:
    """The constants of a disassembly (`objdump -d`), with how often each occurs."""

    values: Counter[int] = field(default_factory=Counter)
    fields: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Bit fields, as shift and width."""
    # By register: how far it was shifted to the left.
    _shifted: dict[str, int] = field(default_factory=dict)
    # Compilers turn `(x << 8) >> 20 > 31` into `x << 8 > 0x1ffffff`. So the bounds of registers
    # shifted to the left are collected, and the right shifts that give the source's bound.
    _bounds: set[tuple[int, int]] = field(default_factory=set)
    _completed: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def read(cls, lines: Iterable[str]) -> "Constants":
        """Return the constants of these lines."""
        constants = cls()
        for line in lines:
            constants._take(line)
        for (left, bound), (other, right) in itertools.product(
            constants._bounds, constants._completed
        ):
            if left == other and _is_of_interest(bound >> right):
                constants.values[(bound >> right) & _ALL] += 1
        for part in _SHADOW:
            constants.fields.pop(part, None)
        return constants

    def _take(self, line: str) -> None:
        match = _INSTRUCTION.match(line)
        if match is None:
            self._shifted.clear()  # another function
            return
        name, operands = match[1], match[2].strip()
        immediate, register = _IMMEDIATE.match(operands), _REGISTER.search(operands)
        target = register[1] if register else ""
        if name.startswith("mov") and (copied := _COPY.match(operands)):
            self._copy(_whole(copied[1]), _whole(target))
        elif name.rstrip("bwlq") in _SHIFTS:
            self._shift(name, int(immediate[2], 16) if immediate else 1, target)
        elif immediate is not None:
            value = int(immediate[2], 16) * (-1 if immediate[1] else 1)
            self._constant(name, value, _whole(target))

    def _copy(self, source: str, target: str) -> None:
        self._shifted.pop(target, None)
        if source in self._shifted:
            self._shifted[target] = self._shifted[source]

    def _shift(self, name: str, amount: int, register: str) -> None:
        """Handle a shift: a left shift followed by a right shift extracts a bit field."""
        bits, whole = _bits(register), _whole(register)
        self._completed.add((self._shifted.get(whole, 0), amount))
        if name.startswith(("shl", "sal")):
            self._shifted[whole] = amount
        elif name.startswith(("shr", "sar")):
            left = self._shifted.pop(whole, 0)
            shift, width = amount - left, bits - amount
            if 0 <= shift < bits and 0 < width < bits:
                self.fields[shift, width] += 1

    def _constant(self, name: str, value: int, target: str) -> None:
        if name.startswith("cmp") and target in self._shifted:
            self._bounds.add((self._shifted[target], value))
        if name.startswith("and"):
            if part := _mask(value):
                self.fields[part] += 1
            value &= _ALL
            value = ~value & _ALL if value > 1 << 63 else value
        elif name.startswith("bt"):
            value = 1 << value if 0 <= value < 64 else value
        elif not _COMPARES.fullmatch(name):
            return
        if _is_of_interest(value):
            self.values[value & _ALL] += 1


def _mask(value: int) -> tuple[int, int] | None:
    """Return the bit field of a mask of contiguous bits, or of its complement; None for others."""
    value &= _ALL
    if value > 1 << 63:
        value = ~value & _ALL
    if value <= 1:
        return None
    shift = (value & -value).bit_length() - 1
    width = value.bit_length() - shift
    return (shift, width) if value == ((1 << width) - 1) << shift else None


def _bits(register: str) -> int:
    if re.fullmatch(r"r(\d+|[a-ds][xip]|[bs]p|[sd]i)", register):
        return 64
    if register.endswith(("l", "b")) and not register.endswith("d"):
        return 8
    return 16 if re.fullmatch(r"[a-d]x|[sd]i|[bs]p|r\d+w", register) else 32


def _whole(register: str) -> str:
    """Return one name for a register and its parts."""
    if match := re.fullmatch(r"(r\d+)[dwb]?", register):
        return match.group(1)
    return re.sub(r"^[re]|[lh]$|x$", "", register)


def _is_of_interest(value: int) -> bool:
    unsigned = value & _ALL
    if unsigned in _POISON or unsigned in (0, 1) or _is_shadow(unsigned):
        return False
    return not _KERNEL <= unsigned < _ERRORS


def _is_shadow(value: int) -> bool:
    shadow = value.to_bytes(8, "big").lstrip(b"\0")
    return shadow[0] in _RED_ZONES and all(byte in _RED_ZONES or byte < 8 for byte in shadow)
