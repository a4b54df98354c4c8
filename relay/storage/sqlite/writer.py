"""Writer: the one connection that changes the file, on a thread of its own.

A batch is one transaction: look up, decide, apply. It inserts many rows per statement, so that
SQLite runs without the GIL for the whole of each.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from math import inf
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.errors import StoreFault, TookTooLong
from relay.groups.group import EndedGroup
from relay.lifecycle.deletion import (
    BAN,
    event_target,
    tombstone_of_id,
    tombstones_of_author,
    tombstones_of_ended,
)
from relay.lifecycle.rows import (
    ERASURE_DAYS,
    LONG_EXPIRED,
    Found,
    Keep,
    Lookups,
    Stored,
    Tombstone,
    Vanish,
    WritePlan,
    slot_of,
)
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.storage.hashes import Hashes, id_key
from relay.storage.rows import (
    FOUND_BY_KEY,
    Growth,
    PreparedColumns,
    check_vanish,
    erasure_of,
    event_in,
    records_to_sweep,
)
from relay.storage.sqlite.kind_classes import kind_class
from relay.storage.sqlite.lookups import Finder, key_of
from relay.storage.sqlite.partition_moves import PartitionMoves
from relay.storage.sqlite.partitions import FIRST_ROW, UNPARTITIONED
from relay.storage.sqlite.sql.named import QUERIES
from relay.storage.sqlite.sql.writes import chunks, insert
from relay.storage.sqlite.work_thread import WorkClock

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Container,
        Iterable,
        Mapping,
        Sequence,
    )

    from relay.groups.group import Group
    from relay.groups.key_map import KeyMap
    from relay.nostr.erasure import Erasure
    from relay.nostr.event import Event
    from relay.storage.checking import CheckedRow
    from relay.storage.sqlite.readable_rows import ReadableRows
    from relay.storage.sqlite.row_cache import RowCache
    from relay.storage.sqlite.sql.conditions import Value
    from relay.storage.sqlite.sql.sweep import SweepQueries
    from relay.storage.sqlite.tag_buffer import TagBuffer
    from relay.storage.sqlite.tag_kinds import TagRow

_INSERT_ROWS: Final = (256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Rows per INSERT. Each statement releases the GIL and waits for it again, so few of them should do
for any number of rows, with few distinct texts to prepare."""
_INSERT_BYTES: Final = 1 << 20
"""Bytes of the texts in one INSERT of several rows: the statement keeps them until its next use."""
_EVENT_COLUMNS: Final = 15
_OLD_COLUMNS: Final = 13
_TAG_COLUMNS: Final = 6
_SIZE_COLUMNS: Final = 5
_DELETE_CHUNK: Final = 10_000
_TAGS_AT_ONCE: Final = 10_000
"""Index rows of deleted events that are kept in memory, 150 bytes each: an event may have 5,000."""
_INCREMENTAL: Final = 2
_DAY_S: Final = 86_400
_MAX_INT: Final = 2**63 - 1
_PROGRESS_STEPS: Final = 1_000_000
"""Instructions of SQLite between two looks at the time, 10 to 100 ms."""
_KEPT_FREE_PAGES: Final = 64
_VACUUM_PAGES: Final = 256

_Columns = tuple[tuple[bytes, int, bytes, int, int, int], str, set[int]]
"""What follows from the event alone: id to created_at, `d`, hashes of its tags."""
_SizeKey = tuple[bytes, int, str]
"""pubkey, kind, group or empty."""


