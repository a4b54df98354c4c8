"""Rows of the events table as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import orjson

from relay.access.actors import Actors
from relay.access.quotas import recipients_of
from relay.access.visibility import everything_visible
from relay.errors import StoreFault, TooMuchToRead
from relay.groups.group import EndedGroup, Groups
from relay.lifecycle.rows import (
    MOST_DELETED,
    MOST_PUT_LATER,
    MOST_WITH_PREFIX,
    SENT_TO_ONE,
    UNPINNED_AT_ONCE,
    ExpiredRow,
    Leaving,
    Present,
    Slot,
    Stored,
)
from relay.nostr import kinds
from relay.nostr.erasure import Erasure
from relay.nostr.event import event_from_raw, most_tags
from relay.nostr.kinds import KindClass, class_of
from relay.storage import PAGE_BYTES, PARSED_BYTES, Place
from relay.storage.hashes import id_key

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from relay.lifecycle.rows import Found, Limited, Lookups, Vanish
    from relay.nostr.event import Event

Key = TypeVar("Key")
Columns = TypeVar("Columns")
RowOf = TypeVar("RowOf", bound="Sequence[Any]")

_MAX_PREPARED: Final = 64 << 20
"""Estimated bytes of the columns that are kept of events before they are written."""
_TAG_WEIGHT: Final = 100
_FIRST_ROWS: Final = 8
_STEP_ROWS: Final = 100
"""Rows read at once, before their sizes are known."""
MAX_REFERRERS: Final = 10_000
"""Rows that one step of a lookup reads, for a whole batch of an import."""
MAX_REFERRING_STEPS: Final = 16
FOUND_BY_KEY: Final = SENT_TO_ONE | {kinds.PUT_USER}
"""Kinds of the rows that are looked up by the `p` that names a key: in PostgreSQL those of the
index `tags_kind`."""
EVERYTHING: Final = everything_visible(Actors(), Groups())
_HEX: Final = frozenset("0123456789abcdef")
DAMAGED: Final = "if `rookery verify` says so too, the file is damaged: restore a backup"
"""A disk that fails once gives the same error."""


def place_of(row: Stored) -> Place:
    return Place(row.event.created_at, id_key(row.event.id), row.seq)


@dataclass(slots=True, kw_only=True)
class Growth(Generic[Key]):
    """By how many events and bytes the totals grow in a transaction; may be negative."""

    sizes: dict[Key, list[int]] = field(default_factory=dict)
    received: dict[str, list[int]] = field(default_factory=dict)
    """Recipient of gift wraps → growth."""

    def grow(self, key: Key, events: int, size: int) -> None:
        grown = self.sizes.get(key)
        if grown is None:
            self.sizes[key] = [events, size]
        else:
            grown[0] += events
            grown[1] += size

    def grow_received(self, event: Event, events: int) -> None:
        """`events`: 1 for a new row, -1 for a deleted one."""
        for recipient in recipients_of(event):
            grown = self.received.setdefault(recipient, [0, 0])
            grown[0] += events
            grown[1] += events * len(event.raw)


class NoneLeft(Exception):
    """More than a batch may read."""


class BytesLeft:
    """Bytes of rows that a batch may still read. None: no limit."""

    def __init__(self, number: int | None, tag_bytes: int = 0) -> None:
        """`tag_bytes`: what each tag of a row counts more."""
        self.number = number
        self._tag_bytes = tag_bytes
        self.sizes: dict[int, int] = {}
        """seq → what the row counts: of those that were taken."""

    def take(self, number: int) -> None:
        """Raises NoneLeft."""
        if self.number is not None:
            self.number -= number
            if self.number < 0:
                raise NoneLeft

    def taken(self, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The rows, as tuples of columns: seq, the event's bytes, and others. Raises NoneLeft."""
        if self.number is None:
            return list(rows)
        taken = []
        for row in rows:
            raw: bytes = row[1]
            size = self.sizes[row[0]] = len(raw) + self._tag_bytes * most_tags(raw)
            self.take(size)
            taken.append(row)
        return taken


class PreparedColumns(Generic[Columns]):
    """What a row needs of its event alone, computed on other threads before the batch."""

    def __init__(self, columns_of: Callable[[Event], Columns]) -> None:
        self._columns_of = columns_of
        self.by_id: dict[str, Columns] = {}
        self._weight = 0
        """Of the events prepared since it was emptied, whatever became of them."""

    def add(self, events: Sequence[Event]) -> None:
        for event in events:
            weight = len(event.raw) + _TAG_WEIGHT * len(event.tags)
            self._weight += weight
            if self._weight > _MAX_PREPARED:
                self.by_id.clear()  # most are left by events that were refused
                self._weight = weight
            self.by_id[event.id] = self._columns_of(event)


