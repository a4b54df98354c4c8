"""Cache of pages by their query: many clients send the same queries, above all when they reconnect.
A page is valid for the committed state that it was read in. If one of its rows expires, or is
readable by a link to a row that may expire, it is valid for the current second only.

A page is added when it is read for the second time: to add a large one takes half as long as to
read it, and most small ones are asked for once, by subscriptions that stay open. A full cache keeps
the pages that are asked for: when queries in turn need more pages than fit, those that it holds are
still found.

Invariant: at most `max_bytes`, including the overhead of the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.nostr.filters import text_bytes
from relay.nostr.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from relay.access.visibility import Visibility
    from relay.storage import Page, PageQuery

PAGE_CACHE_BYTES: Final = 8 << 20
_PAGE_BYTES: Final = 1000
_VALUE_BYTES: Final = 100
"""Bytes. Estimated memory of a page, of each value of its filter and of each group of its viewer,
without the bytes of rows and tag values."""
_LISTED_BYTES: Final = 8
"""Of a row that is listed behind the page."""
_MAX_VALUES: Final = 100
"""Pages of filters with more values are not kept."""
_MAX_READ_ONCE: Final = 4096
"""Number of pages that are known to have been read once."""
_USEFUL: Final = 4
"""A full cache is looked at after a number of additions that failed. If not even one page was found
for so many of them, or half of the pages were not asked for, those go."""
_LEAST_PATIENCE: Final = 0.5
_MOST_PATIENCE: Final = 8.0
"""Additions that fail before it is looked at, for each page in it. Twice as many each time, until
all fit: what many clients ask for in turn may be too much for any cache."""
_FEWEST: Final = 16
"""Additions that fail before it is looked at."""
_EXPIRES: Final = b'["expiration"'


@dataclass(slots=True)
class _Kept:
    page: Page
    size: int
    now: int
    lasts: bool
    """It stays valid in later seconds."""
    visibility: Visibility
    """Kept alive so that its `id` is not used again."""
    look: int
    """`PageCache._look` when it was last asked for."""


class PageCache:
    """The pages of one state of the store. For one thread."""

    def __init__(self, max_bytes: int = PAGE_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._state: Hashable = None
        self._bytes = 0
        self._pages: dict[Hashable, _Kept] = {}
        self._read_once = Recent(_MAX_READ_ONCE)
        self._not_added = self._found = 0
        """Since it was full, or was last looked at."""
        self._patience = _LEAST_PATIENCE
        self._look = 0
        """How often it was looked at."""

    def page(self, state: Hashable, query: PageQuery) -> Page | None:
        """The cached page; None: not cached. `state`: a value that never comes back once it has
        changed."""
        if state != self._state:
            self._state = state
            self._clear()
            return None
        kept = self._pages.get(_asked(query))
        if kept is None or not (query.now == kept.now or (kept.lasts and query.now > kept.now)):
            return None
        self._found += 1
        kept.look = self._look
        return kept.page

    def add(self, state: Hashable, query: PageQuery, page: Page) -> None:
        """`state`: as it was before the page was read."""
        filter_, visibility = query.filter, query.visibility
        if state != self._state or filter_.values > _MAX_VALUES:
            return
        asked = _asked(query)
        before = self._pages.pop(asked, None)
        if before is not None:
            self._bytes -= before.size
        elif self._is_first(asked):
            return
        size = _PAGE_BYTES + filter_.values * _VALUE_BYTES
        size += sum(map(len, page.raws))
        if page.listed is not None:
            size += len(page.listed.seqs) * _LISTED_BYTES
        size += text_bytes([filter_])
        if size > self._max_bytes:
            return
        if not self._has_room_for(size):
            return
        lasts = not _may_pass(page, visibility)
        self._pages[asked] = _Kept(page, size, query.now, lasts, visibility, self._look)
        self._bytes += size

    def _has_room_for(self, size: int) -> bool:
        """Whether a page fits, after pages were dropped that nobody asks for any more."""
        if self._bytes + size <= self._max_bytes:
            return True
        if self._not_added == 0 and self._found > len(self._pages):
            self._patience = _LEAST_PATIENCE
        self._not_added += 1
        if self._not_added < max(_FEWEST, self._patience * len(self._pages)):
            return False
        unused = [asked for asked, kept in self._pages.items() if kept.look < self._look]
        is_useful = self._found * _USEFUL >= self._not_added and 2 * len(unused) < len(self._pages)
        self._not_added = self._found = 0
        self._look += 1
        if is_useful:
            return False
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        for asked in unused:
            self._bytes -= self._pages.pop(asked).size
        return self._bytes + size <= self._max_bytes

    def _is_first(self, asked: Hashable) -> bool:
        """Whether the page was not read before, as far as is known."""
        return self._read_once.is_new(hash((self._state, asked)))

    def _clear(self) -> None:
        self._pages.clear()
        self._bytes = self._not_added = self._found = 0


def _asked(query: PageQuery) -> Hashable:
    return query.filter, id(query.visibility), query.limit, query.upto, query.size, query.after


def _may_pass(page: Page, visibility: Visibility) -> bool:
    """Whether time alone may remove a row from the page. Rows are in the form of `Event.raw`."""
    rows = b"".join(page.raws)
    return any(mark in rows for mark in _marks(visibility))


def _marks(visibility: Visibility) -> Iterator[bytes]:
    yield _EXPIRES
    for rule in visibility.rules:
        if rule.effective_target is not None:
            yield b'["%b"' % rule.effective_target.tag.encode()
