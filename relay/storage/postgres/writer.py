"""Writer: a batch is one transaction on the one connection that writes: look up, decide, apply.

A lock of the database makes the batches of all processes follow each other: `seq` is given under
it, so rows become visible in the order of their seq. A statement takes all rows of a batch at once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median_low
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import orjson

from relay.errors import Outdated, StoreFault
from relay.groups.group import EndedGroup
from relay.lifecycle.deletion import BAN, END_OF_GROUP, event_target, tombstone_of_id
from relay.lifecycle.rows import (
    ERASURE_DAYS,
    LONG_EXPIRED,
    Found,
    Tombstone,
)
from relay.nostr.event import event_from_raw
from relay.storage.hashes import id_key
from relay.storage.postgres.connections import FAULTS, end
from relay.storage.postgres.following import Changes, others_since
from relay.storage.postgres.lookups import LEAVING_ROWS, Finder
from relay.storage.postgres.rows import columns
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.rows import (
    Growth,
    PreparedColumns,
    check_vanish,
    erasure_of,
    records_to_sweep,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

    from relay.groups.group import Group
    from relay.groups.key_map import KeyMap
    from relay.lifecycle.rows import (
        Forgotten,
        Lookups,
        Stored,
        Vanish,
        WritePlan,
    )
    from relay.nostr.erasure import Erasure
    from relay.nostr.event import Event
    from relay.storage import TakeOver
    from relay.storage.postgres.connections import Connections
    from relay.storage.postgres.erasing import Erasing
    from relay.storage.postgres.hashes import KeyedHashes
    from relay.storage.postgres.listening import Touch
    from relay.storage.postgres.sql.sweep import SweepQueries

_DELETE_CHUNK: Final = 10_000
_DAY_S: Final = 86_400
_ASK_AGAIN_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""After a connection was lost in a commit."""
_COMMIT_S: Final = 60.0
"""A commit that takes longer may go on only while it waits for a replica."""
_NO_LIMIT_S: Final = 1e8
_HUNG_S: Final = 10.0
"""A relay that sends nothing for this time in a batch hangs."""
_REPLICA_S: Final = 2.0
"""In which a replica has to have a batch whose connection was lost, for each look at it."""
_MAX_INT: Final = 2**63 - 1
_NEAR_S: Final = 0.005
"""A database that answers a short statement within this time is near."""
_ANSWERS: Final = 31
"""So many of the last ones say how far it is."""

_Columns = tuple[bytes, int, bytes, bytes, str, str]
"""What follows from the event alone: id, id_key, pubkey, `d`, and the hashes of its tags as two
arrays of PostgreSQL."""
_SizeKey = tuple[bytes, int, bytes]
"""pubkey, kind, group or empty."""


@dataclass(slots=True)
class _Change(Growth[_SizeKey]):
    """Changes of the totals by a transaction, and whether deleted bytes must be erased."""

    erases: bool = False
    noted: Changes = field(default_factory=Changes)
    """The changes that other relays on the database must learn of."""

    def forget(self, row: Sequence[Any], erasure: Erasure | None) -> str:
        """Note an old version that was deleted, as `forget_by_seq` has it; returns its id."""
        _, id_, pubkey, kind, group, size = row
        self.grow((pubkey, kind, group), -1, -size)
        self.erases = True
        event_id: str = id_.hex()
        if erasure is not None:
            erasure.add(event_id, kind)
        return event_id


