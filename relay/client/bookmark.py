"""Bookmark: how far a subscription has come, so that it can be taken up on another connection.

Pure. Between two connections nothing is missed: the next REQ asks from a little before the last
event on, since clocks differ and a relay may deliver late what is dated early. And nothing comes
twice: ids are remembered, in a bounded set. Only when more events than that come again are the
oldest of them given twice: an agent rather reads a message twice than not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

OVERLAP_S: Final = 900
"""Rookery takes events so far ahead of their time; a group's may be late by less (DESIGN §10)."""
_MOST_IDS: Final = 50_000
"""What Rookery sends for one filter at most; about 11 MB when so many came."""


class SeenIds:
    """The ids of the newest events that were seen.

    Full, it forgets what is oldest by `created_at`, not by arrival: stored events come newest
    first, and the newest are the ones that a relay sends again after a reconnect.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: set[bytes] = set()
        self._oldest_first: list[tuple[int, bytes]] = []

    def add(self, event: Event) -> bool:
        """Whether the event was not seen before."""
        id_ = bytes.fromhex(event.id)
        if id_ in self._ids:
            return False
        self._ids.add(id_)
        if len(self._oldest_first) < self._most:
            heappush(self._oldest_first, (event.created_at, id_))
        else:
            self._ids.discard(heappushpop(self._oldest_first, (event.created_at, id_))[1])
        return True


@dataclass(slots=True)
class _Stored:
    """What one filter brought of the events that were stored when the subscription began."""

    count: int = 0
    oldest: int | None = None


class Bookmark:
    """Where one subscription stands."""

    def __init__(self, filters: Sequence[Filter], begun: int, most_ids: int = _MOST_IDS) -> None:
        """`begun`: our clock when the subscription was made, in seconds."""
        self.is_live = False
        """The stored events have all been taken."""
        self.is_caught_up = False
        """So has what came while there was no connection."""
        self._filters = tuple(filters)
        self._begun = begun
        self._seen = SeenIds(most_ids)
        self._newest: int | None = None
        self._since = begun
        """Nothing older is missing."""
        self._stored = [_Stored() for _ in self._filters]

    def is_new(self, event: Event) -> bool:
        """Note an event; False when it was noted before."""
        if not self._seen.add(event):
            return False
        if self._newest is None or event.created_at > self._newest:
            self._newest = event.created_at
        if not self.is_live:
            for filter_, stored in zip(self._filters, self._stored, strict=True):
                if filter_.matches(event):
                    stored.count += 1
                    if stored.oldest is None or event.created_at < stored.oldest:
                        stored.oldest = event.created_at
        return True

    def catch_up(self) -> None:
        """EOSE: all that the last REQ asked for has been taken."""
        self.is_live = self.is_caught_up = True

    def filters_from(self, lost_at: int) -> tuple[Filter, ...]:
        """What to ask for next. `lost_at`: our clock when the connection was found to be lost."""
        if self.is_caught_up:
            # The lesser of the two: our clock may be ahead, and so may an author's. Once only: what
            # comes while catching up is newest first, and says nothing of what lies before it.
            self._since = lost_at if self._newest is None else min(self._newest, lost_at)
            self.is_caught_up = False
        return tuple(
            filter_
            if not self.is_live and filter_.limit != 0
            else replace(
                filter_,
                since=max(
                    self._since - OVERLAP_S,
                    _not_before(filter_, stored, self._begun),
                    0 if filter_.since is None else filter_.since,
                ),
                limit=None,
            )
            for filter_, stored in zip(self._filters, self._stored, strict=True)
        )


def _not_before(filter_: Filter, stored: _Stored, begun: int) -> int:
    """What is older was not asked for: it lies beyond the filter's `limit`."""
    if filter_.limit is None:
        return 0
    if filter_.limit == 0:
        return begun
    if stored.oldest is None or stored.count < filter_.limit:
        return 0
    return stored.oldest
