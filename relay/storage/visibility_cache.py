"""Cache of texts that were composed for visibilities."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.access.visibility import Visibility
    from relay.groups.group import Groups

Made = TypeVar("Made")


class VisibilityCache(OrderedDict[tuple[object, ...], tuple["Visibility", Made]]):
    """By keys with the `id` of a visibility, which its entry keeps alive, so that no other gets it.
    Over `most`, the sum of the sizes, those go that were longest not moved to the end."""

    def __init__(self, most: int, size: Callable[[Made], int] = lambda _: 1) -> None:
        super().__init__()
        self._most = most
        self._size = size
        self._sum = 0
        self._groups: Groups | None = None
        """Groups of the visibilities in it."""

    def keep(self, key: tuple[object, ...], visibility: Visibility, made: Made) -> None:
        if visibility.rules and visibility.groups is not self._groups:
            # Older visibilities are not used again, and each keeps the groups of its time in
            # memory.
            self.clear()
            self._sum = 0
            self._groups = visibility.groups
        self[key] = visibility, made
        self._sum += self._size(made)
        while self._sum > self._most:
            _, (_, oldest) = self.popitem(last=False)
            self._sum -= self._size(oldest)
