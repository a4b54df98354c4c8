"""Lookups: what a batch must know of the store, read inside of its transaction."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson

from relay.access.quotas import Size
from relay.errors import TooMuchToRead
from relay.groups.rules import MAX_MOVING, weight_of_rows
from relay.lifecycle.deletion import CLOCK_SKEW_S, not_vanished
from relay.lifecycle.rows import (
    EXPIRY_WINDOW_S,
    MAX_EXPIRING,
    MAX_WITH_PREFIX,
    MOST_NAMED,
    MOST_PUT_LATER,
    MOST_TOMBSTONES,
    TAG_BYTES,
    Found,
    Tombstone,
    all_rows_of,
    narrowed,
    outline,
    with_slots_of,
)
from relay.memory.registry import MAX_REFERENCE_STEPS, NEAR_STEPS
from relay.nostr import kinds
from relay.nostr.event import MAX_CREATED_AT
from relay.storage.hashes import id_key
from relay.storage.rows import (
    FOUND_BY_KEY,
    MAX_REFERRERS,
    MAX_REFERRING_STEPS,
    BytesLeft,
    NoneLeft,
    check_sizes,
    enough_sizes,
    find_leaving,
    groups_by_prefix,
    is_read_whole,
    limited_reads,
    note_recipient,
    note_shares,
    parts_of,
    present,
    put_later,
    sent_to_one,
    stored,
)
from relay.storage.sqlite.kind_classes import classes_of
from relay.storage.sqlite.sql.named import QUERIES
from relay.storage.sqlite.sql.writes import usage_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from relay.access.quotas import Account, UsageCounter
    from relay.lifecycle.rows import Leaving, Limited, Lookups, OwnRow, Slot, Stored
    from relay.memory.registry import RecordName
    from relay.storage.hashes import Hashes
    from relay.storage.sqlite.sql.conditions import Value
    from relay.storage.sqlite.sql.sweep import SweepQueries
    from relay.storage.sqlite.tag_buffer import TagBuffer


def find_tombstones(
    db: sqlite3.Connection,
    targets: Collection[str],
    refusals: Callable[[], Iterable[tuple[str, str]]],
    found: Found,
) -> None:
    """Into `Found.tombstones`. `refusals`: as in `Lookups`."""
    stones = _tombstones(db, targets, MOST_TOMBSTONES + 1)
    if len(stones) > MOST_TOMBSTONES:
        pairs = {*refusals()}
        stones = _tombstones(db, {*targets}.difference(target for target, _ in pairs), -1)
        named = {"named": orjson.dumps([*pairs]).decode()}
        stones += db.execute(QUERIES["tombstones_by"], named).fetchall()
    for stone in stones:
        found.tombstones.setdefault(stone[0], []).append(Tombstone(*stone))


def _tombstones(db: sqlite3.Connection, targets: Iterable[str], most: int) -> list[Any]:
    # SQLite cuts texts from JSON at a NUL.
    listed = [[each.encode().hex()] if "\0" in each else each for each in targets]
    values = {"targets": orjson.dumps(listed).decode(), "most": most}
    return db.execute(QUERIES["tombstones"], values).fetchall()


class Finder:
    """Finds rows on the connection that writes."""

    def __init__(
        self,
        db: sqlite3.Connection,
        hashes: Hashes,
        tag_buffer: TagBuffer,
        sweeps: SweepQueries,
    ) -> None:
        self._db = db
        self._hashes = hashes
        self._tag_buffer = tag_buffer
        self._sweeps = sweeps

    def found(self, lookups: Lookups, head: int) -> Found:
        """`head`: seq of the newest row. Raises TooMuchToRead."""
        found, left = Found(head), BytesLeft(lookups.most, TAG_BYTES)
        find_tombstones(self._db, lookups.tombstones, lookups.refusals, found)
        if lookups.vanishing_keys:
            found.stored_keys = frozenset(filter(self._is_stored, not_vanished(lookups, found)))
        if lookups.most_own is not None:
            self._check_sizes(found.stored_keys, lookups.ending_groups, lookups.most_own)
        # Then their rows are few.
        groups = self._groups_with(found.stored_keys | lookups.deleted_keys)
        lookups = narrowed(lookups, found.stored_keys, groups)
        try:
            self._find_rows(lookups, found, left)
        except NoneLeft:
            raise TooMuchToRead(self._shares(lookups, left)) from None
        if lookups.present:
            self._find_present(lookups.present, found)
            self._find_recipients(found)
        if lookups.leaving is not None:
            find_leaving(self._rows_leaving(lookups.leaving), lookups.leaving, found)
        self._find_records(lookups, found)
        for request in lookups.requests:
            if self._db.execute(QUERIES["erasure"], (bytes.fromhex(request),)).fetchone():
                found.begun.add(request)
        self._find_usage(lookups.usage.union(lookups.usage_by(found)), found.usage)
        for dependencies in lookups.dependencies:
            oldest = self._db.execute(*self._sweeps.oldest(dependencies)).fetchone()[0]
            if oldest is not None:
                found.oldest_dependencies[dependencies] = oldest
        self._find_named(lookups, found)
        self._find_referrers(lookups, found)
        for group in lookups.groups_with_content:
            is_counted = group in lookups.counted_groups
            asked = {"grp": group, "most": MAX_MOVING + 1 if is_counted else 1}
            [rows] = self._db.execute(QUERIES["rows_in_group"], asked).fetchone()
            if rows:
                found.groups_with_content.add(group)
            if is_counted:
                weight = rows
                if rows <= MAX_MOVING:  # so no more sizes are added up
                    [bytes_] = self._db.execute(QUERIES["bytes_in_group"], (group,)).fetchone()
                    weight = weight_of_rows(rows, bytes_)
                found.group_rows[group] = weight
        for window in lookups.expiry_windows:
            start = window * EXPIRY_WINDOW_S
            asked = {"low": start, "high": start + EXPIRY_WINDOW_S, "most": MAX_EXPIRING}
            [found.expiring[window]] = self._db.execute(QUERIES["expiring"], asked).fetchone()
        if lookups.counted_groups:
            moving = self._db.execute(QUERIES["rows_moving"]).fetchone()
            found.rows_moving = weight_of_rows(*moving)
        return found

    def _find_usage(self, accounts: frozenset[Account], usage: UsageCounter) -> None:
        recipients = {each.recipient: each for each in accounts if each.recipient is not None}
        for account in accounts.difference(recipients.values()):
            usage.open(account, Size(*self._db.execute(*usage_of(account)).fetchone()))
        if recipients:
            asked = {"recipients": orjson.dumps([*recipients]).decode()}
            rows = self._db.execute(QUERIES["received_by"], asked)
            sizes = {recipient: Size(*size) for recipient, *size in rows}
            for recipient, account in recipients.items():
                usage.open(account, sizes.get(recipient, Size()))

    def _find_rows(self, lookups: Lookups, found: Found, left: BytesLeft) -> None:
        """Find rows by id, slot and prefix. Raises NoneLeft."""
        if lookups.own_rows or lookups.own_slots:  # first: they may be too many
            own_left = BytesLeft(lookups.most_own)
            self._find_own_rows(lookups, found, own_left)
            self._find_by_slot(lookups.own_slots, found, own_left)
            own_left.take(self._size_of_old(found.rows.values()))
            for event_id, size in self._old_named(lookups.own_rows):
                found.old_versions.add(event_id)
                own_left.take(size)
            lookups = with_slots_of(found.rows.values(), lookups)
        keys = orjson.dumps([id_key(event_id) for event_id in lookups.ids])
        for row in self._rows("rows_by_id", {"keys": keys.decode()}, left):
            if row.event.id in lookups.ids:
                found.rows.setdefault(row.event.id, row)
        self._find_by_slot(lookups.slots, found, left)
        self._find_prefixes(lookups, found, left)

    def _shares(self, lookups: Lookups, left: BytesLeft) -> Mapping[Limited, float]:
        """`TooMuchToRead.shares`. No row is read for them: tags count of rows already read."""
        shares: dict[Limited, float] = {}
        if lookups.most_own is not None:
            old = [*self._old_named(lookups.own_rows)]
            note_shares(old, lookups.most_own, {event_id: event_id for event_id, _ in old}, shares)
        for limit, ids, slots in limited_reads(lookups):
            for name, keys in (
                ("sizes_by_id", {id_key(event_id): event_id for event_id in ids}),
                ("sizes_by_slot", {self._hashes.slot(*slot): slot for slot in slots}),
            ):
                asked = {"keys": orjson.dumps([*keys]).decode()}
                rows = self._db.execute(QUERIES[name], asked)
                sizes = [(key, left.sizes.get(seq, size)) for key, size, seq in rows]
                note_shares(sizes, limit, keys, shares)
        if lookups.most is not None:
            beginning: Counter[Limited] = Counter()
            for named, seq, _, kind, size, _ in self._with_prefixes(lookups, set()):
                if is_read_whole(kind, size, lookups):
                    beginning[named] += left.sizes.get(seq, size)
            shares.update(parts_of(beginning, lookups.most))
        return shares

    def _check_sizes(self, keys: Iterable[str], groups: Iterable[str], most: int) -> None:
        """Raises TooMuchToRead for keys and groups that must leave one by one, or in pieces."""
        enough: dict[str, Value] = {"limit": enough_sizes(most)}
        sizes: dict[Limited, int] = {}
        for group in groups:
            asked = {"grp": group, **enough}
            size = self._db.execute(QUERIES["size_of_group"], asked).fetchone()[0]
            sizes[all_rows_of(group)] = size
        for key in keys:
            asked = {"pubkey": bytes.fromhex(key), **self._named_by_p(key)}
            sizes[key] = self._db.execute(QUERIES["size_of_key"], {**asked, **enough}).fetchone()[0]
        check_sizes(sizes, most)

    def _is_stored(self, pubkey: str) -> bool:
        """Whether the key belongs into `Found.stored_keys`."""
        asked = {"pubkey": bytes.fromhex(pubkey), **self._named_by_p(pubkey)}
        return self._db.execute(QUERIES["key_is_stored"], asked).fetchone() is not None

    def _named_by_p(self, pubkey: str) -> dict[str, Value]:
        """For queries about FOUND_BY_KEY: the hash of the tag, and such rows in the tag buffer."""
        p = self._hashes.tag("p", pubkey)
        newest = self._tag_buffer.seqs_of([p], FOUND_BY_KEY)
        return {"p": p, "newest": orjson.dumps(newest).decode()}

    def _groups_with(self, pubkeys: frozenset[str]) -> set[str]:
        """Groups with rows by one of these keys, or with gift wraps to it."""
        found: set[str] = set()
        for pubkey in pubkeys:
            asked = {"pubkey": bytes.fromhex(pubkey), **self._named_by_p(pubkey)}
            found.update(group for (group,) in self._db.execute(QUERIES["groups_with_key"], asked))
        return found

    def _size_of_old(self, rows: Iterable[Stored]) -> int:
        seqs = orjson.dumps([row.seq for row in rows if row.slot is not None]).decode()
        size: int = self._db.execute(QUERIES["size_of_old"], {"seqs": seqs}).fetchone()[0]
        return size

    def _old_named(self, own_rows: Iterable[OwnRow]) -> Iterator[tuple[str, int]]:
        """id and bytes of those that go into `Found.old_versions`."""
        if not self._db.execute(QUERIES["has_old"]).fetchone():
            return
        for own in own_rows:
            by = None if own.pubkey is None else bytes.fromhex(own.pubkey)
            asked: dict[str, Value] = {"id": bytes.fromhex(own.id), "by": by, "grp": own.group}
            for (size,) in self._db.execute(QUERIES["size_of_old_named"], asked):
                yield own.id, size

    def _find_by_slot(self, slots: frozenset[Slot], found: Found, left: BytesLeft) -> None:
        if not slots:
            return
        found.looked_up |= slots
        keys = orjson.dumps([self._hashes.slot(*slot) for slot in slots])
        for row in self._rows("rows_by_slot", {"keys": keys.decode()}, left):
            if row.slot in slots:
                # One object in both: they are compared by identity.
                found.slots[row.slot] = found.rows.setdefault(row.event.id, row)

    def _find_own_rows(self, lookups: Lookups, found: Found, left: BytesLeft) -> None:
        wanted: dict[str, list[OwnRow]] = {}
        keys: list[list[Value]] = []
        recipients: dict[str, int] = {}
        for own in lookups.own_rows:
            wanted.setdefault(own.id, []).append(own)
            author = p = None
            if own.pubkey is not None:
                author, p = id_key(own.pubkey), recipients.get(own.pubkey)
                if p is None:
                    p = recipients[own.pubkey] = self._hashes.tag("p", own.pubkey)
            keys.append([id_key(own.id), author, own.group, p])
        wraps = self._tag_buffer.seqs_of(list(recipients.values()), {kinds.GIFT_WRAP})
        asked: dict[str, Value] = {
            "wanted": orjson.dumps(keys).decode(),
            "newest": orjson.dumps(wraps).decode(),
        }
        for row in self._rows("own_rows", asked, left):
            if any(own.is_it(row) for own in wanted.get(row.event.id, ())):
                found.rows.setdefault(row.event.id, row)

    def _find_present(self, wanted: frozenset[str | Slot], found: Found) -> None:
        ids = [id_key(each) for each in wanted if isinstance(each, str)]
        slots = [self._hashes.slot(*each) for each in wanted if not isinstance(each, str)]
        asked = {"ids": orjson.dumps(ids).decode(), "slots": orjson.dumps(slots).decode()}
        for row in self._db.execute(QUERIES["present_rows"], asked):
            found.present.update(present(row, wanted))

    def _find_recipients(self, found: Found) -> None:
        """Record which of the `stored_keys` the found gift wraps are for."""
        ids = sent_to_one(found) if found.stored_keys else []
        keys = orjson.dumps([id_key(each) for each in ids]).decode()
        for pubkey in found.stored_keys if ids else ():
            asked = {"keys": keys, **self._named_by_p(pubkey)}
            for (id_,) in self._db.execute(QUERIES["sent_to"], asked):
                note_recipient(id_.hex(), pubkey, found)

    def _rows_leaving(self, leaving: Leaving) -> Iterator[tuple[Any, ...]]:
        """seq, bytes, and the columns for `present`; read as far as they are asked for."""
        if leaving.pubkey is None:
            return self._db.execute(QUERIES["leaving_of_group"], {"grp": leaving.group})
        named = {**key_of(leaving.pubkey), **self._named_by_p(leaving.pubkey)}
        return self._db.execute(QUERIES["leaving_of_key"], {**named, "until": leaving.until})

    def _find_records(self, lookups: Lookups, found: Found) -> None:
        """Raises TooMuchToRead."""
        groups, most, leaving = set[str](), lookups.most_moderated, lookups.leaving
        numbers: dict[Limited, int] = {}
        for pubkey, at in lookups.vanishing_keys.items():
            moderated = self._moderated(pubkey, at, most)
            groups.update(moderated)
            numbers[pubkey] = len(moderated)
            found.put_later[pubkey] = self._put_later(pubkey, at)
        if most is not None and len(groups) > most:
            raise TooMuchToRead(parts_of(numbers, most))
        is_left = bool(found.leaving or found.pinned)
        if leaving is not None and leaving.pubkey is not None and not is_left:
            moderated = self._moderated(leaving.pubkey, leaving.until, leaving.groups)
            some = self._with_few_records(moderated[: leaving.groups], leaving.most_records)
            found.too_many_records = bool(moderated) and not some
            if some:
                groups.update(some)
                pinned = [lookups.pinned_in(group).present for group in groups]
                self._find_present(frozenset().union(*pinned), found)
                found.put_later[leaving.pubkey] = self._put_later(leaving.pubkey, leaving.until)
        groups |= lookups.record_groups
        if len(self._with_few_records(groups, lookups.most_records)) < len(groups):
            raise TooMuchToRead(dict.fromkeys(lookups.vanishing_keys, 1.0))
        if groups:
            named = orjson.dumps(list(groups)).decode()
            for row in self._rows("records_of_groups", {"groups": named}):
                found.group_records.append(found.rows.get(row.event.id, row))

    def _with_few_records(self, groups: Iterable[str], most: int | None) -> list[str]:
        """The first of these groups, as many as have at most `most` bytes of records together."""
        few = list[str]()
        for group in groups:
            if most is not None:
                asked: dict[str, Value] = {"grp": group, "limit": enough_sizes(most)}
                most -= self._db.execute(QUERIES["size_of_records"], asked).fetchone()[0]
                if most < 0:
                    break
            few.append(group)
        return few

    def _moderated(self, pubkey: str, until: int, most: int | None) -> list[str]:
        """Groups where the key wrote one of 9000–9020; one more than `most` at most."""
        limit = -1 if most is None else most + 1
        asked = {**key_of(pubkey), "until": until, "limit": limit}
        return [group for (group,) in self._db.execute(QUERIES["groups_moderated"], asked)]

    def _put_later(self, pubkey: str, at: int) -> set[str] | None:
        after = min(at + CLOCK_SKEW_S, MAX_CREATED_AT)
        asked = {**self._named_by_p(pubkey), "after": after, "limit": MOST_PUT_LATER + 1}
        rows = self._db.execute(QUERIES["groups_put_into"], asked)
        return put_later([group for (group,) in rows])

    def _find_named(self, lookups: Lookups, found: Found) -> None:
        left = BytesLeft(MOST_NAMED, TAG_BYTES)
        try:
            self._follow(lookups.named, lookups, found, left, MAX_REFERENCE_STEPS)
            near = lookups.named_near - found.named.keys()
            self._follow(near, lookups, found, left, NEAR_STEPS)
        except NoneLeft:
            found.named_too_large = True

    def _follow(
        self,
        step: frozenset[RecordName],
        lookups: Lookups,
        found: Found,
        left: BytesLeft,
        steps: int,
    ) -> None:
        """Follow references, one query for each step of all of them. Raises NoneLeft."""
        for _ in range(steps):
            if not step:
                return
            # In hex: SQLite cuts texts from JSON at a NUL.
            names = orjson.dumps([(kind, d.encode().hex()) for kind, d in step]).decode()
            rows = self._rows("rows_by_name", {"names": names}, left)
            named = [row for row in rows if (row.event.kind, row.event.d) in step]
            step = found.add_named(step, named, lookups)

    def _find_referrers(self, lookups: Lookups, found: Found) -> None:
        of_kinds = lookups.referring_kinds
        listed = orjson.dumps(list(of_kinds)).decode()
        classes = orjson.dumps(list(classes_of(of_kinds))).decode()
        step = lookups.referrers
        for _ in range(MAX_REFERRING_STEPS):
            if not step:
                return
            hashes = self._hashes.references(step)
            newest = self._tag_buffer.seqs_of(hashes, of_kinds)
            asked: dict[str, Value] = {
                "hashes": orjson.dumps(hashes).decode(),
                "newest": orjson.dumps(newest).decode(),
                "kinds": listed,
                "classes": classes,
                "limit": MAX_REFERRERS,
            }
            step = found.add_referrers(step, self._rows("rows_referring", asked))

    def _find_prefixes(self, lookups: Lookups, found: Found, left: BytesLeft) -> None:
        beginning = [*self._with_prefixes(lookups, found.crowded_prefixes)]
        whole = {
            id_ for _, _, id_, kind, size, _ in beginning if is_read_whole(kind, size, lookups)
        }
        read: dict[str, Stored] = {}
        if whole:
            keys = orjson.dumps([*map(id_key, whole)]).decode()
            read = {row.event.id: row for row in self._rows("rows_by_id", {"keys": keys}, left)}
        for name, _, event_id, _, _, known in beginning:
            found.id_prefixes.setdefault(name, []).append(read.get(event_id, known))

    def _with_prefixes(
        self, lookups: Lookups, crowded: set[str]
    ) -> Iterator[tuple[tuple[str, str], int, str, int, int, Stored]]:
        """(group, prefix), seq, id, kind, bytes, outline of each row. `crowded`: gets the
        `Found.crowded_prefixes`."""
        # Once for all groups: an index of ids by group would make each INSERT a third longer.
        for prefix, groups in groups_by_prefix(lookups).items():
            low, high = id_key(prefix.ljust(16, "0")), id_key(prefix.ljust(16, "f"))
            asked: dict[str, Value] = {"low": low, "high": high, "limit": MAX_WITH_PREFIX + 1}
            rows = self._db.execute(QUERIES["rows_with_prefix"], asked).fetchall()
            if len(rows) > MAX_WITH_PREFIX:
                crowded.add(prefix)
                continue
            for group, seq, id_, kind, pubkey, until, quiet, size in rows:
                event_id = id_.hex()
                if group in groups and event_id.startswith(prefix):
                    known = outline(kind, pubkey.hex(), group, until, quiet=bool(quiet))
                    yield (group, prefix), seq, event_id, kind, size, known

    def _rows(
        self, name: str, values: Mapping[str, Value], left: BytesLeft | None = None
    ) -> list[Stored]:
        """Raises NoneLeft, for `left`."""
        cursor = self._db.execute(QUERIES[name], values)
        rows = cursor.fetchall() if left is None else left.taken(cursor)
        return [stored(row) for row in rows]


def key_of(pubkey: str) -> dict[str, Value]:
    return {"key": id_key(pubkey), "pubkey": bytes.fromhex(pubkey)}
