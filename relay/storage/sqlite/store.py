"""SqliteStore: one file, one writer thread, reads on the loop as long as they are short.

The writer is a plain connection on a thread of its own, since a batch must be one trip to a thread
(DESIGN §7) and a batch is a Python decision between two halves of one transaction. Rows of a batch
go in by statements of many rows, so that SQLite runs without the GIL for the whole of each. Short
reads run on the loop thread (a hand-over costs more than they do); a budget cuts them off, and they
begin again on a reader thread. Checkpoints run beside the writer, so that no commit waits for one.
The tags of the newest rows are in memory (`tail.py`): their index is what a commit costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from relay.errors import RookeryError, StoreFault, StoreVersion
from relay.nostr.event import event_from_raw
from relay.nostr.kinds import KindClass, class_of
from relay.retention import Found, Slot, Stored, Tombstone, Vanish, Wanted, WritePlan
from relay.storage import PAGE_BYTES, Features, Page, Place
from relay.storage.sql import Compiler, Hashes, chunks, id_key, named_queries
from relay.storage.sqlite.tail import GENERATION, TagTail

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from relay.groups.group import Group
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter, FilterTerms
    from relay.storage.sql import Query, Value
    from relay.storage.sqlite.tail import TagRow
    from relay.visibility import Visibility

T = TypeVar("T")

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x526F6F6B  # "Rook"
_RUNS: Final = (256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Rows of one INSERT. Each statement gives the interpreter away and waits for it again: few of them
for any number of rows, from few texts."""
_EVENT_COLUMNS: Final = 14
_TAG_COLUMNS: Final = 5
_MMAP_BYTES: Final = 1 << 30
_CACHE_KIB: Final = 65_536
_PATIENCE_S: Final = 0.05
"""How long a read that waits for the disk may hold the loop thread."""
_BUDGET_LOOKS: Final = 10
"""How much work it may be: so many times `_BUDGET_STEPS`, about 5 ms."""
_BUDGET_STEPS: Final = 20_000
"""Steps of SQLite's machine between two looks at it: about half a millisecond."""
_ROWS_AT_FIRST: Final = 4
_ROWS_AT_ONCE: Final = 100
_REMOVED_AT_ONCE: Final = 10_000
_CHECKPOINT_BYTES: Final = 128 << 20
_STOP_AND_CHECKPOINT_BYTES: Final = 1 << 30
_STATEMENTS: Final = 512
_FORESEEN_AT_MOST: Final = 20_000

_Columns = tuple[
    tuple[bytes, int, bytes, int, int, int], str, list[tuple[int, int, int, int]]
]
"""What an event alone says of its rows: id to created_at, `d`, (hash, created_at, id_key, kind)."""


@dataclass(slots=True)
class _Change:
    """One transaction, as far as it concerns the tail of tags."""

    whole: bool
    """The tag table is brought up to date in it."""
    head: int = 0
    tags: list[TagRow] = field(default_factory=list)
    """Of its new rows."""
    sunk: int = 0
    """Rows of the tail that went to the file."""
    gone: set[int] = field(default_factory=set)
    """seq of deleted rows."""


