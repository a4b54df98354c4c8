"""Which hashes came recently, in memory of a fixed size."""

from __future__ import annotations

from array import array
from typing import Final

_MASK: Final = (1 << 64) - 1


_ALIKE: Final = 4
"""Hashes that share a place: the oldest of them is forgotten first."""


class Recent:
    """Hashes that came before, as far as is known: at most `number`, in 8 bytes each."""

    __slots__ = ("_hashes", "_places")

    def __init__(self, number: int) -> None:
        self._places = number // _ALIKE
        self._hashes = array("Q", bytes(8 * _ALIKE * self._places))

    def is_new(self, hash_: int) -> bool:
        """Whether it did not come before. From now on it did."""
        hash_ &= _MASK
        place = hash_ % self._places * _ALIKE
        alike = self._hashes[place : place + _ALIKE]
        if hash_ in alike:
            return False
        alike.insert(0, hash_)
        self._hashes[place : place + _ALIKE] = alike[:_ALIKE]
        return True
