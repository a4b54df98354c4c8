"""Rows that a viewer is known to be able to read: a search need not look them up again.

Most of a search was to look up the newest rows of each of its words, to see whether they may be
read. What decides that of a row that does not expire, and to which no rule with a `target` applies,
is the row, the viewer's Visibility, and the tables of groups. So it is exact: deleted and moved
rows leave with the commit, a commit that changes groups empties it, and a Visibility is replaced
when anything else changes. What may not be read is never kept here, nor is any result: rows are
checked again before they are sent.

Invariant: at most `max_rows`, of all viewers together.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter

MAX_READABLE: Final = 200_000
"""Some 16 MB."""
_MAX_KNOWN: Final = 64
"""Viewers and filters: each keeps its Visibility alive."""
_MAX_VALUES: Final = 100
"""Of a filter; for those with more nothing is kept."""


class KnownRows:
    """Of one viewer and filter."""

    def __init__(self, of: ReadableRows, visibility: Visibility) -> None:
        self.visibility = visibility  # keeps it alive, so that its id is unique
        self.seqs: set[int] = set()
        self.is_little = False
        """Of what has the words of a search the viewer may read the smaller part."""
        self._of = of

    @property
    def changes(self) -> int:
        """To be read before the rows are that `add` gets."""
        return self._of.changes

    def add(self, seqs: Iterable[int], changes: int) -> None:
        """Unless another commit has taken rows from anybody meanwhile."""
        self._of.keep(self, seqs, changes)


class ReadableRows:
    """May be used by several threads."""

    def __init__(self, max_rows: int = MAX_READABLE) -> None:
        self._max = max_rows
        self._known: OrderedDict[tuple[int, Filter], KnownRows] = OrderedDict()
        self._lock = Lock()
        self.changes = 0
        """How many commits took rows from anybody."""

    def __len__(self) -> int:
        return sum([len(known.seqs) for known in self._known.values()])

    def of(self, visibility: Visibility, filter_: Filter) -> KnownRows:
        """What of this filter beside its words the viewer may read, as far as it is known."""
        rest = replace(filter_, search=None, limit=None)
        with self._lock:
            known = self._known.get((id(visibility), rest))
            if known is None:
                known = KnownRows(self, visibility)
                if filter_.values <= _MAX_VALUES:
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
        """After a commit that deleted or moved these rows; `groups`: or changed groups."""
        if not seqs and not groups:
            return
        with self._lock:
            self.changes += 1
            if groups:
                self._known.clear()
            for known in self._known.values():
                known.seqs.difference_update(seqs)
