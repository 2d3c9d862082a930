"""Numbering of keys: many 64-bit values, few of them distinct."""

import numpy as np
from numpy.typing import NDArray

# Maximum number of distinct keys: a kernel has fewer functions, a forged trace may have more.
LIMIT = 1 << 18

_BITS = 16
# Fibonacci hashing: 2^64 divided by the golden ratio.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Interner:
    """Map from keys to numbers, counting from 0; `keys` lists them by number.

    A vectorised hash table answers for nearly all keys. Keys that share a slot with another one are
    looked up individually.
    """

    def __init__(self) -> None:
        self.keys: list[int] = []
        self._numbers: dict[int, int] = {}
        self._slot_key = np.zeros(1 << _BITS, np.uint64)
        self._slot_number = np.full(1 << _BITS, -1, np.int32)

    def numbers(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the number of each key; -1 for those beyond LIMIT."""
        slots = (keys * _MULTIPLIER) >> np.uint64(64 - _BITS)
        slots = slots.astype(np.uint16)
        result: NDArray[np.int32] = self._slot_number[slots]
        wrong = self._slot_key[slots] != keys
        wrong |= result < 0
        where = np.flatnonzero(wrong)
        if len(where):
            unique, inverse = np.unique(keys[where], return_inverse=True)
            numbers = np.array([self._number(int(key)) for key in unique], np.int32)
            result[where] = numbers[inverse]
        return result

    def _number(self, key: int) -> int:
        number = self._numbers.get(key)
        if number is None:
            # A forged trace could otherwise make the tables grow with every record.
            if len(self.keys) >= LIMIT:
                return -1
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
            slot = (key * int(_MULTIPLIER) & (1 << 64) - 1) >> (64 - _BITS)
            if self._slot_number[slot] < 0:
                self._slot_key[slot], self._slot_number[slot] = key, number
        return number
