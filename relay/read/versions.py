"""Old versions of a record, for one viewer.

Invariants: a version is returned when the viewer may now read both it and the current version. When
the current version was deleted or has expired, none is returned. One page at a time is made for
known keys, and one for others, by turns: a page takes up to 0.1 s of the loop, and 20 MB.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.errors import StoreFault
from relay.nostr.event import parsing_weight
from relay.nostr.filters import Filter
from relay.nostr.kinds import KindClass, class_of
from relay.read.linked_rows import LinkedRows, may_be_of
from relay.storage import PAGE_BYTES
from relay.storage.read_turns import ReadTurns

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.access.visibility import Viewer, Visibility
    from relay.lifecycle.rows import Slot, Stored
    from relay.nostr.event import Event
    from relay.state import RelayState
    from relay.storage import EventReader

_AT_ONCE: Final = 64
_FOLLOWED_S: Final = 5.0
"""Seconds in which a commit of another relay is taken over at the latest, if the store answers."""
_MAX_RETRIES: Final = 16
"""How often a page is read again because read rights changed during the read."""


class Versions(NamedTuple):
    events: list[Event]
    """Newest first; the current one is the first of the first page."""
    more: bool
    """Older ones follow the last of these."""


class VersionReader:
    def __init__(
        self,
        store: EventReader,
        state: RelayState,
        linked_rows: LinkedRows,
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._state = state
        self._linked_rows = linked_rows
        self._clock = clock
        self._turns = {known: ReadTurns() for known in (True, False)}

    async def versions(
        self, viewer: Viewer, slot: Slot, before: str | None, address: str | None = None
    ) -> Versions:
        """The versions of this record that the viewer may read; empty also for a record that never
        existed. `before`: id of the last version of the previous page; None: the first page.
        `address`: see `Sharer.counted_as`. Raises StoreFault."""
        now = self._state.visibility(viewer)
        turns, (address, key) = self._turns[now.is_known], now.share_of(address)
        async with turns.of(address, key=key, is_owner=now.is_owner):
            for _ in range(_MAX_RETRIES):
                visibility = self._state.visibility(viewer)
                found, current = await self._page(visibility, slot, before)
                await self._state.settled(self._store.committed())
                lost = self._state.visibility(viewer).lost_since(visibility)
                # Who turns an own group private again and again breaks off no page of others.
                if lost is not None and not (
                    lost
                    and any(may_be_of(lost, each, self._state) for each in current + found.events)
                ):
                    return found
        raise StoreFault("read rights changed faster than versions could be read")

    async def _page(
        self, visibility: Visibility, slot: Slot, before: str | None
    ) -> tuple[Versions, list[Event]]:
        """Also the current version, if the viewer may read it."""
        asked, weight = _filter_of(slot), 0
        events: list[Event] = []
        after = None if before is None else await self._place_of(before, slot, visibility, asked)
        is_first = before is None
        while True:
            now = self._clock()
            rows = await self._store.versions(slot, before=after, limit=_AT_ONCE, now=now)
            if not rows or not await self._may_read(rows[0], visibility, asked):
                return Versions([], more=False), []
            old = rows[1:]
            for row in rows if is_first else old:
                if await self._may_read(row, visibility, asked):
                    if weight >= PAGE_BYTES:  # and there is one that may be read
                        return Versions(events, more=True), [rows[0].event]
                    events.append(row.event)
                    weight += parsing_weight(row.event.raw)
            if not old:
                return Versions(events, more=False), [rows[0].event]
            await asyncio.sleep(0)  # a page of the store may have come without a pause
            after, is_first = old[-1].seq, False

    async def _place_of(
        self, event_id: str, slot: Slot, visibility: Visibility, asked: Filter
    ) -> int | None:
        """seq of an old version that the viewer may read. None: all old versions are given, so that
        no answer tells whether one with this id is kept."""
        row = await self._store.old_version(slot, event_id)
        if row is None or (row.expires_at is not None and row.expires_at <= self._clock()):
            return None
        return row.seq if await self._may_read(row, visibility, asked) else None

    async def _may_read(self, row: Stored, visibility: Visibility, asked: Filter) -> bool:
        if row.seq > self._store.committed():
            # Of another relay on the store: a commit before it may take the right to read it.
            # `versions` asks for the rights again.
            try:
                async with asyncio.timeout(_FOLLOWED_S):
                    await self._store.committed_after(row.seq - 1)
            except TimeoutError:
                raise StoreFault("commits of other relays cannot be followed") from None
        readable = await self._linked_rows.readable(row, visibility)
        return visibility.may_read(row, asked, readable)


def _filter_of(slot: Slot) -> Filter:
    """The filter that names the record, for rules with `only_by`."""
    replaceable = class_of(slot.kind) is KindClass.REPLACEABLE
    return Filter(
        authors=frozenset({slot.pubkey}),
        kinds=frozenset({slot.kind}),
        tags=() if replaceable else (("d", frozenset({slot.d})),),
    )
