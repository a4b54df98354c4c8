"""The FTS5 index of texts: a file beside the store that follows its log.

It is a cache: deleted, damaged or of another store, it is rebuilt from the log. A search joins it
with the events table, so that texts of deleted rows may be removed later.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from relay.errors import StoreFault, StoreVersion
from relay.nostr.event import event_from_raw
from relay.nostr.nip50 import Searchable, searchable
from relay.storage.sqlite.connections import index_path, threaded
from relay.storage.sqlite.sql.named import SEARCH_QUERIES as QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    import aiosqlite

    from relay.nostr.event import Event

APPLICATION_ID: Final = 0x526F6F6C  # "Rool"
INDEX_VERSION: Final = 1
"""A file with another number is rebuilt."""
_CACHE_KIB: Final = 32_768
_DROP_CHUNK: Final = 1000
_MAX_DELETED: Final = 100_000
"""Deleted rows that are remembered; `tidy` finds the others in its rounds."""
_CHECK_CHUNK: Final = 2000
_MERGE_PAGES: Final = 200
_MERGE_EVERY_S: Final = 3600
"""How soon the words of deleted texts are removed from the file itself."""


class TextIndex:
    """Use `opened_index`."""

    def __init__(self, db: aiosqlite.Connection, upto: int, rules: str | None) -> None:
        self._db = db
        self._lock = asyncio.Lock()
        self._rules = rules
        self._deleted: deque[int] = deque(maxlen=_MAX_DELETED)
        self._checked = 0
        self._is_merging = False
        self.upto = upto
        """Every row of the log up to this seq is indexed."""

    def forget(self, seqs: Iterable[int]) -> None:
        """These rows were deleted. May be called on any thread; the next step removes them."""
        self._deleted.extend(seqs)

    async def index_next(
        self, text_of: Callable[[Event], str | None], rules: str, limit: int, head: int
    ) -> int:
        """Index the next `limit` rows of the log in one transaction; gives the new `upto`.

        `head`: seq of a row that is committed, or was: the newest of all may be deleted since.
        """
        async with self._lock:
            if rules != self._rules:
                async with _transaction(self._db):
                    await self._start_over(rules)
                self._rules, self.upto = rules, 0
            rows = await self._rows("log", self.upto, limit)
            upto = rows[-1][0] if rows else self.upto
            if len(rows) < limit:
                upto = max(upto, head)
            if rows or self._deleted:
                texts = await asyncio.to_thread(_texts, rows, text_of)
                async with _transaction(self._db):
                    await self._add(texts)
                    # After the adds: a row may have been deleted since the log was read.
                    await self._drop_deleted()
                    await self._put_meta("upto", upto)
            self.upto = upto
            return upto

    async def _start_over(self, rules: str) -> None:
        for query in ("empty_words", "empty_ranks", "empty_texts"):
            await self._db.execute(QUERIES[query])
        await self._put_meta("rules", rules)
        await self._put_meta("upto", 0)

    async def _add(self, texts: _Texts) -> None:
        await self._db.executemany(QUERIES["add_words"], texts.words)
        await self._db.executemany(QUERIES["add_rank"], texts.ranks)
        await self._db.executemany(QUERIES["add_text"], texts.texts)

    async def _drop_deleted(self) -> None:
        seqs: list[int] = []
        while self._deleted and len(seqs) < _DROP_CHUNK:
            seqs.append(self._deleted.popleft())
        await self._drop(seqs)

    async def _drop(self, seqs: Sequence[int]) -> None:
        found = await self._rows("texts_of", orjson.dumps(seqs).decode()) if seqs else []
        if not found:
            return
        words = await asyncio.to_thread(_columns_of, found)
        of = [(seq,) for seq, _ in found]
        await self._db.executemany(QUERIES["drop_words"], words)
        await self._db.executemany(QUERIES["drop_rank"], of)
        await self._db.executemany(QUERIES["drop_text"], of)
        await self._put_meta("has_deleted", 1)

    async def tidy(self, now: int) -> bool:
        """Remove some texts of deleted and expired rows; True: call again at once."""
        async with self._lock:
            async with _transaction(self._db):
                await self._drop_deleted()
                rows = await self._rows("next_ranks", self._checked, _CHECK_CHUNK)
                seqs = [seq for (seq,) in rows]
                # In rounds over all rows: finds what expired, and what a crash left.
                self._checked = seqs[-1] if len(seqs) == _CHECK_CHUNK else 0
                gone = await self._rows("gone", orjson.dumps(seqs).decode(), now)
                await self._drop([seq for (seq,) in gone])
            return bool(self._deleted) or await self._merge(now)

    async def _merge(self, now: int) -> bool:
        """FTS5 keeps deleted words, marked, until it rewrites the segment that holds them."""
        db = self._db
        before = db.total_changes
        if self._is_merging:
            await db.execute(QUERIES["merge"], (_MERGE_PAGES,))
            if db.total_changes - before >= 2:
                return True
            self._is_merging = False
            await db.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
            return False
        merged_at = await self._meta("merged_at", 0)
        if not await self._meta("has_deleted", 0) or now - merged_at < _MERGE_EVERY_S:
            return False
        async with _transaction(db):
            await self._put_meta("has_deleted", 0)
            await self._put_meta("merged_at", now)
            await db.execute(QUERIES["merge"], (-_MERGE_PAGES,))
        self._is_merging = True
        return True

    async def _rows(self, name: str, *values: int | str) -> list[Any]:
        return list(await self._db.execute_fetchall(QUERIES[name], values))

    async def _meta(self, name: str, default: int) -> int:
        rows = await self._rows("get_meta", name)
        return int(rows[0][0]) if rows else default

    async def _put_meta(self, name: str, value: int | str) -> None:
        await self._db.execute(QUERIES["put_meta"], (name, value))

    async def close(self) -> None:
        """Finish the step that runs."""
        async with self._lock:
            await self._db.close()


class _Texts(NamedTuple):
    """Rows of the three tables."""

    words: list[tuple[int, str, str, str]]
    ranks: list[tuple[int, ...]]
    texts: list[tuple[int, str]]


def _texts(
    rows: Sequence[tuple[int, int, bytes]], text_of: Callable[[Event], str | None]
) -> _Texts:
    """Of (seq, id_key, raw); on a worker thread."""
    out = _Texts([], [], [])
    for seq, id_key, raw in rows:
        event = event_from_raw(raw)
        text = text_of(event)
        if text is None:
            continue
        found = searchable(text)
        out.words.append(_columns(seq, found))
        out.ranks.append((seq, event.created_at, id_key, *found.scores))
        out.texts.append((seq, found.text))
    return out


def _columns_of(texts: Sequence[tuple[int, str]]) -> list[tuple[int, str, str, str]]:
    return [_columns(seq, searchable(text)) for seq, text in texts]


def _columns(seq: int, found: Searchable) -> tuple[int, str, str, str]:
    return seq, found.text, found.repeated, found.frequent


@asynccontextmanager
async def _transaction(db: aiosqlite.Connection) -> AsyncIterator[None]:
    # Not IMMEDIATE: that would lock the attached file of the store too.
    await db.execute("BEGIN")
    try:
        yield
        await db.execute("COMMIT")
    except BaseException:
        await db.rollback()
        raise


async def opened_index(store: Path, key: str, head: int) -> TextIndex:
    """The index of the store at `store`; rebuilt when it does not fit this key and head.

    Raises StoreFault, StoreVersion.
    """
    path = index_path(store)
    try:
        db = await threaded(partial(_opened, store, key, head))
        try:
            ((upto,),) = await db.execute_fetchall(QUERIES["get_meta"], ("upto",))
            rules = list(await db.execute_fetchall(QUERIES["get_meta"], ("rules",)))
        except BaseException:
            await db.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise StoreFault(f"{path}: {error}; check the folder and its permissions") from error
    return TextIndex(db, upto, rules[0][0] if rules else None)


def _opened(store: Path, key: str, head: int) -> sqlite3.Connection:
    path = index_path(store)
    db = _usable(path, key, head)
    if db is None:
        for ending in ("", "-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        db = _fresh(path, key)
    db.execute("ATTACH ? AS store", (str(store),))
    return db


def _usable(path: Path, key: str, head: int) -> sqlite3.Connection | None:
    """None: it must be rebuilt."""
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
            upto = db.execute(QUERIES["get_meta"], ("upto",)).fetchone()
            # Ahead of its store: an older copy of the store was restored.
            is_usable = of == (key,) and upto[0] <= head
    finally:
        if not is_usable:
            db.close()
    return db if is_usable else None


def _fresh(path: Path, key: str) -> sqlite3.Connection:
    # Holds texts of private groups; -wal and -shm take over the mode.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = _connection(path)
    db.execute("BEGIN")
    for make in ("make_meta", "make_ranks", "make_texts", "make_words"):
        db.execute(QUERIES[make])
    db.execute(QUERIES["put_meta"], ("store", key))
    db.execute(QUERIES["put_meta"], ("upto", 0))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {INDEX_VERSION}")
    db.execute("COMMIT")
    return db


def _connection(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA journal_mode = WAL")
        # A power loss may lose the newest commits: they are indexed again.
        db.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        db.close()
        raise
    return db