def event_in(raw: bytes) -> Event:
    """The event of a row. Raises StoreFault when the bytes are not an event."""
    try:
        return event_from_raw(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreFault(f"store: {repr(raw)[:80]}… is no event; {DAMAGED}") from error


def is_full(raws: Iterable[bytes]) -> bool:
    """Whether a page ends with these rows."""
    return sum(map(len, raws)) >= PAGE_BYTES


def groups_by_prefix(lookups: Lookups) -> dict[str, set[str]]:
    """Of `Lookups.id_prefixes`, those with which an id may begin."""
    groups: dict[str, set[str]] = {}
    for group, prefix in lookups.id_prefixes:
        if 0 < len(prefix) <= 64 and _HEX.issuperset(prefix):
            groups.setdefault(prefix, set()).add(group)
    return groups


def stored(row: tuple[int, bytes, str | None, int, int | None, int, int | None]) -> Stored:
    seq, raw, group, quiet, slot, version, expires_at = row
    event = event_in(raw)
    if expires_at is not None and type(expires_at) is not int:
        raise StoreFault(f"store: row {seq} expires at no time; {DAMAGED}")
    place = None
    if slot is not None:
        d = "" if class_of(event.kind) is KindClass.REPLACEABLE else event.d
        place = Slot(event.pubkey, event.kind, d)
    return Stored(seq, event, group, bool(quiet), place, version, expires_at)


def present(
    row: tuple[bytes, bytes, int, str, int | None, str | None, int | None, int],
    wanted: Container[str | Slot],
) -> Iterator[tuple[str | Slot, Present]]:
    """(name, facts) for the row's id and its slot, if they are in `wanted`."""
    id_, pubkey, kind, d, slot, group, expires_at, created_at = row
    names: list[str | Slot] = [id_.hex()]
    if slot is not None:
        is_alone = class_of(kind) is KindClass.REPLACEABLE
        names.append(Slot(pubkey.hex(), kind, "" if is_alone else d))
    for name in names:
        if name in wanted:
            yield name, Present(group, expires_at, pubkey.hex(), kind, created_at)


def sent_to_one(found: Found) -> list[str]:
    """Ids of gift wraps and notices in `Found.present`."""
    return [
        named
        for named, about in found.present.items()
        if isinstance(named, str) and about.kind in SENT_TO_ONE
    ]


def note_recipient(event_id: str, pubkey: str, found: Found) -> None:
    """Record that the row is for this vanishing key."""
    about = found.present.get(event_id)
    if about is not None:
        found.present[event_id] = about._replace(sent_to=about.sent_to | {pubkey})


def ended_groups(rows: Iterable[tuple[str, bool, bytes | None]]) -> dict[str, EndedGroup]:
    """id → group. `rows`: (id, guarded, key of a former member or None), a row for each such
    member."""
    members: dict[str, set[str]] = {}
    public = set()
    for group_id, guarded, key in rows:
        named = members.setdefault(group_id, set())
        if key is not None:
            named.add(key.hex())
        if not guarded:
            public.add(group_id)
    return {
        group_id: EndedGroup(frozenset(keys), group_id in public)
        for group_id, keys in members.items()
    }


def limited_reads(
    lookups: Lookups,
) -> Iterator[tuple[int, Iterable[str], Iterable[Slot]]]:
    """Limit in bytes, ids and slots of the rows for which a store raises TooMuchToRead."""
    if lookups.most_own is not None:
        yield lookups.most_own, {own.id for own in lookups.own_rows}, lookups.own_slots
    if lookups.most is not None:
        yield lookups.most, lookups.ids, lookups.slots


def enough_sizes(most: int) -> int:
    """How many rows of `sizes` have more than `most` bytes, however small their events are."""
    return most // _LEAST_EVENT + 1


def parts_of(sizes: Mapping[Limited, int], limit: int) -> dict[Limited, float]:
    """The shares of TooMuchToRead."""
    return {name: size / max(limit, 1) for name, size in sizes.items()}


def check_sizes(sizes: Mapping[Limited, int], limit: int) -> None:
    """Raises TooMuchToRead."""
    if sum(sizes.values()) > limit:
        raise TooMuchToRead(parts_of(sizes, limit))


def is_read_whole(kind: int, size: int, lookups: Lookups) -> bool:
    """Of a row whose id begins as one of `Lookups.id_prefixes`."""
    return kind in lookups.whole_kinds and size <= MOST_WITH_PREFIX


def note_shares(
    sizes: Iterable[Sequence[Any]],
    limit: int,
    named: Mapping[Any, Limited],
    shares: dict[Limited, float],
) -> None:
    """Into the shares of TooMuchToRead. `sizes`: key of `named`, bytes of the row."""
    for key, size in sizes:
        name = named[key]
        shares[name] = max(size / max(limit, 1), shares.get(name, 0.0))


def find_leaving(rows: Iterable[Sequence[Any]], leaving: Leaving, found: Found) -> None:
    """Into `Found.leaving`, `withdrawn` and `pinned`. `rows`: seq, bytes, and the columns for
    `present`; no more of them are read than fit."""
    seqs: dict[int, Sequence[Any]] = {}
    pinned: dict[int, list[str | Slot]] = {}
    size = 0
    for seq, bytes_, *about in rows:
        if seq in seqs or seq in pinned:
            continue
        size += bytes_
        if size > leaving.most and (seqs or pinned):
            found.leaving = list(seqs)
            for id_, _, kind, _, _, group, *_ in seqs.values():
                if kind == kinds.JOIN_REQUEST:
                    found.withdrawn.setdefault(group, set()).add(id_.hex())
            first = islice(pinned.values(), UNPINNED_AT_ONCE)
            found.pinned = [*chain.from_iterable(first)]
            return
        names = [name for name, _ in present(tuple(about), leaving.pinned)]
        if names:
            pinned[seq] = names
        else:
            seqs[seq] = about


def check_vanish(rows: Iterable[Sequence[Any]], gone: Vanish) -> None:
    """Raises TooMuchToRead when not all rows fit into one transaction, whatever was found before:
    another process may have added some. `rows`: as in `find_leaving`, which then finds a piece."""
    seqs, total = set[int](), 0
    for seq, bytes_, *_ in rows:
        if seq not in seqs:  # it may come twice
            seqs.add(seq)
            total += bytes_
        if len(seqs) > 1 and total > MOST_DELETED:
            raise TooMuchToRead({gone.pubkey: 1.0})


def put_later(groups: Sequence[str]) -> set[str] | None:
    """As `Found.put_later`. `groups`: of the later 9000s, up to one more than are read."""
    return None if len(groups) > MOST_PUT_LATER else set(groups)


def records_to_sweep(rows: Iterable[tuple[int, int, int]]) -> set[int]:
    """seqs of the records that stay until a sweep when their group ends; none when all of them fit
    into one transaction. `rows`: seq, kind, bytes."""
    sizes = {seq: size for seq, kind, size in rows if kind in kinds.GROUP_RECORDS}
    return set(sizes) if sum(sizes.values()) > MOST_DELETED else set()


def erasure_of(request: str, row: Sequence[Any]) -> Erasure:
    """From by, kind, at, numbers, ids."""
    by, kind, at, numbers, ids = row
    listed_ids = [(id_, kind_) for id_, kind_ in orjson.loads(ids)]
    return Erasure(request, by.hex(), kind, at, dict(orjson.loads(numbers)), listed_ids)


SCANNED_ROWS: Final = 20_000
"""seqs among which rows of a few kinds to be indexed are looked for at once, in some 20 ms."""
_LEAST_EVENT: Final = 256
"""Bytes that every event has: its id, key and signature in hex."""
INDEXED_BYTES: Final = 256 << 10
"""Of the rows whose texts are indexed in one transaction: the words of a text, each another one,
take forty times as much memory, and of this many bytes half a second."""


def expired_row(id_: bytes, size: int, kind: int, pubkey: bytes, d: str) -> ExpiredRow:
    class_, address = class_of(kind), None
    if class_ in (KindClass.REPLACEABLE, KindClass.ADDRESSABLE):
        named = d if class_ is KindClass.ADDRESSABLE else ""
        address = str(Slot(pubkey.hex(), kind, named))
    return ExpiredRow(id_.hex(), size, address)


async def rows_after(
    read: Callable[[int, int], Awaitable[Sequence[RowOf]]],
    after: int,
    limit: int,
    most: int = PARSED_BYTES,
) -> list[RowOf]:
    """(seq, raw, …) of rows with a greater seq: at most `limit`, and none after the first `most`
    bytes, since parsed events can take twenty times as much. `read(after, limit)` reads them."""
    found: list[RowOf] = []
    size = 0
    while len(found) < limit and size < most:
        # As many as fit if they are as large as those before; sizes differ a thousandfold.
        fitting = (most - size) * len(found) // size if size else _FIRST_ROWS
        wanted = max(1, min(limit - len(found), _STEP_ROWS, fitting))
        rows = await read(after, wanted)
        for row in rows:
            found.append(row)
            try:
                size += len(row[1])
            except TypeError as error:
                raise StoreFault(f"store: row {row[0]} has no event; {DAMAGED}") from error
            if size >= most:
                break
        if len(rows) < wanted:
            break
        after = rows[-1][0]
    return found


async def rows_to_index(
    read: Callable[[int, int], Awaitable[Sequence[RowOf]]], after: int, limit: int, head: int
) -> tuple[list[RowOf], int]:
    """The rows whose texts are indexed next, as `rows_after`, and the seq up to which the index is
    then: `head` after the newest row that `read` finds, as a later one may have been deleted."""
    rows = await rows_after(read, after, limit, INDEXED_BYTES)
    upto = rows[-1][0] if rows else after
    is_all = len(rows) < limit and sum([len(row[1]) for row in rows]) < INDEXED_BYTES
    return rows, max(upto, head) if is_all else upto