@dataclass(slots=True)
class _Change(Growth[_SizeKey]):
    """What one transaction changes in memory once it is committed."""

    head: int = 0
    tags: list[TagRow] = field(default_factory=list)
    """Tags of the new rows."""
    partitions: dict[int, int] = field(default_factory=dict)
    """seq → partition, of new rows that have one."""
    guarded: dict[str, int] = field(default_factory=dict)
    """Group that was made guarded, or open → its partition, or 0."""
    flushed: int = 0
    """Length of the slice of the tag buffer."""
    deleted: set[int] = field(default_factory=set)
    """seq of deleted rows, also of those that became old versions."""
    expired: set[int] = field(default_factory=set)
    """seq of rows that are LONG_EXPIRED now."""
    has_moves: bool = False
    """Rows are in the wrong partition now."""
    moved: set[int] = field(default_factory=set)
    """seq of rows that are now of a group."""
    regroups: bool = False
    """The tables about groups changed."""
    forgets_versions: bool = False
    """An old version was deleted."""
    erases: bool = False
    """A row was deleted, or another text replaced."""


class _FilesInPlace:
    """The store's file and its log are the ones that were opened.

    Otherwise SQLite would go on writing to files that nobody can open again.
    """

    def __init__(self, path: Path) -> None:
        self._opened = {file: _inode(file) for file in (f"{path}", f"{path}-wal")}

    def check(self) -> None:
        """Raises StoreFault."""
        for file, inode in self._opened.items():
            if inode is not None and _inode(file) != inode:
                raise StoreFault(f"{file} was removed or replaced: restart the relay")


def _inode(file: str) -> tuple[int, int] | None:
    try:
        about = os.stat(file)
    except OSError:
        return None
    return about.st_dev, about.st_ino


