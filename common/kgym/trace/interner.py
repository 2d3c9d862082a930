"""Numbers for keys: many 64-bit values, few of them different."""

import numpy as np
from numpy.typing import NDArray

# Different keys that are numbered; a kernel has fewer functions, a forged trace may not.
LIMIT = 1 << 18

_BITS = 16
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Interner:
    """Gives equal keys the same number, counting from 0; `keys` lists them by number.

    A table by hash answers for nearly all; those that share a slot are looked up one by one.
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
            if len(self.keys) >= LIMIT:
                return -1
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
            slot = (key * int(_MULTIPLIER) & (1 << 64) - 1) >> (64 - _BITS)
            if self._slot_number[slot] < 0:
                self._slot_key[slot], self._slot_number[slot] = key, number
        return number
