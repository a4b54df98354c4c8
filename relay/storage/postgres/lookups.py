"""Lookups: what a batch must know of the store, read inside of its transaction."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from relay.access.quotas import Size
from relay.errors import TooMuchToRead
from relay.lifecycle.deletion import CLOCK_SKEW_S, not_vanished
from relay.lifecycle.rows import (
    EXPIRY_WINDOW_S,
    MAX_EXPIRING,
    MAX_WITH_PREFIX,
    MOST_NAMED,
    MOST_PUT_LATER,
    MOST_TOMBSTONES,
    TAG_BYTES,
    Tombstone,
    all_rows_of,
    narrowed,
    outline,
    with_slots_of,
)
from relay.memory.registry import MAX_REFERENCE_STEPS, NEAR_STEPS
from relay.nostr.event import MAX_CREATED_AT
from relay.storage.postgres.rows import columns, present, stored
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.postgres.sql.writes import usage_of
from relay.storage.rows import (
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
    put_later,
    sent_to_one,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.access.quotas import Account
    from relay.lifecycle.rows import Found, Leaving, Limited, Lookups, OwnRow, Slot, Stored
    from relay.memory.registry import RecordName
    from relay.storage.postgres.hashes import KeyedHashes
    from relay.storage.postgres.sql.sweep import SweepQueries

LEAVING_ROWS: Final = 1000
"""Rows read to fill one piece of a deletion: more than fit into 64 KiB. A row may come twice."""


class Finder:
    """Finds rows on the connection that writes."""

    def __init__(self, db: Any, hashes: KeyedHashes, sweeps: SweepQueries, found: Found) -> None:
        """`found` gets the rows."""
        self._db = db
        self._hashes = hashes
        self._sweeps = sweeps
        self._found = found

    async def _tombstones(self, lookups: Lookups) -> Sequence[tuple[Any, ...]]:
        targets = [target.encode() for target in lookups.tombstones]
        most = MOST_TOMBSTONES + 1
        stones: list[Any] = await self._db.fetch(QUERIES["tombstones"], targets, most)
        if len(stones) < most:
            return stones
        pairs = {(target.encode(), by.encode()) for target, by in lookups.refusals()}
        named = [target for target, _ in pairs]
        others = list({*targets}.difference(named))
        stones = await self._db.fetch(QUERIES["tombstones"], others, None)
        by = [by for _, by in pairs]
        return [*stones, *await self._db.fetch(QUERIES["tombstones_by"], named, by)]

    async def look_up(self, lookups: Lookups) -> None:
        """Raises TooMuchToRead."""
        found = self._found
        if lookups.tombstones:
            for target, by, until, why, request in await self._tombstones(lookups):
                stone = Tombstone(target.decode(), by.decode(), until, why.decode(), request)
                found.tombstones.setdefault(stone.target, []).append(stone)
        if lookups.vanishing_keys:
            keys = self._keys(not_vanished(lookups, found))
            rows = await self._db.fetch(QUERIES["keys_stored"], *keys)
            found.stored_keys = frozenset([key.hex() for (key,) in rows])
        if lookups.most_own is not None:
            await self._check_sizes(lookups.ending_groups, lookups.most_own)
        if lookups.vanishing_keys or lookups.deleted_keys:
            lookups = await self._narrowed(lookups)
        if lookups.leaving is not None:
            rows = await self._rows_leaving(lookups.leaving)
            find_leaving(rows, lookups.leaving, found)
        beginning = await self._with_prefixes(lookups) if lookups.id_prefixes else []
        whole = {
            id_: size for _, id_, kind, *_, size in beginning if is_read_whole(kind, size, lookups)
        }
        try:
            await self._find_rows(lookups, sum(whole.values()))
        except TooMuchToRead as fault:
            of_prefixes: Counter[Limited] = Counter()
            for name, id_, *_ in beginning:
                of_prefixes[name] += whole.get(id_, 0)
            shares = {**fault.shares, **parts_of(of_prefixes, lookups.most or 0)}
            raise TooMuchToRead(shares) from None
        if lookups.present:
            await self._find_present(lookups.present)
            await self._find_recipients()
        await self._find_records(lookups)
        if lookups.requests:
            requests = [bytes.fromhex(request) for request in lookups.requests]
            begun = await self._db.fetch(QUERIES["requests_begun"], requests)
            found.begun.update([request.hex() for (request,) in begun])
        if beginning:
            await self._find_prefixes(beginning, list(whole))
        await self._find_usage(lookups.usage.union(lookups.usage_by(found)))
        for dependencies in lookups.dependencies:
            query = self._sweeps.oldest(dependencies)
            oldest = await self._db.fetchval(query.sql, *query.values)
            if oldest is not None:
                found.oldest_dependencies[dependencies] = oldest
        await self._find_named(lookups)
        await self._find_referrers(lookups)
        if lookups.expiry_windows:
            windows = sorted(lookups.expiry_windows)
            starts = [window * EXPIRY_WINDOW_S for window in windows]
            rows = await self._db.fetch(QUERIES["expiring"], starts, EXPIRY_WINDOW_S, MAX_EXPIRING)
            found.expiring.update(zip(windows, [number for (number,) in rows], strict=True))
        if lookups.groups_with_content:
            groups = [group.encode() for group in lookups.groups_with_content]
            in_use = await self._db.fetch(QUERIES["groups_in_use"], groups)
            found.groups_with_content.update([group.decode() for (group,) in in_use])

    async def _find_usage(self, accounts: frozenset[Account]) -> None:
        usage = self._found.usage
        recipients = {
            each.recipient.encode(): each for each in accounts if each.recipient is not None
        }
        for account in accounts.difference(recipients.values()):
            query = usage_of(account)
            usage.open(account, Size(*await self._db.fetchrow(query.sql, *query.values)))
        if recipients:
            rows = await self._db.fetch(QUERIES["received_by"], [*recipients])
            sizes = {recipient: Size(*size) for recipient, *size in rows}
            for recipient, account in recipients.items():
                usage.open(account, sizes.get(recipient, Size()))

    async def _find_rows(self, lookups: Lookups, of_prefixes: int) -> None:
        """By id and slot. `of_prefixes`: bytes of the rows that a prefix names. Raises
        TooMuchToRead."""
        found, most, most_own = self._found, lookups.most, lookups.most_own
        old = await self._old_named(lookups) if lookups.own_rows else []
        found.old_versions.update([event_id.hex() for event_id, _ in old])
        of_old = sum([size for _, size in old])
        if most_own is not None and await self._own_size(lookups) + of_old > most_own:
            raise TooMuchToRead(await self._shares(lookups))
        if lookups.own_rows:
            await self._find_own_rows(lookups)
        await self._find_by_slot(lookups.own_slots)
        lookups = with_slots_of(found.rows.values(), lookups)
        if most is not None and await self._size_of(lookups) + of_prefixes > most:
            raise TooMuchToRead(await self._shares(lookups))
        if lookups.ids:
            ids = [bytes.fromhex(event_id) for event_id in lookups.ids]
            for row in await self._rows("rows_by_id", ids):
                found.rows.setdefault(row.event.id, row)
        await self._find_by_slot(lookups.slots)

    async def _find_by_slot(self, slots: frozenset[Slot]) -> None:
        if not slots:
            return
        found = self._found
        found.looked_up |= slots
        for row in await self._rows("rows_by_slot", self._slot_hashes(slots)):
            if row.slot in slots:
                # One object in both: they are compared by identity.
                found.slots[row.slot] = found.rows.setdefault(row.event.id, row)

    async def _size_of(self, lookups: Lookups) -> int:
        """Bytes of the rows by id and slot; none of them is read for it."""
        ids, slots = [*map(bytes.fromhex, lookups.ids)], self._slot_hashes(lookups.slots)
        size: int = await self._db.fetchval(QUERIES["size_of_rows"], ids, slots)
        return size

    async def _check_sizes(self, ending_groups: Iterable[str], most: int) -> None:
        """Raises TooMuchToRead for keys and groups that must leave one by one, or in pieces."""
        sizes: dict[Limited, int] = {}
        enough = enough_sizes(most)
        for key in self._found.stored_keys:
            asked = bytes.fromhex(key), self._hashes.tag("p", key), enough
            sizes[key] = await self._db.fetchval(QUERIES["size_of_key"], *asked)
        for group in ending_groups:
            size = await self._db.fetchval(QUERIES["size_of_group"], group.encode(), enough)
            sizes[all_rows_of(group)] = size
        check_sizes(sizes, most)

    async def _rows_leaving(self, leaving: Leaving) -> list[tuple[Any, ...]]:
        """seq, bytes, and the columns for `present`, of more than fit."""
        if leaving.pubkey is not None:
            key, p = bytes.fromhex(leaving.pubkey), self._hashes.tag("p", leaving.pubkey)
            asked = key, p, leaving.until, LEAVING_ROWS
            rows = await self._db.fetch(QUERIES["leaving_of_key"], *asked)
        else:
            group = (leaving.group or "").encode()
            rows = await self._db.fetch(QUERIES["leaving_of_group"], group, LEAVING_ROWS)
        return [
            (*row[:5], row[5].decode(), row[6], (row[7] or b"").decode(), *row[8:]) for row in rows
        ]

    async def _own_size(self, lookups: Lookups) -> int:
        """Bytes of the rows that are to be deleted; none of them is read for it."""
        rows, slots = self._asked_own(lookups.own_rows), self._slot_hashes(lookups.own_slots)
        size: int = await self._db.fetchval(QUERIES["size_of_own_rows"], *rows, slots)
        return size

    async def _old_named(self, lookups: Lookups) -> Sequence[tuple[bytes, int]]:
        """id and bytes of those that go into `Found.old_versions`."""
        rows = await self._db.fetch(QUERIES["old_named"], *self._asked_own(lookups.own_rows))
        return [tuple(row) for row in rows]

    async def _shares(self, lookups: Lookups) -> Mapping[Limited, float]:
        """As of TooMuchToRead, without prefixes. Rows are not read for it."""
        shares: dict[Limited, float] = {}
        for limit, ids, slots in limited_reads(lookups):
            by_id = {bytes.fromhex(event_id): event_id for event_id in ids}
            found = await self._db.fetch(QUERIES["sizes_by_id"], [*by_id])
            note_shares(found, limit, by_id, shares)
            if ids is not lookups.ids:
                note_shares(await self._old_named(lookups), limit, by_id, shares)
            by_slot = {self._hashes.slot(*slot): slot for slot in slots}
            found = await self._db.fetch(QUERIES["sizes_by_slot"], [*by_slot])
            note_shares(found, limit, by_slot, shares)
        return shares

    def _slot_hashes(self, slots: frozenset[Slot]) -> list[int]:
        return [self._hashes.slot(*slot) for slot in slots]

    async def _narrowed(self, lookups: Lookups) -> Lookups:
        found = self._found
        groups: list[str] = []
        keys = found.stored_keys | lookups.deleted_keys
        if keys:
            asked = self._keys(sorted(keys))
            with_keys = await self._db.fetch(QUERIES["groups_with_keys"], *asked)
            groups = [group.decode() for (group,) in with_keys]
        return narrowed(lookups, found.stored_keys, groups)

    def _keys(self, pubkeys: Sequence[str]) -> tuple[list[bytes], list[int]]:
        """The keys as bytes, and the hashes of the `p` tags that name them."""
        named = [self._hashes.tag("p", pubkey) for pubkey in pubkeys]
        return [bytes.fromhex(pubkey) for pubkey in pubkeys], named

    async def _find_own_rows(self, lookups: Lookups) -> None:
        found = self._found
        wanted: dict[str, list[OwnRow]] = {}
        for own in lookups.own_rows:
            wanted.setdefault(own.id, []).append(own)
        for row in await self._rows("own_rows", *self._asked_own(lookups.own_rows)):
            if any(own.is_it(row) for own in wanted.get(row.event.id, ())):
                found.rows.setdefault(row.event.id, row)

    def _asked_own(self, own_rows: frozenset[OwnRow]) -> list[list[Any]]:
        asked = [
            (
                bytes.fromhex(own.id),
                None if own.pubkey is None else bytes.fromhex(own.pubkey),
                None if own.group is None else own.group.encode(),
                None if own.pubkey is None else self._hashes.tag("p", own.pubkey),
            )
            for own in own_rows
        ]
        return columns(asked, 4)

    async def _find_present(self, wanted: frozenset[str | Slot]) -> None:
        found = self._found
        ids = [bytes.fromhex(each) for each in wanted if isinstance(each, str)]
        slots = [self._hashes.slot(*each) for each in wanted if not isinstance(each, str)]
        for row in await self._db.fetch(QUERIES["present_rows"], ids, slots):
            found.present.update(present(row, wanted))

    async def _find_recipients(self) -> None:
        """Which of the `stored_keys` gift wraps are for."""
        found = self._found
        keys = found.stored_keys
        ids = [bytes.fromhex(each) for each in sent_to_one(found)] if keys else []
        for pubkey in keys if ids else ():
            p = self._hashes.tag("p", pubkey)
            for (id_,) in await self._db.fetch(QUERIES["sent_to"], ids, p):
                note_recipient(id_.hex(), pubkey, found)

    async def _with_prefixes(self, lookups: Lookups) -> list[tuple[Any, ...]]:
        """(group, prefix), id, kind, author, expires_at, quiet, bytes of each row."""
        asked = [*groups_by_prefix(lookups).items()]
        between = [
            (bytes.fromhex(prefix.ljust(64, "0")), bytes.fromhex(prefix.ljust(64, "f")))
            for prefix, _ in asked
        ]
        limited = *columns(between, 2), MAX_WITH_PREFIX + 1
        rows = await self._db.fetch(QUERIES["rows_with_prefix"], *limited)
        numbers = Counter(place for place, *_ in rows)
        found = []
        for place, grp, *about in rows:
            prefix, groups = asked[place - 1]
            if numbers[place] > MAX_WITH_PREFIX:
                self._found.crowded_prefixes.add(prefix)
            elif grp is not None and (group := grp.decode()) in groups:
                found.append(((group, prefix), *about))
        return found

    async def _find_prefixes(
        self, beginning: Iterable[tuple[Any, ...]], whole: Sequence[bytes]
    ) -> None:
        """`beginning`: of `_with_prefixes`; `whole`: ids of those that are read."""
        rows = await self._rows("rows_by_id", whole) if whole else ()
        read = {row.event.id: row for row in rows}
        for name, id_, kind, pubkey, until, quiet, _ in beginning:
            row = read.get(id_.hex()) or outline(kind, pubkey.hex(), name[0], until, quiet=quiet)
            self._found.id_prefixes.setdefault(name, []).append(row)

    async def _find_named(self, lookups: Lookups) -> None:
        left = BytesLeft(MOST_NAMED, TAG_BYTES)
        try:
            await self._follow(lookups.named, lookups, left, MAX_REFERENCE_STEPS)
            near = lookups.named_near - self._found.named.keys()
            await self._follow(near, lookups, left, NEAR_STEPS)
        except NoneLeft:
            self._found.named_too_large = True

    async def _follow(
        self, step: frozenset[RecordName], lookups: Lookups, left: BytesLeft, steps: int
    ) -> None:
        """Follow references, one query for each step of all of them. Raises NoneLeft."""
        for _ in range(steps):
            if not step:
                return
            names = [(name.kind, name.d.encode()) for name in step]
            asked = *columns(names, 2), left.number
            rows = left.taken(await self._db.fetch(QUERIES["rows_by_name"], *asked))
            step = self._found.add_named(step, map(stored, rows), lookups)

    async def _find_referrers(self, lookups: Lookups) -> None:
        of_kinds = list(lookups.referring_kinds)
        step = lookups.referrers
        for _ in range(MAX_REFERRING_STEPS):
            if not step:
                return
            hashes = self._hashes.references(step)
            rows = await self._rows("rows_referring", hashes, of_kinds, MAX_REFERRERS)
            step = self._found.add_referrers(step, rows)

    async def _find_records(self, lookups: Lookups) -> None:
        """Raises TooMuchToRead."""
        found, most, leaving = self._found, lookups.most_moderated, lookups.leaving
        groups = set[bytes]()
        numbers: dict[Limited, int] = {}
        for pubkey, at in lookups.vanishing_keys.items():
            moderated = await self._moderated(pubkey, at, most)
            groups.update(moderated)
            numbers[pubkey] = len(moderated)
            found.put_later[pubkey] = await self._put_later(pubkey, at)
        if most is not None and len(groups) > most:
            raise TooMuchToRead(parts_of(numbers, most))
        is_left = bool(found.leaving or found.pinned)
        if leaving is not None and leaving.pubkey is not None and not is_left:
            pubkey, at = leaving.pubkey, leaving.until
            moderated = await self._moderated(pubkey, at, leaving.groups)
            some = await self._with_few_records(moderated[: leaving.groups], leaving.most_records)
            found.too_many_records = bool(moderated) and not some
            if some:
                groups.update(some)
                pinned = [lookups.pinned_in(group.decode()).present for group in groups]
                await self._find_present(frozenset().union(*pinned))
                found.put_later[pubkey] = await self._put_later(pubkey, at)
        groups.update([group.encode() for group in lookups.record_groups])
        if len(await self._with_few_records(groups, lookups.most_records)) < len(groups):
            raise TooMuchToRead(dict.fromkeys(lookups.vanishing_keys, 1.0))
        if groups:
            for row in await self._rows("records_of_groups", list(groups)):
                found.group_records.append(found.rows.get(row.event.id, row))

    async def _with_few_records(self, groups: Iterable[bytes], most: int | None) -> list[bytes]:
        """The first of these groups, as many as have at most `most` bytes of records together."""
        few = list[bytes]()
        for group in groups:
            if most is not None:
                most -= await self._db.fetchval(
                    QUERIES["size_of_records"], group, enough_sizes(most)
                )
                if most < 0:
                    break
            few.append(group)
        return few

    async def _moderated(self, pubkey: str, until: int, most: int | None) -> list[bytes]:
        """Groups where the key wrote one of 9000–9020; one more than `most` at most."""
        limit = None if most is None else most + 1
        key = bytes.fromhex(pubkey)
        rows = await self._db.fetch(QUERIES["groups_moderated"], key, until, limit)
        return [group for (group,) in rows]

    async def _put_later(self, pubkey: str, at: int) -> set[str] | None:
        p = self._hashes.tag("p", pubkey)
        after = min(at + CLOCK_SKEW_S, MAX_CREATED_AT)
        rows = await self._db.fetch(QUERIES["groups_put_into"], p, after, MOST_PUT_LATER + 1)
        return put_later([group.decode() for (group,) in rows])

    async def _rows(self, name: str, *values: object) -> list[Stored]:
        return [stored(row) for row in await self._db.fetch(QUERIES[name], *values)]
