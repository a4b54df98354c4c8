"""Cache of texts that were composed for the lasting rights of viewers."""

from __future__ import annotations

from collections import OrderedDict
from sys import getsizeof
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


class VisibilityCache(Generic[Made]):
    """What was made for `Visibility.lasting`, which its entry keeps alive, so that no other gets
    its `id`. Over `most`, the sum of the sizes, those go that were longest not asked for. Those of
    viewers with a `Visibility.admitted_as` have as much for themselves: anybody else may ask for
    ever new shapes of filters."""

    def __init__(self, most: int, size: Callable[[Made], int]) -> None:
        self._kept = {is_admitted: _Kept[Made](most, size) for is_admitted in (False, True)}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __iter__(self) -> Iterator[Made]:
        return (made for kept in self._kept.values() for _, made, _ in kept.entries.values())

    def get(self, visibility: Visibility, asked: object) -> Made | None:
        """What was kept for the same `asked`."""
        entries = self._kept[visibility.admitted_as is not None].entries
        key = id(visibility.lasting), asked
        entry = entries.get(key)
        if entry is None:
            return None
        entries.move_to_end(key)
        return entry[1]

    def keep(self, visibility: Visibility, asked: object, made: Made) -> None:
        self._kept[visibility.admitted_as is not None].keep(visibility, asked, made)


class _Kept(Generic[Made]):
    def __init__(self, most: int, size: Callable[[Made], int]) -> None:
        self.entries: OrderedDict[tuple[int, object], tuple[object, Made, int]] = OrderedDict()
        """With their sizes."""
        self._most = most
        self._size = size
        self._sum = 0

    def __len__(self) -> int:
        return len(self.entries)

    def keep(self, visibility: Visibility, asked: object, made: Made) -> None:
        key, size = (id(visibility.lasting), asked), self._size(made)
        if key in self.entries:
            self._sum -= self.entries.pop(key)[2]
        self.entries[key] = visibility.lasting, made, size
        self._sum += size
        while self._sum > self._most:
            _, (_, _, size) = self.entries.popitem(last=False)
            self._sum -= size
