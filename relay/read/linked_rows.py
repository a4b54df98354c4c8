"""Links of rows for live delivery: read rules with `target` open a row to the readers of another.

For stored rows the store follows links in its query. A live row has no query, so its links are
looked up before delivery, only when a subscriber may read the row through a link alone. Invariant:
a link that was not looked up permits nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from relay.lifecycle.rows import Stored
from relay.nostr import kinds
from relay.nostr.event import event_from_raw, parsing_weight
from relay.storage import PAGE_BYTES, PageQuery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set

    from relay.access.read_rules import Row, Target
    from relay.access.visibility import Viewer, Visibility
    from relay.nostr.event import Event
    from relay.state import RelayState
    from relay.storage import EventReader, Page

_MAX_HELD: Final = 1024
"""Linked rows of one target held in memory; with more, the store is asked per viewer."""
_NO_LIMIT: Final = 2**31
_NONE_READABLE: Final[frozenset[Target]] = frozenset()


def may_be_of(groups: Set[str], event: Event, state: RelayState) -> bool:
    """Whether the row may be of one of these groups, or be read with a row of them."""
    group = state.policy.row_group(event)
    if group in groups or state.targets_of(Stored(0, event, group)):
        return True
    is_derived = event.kind == kinds.DELETION or event.kind in state.policy.groups.derived
    return group is None and is_derived


@dataclass(frozen=True, slots=True)
class Links:
    """The linked rows that a lookup found."""

    ids: Set[str] = frozenset()
    """Ids of the rows whose links were looked up."""
    rows: Mapping[Target, Sequence[Stored]] = field(default_factory=dict)
    by_viewer: Mapping[tuple[str, Viewer], tuple[Visibility, Set[Target]]] = field(
        default_factory=dict
    )
    """(row id, viewer) → targets with a readable row, valid for this Visibility only."""

    def readable(self, row: Row, visibility: Visibility) -> frozenset[Target]:
        """Targets of which the viewer may read a linked row: for `Visibility.may_read`."""
        if row.event.id not in self.ids:
            return _NONE_READABLE
        seen_as, readable = self.by_viewer.get((row.event.id, visibility.viewer), (None, ()))
        return frozenset(
            [
                target
                for target, value in visibility.targets_of(row)
                if (seen_as is visibility and target in readable)
                or visibility.may_read_one_of(self.rows.get(target, ()), target, value)
            ]
        )


NO_LINKS: Final = Links()


class LinkedRows:
    """Looks links up in the store. All methods may raise StoreFault."""

    def __init__(self, store: EventReader, state: RelayState, clock: Callable[[], int]) -> None:
        self._store = store
        self._state = state
        self._clock = clock

    async def links_of(self, needed: Iterable[tuple[Stored, Set[Viewer]]]) -> Links:
        """The links of these rows for these viewers; one query per target."""
        ids: set[str] = set()
        values: dict[Target, set[str]] = defaultdict(set)
        needed_for: dict[Target, list[tuple[Stored, Set[Viewer]]]] = defaultdict(list)
        for row, viewers in needed:
            ids.add(row.event.id)
            for target, value in self._state.targets_of(row):
                values[target].add(value)
                needed_for[target].append((row, viewers))
        rows: dict[Target, Sequence[Stored]] = {}
        by_viewer: dict[tuple[str, Viewer], tuple[Visibility, Set[Target]]] = {}
        for target, shared in values.items():
            found = await self._rows(target, shared)
            if found is not None:
                rows[target] = found
                continue
            for row, viewers in needed_for[target]:
                for viewer in viewers:
                    visibility = self._state.visibility(viewer)
                    by_viewer[row.event.id, viewer] = (
                        visibility,
                        await self._readable(row, visibility, self._store.page_for_relay),
                    )
        return Links(ids, rows, by_viewer)

    async def readable(self, row: Row, visibility: Visibility) -> frozenset[Target]:
        """Targets of which the viewer may read a linked row, however many rows there are."""
        return await self._readable(row, visibility, self._store.page)

    async def _readable(
        self, row: Row, visibility: Visibility, page_of: Callable[[PageQuery], Awaitable[Page]]
    ) -> frozenset[Target]:
        return frozenset(
            [
                target
                for target, value in visibility.targets_of(row)
                if await self._has_readable(target, value, visibility, page_of)
            ]
        )

    async def _has_readable(
        self,
        target: Target,
        value: str,
        visibility: Visibility,
        page_of: Callable[[PageQuery], Awaitable[Page]],
    ) -> bool:
        filter_, upto = target.filter_for(value), self._store.committed()
        query = PageQuery(filter_, visibility, _NO_LIMIT, upto, self._clock(), size=_MAX_HELD)
        while True:
            page = await page_of(query)
            if any(value in target.values_in(event_from_raw(raw)) for raw in page.raws):
                return True
            if page.next is None:
                return False
            query = query.following(page)

    async def _rows(self, target: Target, values: Set[str]) -> Sequence[Stored] | None:
        """Linked rows with one of the values; None: more than may be held."""
        filter_ = target.filter_for(*values)
        rows = await self._store.matching(filter_, limit=_MAX_HELD, now=self._clock())
        weight = sum([parsing_weight(row.event.raw) for row in rows])
        return None if len(rows) == _MAX_HELD or weight >= PAGE_BYTES else rows
