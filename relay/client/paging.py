"""Paging: all matches of a filter, queried page by page with `until`. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from relay.client.errors import AnswerTooLong
from relay.nostr.event import weight_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

_MAX_PAGES: Final = 100
"""Pages within one second, so that a relay that always returns another event cannot keep it going
forever."""
_LEAST_SERVED: Final = 100
"""No relay returns fewer events at a time, if it has them; so many are asked for by ids."""
_MAX_PAGES_OF_ALL: Final = 20_000
"""Five million events from a relay that returns 250 at a time."""
_GROWS_AFTER: Final = 4
"""Answers that can be held after which a page is twice as large again, up to its first size: large
events may have been few."""
_SMALL: Final = 10
_MAX_SMALL: Final = 1_000
"""Pages of fewer events: they cost the client a request each, and the relay little."""
MAX_ALL_BYTES: Final = 2**30
"""What all pages take in memory together, as `weight_of` estimates it."""
MAX_READ_BYTES: Final = 2**34
"""The same for a caller that holds a page at a time."""


class PageBudget:
    """Limits on the pages of one `query_all`: a relay can invent any number of events."""

    def __init__(self, most_bytes: int, page: int = _SMALL * 2) -> None:
        """`page`: events that each request asks for."""
        self._most_bytes = most_bytes
        self._small_page = min(_SMALL, page // 2)
        self._bytes = self._pages = self._small = 0

    def spend(self, page: Sequence[Event]) -> None:
        """Raises AnswerTooLong."""
        self._pages += 1
        if self._pages > _MAX_PAGES_OF_ALL:
            raise AnswerTooLong(_MAX_PAGES_OF_ALL, "pages")
        self._small += len(page) < self._small_page
        if self._small > _MAX_SMALL:
            raise AnswerTooLong(_MAX_SMALL, "small pages")
        self._bytes += sum(map(weight_of, page))
        if self._bytes > self._most_bytes:
            raise AnswerTooLong(self._most_bytes, "bytes in pages")


class PageSize:
    """How many events to ask for at once: fewer after an answer that was too long, or too late; up
    to the first number again when several could be held."""

    def __init__(self, most: int) -> None:
        self.value = self._most = most
        self._fits = 0
        """Answers since it has changed."""

    def grow(self) -> None:
        """After an answer that could be held."""
        self._fits += 1
        if self.value < self._most and self._fits == _GROWS_AFTER:
            self.value, self._fits = min(2 * self.value, self._most), 0

    def narrow(self, came: int | None = None) -> bool:
        """Half as many, or half of those that came within the deadline. False: it is one."""
        if self.value <= 1:
            return False
        most = self.value if came is None else min(self.value, came)
        self.value, self._fits = max(most // 2, 1), 0
        return True


class Paging:
    """Position in the matches of one filter.

    Each page starts at the last second of the previous one; events of that second that were already
    returned are skipped. What pages cannot give of a second is `crowded`, and then read by ids.
    """

    def __init__(self, filter_: Filter, page: int, served: int) -> None:
        """`page`: events per request. `served`: number of events the relay is known to return if it
        has them; a shorter answer is then the last."""
        self._filter = filter_
        self._page = PageSize(page)
        self._served = served
        self._until = filter_.until
        self._left = filter_.limit
        self._longest = 0
        self._edge: set[str] = set()
        """Ids with `created_at` = `until` that were already returned."""
        self._pages_of_second = 0
        self._crowded: tuple[Filter, set[str]] | None = None
        self._second = filter_
        """The last one that was crowded."""
        self._ids: list[str] = []
        """What is left of it, the lowest id last."""
        self._is_done = self._left is not None and self._left <= 0

    @property
    def wanted(self) -> Filter | None:
        """The next filter to query; None: finished."""
        if self._ids:
            ids = frozenset(self._next_ids)
            return structs.replace(self._second, ids=ids, limit=len(ids))
        if self._is_done:
            return None
        return structs.replace(self._filter, until=self._until, limit=self._size)

    def add(self, answer: Sequence[Event]) -> list[Event]:
        """The new events of the answer to `wanted`, newest first; for a search in the relay's
        order."""
        if self._filter.search is not None:
            self._is_done = True
            return list(answer)
        if self._ids:
            return self._add_by_ids(answer)
        is_last = len(answer) < min(self._size, self._served)
        self._longest = max(self._longest, len(answer))
        self._page.grow()
        fresh = [event for event in answer if event.id not in self._edge]
        fresh = sorted(fresh, key=lambda event: (-event.created_at, event.id))[: self._left]
        if self._left is not None:
            self._left -= len(fresh)
        self._is_done = is_last or self._left == 0 or not self._has_more_after(fresh, answer)
        return fresh

    def take_crowded(self) -> tuple[Filter, set[str]] | None:
        """A second of which there may be more than pages can give, and the ids of what was returned
        of it; once. What is to be read of it is told to `add_ids`."""
        crowded, self._crowded = self._crowded, None
        return crowded

    def add_ids(self, ids: Iterable[str]) -> None:
        """Those of the events of this second that were not returned yet, as the relay says."""
        wanted = self._filter.ids
        self._ids = sorted((id_ for id_ in ids if wanted is None or id_ in wanted), reverse=True)

    def _add_by_ids(self, answer: Sequence[Event]) -> list[Event]:
        del self._ids[-len(self._next_ids) :]  # what did not come is not there any more
        self._page.grow()
        if self._left is not None:
            self._left -= len(answer)
            if self._left == 0:
                self._ids, self._is_done = [], True
        return sorted(answer, key=lambda event: event.id)

    def narrow(self, held: int = 0) -> bool:
        """Ask for half as many, after an answer that was too long to be held, or for half of those
        that could be `held` besides what was already returned. False: one event is too long."""
        fresh = held - len(self._edge)
        if self._page.narrow(fresh if fresh > 0 else None):
            return True
        if self._until is not None and self._edge:
            # Those already returned come again with each answer.
            self._is_done = not self._leave(self._until)
            return True
        return False

    def narrow_to(self, came: int) -> None:
        """Ask for fewer, after an answer that was not complete within the deadline. `came`: events
        until then."""
        self._page.narrow(came - len(self._edge))

    @property
    def _size(self) -> int:
        page = self._page.value if self._left is None else min(self._page.value, self._left)
        return len(self._edge) + page

    @property
    def _next_ids(self) -> list[str]:
        return self._ids[-min(self._size, _LEAST_SERVED) :]

    def _has_more_after(self, fresh: Sequence[Event], answer: Sequence[Event]) -> bool:
        if fresh:
            oldest = fresh[-1].created_at
            is_same = oldest == self._until
            self._pages_of_second = self._pages_of_second + 1 if is_same else 0
            held = self._edge if is_same else set()
            self._edge = held | {event.id for event in fresh if event.created_at == oldest}
            self._until = oldest
            return self._pages_of_second < _MAX_PAGES or self._leave(oldest)
        if self._until is not None and len(answer) == self._longest > 0:
            # The relay may return no more events at a time than this second holds.
            return self._leave(self._until, is_whole=self._longest < _LEAST_SERVED)
        return False

    def _leave(self, second: int, *, is_whole: bool = False) -> bool:
        """Continue below the second; returns whether there is anything."""
        if not is_whole:
            self._second = structs.replace(self._filter, since=second, until=second, limit=None)
            self._crowded = self._second, self._edge
        self._until, self._edge, self._pages_of_second = second - 1, set(), 0
        return self._until >= 0
