"""Paging: everything that a filter matches, asked for by `until`, a page at a time. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

_MOST_PAGES: Final = 100
"""Of one second: a relay that has always one more is not asked for ever."""


class Paging:
    """Where one is in the answer to one filter.

    A page begins where the last one ended, with the second that the two may share: what that second
    had is asked for again and left out.
    """

    def __init__(self, filter_: Filter, page: int, served: int) -> None:
        """`page`: events to ask for. `served`: events that the relay sends at a time if it has
        them; an answer with less is the last."""
        self._filter = filter_
        self._page = page
        self._served = served
        self._until = filter_.until
        self._left = filter_.limit
        self._longest = 0
        self._edge: set[str] = set()
        """Ids dated `until` that were given already."""
        self._pages_of_second = 0
        self._is_over = self._left is not None and self._left <= 0

    @property
    def wanted(self) -> Filter | None:
        """What to ask for next; None: nothing is left."""
        if self._is_over:
            return None
        return replace(self._filter, until=self._until, limit=self._size)

    def take(self, answer: Sequence[Event]) -> list[Event]:
        """What is new in the answer to `wanted`, newest first; a search's in its order."""
        if self._filter.search is not None:
            self._is_over = True
            return list(answer)
        is_last = len(answer) < min(self._size, self._served)
        self._longest = max(self._longest, len(answer))
        fresh = [event for event in answer if event.id not in self._edge]
        fresh = sorted(fresh, key=lambda event: (-event.created_at, event.id))[: self._left]
        if self._left is not None:
            self._left -= len(fresh)
        self._is_over = is_last or self._left == 0 or not self._goes_on_after(fresh, answer)
        return fresh

    @property
    def _size(self) -> int:
        page = self._page if self._left is None else min(self._page, self._left)
        return len(self._edge) + page

    def _goes_on_after(self, fresh: Sequence[Event], answer: Sequence[Event]) -> bool:
        if fresh:
            oldest = fresh[-1].created_at
            is_same = oldest == self._until
            self._pages_of_second = self._pages_of_second + 1 if is_same else 0
            if self._pages_of_second == _MOST_PAGES:
                return self._goes_below(oldest)
            held = self._edge if is_same else set()
            self._edge = held | {event.id for event in fresh if event.created_at == oldest}
            self._until = oldest
            return True
        if self._until is not None and len(answer) == self._longest > 0:
            # Perhaps the relay serves no more at a time than this second holds: go on below it.
            return self._goes_below(self._until)
        return False

    def _goes_below(self, second: int) -> bool:
        self._until, self._edge, self._pages_of_second = second - 1, set(), 0
        return self._until >= 0
