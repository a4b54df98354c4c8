"""Which hashes came recently, in memory of a fixed size."""

from __future__ import annotations

from typing import Final

_PLACES: Final = 1 << 16


class Recent:
    """The last hashes that came, at most `number`; then it begins anew. One that shares its place
    with another counts as having come."""

    __slots__ = ("_came", "_left", "_number")

    def __init__(self, number: int) -> None:
        self._number = self._left = number
        self._came = bytearray(_PLACES)

    def is_new(self, hash_: int) -> bool:
        """Whether it did not come before. From now on it did."""
        place = hash_ % _PLACES
        if self._came[place]:
            return False
        if not self._left:
            self._came, self._left = bytearray(_PLACES), self._number
        self._came[place] = 1
        self._left -= 1
        return True
