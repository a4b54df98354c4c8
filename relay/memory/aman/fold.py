"""A fold over Aman's events: the current records per author and history key.

Invariants: events may arrive in any order and repeatedly. Rows with the same `d` have the same
payload, so the order of arrival decides only the id.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

from relay.errors import Invalid
from relay.memory.aman.checks import AFTER, D_ENDS, LABELS
from relay.memory.aman.records import (
    Clear,
    Preference,
    Record,
    Subscriptions,
    Summary,
    ToolCall,
    key_and_time,
    read_under,
)
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds
from relay.nostr.nip40 import expiry_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from relay.memory.aman.records import SharedKey
    from relay.nostr.event import Event

R = TypeVar("R", bound=Record)


class Row(NamedTuple, Generic[R]):
    """A record and the event that it was read from."""

    record: R
    id: str
    author: str
    """64 hex."""
    created_at: int
    """Unix seconds, of the event."""
    time: int
    """Unix seconds: tag `ts`, else the payload's, else `created_at` (A-15)."""
    after: frozenset[str] = frozenset()
    """Ids of clears of the same second that the row was written after."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The current records of one history key."""

    history_key: str
    author: str | None
    """None: all authors together."""
    preference: Row[Preference] | None
    summary: Row[Summary] | None
    subscriptions: Row[Subscriptions] | None
    tools: tuple[Row[ToolCall], ...]
    """Newest first."""
    clears: tuple[Row[Clear], ...]
    """Newest first."""
    cleared_at: int | None
    """Time of the latest clear, readable or not (A-16). Summaries and tool calls up to it are left
    out, except those of its second that name it (`after`)."""
    unread: tuple[UnreadableRecord, ...]
    reader: str | None = None
    """Public key, 64 hex: in text for a model, records of other keys name their author. None:
    unknown."""

    @property
    def is_empty(self) -> bool:
        latest = (self.preference, self.summary, self.subscriptions)
        return latest == (None, None, None) and not (self.tools or self.clears or self.unread)


_Found = Row[Record] | UnreadableRecord
_Rank = tuple[int, str]
"""(`ts`, id): the order of versions; of the same `ts` the higher id wins (A-09)."""


class _Latest(NamedTuple):
    rank: _Rank
    found: _Found
    d: str


@dataclass(slots=True)
class _Clears:
    """Time of the latest clear, and the ids of all clears of that second."""

    at: int = -1
    ids: set[str] = field(default_factory=set)

    def add(self, at: int, ids: Iterable[str]) -> None:
        if at > self.at:
            self.at, self.ids = at, set(ids)
        elif at == self.at:
            self.ids.update(ids)

    def hide(self, row: Row[Any]) -> bool:
        """A row of the same second is hidden unless it names each clear of that second."""
        return row.time < self.at or (row.time == self.at and not self.ids <= row.after)


@dataclass(slots=True)
class _Scope:
    """State of one author and history key."""

    latest: dict[int, _Latest] = field(default_factory=dict)
    """kind → the newest version. An unreadable version counts too, as on the relay."""
    once: dict[tuple[int, str], _Found] = field(default_factory=dict)
    """(kind, `d`) → record."""
    clears: _Clears = field(default_factory=_Clears)


_NEVER: Final = _Scope()


