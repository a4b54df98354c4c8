"""What rows point to, by `target` of read rules: looked up where a row meets its readers live.

Stored reads ask the store, which follows a row by itself. A row that is sent when it is committed
has no query of its own, so what it points to is looked up beforehand, and only when somebody who
asks for the row could not read it otherwise. Whatever was not looked up lets nobody in.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from relay.nostr.event import event_from_raw
from relay.storage import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Set

    from relay.access.read_rules import Row, Target
    from relay.access.visibility import Viewer, Visibility
    from relay.lifecycle.rows import Stored
    from relay.state import RelayState
    from relay.storage import Store

_AT_ONCE: Final = 1024
"""Rows of a target that are held beside those that point to them; with more each reader is asked
for."""
_MOST: Final = 2**31
_NOTHING_READABLE: Final[frozenset[Target]] = frozenset()


@dataclass(frozen=True, slots=True)
class Pointed:
    """What was found of the targets of some rows."""

    about: Set[str] = frozenset()
    """Ids of these rows."""
    rows: Mapping[Target, Sequence[Stored]] = field(default_factory=dict)
    asked: Mapping[tuple[str, Viewer], tuple[Visibility, Set[Target]]] = field(default_factory=dict)
    """(id of a row, viewer) → what they may read of its targets, by the rights that they had."""

    def readable(self, row: Row, visibility: Visibility) -> frozenset[Target]:
        """The targets of the row of which some row may be read: for `Visibility.may_read`."""
        if row.event.id not in self.about:
            return _NOTHING_READABLE
        before, readable = self.asked.get((row.event.id, visibility.viewer), (None, ()))
        return frozenset(
            [
                target
                for target, value in visibility.points_to(row)
                if (before is visibility and target in readable)
                or visibility.reads_one_of(self.rows.get(target, ()), target, value)
            ]
        )


NOTHING: Final = Pointed()


class Targets:
    """Asks the store. All methods may raise StoreFault."""

    def __init__(self, store: Store, state: RelayState, clock: Callable[[], int]) -> None:
        self._store = store
        self._state = state
        self._clock = clock

    async def pointed(self, wanted: Iterable[tuple[Stored, Set[Viewer]]]) -> Pointed:
        """What these rows point to, for these viewers: one query for each target."""
        about: set[str] = set()
        values: dict[Target, set[str]] = defaultdict(set)
        viewers: dict[Target, list[tuple[Stored, Set[Viewer]]]] = defaultdict(list)
        for row, who in wanted:
            about.add(row.event.id)
            for target, value in self._state.points_to(row):
                values[target].add(value)
                viewers[target].append((row, who))
        rows: dict[Target, Sequence[Stored]] = {}
        asked: dict[tuple[str, Viewer], tuple[Visibility, Set[Target]]] = {}
        for target, shared in values.items():
            found = await self._rows(target, shared)
            if found is not None:
                rows[target] = found
                continue
            for row, who in viewers[target]:
                for viewer in who:
                    visibility = self._state.visibility(viewer)
                    asked[row.event.id, viewer] = visibility, await self.readable(row, visibility)
        return Pointed(about, rows, asked)

    async def readable(self, row: Row, visibility: Visibility) -> frozenset[Target]:
        """The targets of the row of which some row may be read, however many there are."""
        return frozenset(
            [
                target
                for target, value in visibility.points_to(row)
                if await self._gives(target, value, visibility)
            ]
        )

    async def _gives(self, target: Target, value: str, visibility: Visibility) -> bool:
        asked, upto, after = target.asked_for(value), self._store.committed(), None
        while True:
            page = await self._store.page(
                asked,
                visibility,
                limit=_MOST,
                upto=upto,
                now=self._clock(),
                after=after,
                size=_AT_ONCE,
            )
            if any(value in target.values_in(event_from_raw(raw)) for raw in page.raws):
                return True
            if page.next is None:
                return False
            after = page.next

    async def _rows(self, target: Target, values: Set[str]) -> Sequence[Stored] | None:
        """The target's rows with one of the values; None: too many to hold."""
        asked = target.asked_for(*values)
        rows = await self._store.matching(asked, limit=_AT_ONCE, now=self._clock())
        size = sum([len(row.event.raw) for row in rows])
        return None if len(rows) == _AT_ONCE or size >= PAGE_BYTES else rows