class _Counted:
    """A connection, and how many statements it was given."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        self.statements += 1
        return getattr(self._db, name)


class Writer:
    """Batches one after the other; only `prepared` may be added to on other threads."""

    def __init__(
        self,
        connections: Connections,
        hashes: KeyedHashes,
        index_tags: frozenset[str],
        sweeps: SweepQueries,
        erasing: Erasing,
        touch: Touch,
        head: int,
        batch: str | None,
        *,
        is_shared: bool,
        has_replica: bool,
    ) -> None:
        """`is_shared`: other relays may write too."""
        self._connections = connections
        self._hashes = hashes
        self._index_tags = index_tags
        self._sweeps = sweeps
        self._erasing = erasing
        self._touch = touch
        self._is_shared = is_shared
        self._has_replica = has_replica
        self.take_over: TakeOver | None = None
        self.position = head, batch
        """seq up to which all is taken over, and the name of its batch, if known."""
        self._in_doubt: str | None = None
        """Name of a batch of which it is unknown whether it was committed."""
        self._replicated = -1
        """seq up to which a synchronous replica is known to have all. -1: some commit before may
        have ended without it, as after a crash of the server, or of a relay."""
        self._waits_for_replica = False
        """Whether commits wait for one."""
        self._is_ending = False
        self.prepared = PreparedColumns(self._columns_of)
        self.append_s = 0.0
        self._answers_s = deque[float](maxlen=_ANSWERS)
        """How long the last look-ups of the head took."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether a batch may have been committed after `append` gave up waiting for it."""
        return self._in_doubt is not None

    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        """As `Appender.append`. Raises StoreFault."""
        self._touch.check_answers()
        if self._replicated < 0 and self.take_over is None:
            # Finding that it has a batch that was in doubt would end this process, and without the
            # replica it could not start again.
            await self.replicate()
        try:
            async with self._connections.writing() as db:
                await self._begin(db)
                return await self._appended(db, lookups, decide)
        finally:
            self._erasing.end()

    @property
    def is_replicated(self) -> bool:
        """Whether `replicate` need not be awaited. A batch that wrote nothing has not waited: what
        it found may be on the primary alone."""
        return not self._waits_for_replica or self.position[0] <= self._replicated

    async def _begin(self, db: Any) -> None:
        """Wait for the lock; a relay that hangs with it loses it."""
        ending = asyncio.create_task(self._end_hung())
        try:
            await db.execute(QUERIES["begin"])
        finally:
            ending.cancel()

    async def _end_hung(self) -> None:
        while True:
            await asyncio.sleep(_HUNG_S)
            with suppress(StoreFault):
                async with self._connections.for_relay() as db:
                    await db.execute(QUERIES["end_hung"], _HUNG_S)

    def hurry(self) -> None:
        """The process ends: no commit waits for a replica much longer."""
        self._is_ending = True

    async def _appended(
        self, db: Any, lookups: Lookups, decide: Callable[[Found], WritePlan]
    ) -> int:
        asked_at = began_at = monotonic()
        counted = _Counted(db)
        try:
            head, self._waits_for_replica = await db.fetchrow(QUERIES["head_to_write"])
            self._answers_s.append(monotonic() - asked_at)
            lookups = await self._caught_up(db, head, asked_at) or lookups
            began_at = monotonic()  # what others stored is not this batch's to pay for
            last_seq = await self._changed(counted, Found(head), lookups, decide)
            if last_seq is None:
                await db.execute(QUERIES["rollback"])
                return int(head)
        except BaseException:
            await _rolled_back(db)
            raise
        finally:  # also when nothing is stored
            took_s = monotonic() - began_at
            self.append_s = max(0.0, took_s - self._waits_s(counted.statements))
        batch = secrets.token_hex(16)
        try:
            await self._commit(db, QUERIES["commit"] % (last_seq, last_seq, batch, last_seq))
        except FAULTS:
            self._replicated = -1
            await _rolled_back(db)
            if not await self._has_committed(last_seq, batch):
                raise
        else:
            self._replicated = last_seq
        self.position = last_seq, batch
        return last_seq

    async def _commit(self, db: Any, statement: str) -> None:
        """Execute what ends with a commit. One that waits for a replica is not cancelled: the
        server would end the wait with a warning, and only the primary would have the batch."""
        is_alone = False

        def warned(_: object, message: Any) -> None:
            nonlocal is_alone
            # Not by its text, which the server translates. There are other warnings.
            is_alone |= message.server_source_function == "SyncRepWaitForLSN"

        db.add_log_listener(warned)
        try:
            task = asyncio.ensure_future(db.execute(statement, timeout=_NO_LIMIT_S))
            while not (await asyncio.wait({task}, timeout=_COMMIT_S))[0]:
                if self._is_ending or not await self._is_waiting(db.get_server_pid()):
                    end(db)
            task.result()
        finally:
            with suppress(asyncpg.InterfaceError):  # the pool has already released it
                db.remove_log_listener(warned)
        if is_alone:
            raise asyncpg.QueryCanceledError("the wait for a replica was cancelled")

    async def _is_waiting(self, pid: int) -> bool:
        """Whether the server says that this connection waits for a replica."""
        with suppress(StoreFault):
            async with self._connections.for_relay() as db:
                return bool(await db.fetchval(QUERIES["waits_for_replica"], pid))
        return False

    async def replicate(self) -> None:
        """Wait until a synchronous replica, if there is one, has what this process has followed.
        Not on the connection that writes: `follow` needs that. Raises StoreFault."""
        upto = self.position[0]
        async with self._connections.for_relay() as db:
            await self._commit(db, QUERIES["replicate"])
        self._replicated = max(self._replicated, upto)

    def _waits_s(self, statements: int) -> float:
        """Time in which so many statements would be answered that read next to nothing: none if
        the database is near. Each may take two round trips, as it is prepared first."""
        answer_s = median_low(self._answers_s or [0.0])
        return 2 * statements * answer_s if answer_s > _NEAR_S else 0.0

    async def follow(self) -> None:
        """As `SharedLog.follow`."""
        async with (
            self._connections.writing() as db,
            db.transaction(isolation="repeatable_read", readonly=True),
        ):
            asked_at = monotonic()
            await self._caught_up(db, await db.fetchval(QUERIES["head"]), asked_at)

    async def _caught_up(self, db: Any, head: int, asked_at: float) -> Lookups | None:
        """Take over commits of others, up to `head`. Returns changed Lookups for the batch; None:
        its own are still right. Raises TooMuchToRead when these would be too large, and StoreFault
        when another process wrote and the store is not shared."""
        changed, before = None, self.position[0]
        if head < before:  # before the listener has noticed it
            self._connections.refuse_set_back()
            self._connections.check()
        if self.take_over is None:
            await self._check_own(db, head)
        if before < head:
            if self.take_over is None:
                raise Outdated("another process wrote to the database: restart the relay")
            with self._touch.catching_up():
                others, erased, newest = await others_since(db, before, head)
                if erased:
                    self._erasing.begin(erased)
                    self._erasing.end()
                changed = await self.take_over(others)
                self.position = head, newest
        self._touch.confirm(asked_at)
        return None if changed is None else changed()

    async def _check_own(self, db: Any, head: int) -> None:
        """Raises StoreFault when the newest commit is the batch in doubt of this process: state
        lacks it."""
        if self._in_doubt is None:
            return
        if await db.fetchval(QUERIES["has_committed"], head, self._in_doubt):
            self._connections.refuse_set_back()
            self._connections.check()
        self._in_doubt = None  # its transaction has ended: this one has the lock

    async def _has_committed(self, last_seq: int, batch: str) -> bool:
        """Whether the batch was committed although its connection was lost, and a synchronous
        replica has it. Raises StoreFault.

        The status of the transaction would not show it: after a crash its number is used again.
        """
        before = self.position
        try:
            for wait_s in _ASK_AGAIN_S:
                if self._touch.is_lost or self._is_ending:
                    break
                with suppress(StoreFault):  # the server starts again
                    async with self._connections.for_relay() as db:
                        # First without the lock: who has it now may wait for the replica, too.
                        if not await db.fetchval(QUERIES["has_committed"], last_seq, batch):
                            async with db.transaction():
                                # The transaction has it until the server has noticed the loss.
                                await db.execute(QUERIES["lock"])
                                if not await db.fetchval(QUERIES["has_committed"], last_seq, batch):
                                    return False
                        self.position = last_seq, batch  # it is no other relay's
                        # Its commit may have ended without the replica. Readers wait meanwhile.
                        await db.execute(QUERIES["replicate"], timeout=_REPLICA_S)
                        return True
                await asyncio.sleep(wait_s)
        finally:
            self.position = before
        self._in_doubt = batch
        raise StoreFault("database: the connection was lost in a commit, and nothing confirms it")

    async def _changed(
        self, db: Any, found: Found, lookups: Lookups, decide: Callable[[Found], WritePlan]
    ) -> int | None:
        """The work of the transaction: the new head; None: nothing changes."""
        before = found.last_seq
        await Finder(db, self._hashes, self._sweeps, found).look_up(lookups)
        plan = await asyncio.to_thread(decide, found)
        is_empty = plan.is_empty() and found.last_seq == before
        if is_empty and not (self._is_shared and plan.passed_on):
            return None
        change = _Change()
        await self._apply(db, plan, change)
        await self._put_erasures(db, plan)
        if found.last_seq == before and (self._is_shared or self._has_replica):
            found.last_seq += 1  # other relays read on from their seq; a replica is compared by it
        if self._is_shared and (changes := change.noted.of(plan, erases=change.erases)):
            await db.execute(QUERIES["add_changes"], found.last_seq, *columns(changes, 3))
        if change.erases:
            self._erasing.begin(plan.erasures)
        return found.last_seq

    async def _apply(self, db: Any, plan: WritePlan, change: _Change) -> None:
        if plan.moves:
            await self._move(db, plan.moves, change)
        await self._delete(db, plan.removes, change, kept=plan.replaced)
        await self._expire(db, plan.expired, change)
        await self._add(db, list(plan.adds.values()), change)
        if plan.replaced:
            await self._keep_replaced(db, plan, change)
        await self._forget_named(db, plan, change)
        for request, seqs in plan.leaving.items():
            if (ends := plan.ending.get(request)) is not None:
                await self._keep_out(db, seqs, ends)
            await self._delete_many(db, seqs, change, plan.erasures.get(request))
        for group_id in plan.deleted_groups:
            group = group_id.encode()
            rows = await db.fetch(QUERIES["rows_of_group"], group)
            late = records_to_sweep([tuple(row) for row in rows])
            seqs = [seq for seq, *_ in rows if seq not in late]
            await self._keep_out(db, seqs, group_id)
            await self._delete_many(db, seqs, change)
            await self._expire(db, late, change)
            await self._forget(db, change, None, "forget_of_group", group)
        for gone in plan.vanishes:
            await self._delete_of_key(db, gone, change, plan.erasures.get(gone.request))
        for pubkey, upto in plan.deleted_authors.items():
            await self._ban(db, pubkey, upto, change)
        await self._put_sizes(db, change)
        await _add_tombstones(db, plan.tombstones)
        for pubkey, ended in plan.left_ended.items():
            left = [group_id.encode() for group_id in ended]
            await db.execute(QUERIES["drop_former_member"], bytes.fromhex(pubkey), left)
        for group_id, now in plan.groups.items():
            await _put_group(db, group_id.encode(), now, plan.members_before.get(group_id))
        for noted in plan.list_changes:
            entry = noted.list_name, noted.item.encode()
            if noted.note is None:
                await db.execute(QUERIES["drop_entry"], *entry)
            else:
                await db.execute(QUERIES["put_entry"], *entry, noted.note.encode())
            change.erases = True

    async def _expire(self, db: Any, seqs: Collection[int], change: _Change) -> None:
        if seqs:
            for gone in await db.fetch(QUERIES["expire_rows"], list(seqs), LONG_EXPIRED):
                change.noted.deleted(*gone)

    async def _keep_out(self, db: Any, seqs: Sequence[int], group_id: str) -> None:
        """`tombstones_of_ended`."""
        await db.execute(QUERIES["keep_out"], list(seqs), self._hashes.tag("h", group_id))
        await db.execute(QUERIES["keep_out_versions"], list(seqs), END_OF_GROUP.encode())

    async def _move(self, db: Any, moves: Mapping[int, str], change: _Change) -> None:
        wanted = [(seq, group.encode()) for seq, group in moves.items()]
        moved = await db.fetch(QUERIES["move_events"], *columns(wanted, 2))
        for pubkey, kind, size, group in moved:  # they were of no group
            change.grow((pubkey, kind, b""), -1, -size)
            change.grow((pubkey, kind, group), 1, size)

    def _columns_of(self, event: Event) -> _Columns:
        hashes = self._hashes.of_event(event, self._index_tags), self._hashes.of_rules(event)
        tags, rule_tags = [f"{{{','.join(map(str, each))}}}" for each in hashes]
        return (
            bytes.fromhex(event.id),
            id_key(event.id),
            bytes.fromhex(event.pubkey),
            event.d.encode(),
            tags,
            rule_tags,
        )

    async def _add(self, db: Any, rows: Sequence[Stored], change: _Change) -> None:
        added = []
        for row in rows:
            event = row.event
            prepared = self.prepared.by_id.pop(event.id, None)
            id_, key, pubkey, d, *tags = prepared or self._columns_of(event)
            group = None if row.group is None else row.group.encode()
            slot = None if row.slot is None else self._hashes.slot(*row.slot)
            place = event.kind, event.created_at, group, d, slot, row.version, row.expires_at
            added.append((row.seq, id_, key, pubkey, *place, row.quiet, event.raw, *tags))
            change.grow((pubkey, event.kind, group or b""), 1, len(event.raw))
            change.grow_received(event, 1)
        if added:
            await db.execute(QUERIES["add_events"], *columns(added, 15))

    async def _keep_replaced(self, db: Any, plan: WritePlan, change: _Change) -> None:
        """Insert what becomes an old version, and delete those above the number that is kept."""
        rows = []
        slots: dict[int, set[int]] = {}
        for seq, (row, at, drop_at, most) in plan.replaced.items():
            event = row.event
            assert row.slot is not None
            slot = self._hashes.slot(*row.slot)
            slots.setdefault(most, set()).add(slot)
            group = None if row.group is None else row.group.encode()
            pubkey = bytes.fromhex(event.pubkey)
            of = bytes.fromhex(event.id), pubkey, event.kind, event.created_at, group, slot
            noted = row.version, row.expires_at, row.quiet, at, drop_at, event.raw
            rows.append((seq, *of, *noted))
            if seq not in plan.removes:  # replaced by the batch that brought it
                change.grow((pubkey, event.kind, group or b""), 1, len(event.raw))
        await db.execute(QUERIES["add_old"], *columns(rows, 13))
        for most, these in slots.items():
            await self._forget(db, change, None, "forget_over_number", list(these), most)

    async def _forget_named(self, db: Any, plan: WritePlan, change: _Change) -> None:
        if plan.forgotten and await db.fetchval(QUERIES["has_old"]):
            # In one statement: a kind 5 may name 1,000, and each question takes a round trip.
            wanted = columns([self._wanted(each) for each in plan.forgotten], 6)
            await db.execute(QUERIES["by_index"])  # statistics would say that each has many
            gone = await db.fetch(QUERIES["forget_named"], *wanted)
            await db.execute(QUERIES["by_cost"])
            stones = []
            for *row, place in sorted(gone, key=lambda row: (row[-1], row[0])):
                cause = plan.forgotten[place - 1].cause
                id_ = change.forget(row, plan.erasure_of_versions(cause))
                if cause is not None:
                    stones.append(Tombstone(event_target(id_), cause.by, None, cause.why))
            await _add_tombstones(db, stones)
        if plan.dropped_versions:
            await self._forget(db, change, None, "forget_by_seq", list(plan.dropped_versions))
        if plan.version_deadlines:
            deadlines = list(plan.version_deadlines.items())
            await db.execute(QUERIES["set_drop_at"], *columns(deadlines, 2))

    async def _forget(
        self, db: Any, change: _Change, erasure: Erasure | None, name: str, *values: object
    ) -> list[str]:
        """Delete the old versions that this statement names; returns their ids."""
        rows = _by_seq(await db.fetch(QUERIES[name], *values))
        return [change.forget(row, erasure) for row in rows]

    def _wanted(self, each: Forgotten) -> tuple[object, ...]:
        """For `forget_named`."""
        upto, slot, id_, by, until, _, group = each
        if slot is not None:
            by = slot.pubkey
        return (
            None if slot is None else self._hashes.slot(*slot),
            None if id_ is None else bytes.fromhex(id_),
            upto,
            None if by is None else bytes.fromhex(by),
            until,
            None if group is None else group.encode(),
        )

    async def _delete(
        self,
        db: Any,
        seqs: Collection[int],
        change: _Change,
        erasure: Erasure | None = None,
        kept: Container[int] = (),
    ) -> None:
        """`kept`: seq of those that become old versions."""
        if not seqs:
            return
        gone = await db.fetch(QUERIES["delete_events"], list(seqs))
        for seq, id_, pubkey, kind, group, size, wrap, was_expired in _by_seq(gone):
            if seq not in kept:
                change.grow((pubkey, kind, group), -1, -size)
                change.erases = True
            if not was_expired:  # noted when it expired
                change.noted.deleted(id_, kind, group)
            if wrap is not None:
                change.grow_received(event_from_raw(wrap), -1)
            if erasure is not None:
                erasure.add(id_.hex(), kind)

    async def _delete_many(
        self, db: Any, seqs: Sequence[int], change: _Change, erasure: Erasure | None = None
    ) -> None:
        """Delete rows and their old versions, in chunks: a key may have written most of the store.
        `seqs`: also of old versions whose rows stay."""
        seqs = sorted(seqs)
        for start in range(0, len(seqs), _DELETE_CHUNK):
            chunk = seqs[start : start + _DELETE_CHUNK]
            await self._forget(db, change, erasure, "forget_of_rows", chunk)
            await self._forget(db, change, erasure, "forget_by_seq", chunk)
            await self._delete(db, chunk, change, erasure)

    async def _delete_of_key(
        self, db: Any, gone: Vanish, change: _Change, erasure: Erasure | None
    ) -> None:
        key, p = bytes.fromhex(gone.pubkey), self._hashes.tag("p", gone.pubkey)
        leaving = await db.fetch(QUERIES["leaving_of_key"], key, p, gone.until, LEAVING_ROWS)
        check_vanish(leaving, gone)
        rows = await db.fetch(QUERIES["rows_of_key"], key, p, gone.until, gone.upto)
        await self._delete_many(db, [seq for (seq,) in rows], change, erasure)
        await self._forget(db, change, erasure, "forget_of_key", key, gone.until, _MAX_INT)

    async def _ban(self, db: Any, pubkey: str, upto: int, change: _Change) -> None:
        key = bytes.fromhex(pubkey)
        rows = await db.fetch(QUERIES["rows_to_ban"], key, upto)
        gone = await self._forget(db, change, None, "forget_of_key", key, _MAX_INT, upto)
        seqs = [seq for seq, _ in rows]
        await db.execute(QUERIES["keep_out_versions"], seqs, BAN.encode())
        await self._delete_many(db, seqs, change)
        ids = [*(event_id.hex() for _, event_id in rows), *gone]
        await _add_tombstones(db, [tombstone_of_id(event_id, BAN) for event_id in ids])

    async def _put_sizes(self, db: Any, change: _Change) -> None:
        # In the order of the table, so that neighbours are on the same pages.
        grown = [(*key, *growth) for key, growth in sorted(change.sizes.items()) if any(growth)]
        if grown:
            await db.execute(QUERIES["add_sizes"], *columns(grown, 5))
        emptied = [key for key, (events, _) in change.sizes.items() if events < 0]
        if emptied:
            await db.execute(QUERIES["drop_empty_sizes"], *columns(emptied, 3))
        received = [(name.encode(), *growth) for name, growth in sorted(change.received.items())]
        if received:
            await db.execute(QUERIES["add_received"], *columns(received, 3))
            await db.execute(QUERIES["drop_empty_received"], [name for name, *_ in received])

    async def _put_erasures(self, db: Any, plan: WritePlan) -> None:
        noted = [erasure for erasure in plan.erasures.values() if erasure.total]
        for each in noted:
            request = bytes.fromhex(each.request)
            for earlier in await db.fetch(QUERIES["erasure"], request):
                each.add_earlier(erasure_of(each.request, earlier))
            await db.execute(
                QUERIES["add_erasure"],
                request,
                bytes.fromhex(each.by),
                each.kind,
                each.at,
                orjson.dumps(list(each.numbers.items())).decode(),
                orjson.dumps(each.ids).decode(),
            )
        if noted:
            await db.execute(QUERIES["drop_erasures"], noted[-1].at - ERASURE_DAYS * _DAY_S)