class Fold:
    """Applies events one by one, stored and live ones alike."""

    def __init__(self, key: SharedKey | None = None, now: int = 0) -> None:
        """`now`: Unix seconds; what has expired by then is left out."""
        self._key = key
        self._now = now
        self.expires_at: int | None = None
        """Unix seconds: the first time at which an applied event expires."""
        self._scopes: dict[str, dict[str, _Scope]] = {}
        """History key → author → scope."""

    def apply(self, event: Event) -> str | None:
        """Apply one event. The history key whose records changed, or None."""
        kind = event.kind
        if kind not in LABELS:
            return None
        expires_at = _expiry_of(event)
        if expires_at is not None:
            if expires_at <= self._now:
                return None
            self.expires_at = min(expires_at, self.expires_at or expires_at)
        hk, ts = key_and_time(event)
        scope = self._scope(hk, event.pubkey)
        if kind in D_ENDS:
            rank = (event.created_at if ts is None else ts, event.id)
            held = scope.latest.get(kind)
            if held is not None and rank <= held.rank:
                return None
            scope.latest[kind] = _Latest(rank, self._found(event, hk, ts), event.d)
            return hk
        slot = (kind, event.d)
        first = scope.once.get(slot)
        if first is not None and not isinstance(first, UnreadableRecord):
            return None
        found = self._found(event, hk, ts)
        if first is not None and isinstance(found, UnreadableRecord):
            return None
        scope.once[slot] = found
        if kind == kinds.CLEAR_CONTEXT:
            scope.clears.add(_time_of(found), [event.id])
        return hk

    def is_named_by(self, deletion: Event) -> bool:
        """Whether a kind 5 names one of these records of its author (NIP-09)."""
        ids, addresses = set(deletion.tag_values("e")), set(deletion.tag_values("a"))
        author, at = deletion.pubkey, deletion.created_at
        for authors in self._scopes.values():
            scope = authors.get(author, _NEVER)
            latest = ((kind, held.d, held.found) for kind, held in scope.latest.items())
            once = ((kind, d, found) for (kind, d), found in scope.once.items())
            for kind, d, found in (*latest, *once):
                row = found if isinstance(found, Row) else found.event
                if row.id in ids or (row.created_at <= at and f"{kind}:{author}:{d}" in addresses):
                    return True
        return False

    def snapshot(
        self, history_key: str, author: str | None = None, *, reader: str | None = None
    ) -> Snapshot:
        """The current records of one author, or of all together (A-13, A-15). `reader`: see
        `Snapshot`."""
        authors = self._scopes.get(history_key, {})
        if author is None:
            return _snapshot(history_key, None, authors.values(), reader)
        return _snapshot(history_key, author, [authors.get(author, _NEVER)], reader)

    def history_keys(self) -> list[str]:
        """All known history keys, sorted."""
        return sorted(self._scopes)

    def authors(self, history_key: str) -> list[str]:
        """The authors of a history key, sorted."""
        return sorted(self._scopes.get(history_key, {}))

    def unread(self) -> list[UnreadableRecord]:
        """Every unreadable event that no other one replaced (A-22)."""
        scopes = [scope for authors in self._scopes.values() for scope in authors.values()]
        return list(_unread(scopes))

    def _scope(self, history_key: str, author: str) -> _Scope:
        authors = self._scopes.get(history_key)
        if authors is None:
            authors = self._scopes[history_key] = {}
        scope = authors.get(author)
        if scope is None:
            scope = authors[author] = _Scope()
        return scope

    def _found(self, event: Event, history_key: str, ts: int | None) -> _Found:
        record = read_under(history_key, event, self._key)
        if isinstance(record, UnreadableRecord):
            return record
        time = record.time if ts is None else ts
        return Row(record, event.id, event.pubkey, event.created_at, time, _after(event))


def _expiry_of(event: Event) -> int | None:
    with suppress(Invalid):
        return expiry_of(event)
    return None


def _after(event: Event) -> frozenset[str]:
    # Short: a clear has no such tag, and most rows have none.
    return frozenset(id_ for tag in event.tags if tag[:1] == [AFTER] for id_ in tag[1:])


def _time_of(found: _Found) -> int:
    if isinstance(found, Row):
        return found.time
    ts = key_and_time(found.event).ts
    return found.event.created_at if ts is None else ts


def _snapshot(
    history_key: str, author: str | None, scopes: Collection[_Scope], reader: str | None
) -> Snapshot:
    clears = _Clears()
    for scope in scopes:
        clears.add(scope.clears.at, scope.clears.ids)
    summary = _newest(scopes, Summary)
    tools = (row for row in _all(scopes, ToolCall) if not clears.hide(row))
    return Snapshot(
        history_key,
        author,
        preference=_newest(scopes, Preference),
        summary=summary if summary is not None and not clears.hide(summary) else None,
        subscriptions=_newest(scopes, Subscriptions),
        tools=_newest_first(tools),
        clears=_newest_first(_all(scopes, Clear)),
        cleared_at=clears.at if clears.at >= 0 else None,
        unread=tuple(_unread(scopes)),
        reader=reader,
    )


def _newest(scopes: Iterable[_Scope], kind: type[R]) -> Row[R] | None:
    held = [scope.latest[kind.kind] for scope in scopes if kind.kind in scope.latest]
    read_ones = [latest for latest in held if isinstance(latest.found, Row)]
    if not read_ones:
        return None
    return cast("Row[R]", max(read_ones, key=lambda latest: latest.rank).found)


def _all(scopes: Iterable[_Scope], kind: type[R]) -> Iterator[Row[R]]:
    """One row per `d`; where several authors have it, the one of the earliest event."""
    rows: dict[str, Row[R]] = {}
    for scope in scopes:
        for (of_kind, d), found in scope.once.items():
            if of_kind != kind.kind or isinstance(found, UnreadableRecord):
                continue
            row, other = cast("Row[R]", found), rows.get(d)
            if other is None or (row.created_at, row.id) < (other.created_at, other.id):
                rows[d] = row
    yield from rows.values()


def _newest_first(rows: Iterable[Row[R]]) -> tuple[Row[R], ...]:
    return tuple(sorted(rows, key=lambda row: (row.time, row.id), reverse=True))


def _unread(scopes: Iterable[_Scope]) -> Iterator[UnreadableRecord]:
    for scope in scopes:
        for latest in scope.latest.values():
            if isinstance(latest.found, UnreadableRecord):
                yield latest.found
        for found in scope.once.values():
            if isinstance(found, UnreadableRecord):
                yield found
