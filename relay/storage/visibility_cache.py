"""Cache of texts that were composed for the lasting rights of viewers."""

from __future__ import annotations

from collections import OrderedDict
from sys import getsizeof
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.access.visibility import Visibility

Made = TypeVar("Made")

CACHED_PLANS: Final = 8 << 20
"""Bytes of all cached plans together, and as many of conditions: a client may ask for texts of
30,000 characters, and log in with 64 keys, …"""
_LEAST: Final = 8192
"""… and each counts as this many at least."""


def weight_of_plan(*parts: object) -> int:
    """Bytes of what is kept, with all that it refers to, each once."""
    weight, left = 0, [*parts]
    counted = set[int]()
    while left:
        value = left.pop()
        if id(value) not in counted:
            counted.add(id(value))
            weight += getsizeof(value)
            if isinstance(value, (list, tuple, frozenset)):
                left += value
    return max(weight, _LEAST)


class VisibilityCache(OrderedDict[tuple[object, ...], tuple[object, Made]]):
    """By keys with the `id` of `Visibility.lasting`, which its entry keeps alive, so that no other
    gets it. Over `most`, the sum of the sizes, those go that were longest not moved to the end."""

    def __init__(self, most: int, size: Callable[[Made], int]) -> None:
        super().__init__()
        self._most = most
        self._size = size
        self._sum = 0
        self._sizes: dict[tuple[object, ...], int] = {}

    def keep(self, key: tuple[object, ...], visibility: Visibility, made: Made) -> None:
        self._sum -= self._sizes.pop(key, 0)
        self[key] = visibility.lasting, made
        self._sizes[key] = size = self._size(made)
        self._sum += size
        while self._sum > self._most:
            oldest, _ = self.popitem(last=False)
            self._sum -= self._sizes.pop(oldest)