class SqliteStore:
    """The Store port on one SQLite file in WAL mode."""

    features = Features(search=False, shared=False)

    def __init__(
        self, path: Path, writer: sqlite3.Connection, hashes: Hashes, terms: FilterTerms,
        head: int, tail: TagTail,
    ) -> None:  # fmt: skip
        """Use `open`."""
        self._path = path
        self._wal = f"{path}-wal"
        self._hashes = hashes
        self._index_tags = terms.index_tags
        self._tail = tail
        self._compiler = Compiler(hashes, terms.index_tags, tail.seqs_of)
        self._head = head
        self._writer = writer
        self._writing = ThreadPoolExecutor(1, "store-writer")
        self._reading = ThreadPoolExecutor(1, "store-reader")
        self._checkpointing = ThreadPoolExecutor(1, "store-checkpoint")
        self._near = _reader(path)
        self._far = _reader(path)
        self._tidy = _connection(path)
        self._checkpoint: asyncio.Future[None] | None = None
        self._closed = False
        self._prepared: dict[str, _Columns] = {}
        self._looks = 0
        self._patience_ends = 0.0
        self._near.set_progress_handler(self._is_late, _BUDGET_STEPS)

    @classmethod
    async def open(
        cls, path: Path, terms: FilterTerms, *, synchronous: str = "FULL",
        generation: int = GENERATION,
    ) -> SqliteStore:  # fmt: skip
        """Open or make the file. Raises StoreVersion for one of another version or program.

        `generation`: tag rows that gather in memory before they go to their index.
        """
        writer, hashes, head = await asyncio.to_thread(_opened, path, terms, synchronous)
        tail = TagTail(generation)
        try:
            await asyncio.to_thread(_gather, writer, hashes, terms, tail)
            return cls(path, writer, hashes, terms, head, tail)
        except sqlite3.Error as error:
            writer.close()
            raise _fault(error) from error

    # -- writing --------------------------------------------------------------------------------

    async def append(self, wanted: Wanted, decide: Callable[[Found], WritePlan]) -> int:
        self._check_open()
        head = await self._on(self._writing, self._append, wanted, decide)
        self._tend_wal()
        return head

    def _append(self, wanted: Wanted, decide: Callable[[Found], WritePlan]) -> int:
        db = self._writer
        db.execute("BEGIN IMMEDIATE")
        try:
            change = self._change(wanted, decide)
            db.execute("ROLLBACK" if change is None else "COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        if change is not None:
            self._note(change)
        return self._head

    def _change(self, wanted: Wanted, decide: Callable[[Found], WritePlan]) -> _Change | None:
        """One transaction's work; None: nothing changes."""
        change = _Change(whole=bool(wanted.vanishing))
        if change.whole:
            self._write_tail()
        found = self._found(wanted)
        before = found.head
        plan = decide(found)
        if plan.is_empty() and found.head == before:
            return None
        change.head = found.head
        if not change.whole and (plan.ends or plan.vanishes):
            change.whole = True
            self._write_tail()
        self._apply(plan, change)
        self._sink(change)
        if self._writer.execute(_Q["newest_seq"]).fetchone()[0] != found.head:
            # The newest row went, now or before; its number must not come back.
            self._writer.execute(_Q["put_meta"], ("head", found.head))
        return change

    def _note(self, change: _Change) -> None:
        """After the commit. `head` last: whoever reads up to it finds all tags."""
        self._tail.forget(change.gone)
        if change.whole:
            self._tail.sank_all()
        else:
            self._tail.sank(change.sunk)
            self._tail.gather(change.tags)
        self._head = change.head

    def _write_tail(self) -> None:
        """What asks the tag table by itself (the end of a group, a vanish) needs all of it."""
        self._insert("tags", _TAG_COLUMNS, self._tail.kept(self._tail.all_due()))

    def _sink(self, change: _Change) -> None:
        """Let a slice of the tail ride on this commit."""
        tail = self._tail
        upto: int | None = change.head
        if not change.whole:
            due = tail.slice_due(len(change.tags))
            change.sunk = len(due)
            kept = [row for row in tail.kept(due) if row[3] not in change.gone]
            self._insert("tags", _TAG_COLUMNS, kept)
            upto = tail.watermark_after(len(due))
        if upto is not None:
            self._writer.execute(_Q["put_meta"], ("tags_upto", upto))

    def _found(self, wanted: Wanted) -> Found:
        found = Found(self._head)
        keys = orjson.dumps([id_key(event_id) for event_id in wanted.ids])
        for row in self._rows("rows_by_id", {"keys": keys.decode()}):
            if row.event.id in wanted.ids:
                found.rows[row.event.id] = row
        if wanted.slots:
            hashed = [self._hashes.slot(*slot) for slot in wanted.slots]
            for row in self._rows("rows_by_slot", {"keys": orjson.dumps(hashed).decode()}):
                if row.slot in wanted.slots:
                    # One object in both: `retention.remove` goes by identity.
                    found.slots[row.slot] = found.rows.setdefault(row.event.id, row)
        if wanted.vanishing or wanted.recorded:
            self._find_records(wanted, found)
        targets = orjson.dumps(list(wanted.tombstones)).decode()
        for stone in self._writer.execute(_Q["tombstones"], {"targets": targets}):
            found.tombstones.setdefault(stone[0], []).append(Tombstone(*stone))
        for group, prefix in wanted.prefixes:
            if self._has_prefix(group, prefix):
                found.prefixes.add((group, prefix))
        for group in wanted.used_groups:
            h = self._hashes.tag("h", group)
            newest = orjson.dumps(self._tail.seqs_of([h])).decode()
            if self._writer.execute(_Q["group_in_use"], {"h": h, "newest": newest}).fetchone():
                found.used_groups.add(group)
        return found

    def _find_records(self, wanted: Wanted, found: Found) -> None:
        groups = set(wanted.recorded)
        for pubkey in wanted.vanishing:
            moderated = self._writer.execute(_Q["groups_moderated"], _key_of(pubkey))
            groups.update(group for (group,) in moderated)
            for row in self._rows("puts_of_key", {"p": self._hashes.tag("p", pubkey)}):
                found.rows.setdefault(row.event.id, row)
        if groups:
            named = orjson.dumps(list(groups)).decode()
            for row in self._rows("records_of_groups", {"groups": named}):
                found.records.append(found.rows.get(row.event.id, row))

    def _rows(self, name: str, values: Mapping[str, Value]) -> list[Stored]:
        return [_stored(row) for row in self._writer.execute(_Q[name], values).fetchall()]

    def _has_prefix(self, group: str, prefix: str) -> bool:
        if not prefix or any(c not in "0123456789abcdef" for c in prefix) or len(prefix) > 64:
            return False
        low, high = id_key(prefix.ljust(16, "0")), id_key(prefix.ljust(16, "f"))
        rows = self._writer.execute(
            _Q["prefix_in_group"], {"low": low, "high": high, "grp": group}
        )
        return any(row[0].hex().startswith(prefix) for row in rows)

    def _apply(self, plan: WritePlan, change: _Change) -> None:
        db = self._writer
        self._remove(plan.removes, change)
        change.tags = self._add(list(plan.adds.values()))
        if change.whole:
            self._insert("tags", _TAG_COLUMNS, change.tags)
        for group_id in plan.ends:
            found = db.execute(
                _Q["rows_of_group"],
                {"h": self._hashes.tag("h", group_id), "d": self._hashes.tag("d", group_id),
                 "grp": group_id},
            )  # fmt: skip
            self._remove({row[0] for row in found.fetchall()}, change)
        for gone in plan.vanishes:
            self._vanish(gone, change)
        if plan.tombstones:
            db.executemany(
                _Q["bury"],
                [(t.target, t.by, t.until, t.why, t.request) for t in plan.tombstones],
            )
        for group_id, group in plan.groups.items():
            self._put_group(group_id, group)

    def foresee(self, events: Sequence[Event]) -> None:
        prepared = self._prepared
        if len(prepared) > _FORESEEN_AT_MOST:
            prepared.clear()  # of events that were refused
        for event in events:
            prepared[event.id] = self._columns_of(event)

    def _columns_of(self, event: Event) -> _Columns:
        key = id_key(event.id)
        at, kind = event.created_at, event.kind
        return (
            (bytes.fromhex(event.id), key, bytes.fromhex(event.pubkey), id_key(event.pubkey),
             kind, at),
            event.d,
            [(hash_, at, key, kind) for hash_ in self._hashes.of_event(event, self._index_tags)],
        )  # fmt: skip

    def _add(self, rows: list[Stored]) -> list[TagRow]:
        """Insert the rows; their tags, sorted, are the caller's to place."""
        events: list[tuple[Value, ...]] = []
        tags: list[TagRow] = []
        for row in rows:
            event, seq = row.event, row.seq
            found = self._prepared.pop(event.id, None)
            columns, d, hashed = self._columns_of(event) if found is None else found
            slot = None if row.slot is None else self._hashes.slot(*row.slot)
            events.append(
                (seq, *columns, row.group, d, slot, row.version, row.expires_at, row.quiet,
                 event.raw)
            )  # fmt: skip
            for hash_, at, key, kind in hashed:
                tags.append((hash_, at, key, seq, kind))
        self._insert("events", _EVENT_COLUMNS, events)
        tags.sort()
        return tags

    def _insert(self, table: str, columns: int, rows: Sequence[tuple[Value, ...]]) -> None:
        db = self._writer
        for start, size in chunks(len(rows), _RUNS):
            values = list(chain.from_iterable(rows[start : start + size]))
            db.execute(_inserting(table, columns, size), values)

    def _remove(self, seqs: Collection[int], change: _Change) -> None:
        if not seqs:
            return
        db = self._writer
        named = orjson.dumps(list(seqs)).decode()
        tags = []
        for seq, created_at, key, raw in db.execute(_Q["raws_by_seq"], {"seqs": named}):
            for hash_ in self._hashes.of_event(event_from_raw(raw), self._index_tags):
                tags.append((hash_, created_at, key, seq))  # noqa: PERF401
        db.executemany(_Q["delete_tag"], tags)
        db.execute(_Q["delete_events"], {"seqs": named})
        change.gone.update(seqs)

    def _vanish(self, gone: Vanish, change: _Change) -> None:
        found = self._writer.execute(
            _Q["rows_of_key"],
            {**_key_of(gone.pubkey), "p": self._hashes.tag("p", gone.pubkey), "until": gone.until},
        )
        seqs = [seq for (seq,) in found.fetchall()]
        # In parts: a key may have written most of the store.
        for start in range(0, len(seqs), _REMOVED_AT_ONCE):
            self._remove(seqs[start : start + _REMOVED_AT_ONCE], change)

    def _put_group(self, group_id: str, group: Group | None) -> None:
        db = self._writer
        db.execute(_Q["drop_members"], (group_id,))
        if group is None:
            db.execute(_Q["put_group"], (group_id, True, True, True))
            return
        db.execute(_Q["put_group"], (group_id, group.is_guarded, group.is_hidden, False))
        db.executemany(
            _Q["put_member"],
            [(bytes.fromhex(key), group_id, group.is_admin(key)) for key in group.members],
        )

    def _tend_wal(self) -> None:
        """Copy a grown log back, beside the writer; in its way only when the log is huge."""
        if self._checkpoint is not None and not self._checkpoint.done():
            return
        try:
            size = os.stat(self._wal).st_size
        except FileNotFoundError:
            return
        if size < _CHECKPOINT_BYTES:
            return
        # A full log is written over only when it was copied whole while no reader stood in it.
        mode = "TRUNCATE" if size > _STOP_AND_CHECKPOINT_BYTES else "PASSIVE"
        loop = asyncio.get_running_loop()
        self._checkpoint = loop.run_in_executor(self._checkpointing, _checkpoint, self._tidy, mode)

    # -- reading --------------------------------------------------------------------------------

    async def page(
        self, filter_: Filter, visibility: Visibility, *,
        limit: int, upto: int, now: int, after: Place | None, size: int,
    ) -> Page:  # fmt: skip
        page = self.page_now(
            filter_, visibility, limit=limit, upto=upto, now=now, after=after, size=size
        )
        if page is not None:
            return page
        query = self._compiler.page(
            filter_, visibility, columns="e.raw", upto=upto, now=now, after=after,
            size=min(size, limit),
        )  # fmt: skip
        raws = await self._on(self._reading, _raws, self._far, query)
        return self._paged(raws, min(size, limit), limit)

    def page_now(
        self, filter_: Filter, visibility: Visibility, *,
        limit: int, upto: int, now: int, after: Place | None, size: int,
    ) -> Page | None:  # fmt: skip
        self._check_open()
        size = min(size, limit)
        if size <= 0 or filter_.impossible:
            return Page((), None)
        query = self._compiler.page(
            filter_, visibility, columns="e.raw", upto=upto, now=now, after=after, size=size
        )
        raws = self._read_now(query, _raws)
        return None if raws is None else self._paged(raws, size, limit)

    def _paged(self, raws: list[bytes], size: int, limit: int) -> Page:
        if not raws or len(raws) == limit or (len(raws) < size and not _is_full(raws)):
            return Page(raws, None)
        return Page(raws, self._place_of(raws[-1]))

    async def places(
        self, filter_: Filter, visibility: Visibility, *,
        limit: int, upto: int, now: int, after: Place | None, size: int,
    ) -> Sequence[tuple[Place, bytes]]:  # fmt: skip
        self._check_open()
        size = min(size, limit)
        if size <= 0 or filter_.impossible:
            return []
        query = self._compiler.page(
            filter_, visibility, columns="e.raw, e.created_at, e.id_key, e.seq", upto=upto,
            now=now, after=after, size=size,
        )  # fmt: skip
        rows = await self._read(query, _weighed)
        return [(Place(*place), raw) for raw, *place in rows]

    async def count(self, filters: Sequence[Filter], visibility: Visibility, *, now: int) -> int:
        self._check_open()
        possible = [filter_ for filter_ in filters if not filter_.impossible]
        if not possible:
            return 0
        rows = await self._read(self._compiler.count(possible, visibility, now=now), _fetched)
        number: int = rows[0][0]
        return number

    async def since(self, seq: int, limit: int) -> Sequence[Stored]:
        self._check_open()
        rows = await self._on(self._reading, _logged, self._far, seq, limit)
        return [_stored(row) for row in rows]

    async def head(self) -> int:
        self._check_open()
        return self._head

    def committed(self) -> int:
        return self._head

    async def is_writable(self) -> bool:
        self._check_open()
        try:
            await self._on(self._writing, self._touch)
        except StoreFault:
            return False
        return True

    def _touch(self) -> None:
        self._writer.execute(_Q["put_meta"], ("checked", self._head))

    def _is_late(self) -> bool:
        # Steps and not time: on a busy machine the clock runs on while others do.
        self._looks += 1
        return self._looks > _BUDGET_LOOKS or monotonic() > self._patience_ends

    def _read_now(
        self, query: Query, fetch: Callable[[sqlite3.Connection, Query], list[T]]
    ) -> list[T] | None:
        """On the loop thread; None when that took too long."""
        self._looks = 0
        self._patience_ends = monotonic() + _PATIENCE_S
        try:
            return fetch(self._near, query)
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise _fault(error) from error
        # The sqlite3 module takes an interrupted statement to be in use for ever, and would prepare
        # it anew at each later call: 90 us of 330. A new connection forgets it.
        self._near.close()
        self._near = _reader(self._path)
        self._near.set_progress_handler(self._is_late, _BUDGET_STEPS)
        return None

    async def _read(
        self, query: Query, fetch: Callable[[sqlite3.Connection, Query], list[T]]
    ) -> list[T]:
        """Here when it is short, else begun again on the reader thread."""
        found = self._read_now(query, fetch)
        if found is not None:
            return found
        return await self._on(self._reading, fetch, self._far, query)

    def _place_of(self, raw: bytes) -> Place:
        event = event_from_raw(raw)
        key = id_key(event.id)
        row = self._near.execute(_Q["seq_of_id"], (key, bytes.fromhex(event.id))).fetchone()
        # Deleted since the page was read: any row behind it in the order is behind this place too.
        return Place(event.created_at, key, row[0] if row else 0)

    # -- both -----------------------------------------------------------------------------------

    async def _on(self, pool: ThreadPoolExecutor, work: Callable[..., T], *args: object) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(pool, work, *args)
        except sqlite3.Error as error:
            raise _fault(error) from error

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFault("the store is closed")

    def _finish(self) -> None:
        db = self._writer
        with contextlib.suppress(sqlite3.Error):  # a full disk: all of it can be made again
            if len(self._tail):
                db.execute("BEGIN IMMEDIATE")
                self._write_tail()
                db.execute(_Q["put_meta"], ("tags_upto", self._head))
                db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        db.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        if self._checkpoint is not None:
            with contextlib.suppress(sqlite3.Error):
                await self._checkpoint
        await loop.run_in_executor(self._reading, self._far.close)
        self._near.close()
        await loop.run_in_executor(self._checkpointing, self._tidy.close)
        await loop.run_in_executor(self._writing, self._finish)
        for pool in (self._writing, self._reading, self._checkpointing):
            pool.shutdown()


def _gather(
    db: sqlite3.Connection, hashes: Hashes, terms: FilterTerms, tail: TagTail
) -> None:
    """Index again what the tail held when the store was last open: rows behind the watermark."""
    upto = db.execute(_Q["get_meta"], ("tags_upto",)).fetchone()[0]
    rows: list[TagRow] = []
    for seq, created_at, key, kind, raw in db.execute(_Q["rows_behind"], (upto,)):
        for hash_ in hashes.of_event(event_from_raw(raw), terms.index_tags):
            rows.append((hash_, created_at, key, seq, kind))  # noqa: PERF401
    tail.gather(rows)


def _opened(
    path: Path, terms: FilterTerms, synchronous: str
) -> tuple[sqlite3.Connection, Hashes, int]:
    try:
        # What is private in it must not be readable by others; -wal and -shm follow this file.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        db = _connection(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreFault(f"{path}: {error}; check the folder and its permissions") from error
    try:
        _make_current(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'NORMAL' if synchronous == 'NORMAL' else 'FULL'}")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        key = bytes.fromhex(db.execute(_Q["get_meta"], ("hash_key",)).fetchone()[0])
        hashes = Hashes(key)
        _index_again(db, hashes, terms)
        kept = db.execute(_Q["get_meta"], ("head",)).fetchone()
        newest = db.execute(_Q["newest_seq"]).fetchone()[0]
        return db, hashes, max(kept[0] if kept else 0, newest or 0)
    except sqlite3.Error as error:
        db.close()
        raise StoreFault(f"{path}: {error}") from error
    except RookeryError:
        db.close()
        raise


def _make_current(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables, or bring older ones up to date; never guess at a file of others."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        _run(db, _sql("schema.sql"), SCHEMA_VERSION)
        return
    if application != APPLICATION_ID:
        raise StoreVersion(f"{path} is a database of another program; move it away")
    if version > SCHEMA_VERSION:
        raise StoreVersion(
            f"{path} has schema {version}, this Rookery knows up to {SCHEMA_VERSION}:"
            " run the newer version that wrote it, or export there and import here"
        )
    for step in range(version + 1, SCHEMA_VERSION + 1):
        _run(db, _migration(step), step)


def _run(db: sqlite3.Connection, script: str, version: int) -> None:
    db.executescript(
        f"BEGIN IMMEDIATE; {script};"
        f" PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}; COMMIT;"
    )


def _index_again(db: sqlite3.Connection, hashes: Hashes, terms: FilterTerms) -> None:
    """Index stored rows by names that `index_tags` did not have when they came (contract §7)."""
    kept = db.execute(_Q["get_meta"], ("index_tags",)).fetchone()
    known = frozenset(orjson.loads(kept[0])) if kept else None
    if known == terms.index_tags:
        return
    db.execute("BEGIN IMMEDIATE")
    new = terms.index_tags - known if known is not None else frozenset()
    if new:
        for seq, created_at, key, kind, raw in db.execute(
            "SELECT seq, created_at, id_key, kind, raw FROM events"
        ):
            for name in new:
                db.executemany(
                    "INSERT OR IGNORE INTO tags VALUES (?, ?, ?, ?, ?)",
                    [
                        (hashes.tag(name, value), created_at, key, seq, kind)
                        for value in event_from_raw(raw).tag_values(name)
                    ],
                )
    # Names that are no longer indexed keep their old rows: harmless, and completed on their return.
    names = orjson.dumps(sorted(terms.index_tags)).decode()
    db.execute(_Q["put_meta"], ("index_tags", names))
    db.execute("COMMIT")


def _sql(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _migration(step: int) -> str:
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        if file.name.startswith(f"{step:04}_"):
            return file.read_text("utf-8")
    raise StoreVersion(f"no migration leads to schema {step}")


def _connection(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        path, timeout=10, isolation_level=None, check_same_thread=False,
        cached_statements=_STATEMENTS,
    )  # fmt: skip
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    db.execute("PRAGMA temp_store = MEMORY")
    return db


def _reader(path: Path) -> sqlite3.Connection:
    db = _connection(path)
    db.execute(f"PRAGMA mmap_size = {_MMAP_BYTES}")
    db.execute("PRAGMA query_only = ON")
    return db


def _fetched(db: sqlite3.Connection, query: Query) -> list[Any]:
    return db.execute(query.sql, query.values).fetchall()


def _weighed(db: sqlite3.Connection, query: Query) -> list[Any]:
    """Rows whose first column weighs, until there are no more or the page is large enough."""
    cursor = db.execute(query.sql, query.values)
    rows: list[Any] = []
    weight, at_once = 0, _ROWS_AT_FIRST
    while weight < PAGE_BYTES and (more := cursor.fetchmany(at_once)):
        rows += more
        weight += sum([len(row[0]) for row in more])
        # As many as fit if they are like those before: rows may be a thousand times as large.
        at_once = max(1, min(_ROWS_AT_ONCE, (PAGE_BYTES - weight) * len(rows) // weight))
    cursor.close()
    return rows


def _logged(db: sqlite3.Connection, seq: int, limit: int) -> list[Any]:
    return db.execute(_Q["rows_since"], {"seq": seq, "limit": limit}).fetchall()


def _raws(db: sqlite3.Connection, query: Query) -> list[bytes]:
    return [raw for (raw,) in _weighed(db, query)]


def _is_full(raws: Sequence[bytes]) -> bool:
    return sum(map(len, raws)) >= PAGE_BYTES


def _stored(row: tuple[int, bytes, str | None, int, int | None, int, int | None]) -> Stored:
    seq, raw, group, quiet, slot, version, expires_at = row
    event = event_from_raw(raw)
    place = None
    if slot is not None:
        d = "" if class_of(event.kind) is KindClass.REPLACEABLE else event.d
        place = Slot(event.pubkey, event.kind, d)
    return Stored(seq, event, group, bool(quiet), place, version, expires_at)


def _key_of(pubkey: str) -> dict[str, Value]:
    return {"key": id_key(pubkey), "pubkey": bytes.fromhex(pubkey)}


def _inserting(table: str, columns: int, rows: int) -> str:
    key = (table, rows)
    if key not in _INSERTS:
        one = f"({','.join('?' * columns)})"
        # Tags of rows that were indexed again after a crash may be there already.
        verb = "INSERT OR IGNORE" if table == "tags" else "INSERT"
        _INSERTS[key] = f"{verb} INTO {table} VALUES {','.join([one] * rows)}"
    return _INSERTS[key]


def _checkpoint(db: sqlite3.Connection, mode: str) -> None:
    db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()


def _fault(error: sqlite3.Error) -> StoreFault:
    return StoreFault(f"store: {error}")


_Q: Final = named_queries(_sql("queries.sql"))
_INSERTS: Final[dict[tuple[str, int], str]] = {}