def _by_seq(rows: Iterable[Any]) -> list[Any]:
    """An erasure names rows in this order, whatever plan the server chose."""
    return sorted(rows, key=lambda row: row[0])


async def _rolled_back(db: Any) -> None:
    """Unless the connection is lost, which does the same."""
    try:
        await db.execute(QUERIES["rollback"])
    except FAULTS:
        end(db)


async def _add_tombstones(db: Any, tombstones: Sequence[Tombstone]) -> None:
    if tombstones:
        rows = [
            (t.target.encode(), t.by.encode(), t.until, t.why.encode(), t.request)
            for t in tombstones
        ]
        await db.executemany(QUERIES["add_tombstone"], rows)


async def _put_group(
    db: Any, group: bytes, now: Group | EndedGroup, before: KeyMap[str, tuple[str, ...]] | None
) -> None:
    """`before`: the members in the table; None: not known."""
    if isinstance(now, EndedGroup):
        await db.execute(QUERIES["drop_members"], group, [], [])
        ended = {"guarded": not now.is_public, "hidden": True, "ended": True}
        await db.execute(QUERIES["put_group"], group, *ended.values())
        await db.execute(QUERIES["drop_former_members"], group)
        keys = [bytes.fromhex(key) for key in sorted(now.members)]
        await db.execute(QUERIES["put_former_members"], group, keys)
        return
    here = {"guarded": now.only_members_read, "hidden": now.is_hidden, "ended": False}
    await db.execute(QUERIES["put_group"], group, *here.values())
    members = now.members
    if members is before:
        return
    if before is None:
        changed = sorted(members)
        rows = columns([(bytes.fromhex(key), now.is_moderated_by(key)) for key in changed], 2)
        await db.execute(QUERIES["drop_members"], group, *rows)  # most stay as they are
    else:
        differing = sorted(members.differing(before))
        changed = [key for key in differing if key in members]
        rows = columns([(bytes.fromhex(key), now.is_moderated_by(key)) for key in changed], 2)
        gone = [bytes.fromhex(key) for key in differing if key not in members]
        await db.execute(QUERIES["drop_some_members"], group, [*gone, *rows[0]])
    await db.execute(QUERIES["put_members"], group, *rows)