class Writer:
    """One batch at a time; only `prepared` may be added to on other threads."""

    def __init__(
        self,
        db: sqlite3.Connection,
        hashes: Hashes,
        index_tags: frozenset[str],
        head: int,
        tag_buffer: TagBuffer,
        row_cache: RowCache,
        readable_rows: ReadableRows,
        forget: Callable[[set[int]], None],
        sweeping: SweepQueries,
    ) -> None:
        """`forget` gets the seqs of deleted rows, after the commit."""
        self._db = db
        self._hashes = hashes
        self._index_tags = index_tags
        self._tag_buffer = tag_buffer
        self._row_cache = row_cache
        self._readable_rows = readable_rows
        self._forget = forget
        self._finder = Finder(db, hashes, tag_buffer, sweeping)
        self.prepared = PreparedColumns(self._columns_of)
        self.head = head
        """seq of the newest row ever committed."""
        self.commits = 0
        """How many commits have changed what a query may find."""
        self.group_changes = 0
        """Goes up before and after each commit that changes what read rules need of groups."""
        self._guarded: dict[str, int] = {
            group: hashes.partition(group) for (group,) in db.execute(QUERIES["guarded_groups"])
        }
        """group → partition"""
        self._moves = PartitionMoves(db, hashes, index_tags, self._guarded)
        self.erasures = 0
        """How many transactions deleted or replaced a text; also those that failed, and one that is
        being committed."""
        self.requests: list[str] = []
        """Requests of `WritePlan.erasures` that have deleted something since the store last took
        them from here."""
        store = Path(db.execute("PRAGMA database_list").fetchone()[2])
        self.check_files = _FilesInPlace(store).check
        """Raises StoreFault when other files are in their places."""
        self._work = WorkClock()
        """Work of the current transaction."""
        self._until = inf
        """Seconds of `_work` after which its statements are interrupted."""
        db.set_progress_handler(self._is_over, _PROGRESS_STEPS)
        self._can_shrink = db.execute("PRAGMA auto_vacuum").fetchone()[0] == _INCREMENTAL

    def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        """As `Appender.append`. Raises StoreFault, sqlite3.Error."""
        db = self._db
        self.check_files()
        db.execute("BEGIN IMMEDIATE")
        self._work = WorkClock()
        if lookups.longest_s is not None:
            self._until = lookups.longest_s
        try:
            change = self._change(lookups, decide)
            self._until = inf
            if change is not None and change.regroups:
                self.group_changes += 1
            db.execute("ROLLBACK" if change is None else "COMMIT")
        except BaseException as error:
            self._until = inf
            if db.in_transaction:
                db.execute("ROLLBACK")
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise TookTooLong from error
            raise
        if change is not None:
            self.commits += 1
            self._committed(change)
        return self.head

    def _is_over(self) -> bool:
        return self._work.seconds > self._until

    def _check_time(self) -> None:
        """Between statements: one that waits for the disk has few instructions."""
        if self._is_over():
            raise TookTooLong

    def _change(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> _Change | None:
        """The work of the transaction; None: nothing changes."""
        change = _Change()
        found = self._finder.found(lookups, self.head)
        self._check_time()
        before, began = found.last_seq, self._work.seconds
        plan = decide(found)
        self._until += self._work.seconds - began
        if plan.is_empty() and found.last_seq == before:
            return None
        change.head = found.last_seq
        self._apply(plan, change)
        self._flush_slice(change, len(change.tags))
        self._put_erasures(plan)
        # Before the commit: whoever sees the deletion sees that it is not erased yet.
        self.erasures += change.erases
        if self._db.execute(QUERIES["newest_seq"]).fetchone()[0] != found.last_seq:
            # The newest row was deleted, now or before; its seq must not be used again.
            self._db.execute(QUERIES["put_meta"], ("head", found.last_seq))
        return change

    def _committed(self, change: _Change) -> None:
        """After the commit. `head` comes last: whoever reads up to it finds all tags."""
        self.group_changes += change.regroups
        for group_id, partition in change.guarded.items():
            if partition:
                self._guarded[group_id] = partition
            else:
                del self._guarded[group_id]
        self._tag_buffer.rows_deleted(change.deleted)
        if change.deleted:
            self._row_cache.discard(change.deleted)
        self._readable_rows.changed(
            change.deleted | change.expired | change.moved, groups=change.regroups
        )
        self._forget(change.deleted)
        self._tag_buffer.slice_flushed(change.flushed)
        kept = [row for row in change.tags if row[4] not in change.deleted]
        self._tag_buffer.add(kept, change.partitions)
        self.head = change.head
        if change.has_moves:
            self._moves.note_committed()

    def _newest(self, p: int, change: _Change) -> str:
        """FOUND_BY_KEY rows with this tag that the table may lack, as JSON."""
        seqs = self._tag_buffer.seqs_of([p], FOUND_BY_KEY)
        return orjson.dumps([*seqs, *(row[4] for row in change.tags if row[0] == p)]).decode()

    def flush_some(self) -> int:
        """Flush a slice of the tag buffer, in a transaction of its own: how many tags; 0: it is
        empty.

        Tag queries look at each row of the buffer that has the tag, however few they ask for.
        """
        self._tag_buffer.start_flush()
        if not len(self._tag_buffer):
            return 0
        change = _Change(head=self.head)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._flush_slice(change)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._committed(change)
        return change.flushed

    @property
    def has_moves(self) -> bool:
        """Whether rows may have to be moved to another partition."""
        return self._moves.are_left

    @property
    def closed(self) -> str:
        """As `PartitionMoves.closed`."""
        return self._moves.closed

    def repartition(self) -> bool:
        """Move some rows to the partitions that they belong into, or flush some of their tags, in a
        transaction of its own. False: there are none."""
        db, upto = self._db, self._tag_buffer.flushed_upto
        db.execute("BEGIN IMMEDIATE")
        try:
            tags = self._moves.move_some(_MAX_INT if upto is None else upto)
            with self._tag_buffer.kinds.moving(tags or ()):
                db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._moves.note_moved()
        return tags is not None or (self.has_moves and self.flush_some() > 0)

    def _flush_slice(self, change: _Change, new_rows: int | None = None) -> None:
        """Insert a slice of the tag buffer in this transaction. `new_rows`: tags that its batch
        adds; None: it has no batch."""
        tag_buffer = self._tag_buffer
        due = tag_buffer.next_slice(new_rows)
        change.flushed = len(due)
        kept = [row for row in tag_buffer.without_deleted(due) if row[4] not in change.deleted]
        # By the clock: what takes long is to wait for the pages of the disk.
        began = perf_counter()
        self._insert("tags", _TAG_COLUMNS, kept)
        tag_buffer.slice_took(perf_counter() - began)
        upto = tag_buffer.complete_upto(len(due))
        if upto is not None:
            self._db.execute(QUERIES["put_meta"], ("tags_upto", upto))

    def _apply(self, plan: WritePlan, change: _Change) -> None:
        db = self._db
        change.moved.update(plan.moves)
        change.regroups = bool(plan.groups or plan.left_ended or plan.deleted_groups)
        self._move(plan.moves, change)
        self._delete(plan.removes, change, kept=plan.replaced)
        self._expire(plan.expired, change)
        change.tags = self._add(list(plan.adds.values()), change)
        if plan.replaced:
            self._keep_replaced(plan, change)
        if plan.forgotten or plan.dropped_versions or plan.version_deadlines:
            self._forget_named(plan, change)
        for request, seqs in plan.leaving.items():
            keep_out = tombstones_of_ended if request in plan.ending else None
            self._delete_many(seqs, change, plan.erasures.get(request), keep_out)
        for group_id in plan.deleted_groups:
            rows = db.execute(QUERIES["rows_of_group"], {"grp": group_id}).fetchall()
            late = records_to_sweep(rows)
            seqs = [seq for seq, *_ in rows if seq not in late]
            self._delete_many(seqs, change, keep_out=tombstones_of_ended)
            self._expire(late, change)
            self._forget_found(change, "old_of_group", {"grp": group_id})
        for gone in plan.vanishes:
            self._delete_of_key(gone, change, plan.erasures.get(gone.request))
        for pubkey, upto in plan.deleted_authors.items():
            self._ban(pubkey, upto, change)
        self._put_sizes(change.sizes)
        self._put_received(change.received)
        self._add_tombstones(plan.tombstones)
        for pubkey, ended in plan.left_ended.items():
            left = bytes.fromhex(pubkey), orjson.dumps(list(ended)).decode()
            db.execute(QUERIES["drop_former_member"], left)
        for group_id, group in plan.groups.items():
            self._put_group(group_id, group, plan.members_before.get(group_id), change)
        change.erases = bool(
            change.deleted - plan.replaced.keys() or change.forgets_versions or plan.list_changes
        )
        for noted in plan.list_changes:
            if noted.note is None:
                db.execute(QUERIES["drop_entry"], (noted.list_name, noted.item))
            else:
                db.execute(QUERIES["put_entry"], (noted.list_name, noted.item, noted.note))

    def _expire(self, seqs: Collection[int], change: _Change) -> None:
        if seqs:
            named = orjson.dumps(sorted(seqs)).decode()
            self._db.execute(QUERIES["expire_rows"], {"at": LONG_EXPIRED, "seqs": named})
            change.expired.update(seqs)

    def _move(self, moves: Mapping[int, str], change: _Change) -> None:
        if not moves:
            return
        named = orjson.dumps(list(moves)).decode()
        rows = self._db.execute(QUERIES["raws_by_seq"], {"seqs": named}).fetchall()
        for seq, _, _, pubkey, kind, grp, raw, *_ in rows:
            change.grow((pubkey, kind, grp), -1, -len(raw))
            change.grow((pubkey, kind, moves[seq]), 1, len(raw))
            if moves[seq] in self._guarded and kind not in UNPARTITIONED:
                after = moves[seq], kind, seq - 1, change.head
                self._db.execute(QUERIES["move_group"], after)
                change.has_moves = True
        self._db.executemany(QUERIES["move_event"], [(grp, seq) for seq, grp in moves.items()])

    def _add_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        """Insert in the order of the table, so that neighbours are on the same pages."""
        self._db.executemany(
            QUERIES["add_tombstone"],
            [
                (t.target, t.by, t.until, t.why, t.request)
                for t in sorted(tombstones, key=attrgetter("target"))
            ],
        )

    def _columns_of(self, event: Event) -> _Columns:
        return (
            (
                bytes.fromhex(event.id),
                id_key(event.id),
                *_columns_of_key(event.pubkey),
                event.kind,
                event.created_at,
            ),
            event.d,
            self._hashes.of_event(event, self._index_tags),
        )

    def _add(self, rows: list[Stored], change: _Change) -> list[TagRow]:
        """Insert the rows; gives their tags, sorted."""
        events: list[tuple[Value, ...]] = []
        tags: list[TagRow] = []
        guarded = self._guarded
        for row in rows:
            event, seq = row.event, row.seq
            found = self.prepared.by_id.pop(event.id, None)
            columns, d, hashes = self._columns_of(event) if found is None else found
            _, key, pubkey, _, kind, at = columns
            slot = None if row.slot is None else self._hashes.slot(*row.slot)
            partition = 0
            if row.group in guarded and kind not in UNPARTITIONED:
                partition = change.partitions[seq] = guarded[row.group]
                hashes = {hash_ ^ partition for hash_ in hashes}
            events.append(
                (
                    seq,
                    *columns,
                    row.group,
                    d,
                    slot,
                    row.version,
                    row.expires_at,
                    row.quiet,
                    event.raw,
                    partition,
                )
            )
            class_ = kind_class(kind)
            for hash_ in hashes:
                tags.append((hash_, class_, at, key, seq, row.expires_at))  # noqa: PERF401
            change.grow((pubkey, kind, row.group or ""), 1, len(event.raw))
            if kind == kinds.GIFT_WRAP:
                change.grow_received(event, 1)
        self._insert_texts("events", _EVENT_COLUMNS, events, -2)
        tags.sort()
        return tags

    def _insert_texts(
        self, table: str, columns: int, rows: Sequence[tuple[Any, ...]], raw: int
    ) -> None:
        """`_insert` in parts of `_INSERT_BYTES`; `raw`: index of the column with the texts."""
        start = weight = 0
        for at, row in enumerate(rows):
            weight += len(row[raw])
            if weight > _INSERT_BYTES:
                self._insert(table, columns, rows[start:at])
                start, weight = at, len(row[raw])
        self._insert(table, columns, rows[start:])

    def _insert(self, table: str, columns: int, rows: Sequence[tuple[Value, ...]]) -> None:
        db = self._db
        for start, size in chunks(len(rows), _INSERT_ROWS):
            self._check_time()
            values = list(chain.from_iterable(rows[start : start + size]))
            db.execute(insert(table, columns, size), values)

    def _keep_replaced(self, plan: WritePlan, change: _Change) -> None:
        """Insert replaced rows as old versions, and delete old versions above the kept number."""
        rows: list[tuple[Value, ...]] = []
        slots: dict[int, set[int]] = {}
        for seq, (row, at, drop_at, most) in plan.replaced.items():
            event = row.event
            assert row.slot is not None
            kept = (bytes.fromhex(event.id), bytes.fromhex(event.pubkey), event.kind)
            slot = self._hashes.slot(*row.slot)
            slots.setdefault(most, set()).add(slot)
            rows.append(
                (
                    seq,
                    *kept,
                    event.created_at,
                    row.group,
                    slot,
                    row.version,
                    row.expires_at,
                    row.quiet,
                    at,
                    drop_at,
                    event.raw,
                )
            )
            if seq not in plan.removes:  # replaced by the batch that brought it
                change.grow((kept[1], kept[2], row.group or ""), 1, len(event.raw))
        self._insert_texts("old_versions", _OLD_COLUMNS, rows, -1)
        for most, these in slots.items():
            listed = orjson.dumps([*these]).decode()
            self._forget_found(change, "old_over_number", {"slots": listed, "kept": most})

    def _forget_named(self, plan: WritePlan, change: _Change) -> None:
        has_any = plan.forgotten and self._db.execute(QUERIES["has_old"]).fetchone()
        for upto, slot, id_, by, until, cause, group in plan.forgotten if has_any else ():
            if slot is not None:
                by = slot.pubkey
            wanted: dict[str, Value] = {
                "slot": None if slot is None else self._hashes.slot(*slot),
                "id": None if id_ is None else bytes.fromhex(id_),
                "upto": upto,
                "by": None if by is None else bytes.fromhex(by),
                "until": until,
                "grp": group,
            }
            erasure = plan.erasure_of_versions(cause)
            gone = self._forget_found(change, "old_named", wanted, erasure)
            if cause is not None:
                self._add_tombstones(
                    [Tombstone(event_target(each), cause.by, None, cause.why) for each in gone]
                )
        dropped = {"seqs": orjson.dumps(list(plan.dropped_versions)).decode()}
        if plan.dropped_versions:
            self._forget_found(change, "old_by_seq", dropped)
        deadlines = [(at, seq) for seq, at in plan.version_deadlines.items()]
        self._db.executemany(QUERIES["set_drop_at"], deadlines)

    def _forget_found(
        self,
        change: _Change,
        name: str,
        values: Mapping[str, Value] | tuple[Value, ...],
        erasure: Erasure | None = None,
    ) -> list[str]:
        """Delete the old versions that this query gives; their ids."""
        found = self._db.execute(QUERIES[name], values).fetchall()
        if not found:
            return []
        ids = []
        for _, id_, pubkey, kind, grp, size in sorted(found):
            change.grow((pubkey, kind, grp), -1, -size)
            ids.append(id_.hex())
            if erasure is not None:
                erasure.add(ids[-1], kind)
        seqs = orjson.dumps([row[0] for row in found]).decode()
        self._db.execute(QUERIES["delete_old"], (seqs,))
        change.forgets_versions = True
        return ids

    def _forget_of_key(
        self,
        pubkey: str,
        until: int,
        upto: int,
        change: _Change,
        erasure: Erasure | None = None,
    ) -> list[str]:
        """`until`: created_at; `upto`: seq."""
        named: dict[str, Value] = {"pubkey": bytes.fromhex(pubkey), "until": until, "upto": upto}
        return self._forget_found(change, "old_of_key", named, erasure)

    def _delete(
        self,
        seqs: Collection[int],
        change: _Change,
        erasure: Erasure | None = None,
        kept: Container[int] = (),
        keep_out: Callable[[Stored], Iterable[Tombstone]] | None = None,
    ) -> None:
        """`kept`: seq of rows that become old versions; `keep_out`: makes a row's tombstones."""
        if not seqs:
            return
        db = self._db
        named = orjson.dumps(sorted(seqs)).decode()
        tags: list[tuple[int, int, int, int, int]] = []
        stones: list[Tombstone] = []
        found = db.execute(QUERIES["raws_by_seq"], {"seqs": named})
        for seq, created_at, key, *of, raw, has_slot, version, partition in found:
            event = event_from_raw(raw)
            if seq not in kept:
                change.grow(tuple(of), -1, -len(raw))
                change.grow_received(event, -1)
            class_ = kind_class(event.kind)
            tags += [
                (hash_ ^ partition, class_, created_at, key, seq)
                for hash_ in self._hashes.of_event(event, self._index_tags)
            ]
            if len(tags) > _TAGS_AT_ONCE:
                db.executemany(QUERIES["delete_tag"], tags)
                tags.clear()
            if erasure is not None:
                erasure.add(event.id, event.kind)
            if keep_out is not None:
                slot = slot_of(event, Keep.LATEST) if has_slot else None
                stones += keep_out(Stored(seq, event, of[2] or None, slot=slot, version=version))
        self._add_tombstones(stones)
        db.executemany(QUERIES["delete_tag"], tags)
        db.execute(QUERIES["delete_events"], {"seqs": named})
        change.deleted.update(seqs)

    def _put_sizes(self, sizes: Mapping[_SizeKey, list[int]]) -> None:
        """Insert in the order of the table, so that neighbours are on the same pages."""
        grown: list[tuple[Value, ...]] = [
            (*key, *growth) for key, growth in sorted(sizes.items()) if any(growth)
        ]
        self._insert("sizes", _SIZE_COLUMNS, grown)
        emptied = [key for key, (events, _) in sizes.items() if events < 0]
        if emptied:
            self._db.executemany(QUERIES["drop_empty_size"], emptied)

    def _put_received(self, received: Mapping[str, list[int]]) -> None:
        if not received:
            return
        grown = [(recipient, *growth) for recipient, growth in sorted(received.items())]
        self._db.executemany(QUERIES["add_received"], grown)
        self._db.executemany(QUERIES["drop_empty_received"], [(name,) for name in received])

    def _put_erasures(self, plan: WritePlan) -> None:
        noted = [erasure for erasure in plan.erasures.values() if erasure.total]
        for each in noted:
            request = bytes.fromhex(each.request)
            earlier = self._db.execute(QUERIES["erasure"], (request,)).fetchone()
            if earlier is not None:
                each.add_earlier(erasure_of(each.request, earlier))
            self._db.execute(
                QUERIES["add_erasure"],
                (
                    request,
                    bytes.fromhex(each.by),
                    each.kind,
                    each.at,
                    orjson.dumps(list(each.numbers.items())).decode(),
                    orjson.dumps(each.ids).decode(),
                ),
            )
        self.requests += [each.request for each in noted]
        if noted:
            oldest = noted[-1].at - ERASURE_DAYS * _DAY_S
            self._db.execute(QUERIES["drop_erasures"], (oldest,))

    def _delete_of_key(self, gone: Vanish, change: _Change, erasure: Erasure | None) -> None:
        p = self._hashes.tag("p", gone.pubkey)
        asked = {
            **key_of(gone.pubkey),
            "p": p,
            "until": gone.until,
            "upto": gone.upto,
            "newest": self._newest(p, change),
        }
        check_vanish(self._db.execute(QUERIES["leaving_of_key"], asked), gone)
        found = self._db.execute(QUERIES["rows_of_key"], asked)
        self._delete_many([seq for (seq,) in found.fetchall()], change, erasure)
        self._forget_of_key(gone.pubkey, gone.until, _MAX_INT, change, erasure)

    def _ban(self, pubkey: str, upto: int, change: _Change) -> None:
        rows = self._db.execute(QUERIES["rows_to_ban"], {**key_of(pubkey), "upto": upto}).fetchall()
        gone = self._forget_of_key(pubkey, _MAX_INT, upto, change)
        self._delete_many([seq for (seq,) in rows], change, keep_out=tombstones_of_author)
        self._add_tombstones([tombstone_of_id(event_id, BAN) for event_id in gone])

    def _delete_many(
        self,
        seqs: Sequence[int],
        change: _Change,
        erasure: Erasure | None = None,
        keep_out: Callable[[Stored], Iterable[Tombstone]] | None = None,
    ) -> None:
        """Delete rows with their old versions, in chunks: a key may have written most of the store.
        `seqs`: also of old versions whose rows stay. `keep_out`: as in `_delete`."""
        seqs = sorted(seqs)
        for start in range(0, len(seqs), _DELETE_CHUNK):
            self._check_time()
            chunk = seqs[start : start + _DELETE_CHUNK]
            named = {"seqs": orjson.dumps(chunk).decode()}
            self._forget_found(change, "old_of_rows", named, erasure)
            self._forget_found(change, "old_by_seq", named, erasure)
            self._delete(chunk, change, erasure, keep_out=keep_out)

    def _put_group(
        self,
        group_id: str,
        group: Group | EndedGroup,
        before: KeyMap[str, tuple[str, ...]] | None,
        change: _Change,
    ) -> None:
        """`before`: the members in the table; None: not known."""
        db = self._db
        if isinstance(group, EndedGroup):
            db.execute(QUERIES["drop_members"], (group_id,))
            flags = not group.is_public, True, True
            db.execute(QUERIES["put_group"], self._noted(group_id, flags, change))
            db.execute(QUERIES["drop_former_members"], (group_id,))
            db.executemany(
                QUERIES["put_former_member"],
                [(bytes.fromhex(key), group_id) for key in sorted(group.members)],
            )
            return
        flags = group.only_members_read, group.is_hidden, False
        db.execute(QUERIES["put_group"], self._noted(group_id, flags, change))
        members = group.members
        if members is before:
            return
        stored: Collection[str]
        if before is None:
            found = db.execute(QUERIES["members_of_group"], (group_id,)).fetchall()
            stored = admins = {pubkey.hex(): admin for pubkey, admin in found}
            changed = [key for key in members if admins.get(key) != group.is_moderated_by(key)]
        else:
            differing = sorted(members.differing(before))
            stored = [key for key in differing if key in before]
            changed = [key for key in differing if key in members]
        gone = [(bytes.fromhex(key), group_id) for key in stored if key not in members]
        db.executemany(QUERIES["drop_member"], gone)
        db.executemany(
            QUERIES["put_member"],
            [(bytes.fromhex(key), group_id, group.is_moderated_by(key)) for key in changed],
        )

    def _noted(
        self, group_id: str, flags: tuple[bool, bool, bool], change: _Change
    ) -> tuple[Value, ...]:
        """The values for `put_group`. `flags`: guarded, hidden, ended. Has the rows of the group
        moved if its partition changes: an ended one has records only, which have none."""
        is_guarded, _, is_ended = flags
        partition = self._hashes.partition(group_id) if is_guarded and not is_ended else 0
        if partition != self._guarded.get(group_id, 0):
            change.guarded[group_id] = partition
            asked = {"grp": group_id, "most": 1}
            if self._db.execute(QUERIES["rows_in_group"], asked).fetchone()[0]:
                self._db.execute(QUERIES["move_group"], (group_id, *FIRST_ROW, change.head))
                change.has_moves = True
            else:  # most are new, and nothing is flushed for them
                self._db.execute(QUERIES["set_partition"], (None, group_id))
        return group_id, *flags, partition or None

    def tags_of(self, rows: Sequence[CheckedRow]) -> str:
        """[[hash, class of kind, created_at, id_key, seq]] of all tags of rows, as JSON; on any
        thread."""
        tags = [
            (hash_, kind_class(row[3]), row[4], row[2], row[0])
            for row in rows
            for hash_ in self._hashes.of_event(event_in(row[-1]), self._index_tags)
        ]
        return orjson.dumps(tags).decode()

    def buffered_seqs(self, hashes: Sequence[int]) -> list[int]:
        """As `Snapshot.seqs_of_any`."""
        return self._tag_buffer.snapshot().seqs_of_any(hashes)

    def touch(self) -> None:
        """Write something harmless. Raises StoreFault or sqlite3.Error when that cannot be done."""
        self.check_files()
        self._db.execute(QUERIES["put_meta"], ("checked", self.head))

    def give_back(self) -> int:
        """Give some free pages back to the file system; how many."""
        if not self._can_shrink:
            return 0
        free: int = self._db.execute("PRAGMA freelist_count").fetchone()[0]
        pages = min(max(free - _KEPT_FREE_PAGES, 0), _VACUUM_PAGES)
        if pages:
            self._db.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
        return pages

    def finish(self) -> None:
        """Flush, checkpoint and close."""
        db = self._db
        # Disk full, or other files in their places: the next start makes up for it.
        with contextlib.suppress(sqlite3.Error, StoreFault):
            self.check_files()
            upto = db.execute(QUERIES["get_meta"], ("tags_upto",)).fetchone()
            # Also for rows without tags: the next start would read them all.
            if len(self._tag_buffer) or upto != (self.head,):
                db.execute("BEGIN IMMEDIATE")
                tag_buffer = self._tag_buffer
                left = tag_buffer.without_deleted(tag_buffer.all_rows())
                self._insert("tags", _TAG_COLUMNS, left)
                db.execute(QUERIES["put_meta"], ("tags_upto", self.head))
                db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        db.close()


@lru_cache(4096)
def _columns_of_key(pubkey: str) -> tuple[bytes, int]:
    return bytes.fromhex(pubkey), id_key(pubkey)
