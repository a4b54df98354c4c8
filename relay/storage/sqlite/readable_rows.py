"""Cache of the rows that a viewer may read, for searches.

Without it most of the time of a search is spent on checking whether the newest rows of each word
may be read. For a row that does not expire, and to which no rule with a `target` applies, this
depends only on the row, the viewer's Visibility and the tables of groups. So the cache is exact:
deleted and moved rows are removed with the commit, a commit that changes groups empties it, and a
Visibility is replaced when anything else changes. Unreadable rows and results are not cached, and
rows are checked again before they are sent.

Invariant: at most `max_rows`, of all viewers together.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from relay.nostr.filters import text_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter

MAX_READABLE: Final = 200_000
"""Cached rows; about 16 MB."""
_MAX_KNOWN: Final = 64
"""Pairs of viewer and filter: each keeps a Visibility alive."""
_MAX_VALUES: Final = 100
_MAX_TEXT_BYTES: Final = 8 << 10
"""Filters with more values, or longer ones, are not cached."""


class KnownRows:
    """The cached rows of one viewer and filter."""

    def __init__(self, of: ReadableRows, visibility: Visibility) -> None:
        self.visibility = visibility  # keeps it alive, so that its id is unique
        self.seqs: set[int] = set()
        self.is_little = False
        """The viewer may read less than half of the rows with the words of a search."""
        self._of = of

    @property
    def changes(self) -> int:
        """Value for `add`; take it before the rows are read."""
        return self._of.changes

    def add(self, seqs: Iterable[int], changes: int) -> None:
        """Add rows; does nothing if a commit after `changes` has taken rows away from viewers."""
        self._of.keep(self, seqs, changes)


class ReadableRows:
    """May be used by several threads."""

    def __init__(self, max_rows: int = MAX_READABLE) -> None:
        self._max = max_rows
        self._known: OrderedDict[tuple[int, Filter], KnownRows] = OrderedDict()
        self._lock = Lock()
        self.changes = 0
        """How many commits took rows away from viewers."""

    def __len__(self) -> int:
        return sum([len(known.seqs) for known in self._known.values()])

    def of(self, visibility: Visibility, filter_: Filter) -> KnownRows:
        """The cached rows of this viewer and this filter without its words."""
        rest = replace(filter_, search=None, limit=None)
        with self._lock:
            known = self._known.get((id(visibility), rest))
            if known is None:
                known = KnownRows(self, visibility)
                if filter_.values <= _MAX_VALUES and text_bytes([rest]) <= _MAX_TEXT_BYTES:
                    self._known[id(visibility), rest] = known
                    if len(self._known) > _MAX_KNOWN:
                        self._known.popitem(last=False)
            else:
                self._known.move_to_end((id(visibility), rest))
        return known

    def keep(self, known: KnownRows, seqs: Iterable[int], changes: int) -> None:
        with self._lock:
            if changes != self.changes:
                return
            known.seqs.update(seqs)
            while self._known and len(self) > self._max:
                self._known.popitem(last=False)

    def changed(self, seqs: Collection[int], *, groups: bool) -> None:
        """Call after a commit that deleted or moved these rows; `groups`: or that changed
        groups."""
        if not seqs and not groups:
            return
        with self._lock:
            self.changes += 1
            if groups:
                self._known.clear()
            for known in self._known.values():
                known.seqs.difference_update(seqs)
