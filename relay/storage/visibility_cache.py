"""Cache of texts that were composed for visibilities."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from relay.access.visibility import Visibility
    from relay.groups.group import Groups

Made = TypeVar("Made")


class VisibilityCache(OrderedDict[tuple[object, ...], tuple["Visibility", Made]]):
    """By keys with the `id` of a visibility, which its entry keeps alive, so that no other gets it.
    Of more than `most` entries the one that was longest not moved to the end goes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._groups: Groups | None = None
        """Groups of the visibilities in it."""

    def keep(self, key: tuple[object, ...], visibility: Visibility, made: Made) -> None:
        if visibility.rules and visibility.groups is not self._groups:
            # Older visibilities are not used again, and each keeps the groups of its time in
            # memory.
            self.clear()
            self._groups = visibility.groups
        self[key] = visibility, made
        if len(self) > self._most:
            self.popitem(last=False)
