"""The FTS5 index of texts: a file beside the store that follows its log.

Rows of some kinds may be indexed ahead of others, up to a seq of their own in `meta`.

It is a cache: deleted, damaged or of another store, it is rebuilt from the log. A search joins it
with the events table, so that texts of deleted rows may be removed later.

FTS5 keeps the words of a deleted text, marked, until it rewrites the segment that holds them. So
after deletions all segments are merged into one, then the WAL is truncated. The cost of a merge is
proportional to the size of the index: the larger, the less often.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relay.errors import StoreFault, StoreVersion
from relay.nostr.event import event_from_raw
from relay.nostr.nip50 import Searchable, searchable
from relay.storage.recall import thread_of
from relay.storage.rows import INDEXED_BYTES, SCANNED_ROWS, rows_after, rows_to_index
from relay.storage.sqlite.connections import (
    file_connection,
    give_way,
    index_path,
    open_threaded,
)
from relay.storage.sqlite.fts import Stems, kind_token
from relay.storage.sqlite.sql.conditions import listed
from relay.storage.sqlite.sql.named import SEARCH_QUERIES as QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence, Set
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import aiosqlite

    from relay.nostr.event import Event
    from relay.storage.sqlite.meanings import Meanings

APPLICATION_ID: Final = 0x526F6F6C  # "Rool"
INDEX_VERSION: Final = 5
"""A file with another number is rebuilt."""
_CACHE_KIB: Final = 32_768
_DROP_CHUNK: Final = 1000
_MAX_DELETED: Final = 100_000
"""Deleted rows that are remembered; `tidy` finds the others in its rounds."""
_CHECK_CHUNK: Final = 2000
_VECTORS_READ: Final = 10_000
_MERGE_PAGES: Final = 200
_PAUSE_RATIO: Final = 9
"""Pause after a merge or a truncation, as a multiple of its duration: each takes a tenth of the
time."""
_SHORT_MERGE_S: Final = 1.5
_SHORT_PAUSE_S: Final = 3.0
"""Longest pause after a merge of less than `_SHORT_MERGE_S`: a deletion in a small index waits for
at most five seconds."""
_BUSY_MS: Final = 50
"""How long a truncation waits for other readers, while searches wait."""
_PATIENT_MS: Final = 10_000
_CLOSING_S: Final = 3.0
"""How long `close` may spend on removing deleted texts; the next start continues."""


class TextIndex:
    """Use `opened_index`."""

    def __init__(
        self,
        db: aiosqlite.Connection,
        upto: int,
        ahead: int,
        rules: str | None,
        meanings: Meanings | None,
        *,
        is_clean: bool,
    ) -> None:
        """`is_clean`: no text of a deleted row is in the files. `meanings`: None: words only."""
        self._meanings = meanings
        self.stems = Stems()
        self._embedding = ThreadPoolExecutor(1, "embed", give_way)
        self._db = db
        self._lock = asyncio.Lock()
        self._rules = rules
        self._deleted: deque[int] = deque()
        self._checked = 0
        self._rounds_wanted = 0 if is_clean else 1
        self._has_deleted = not is_clean
        self._is_merging = False
        self._merge_began = 0.0
        self._merge_s = 0.0
        """Seconds spent on the steps of the current merge."""
        self._merge_at = 0.0
        self._must_truncate = not is_clean
        self._truncate_at = 0.0
        self._deleted_at = 0.0
        self._dirty_since = None if is_clean else monotonic()
        self.upto = upto
        """Every row of the log up to this seq is indexed."""
        self._ahead = ahead
        """Up to this seq, rows of the kinds that are indexed ahead of others are indexed, too."""

    @property
    def _is_clean(self) -> bool:
        return not (
            self._deleted
            or self._rounds_wanted
            or self._has_deleted
            or self._is_merging
            or self._must_truncate
        )

    @property
    def pending_s(self) -> float:
        """Seconds since the oldest deletion whose text may still be in the files; 0: none."""
        since = self._dirty_since
        return 0.0 if since is None else max(monotonic() - since, 0.001)

    def forget(self, seqs: Collection[int]) -> None:
        """These rows were deleted. May be called on any thread; the next step removes them."""
        if not seqs:
            return
        self._deleted_at = monotonic()
        if len(self._deleted) < _MAX_DELETED:
            self._deleted.extend(seqs)
        else:
            self._rounds_wanted = 2  # a merge may be running
        self._dirty_since = self._dirty_since or self._deleted_at

    async def index_next(
        self,
        text_of: Callable[[Event], str | None],
        rules: str,
        limit: int,
        head: int,
        kinds: Set[int] | None,
    ) -> int:
        """Index the next `limit` rows of the log, or those of `kinds`, in one transaction; returns
        the seq that it has reached. `head`: the newest seq ever committed; its row may have been
        deleted."""
        async with self._lock:
            if rules != self._rules:
                async with _transaction(self._db):
                    await self._start_over(rules)
                self._rules, self.upto, self._ahead = rules, 0, 0
            if kinds is None:
                after, read = self.upto, partial(self._rows, "log")
            else:
                after = max(self.upto, self._ahead)
                head = max(after, min(head, after + SCANNED_ROWS))
                read = partial(self._rows, "log_of_kinds", listed(sorted(kinds)), head)
            rows, upto = await rows_to_index(read, after, limit, head)
            if rows or self._deleted:
                if after < self._ahead:  # some of these may be indexed
                    found = listed([seq for seq, *_ in rows])
                    known = {seq for (seq,) in await self._rows("indexed", found)}
                    rows = [row for row in rows if row[0] not in known]
                texts = await asyncio.to_thread(_texts, rows, text_of, self.stems)
                async with self._dropping():
                    await self._add(texts)
                    # After the adds: a row may have been deleted since the log was read.
                    await self._drop_deleted()
                    await self._put_meta("upto" if kinds is None else "ahead", upto)
            if kinds is None:
                self.upto = upto
            else:
                self._ahead = upto
            return upto

    async def _start_over(self, rules: str) -> None:
        for query in ("empty_words", "empty_ranks", "empty_texts", "empty_vectors"):
            await self._db.execute(QUERIES[query])
        await self._put_meta("vectors_upto", 0)
        if self._meanings is not None:
            self._meanings.clear()
        self._must_truncate = True
        await self._put_meta("rules", rules)
        await self._put_meta("upto", 0)
        await self._put_meta("ahead", 0)

    async def _add(self, texts: _Texts) -> None:
        await self._db.executemany(QUERIES["add_words"], texts.words)
        await self._db.executemany(QUERIES["add_rank"], texts.ranks)
        await self._db.executemany(QUERIES["add_text"], texts.texts)

    @asynccontextmanager
    async def _dropping(self) -> AsyncIterator[None]:
        """A transaction for `_drop_deleted`. The rounds of `tidy` find what a failed one left."""
        try:
            async with _transaction(self._db):
                yield
        except BaseException:
            self._rounds_wanted = 2
            raise

    async def _drop_deleted(self) -> None:
        seqs: list[int] = []
        while self._deleted and len(seqs) < _DROP_CHUNK:
            seqs.append(self._deleted.popleft())
        dropped = listed(seqs)
        found = await rows_after(
            lambda after, limit: self._rows("texts_of", dropped, after, limit),
            0,
            _DROP_CHUNK,
            INDEXED_BYTES,
        )
        if sum([len(text) for _, text, _ in found]) >= INDEXED_BYTES:  # there may be more
            last = found[-1][0]
            self._deleted.extendleft([seq for seq in seqs if seq > last])
        await self._drop(found)

    async def _drop(self, found: Sequence[tuple[int, str, int]]) -> None:
        if not found:
            return
        self._has_deleted = True
        words = await asyncio.to_thread(_columns_of, found)
        of = [(seq,) for seq, *_ in found]
        await self._db.executemany(QUERIES["drop_words"], words)
        await self._db.executemany(QUERIES["drop_rank"], of)
        await self._db.executemany(QUERIES["drop_text"], of)
        await self._db.executemany(QUERIES["drop_vector"], of)
        if self._meanings is not None:
            self._meanings.drop(seq for seq, *_ in found)

    async def load_vectors(self) -> None:
        """Read all vectors into memory; once at the start."""
        if self._meanings is None:
            return
        after = 0
        while rows := await self._rows("vectors", after, _VECTORS_READ):
            await asyncio.to_thread(self._meanings.add, rows)
            after = rows[-1][0]

    async def embed_next(self, limit: int) -> bool:
        """Compute the vectors of the next `limit` texts; True: there may be more."""
        meanings = self._meanings
        if meanings is None:
            return False
        async with self._lock:
            rules = self._rules
            upto = (await self._rows("get_meta", "vectors_upto") or [(0,)])[0][0]
            # Up to a seq: rows before those that are ahead of others may still come.
            rows = await self._rows("next_texts", upto, self.upto, limit)
        if not rows:
            return False
        texts = [text for _, text in rows]
        loop = asyncio.get_running_loop()
        vectors = await loop.run_in_executor(self._embedding, meanings.vectors, texts)
        seqs = [seq for seq, _ in rows]
        async with self._lock:
            if rules != self._rules:
                return True
            async with _transaction(self._db):
                await self._db.executemany(
                    QUERIES["add_vector"], list(zip(vectors, seqs, strict=True))
                )
                await self._put_meta("vectors_upto", seqs[-1])
                there = {seq for (seq,) in await self._rows("has_vectors", listed(seqs))}
            found = zip(seqs, vectors, strict=True)
            meanings.add([(seq, vector) for seq, vector in found if seq in there])
        return True

    async def tidy(
        self, paused: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    ) -> bool:
        """Remove some texts of deleted rows; True: call again at once.

        `paused`: inside, nobody reads the index, so that its WAL can be truncated. Other methods do
        not wait for that.
        """
        async with self._lock:
            has_more = await self._tidy()
        if self._must_truncate and not has_more and monotonic() >= self._truncate_at:
            await self._truncate(paused)
        return has_more

    async def _tidy(self) -> bool:
        """With `_lock` held."""
        async with self._dropping():
            # In rounds over all rows: finds those that a crash left.
            rows = await self._rows("next_ranks", self._checked, _CHECK_CHUNK)
            seqs = [seq for (seq,) in rows]
            self._checked = seqs[-1] if len(seqs) == _CHECK_CHUNK else 0
            gone = await self._rows("gone", listed(seqs))
            self._deleted.extend([seq for (seq,) in gone])
            await self._drop_deleted()
        if not self._checked and self._rounds_wanted:
            self._rounds_wanted -= 1
        if self._deleted or self._rounds_wanted or await self._merge():
            return True
        self._note_clean()
        return False

    def _note_clean(self) -> None:
        if self._is_clean:
            self._dirty_since = self._deleted_at if self._deleted else None

    async def _merge(self) -> bool:
        """A step of rewriting all segments without deleted words; True: call again at once. After
        the last step the WAL must be truncated."""
        db = self._db
        before = db.total_changes
        began = monotonic()
        if self._is_merging:
            await db.execute(QUERIES["merge"], (_MERGE_PAGES,))
            self._merge_s += monotonic() - began
            if db.total_changes - before >= 2:
                return True
            self._is_merging, self._must_truncate = False, True
            pause = _PAUSE_RATIO * self._merge_s
            if self._merge_s < _SHORT_MERGE_S:
                pause = min(pause, _SHORT_PAUSE_S)
            self._merge_at = monotonic() + pause
        if self._has_deleted and began >= self._merge_at:
            self._merge_began = began
            await db.execute(QUERIES["merge"], (-_MERGE_PAGES,))
            self._has_deleted, self._is_merging = False, True
            self._merge_s = monotonic() - began
            return True
        return False

    async def _truncate(self, paused: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        """Truncate the WAL, if there is no other reader. `paused`: see `tidy`; one search after the
        other would always be reading. A read that has begun is waited for without `_lock`:
        searches wait for what is indexed with it."""
        db = self._db
        async with self._lock:  # most of the work
            await db.execute_fetchall("PRAGMA main.incremental_vacuum")
            await db.execute_fetchall("PRAGMA main.wal_checkpoint(PASSIVE)")
        began = monotonic()
        async with paused(), self._lock:
            await db.execute_fetchall(f"PRAGMA busy_timeout = {_BUSY_MS}")
            ((busy, *_),) = await db.execute_fetchall("PRAGMA main.wal_checkpoint(TRUNCATE)")
            await db.execute_fetchall(f"PRAGMA busy_timeout = {_PATIENT_MS}")
            self._must_truncate = bool(busy)
            if not busy and (self._has_deleted or self._deleted):
                self._dirty_since = self._merge_began
            self._note_clean()
        self._truncate_at = monotonic() + _PAUSE_RATIO * (monotonic() - began)

    async def _rows(self, name: str, *values: int | str) -> list[Any]:
        return list(await self._db.execute_fetchall(QUERIES[name], values))

    async def _put_meta(self, name: str, value: int | str) -> None:
        await self._db.execute(QUERIES["put_meta"], (name, value))

    async def discard(self) -> None:
        """Mark the index as damaged: the next start rebuilds it."""
        with suppress(sqlite3.Error):
            await self._db.execute("PRAGMA main.user_version = 0")

    async def close(self) -> None:
        """Remove deleted texts within `_CLOSING_S`."""
        until = monotonic() + _CLOSING_S
        try:
            with suppress(sqlite3.Error):  # disk full: the next start continues
                self._merge_at = self._truncate_at = 0.0
                while not self._is_clean and await self.tidy() and monotonic() < until:
                    pass
                async with self._lock:
                    await self._put_meta("is_clean", int(self._is_clean))
        finally:  # also when cancelled
            self._embedding.shutdown(wait=False, cancel_futures=True)
            self.stems.close()
            await self._db.close()


class _Texts(NamedTuple):
    """Values for the three tables of the index."""

    words: list[tuple[int, str, str, str, str]]
    ranks: list[tuple[int, ...]]
    texts: list[tuple[int, int, str, str]]


def _texts(
    rows: Sequence[tuple[int, bytes, int]], text_of: Callable[[Event], str | None], stems: Stems
) -> _Texts:
    """Of (seq, raw, id_key); on a worker thread."""
    out = _Texts([], [], [])
    texts: list[tuple[int, int, Searchable]] = []
    for seq, raw, id_key in rows:
        event = event_from_raw(raw)
        text = text_of(event)
        if text is None:
            continue
        found = searchable(text)
        out.words.append(_columns(seq, found, event.kind))
        out.ranks.append((seq, event.created_at, id_key, thread_of(event), *found.scores))
        texts.append((seq, event.kind, found))
    every = stems.listed([found for _, _, found in texts])
    for (seq, kind, found), stems_of_text in zip(texts, every, strict=True):
        out.texts.append((seq, kind, stems_of_text, found.text))
    return out


def _columns_of(texts: Sequence[tuple[int, str, int]]) -> list[tuple[int, str, str, str, str]]:
    return [_columns(seq, searchable(text), kind) for seq, text, kind in texts]


def _columns(seq: int, found: Searchable, kind: int) -> tuple[int, str, str, str, str]:
    return seq, found.text, found.repeated, found.frequent, kind_token(kind)


@asynccontextmanager
async def _transaction(db: aiosqlite.Connection) -> AsyncIterator[None]:
    try:
        # Not IMMEDIATE: that would lock the attached file of the store too.
        await db.execute("BEGIN")  # even if it is cancelled
        yield
        await db.execute("COMMIT")
    except BaseException:
        await db.rollback()
        raise


async def opened_index(
    store: Path, key: str, head: int, meanings: Meanings | None = None
) -> TextIndex:
    """The index of the store at `store`; rebuilt when it does not fit this key and head.

    Raises StoreFault, StoreVersion.
    """
    path = index_path(store)
    try:
        db = await open_threaded(partial(_opened, store, key, head))
        try:
            ((upto,),) = await db.execute_fetchall(QUERIES["get_meta"], ("upto",))
            ((ahead,),) = await db.execute_fetchall(QUERIES["get_meta"], ("ahead",))
            rules = list(await db.execute_fetchall(QUERIES["get_meta"], ("rules",)))
            clean = list(await db.execute_fetchall(QUERIES["get_meta"], ("is_clean",)))
            await db.execute(QUERIES["put_meta"], ("is_clean", 0))
        except BaseException:
            await db.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise StoreFault(f"{path}: {error}; check the folder and its permissions") from error
    known = rules[0][0] if rules else None
    index = TextIndex(db, upto, ahead, known, meanings, is_clean=clean == [(1,)])
    try:
        await index.load_vectors()
    except BaseException:
        await index.close()
        raise
    return index


def _opened(store: Path, key: str, head: int) -> sqlite3.Connection:
    path = index_path(store)
    db = _usable(path, key, head)
    if db is None:
        for ending in ("", "-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        db = _fresh(path, key)
    db.execute(QUERIES["make_vectors"])
    db.execute("ATTACH ? AS store", (str(store),))
    return db


def _usable(path: Path, key: str, head: int) -> sqlite3.Connection | None:
    """The open index; None: it must be rebuilt."""
    if not path.exists():
        return None
    try:
        db = _connection(path)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:  # damaged
        return None
    is_usable = False
    try:
        application = db.execute("PRAGMA application_id").fetchone()[0]
        tables = db.execute(QUERIES["count_tables"]).fetchone()[0]
        if application != APPLICATION_ID and tables:
            raise StoreVersion(f"{path} is a database of another program; move it away")
        if db.execute("PRAGMA user_version").fetchone()[0] == INDEX_VERSION:
            of = db.execute(QUERIES["get_meta"], ("store",)).fetchone()
            upto = [
                db.execute(QUERIES["get_meta"], (name,)).fetchone()[0] for name in ("upto", "ahead")
            ]
            # Ahead of its store: an older copy of the store was restored.
            is_usable = of == (key,) and max(upto) <= head and _opens(db)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:  # damaged
        is_usable = False
    finally:
        if not is_usable:
            db.close()
    return db if is_usable else None


def _opens(db: sqlite3.Connection) -> bool:
    """Whether FTS5 can read the tables."""
    try:
        db.execute(QUERIES["any_words"]).fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return False
    return True


def _fresh(path: Path, key: str) -> sqlite3.Connection:
    # Has texts of private groups; -wal and -shm get the same mode.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = _connection(path)
    db.execute("BEGIN")
    for make in ("make_meta", "make_ranks", "make_texts", "make_words"):
        db.execute(QUERIES[make])
    db.execute(QUERIES["put_meta"], ("store", key))
    db.execute(QUERIES["put_meta"], ("upto", 0))
    db.execute(QUERIES["put_meta"], ("ahead", 0))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {INDEX_VERSION}")
    db.execute("COMMIT")
    return db


def _connection(path: Path) -> sqlite3.Connection:
    db = file_connection(path)
    try:
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA journal_mode = WAL")
        # A power loss may lose the newest commits: they are indexed again.
        db.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        db.close()
        raise
    return db
