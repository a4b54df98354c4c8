"""ResumeState: what to query after a reconnect so that a subscription misses and repeats nothing.

Pure. The next REQ starts a little before the last event, since clocks differ and relays may deliver
events with an old `created_at` late. Records of given authors are all queried again: one may have
waited in a queue for days, and the relay has one version of each. Event ids are remembered in a
bounded set to skip duplicates. If more events than that repeat, the oldest are delivered again: a
duplicate is preferred to a missed event.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Final

from msgspec import structs

from relay.nostr import kinds
from relay.nostr.nip59 import MAX_BACKDATED_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

OVERLAP_S: Final = 900
"""Rookery accepts a `created_at` that far in the future; late group events are within it too."""
_MAX_IDS: Final = 50_000
"""Rookery's limit for one filter; about 11 MB when full."""


class SeenIds:
    """The ids of the newest events seen.

    When full it evicts what a relay returns last (NIP-01: by `created_at`, then the highest id),
    not what arrived first: the others are what a relay sends again after a reconnect.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: set[int] = set()
        """The ids as negative numbers, so that the highest id is the least."""
        self._last_first: list[tuple[int, int]] = []

    def add(self, event: Event) -> bool:
        """Add it; False if it was seen before."""
        id_ = -int(event.id, 16)
        if id_ in self._ids:
            return False
        self._ids.add(id_)
        if len(self._last_first) < self._most:
            heappush(self._last_first, (event.created_at, id_))
        else:
            self._ids.discard(heappushpop(self._last_first, (event.created_at, id_))[1])
        return True

    def __contains__(self, event_id: str) -> bool:
        try:
            return -int(event_id, 16) in self._ids
        except ValueError:
            return False


@dataclass(slots=True)
class _Stored:
    """What one filter returned of the events stored when the subscription started."""

    count: int = 0
    oldest: int | None = None


class ResumeState:
    """Progress of one subscription."""

    def __init__(self, filters: Sequence[Filter], started_at: int, max_ids: int = _MAX_IDS) -> None:
        """`started_at`: local time of the start of the subscription, in seconds."""
        self.is_live = False
        """EOSE of the first REQ was received."""
        self.is_caught_up = False
        """EOSE of the latest REQ was received."""
        self._filters = tuple(filters)
        self._started_at = started_at
        self._seen = SeenIds(max_ids)
        self._newest: int | None = None
        self._since = started_at
        """No event older than this is missing."""
        self._stored = [_Stored() for _ in self._filters]

    def has_seen(self, event: object) -> bool:
        """Whether this JSON value names the id of a recorded event: most of what a resumed REQ
        returns, and not worth a check of the id."""
        match event:
            case {"id": str(event_id)}:
                return event_id in self._seen
            case _:
                return False

    def is_new(self, event: Event) -> bool:
        """Record an event; False if it was recorded before."""
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
        """EOSE: all stored events of the last REQ were received."""
        self.is_live = self.is_caught_up = True

    def filters_from(self, lost_at: int) -> tuple[Filter, ...]:
        """Filters of the next REQ. `lost_at`: local time when the loss was noticed."""
        if self.is_caught_up:
            # The lesser of the two: our clock or an author's may be ahead. Computed once per loss:
            # events received while catching up are newest first, and say nothing about older ones.
            self._since = lost_at if self._newest is None else min(self._newest, lost_at)
            self.is_caught_up = False
        return tuple(
            filter_
            if not self.is_live and filter_.limit != 0
            else structs.replace(
                filter_,
                since=None
                if _is_of_records(filter_)
                else max(
                    self._since - _overlap_s(filter_),
                    _limit_bound(filter_, stored, self._started_at),
                    0 if filter_.since is None else filter_.since,
                ),
                limit=None,
            )
            for filter_, stored in zip(self._filters, self._stored, strict=True)
        )


def _is_of_records(filter_: Filter) -> bool:
    """Whether it asks for all versions in force of what these authors address."""
    return (
        filter_.authors is not None
        and filter_.kinds is not None
        and (filter_.since, filter_.limit) == (None, None)
        and all(kinds.class_of(kind) is kinds.KindClass.ADDRESSABLE for kind in filter_.kinds)
    )


def _overlap_s(filter_: Filter) -> int:
    """The overlap for a filter."""
    return OVERLAP_S + _backdated_s(filter_)


def _backdated_s(filter_: Filter) -> int:
    """Gift wraps are dated in the past at random."""
    has_wraps = filter_.kinds is not None and kinds.GIFT_WRAP in filter_.kinds
    return MAX_BACKDATED_S if has_wraps else 0


def _limit_bound(filter_: Filter, stored: _Stored, started_at: int) -> int:
    """The lowest `since` for a filter with `limit`: older events were not requested."""
    if filter_.limit is None:
        return 0
    if filter_.limit == 0:
        return started_at - _backdated_s(filter_)
    if stored.oldest is None or stored.count < filter_.limit:
        return 0
    return stored.oldest
