"""Tables of an Aman agent's SQLite file: written from the relay, and read for import (A-17).

Existing tables may have other columns; columns for the origin of a row are added. Times are
`YYYY-MM-DD HH:MM:SS`, UTC.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiosqlite
import orjson

from relay.client.errors import ClientError
from relay.client.foreign_database import (
    bound,
    code_in,
    code_run_by_writing,
    opened,
    room_in,
    weight,
)
from relay.files import own_database
from relay.memory.aman.checks import FIELDS, VERSION, content_fault
from relay.memory.aman.records import Clear, Preference, Subscriptions, Summary, ToolCall
from relay.memory.fence import attributed, attribution, harmless, name_in
from relay.memory.fields import Need, compact, whole_number
from relay.memory.times import utc
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
    from pathlib import Path

    from relay.memory.aman.fold import Row, Snapshot

    Kept = Preference | Summary | ToolCall | Clear

TABLES: Final[Mapping[str, type[Kept]]] = {
    "preferences": Preference,
    "conversation_summaries": Summary,
    "tool_history": ToolCall,
    "clear_context_events": Clear,
}
_WRITTEN: Final[Mapping[str, type[Kept | Subscriptions]]] = {
    **TABLES,
    "subscription_state": Subscriptions,
}
_KEPT: Final = frozenset({"preferences", "subscription_state"})
"""Tables whose rows stay when the relay has none, unless they are of one that it had."""
_NOSTR: Final = ("nostr_event_id", "nostr_created_at", "nostr_relay", "nostr_schema_version")
_TIMES: Final = ("updated_at", "created_at")
_TEXTS: Final = ("preference", "summary", "content")
_NAMES: Final = ("tool_name", "sender_id", "group_id")
SCHEMA_VERSION: Final = int(VERSION)
_MAX_INTEGER: Final = 2**63 - 1
_BATCH: Final = 500
"""Rows per query."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS preferences (
    history_key TEXT PRIMARY KEY, preference TEXT NOT NULL, updated_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS conversation_summaries (
    history_key TEXT PRIMARY KEY, summary TEXT NOT NULL, message_count INTEGER NOT NULL,
    updated_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS tool_history (
    history_key TEXT NOT NULL, tool_name TEXT NOT NULL, success INTEGER NOT NULL,
    content TEXT NOT NULL, sender_id TEXT, group_id TEXT, created_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS clear_context_events (
    history_key TEXT NOT NULL, sender_id TEXT, created_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS subscription_state (
    history_key TEXT PRIMARY KEY, topics TEXT NOT NULL, updated_at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS tool_history_of ON tool_history (history_key, created_at);
CREATE INDEX IF NOT EXISTS clear_context_events_of ON clear_context_events (history_key, created_at)
"""


class TablesUnusable(ClientError):
    """The file is no SQLite database, or its tables are not Aman's."""


class Replaced(NamedTuple):
    """Rows written."""

    preferences: int
    summaries: int
    tools: int
    clears: int


class Unusable(NamedTuple):
    """An invalid row."""

    table: str
    row: int
    """SQLite's rowid."""
    why: str


def event_ids(path: Path, relay: str) -> set[str]:
    """The events of this relay that rows were written from. Raises TablesUnusable."""
    if not path.is_file():
        return set()
    try:
        with closing(_opened_to_write(path)) as file:
            _refuse_code(file, path)
            return {
                id_
                for table in _WRITTEN
                if {*_NOSTR} <= _column_names(file, table)
                for (id_,) in file.execute(
                    f"SELECT nostr_event_id FROM {table} WHERE nostr_relay = ?", (relay,)
                )
                if is_hex64(id_)
            }
    except OSError as error:
        raise TablesUnusable(f"{path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise TablesUnusable(f"{path}: {error}") from error


def ids_of(snapshots: Iterable[Snapshot]) -> set[str]:
    """The events that the snapshots' rows are written from, or were while they could be read."""
    return {
        id_
        for snapshot in snapshots
        for id_ in (
            *(row.id for rows in _tables_of(snapshot).values() for row in rows),
            *(unread.event.id for unread in snapshot.unread),
        )
    }


def replace_rows(
    path: Path, snapshots: Iterable[Snapshot], relay: str, gone: Iterable[str] = ()
) -> Replaced:
    """Replace the rows of the snapshots' history keys, and remove those of `gone`, which are ids of
    this relay's events; atomic.

    Rows whose event is currently unreadable are kept. A new file is private. Raises TablesUnusable.
    """
    try:
        with closing(_opened_to_write(path)) as file, file:
            file.execute("BEGIN IMMEDIATE")
            _refuse_code(file, path)
            return _replaced(file, snapshots, relay, gone)
    except OSError as error:
        raise TablesUnusable(f"{path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise TablesUnusable(f"{path}: {error}") from error


def _opened_to_write(path: Path) -> sqlite3.Connection:
    """The file may come from somebody else. Raises OSError, sqlite3.Error."""
    own_database(path)
    return sqlite3.connect(path, isolation_level=None)


def _refuse_code(file: sqlite3.Connection, path: Path) -> None:
    """The file may come from somebody else. Raises TablesUnusable."""
    bound(file)
    for fault in filter(None, (code_run_by_writing(file, table) for table in _WRITTEN)):
        raise TablesUnusable(f"{path}: {fault}")


def _replaced(
    file: sqlite3.Connection, snapshots: Iterable[Snapshot], relay: str, gone: Iterable[str]
) -> Replaced:
    gone = list(gone)
    file.execute("PRAGMA secure_delete = ON")
    for statement in _SCHEMA.split(";"):
        file.execute(statement)
    for table in _WRITTEN:
        _add_columns(file, table)
        file.executemany(
            f"DELETE FROM {table} WHERE nostr_event_id = ? AND nostr_relay = ?",
            [(id_, relay) for id_ in gone],
        )
    counts = dict.fromkeys(TABLES, 0)
    for snapshot in snapshots:
        for table, rows in _tables_of(snapshot).items():
            if rows or table not in _KEPT:
                _replace(file, table, snapshot, rows, relay)
            if table in counts:
                counts[table] += len(rows)
    file.commit()
    file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # if its agent uses one
    return Replaced(*counts.values())


async def rows_in(path: Path) -> AsyncGenerator[Kept | Unusable, None]:
    """Every row, table by table in the order of `TABLES`; missing tables are empty.

    The file is not locked between rows, so its agent may write. Raises TablesUnusable.
    """
    async with _opened(path) as (file, found):
        if not found:
            raise TablesUnusable(f"{path} contains none of Aman's tables ({', '.join(TABLES)})")
        for table in found:
            async for row in _records(file, path, table, TABLES[table]):
                yield row


async def number_of_rows(path: Path) -> int:
    """Sum over all tables. Raises TablesUnusable."""
    async with _opened(path) as (file, found):
        counts = [await file.execute_fetchall(f"SELECT count(*) FROM {each}") for each in found]
        return sum(count for ((count,),) in counts)


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[tuple[aiosqlite.Connection, list[str]]]:
    """The open file, which may come from somebody else, and those of `TABLES` that it has."""

    def connection() -> sqlite3.Connection:
        db = opened(path)
        try:
            for fault in filter(None, (code_in(db, table) for table in TABLES)):
                raise TablesUnusable(f"{path}: {fault}")
        except BaseException:
            db.close()
            raise
        return db

    if not await asyncio.to_thread(path.is_file):
        raise TablesUnusable(f"there is no file {path}")
    try:
        # Opened before: aiosqlite does not wait for a thread on which opening has failed.
        db = await asyncio.to_thread(connection)
        async with aiosqlite.Connection(lambda: db, iter_chunk_size=_BATCH) as file:
            schema = await file.execute_fetchall("SELECT name FROM sqlite_master")
            names = {name for (name,) in schema}
            yield file, [table for table in TABLES if table in names]
    except sqlite3.Error as error:
        raise TablesUnusable(f"{path}: {error}") from error


def _columns(record: type[Kept | Subscriptions]) -> tuple[str, ...]:
    return tuple(name for name, _, _ in FIELDS[record.kind])


def _column_names(file: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in file.execute(f"PRAGMA table_info({table})")}


def _add_columns(file: sqlite3.Connection, table: str) -> None:
    existing = _column_names(file, table)
    for name in _NOSTR:
        if name not in existing:
            kind = "INTEGER" if name == "nostr_schema_version" else "TEXT"
            file.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")


def _tables_of(snapshot: Snapshot) -> dict[str, Sequence[Row[Any]]]:
    preference, summary = snapshot.preference, snapshot.summary
    topics = snapshot.subscriptions
    return {
        "preferences": [] if preference is None else [preference],
        "conversation_summaries": [] if summary is None else [summary],
        # Oldest first, as the agent writes them.
        "tool_history": snapshot.tools[::-1],
        "clear_context_events": snapshot.clears[::-1],
        "subscription_state": [] if topics is None else [topics],
    }


def _replace(
    file: sqlite3.Connection, table: str, snapshot: Snapshot, rows: Sequence[Row[Any]], relay: str
) -> None:
    locked = orjson.dumps([unread.event.id for unread in snapshot.unread]).decode()
    file.execute(
        f"DELETE FROM {table} WHERE history_key = ?"
        " AND ifnull(nostr_event_id, '') NOT IN (SELECT value FROM json_each(?))",
        (snapshot.history_key, locked),
    )
    columns = _columns(_WRITTEN[table])
    names = (*columns, *_NOSTR)
    file.executemany(
        f"INSERT OR REPLACE INTO {table} ({', '.join(names)})"
        f" VALUES ({', '.join('?' * len(names))})",
        [
            (
                *(
                    utc(row.time) if name in _TIMES else _shown(row, name, snapshot.reader)
                    for name in columns
                ),
                row.id,
                utc(row.created_at),
                relay,
                SCHEMA_VERSION,
            )
            for row in rows
        ],
    )


def _shown(row: Row[Any], name: str, reader: str | None) -> object:
    """The value of a column. Texts by another key than the reader's name it, since a model reads
    them."""
    value = getattr(row.record, name)
    if isinstance(value, tuple):  # topics, as JSON
        is_others = reader not in (None, row.author)
        return compact(list(map(name_in, value)) if is_others else list(value))
    if isinstance(value, str) and reader not in (None, row.author):
        if name in _TEXTS:
            return attributed(harmless(value), attribution(row.author))
        if name in _NAMES:
            return name_in(value)
    return _storable(value)


def _storable(value: object) -> object:
    """SQLite integers have 64 bits; JSON's are unbounded."""
    return min(value, _MAX_INTEGER) if isinstance(value, int) else value


async def _records(
    file: aiosqlite.Connection, path: Path, table: str, record: type[Kept]
) -> AsyncIterator[Kept | Unusable]:
    columns = _columns(record)
    optional = {name for name, _, need in FIELDS[record.kind] if need is Need.OPTIONAL}
    existing = {row[1] for row in await file.execute_fetchall(f"PRAGMA table_info({table})")}
    if missing := [name for name in columns if name not in existing and name not in optional]:
        raise TablesUnusable(f"{path}: table {table} has no column {missing[0]}")
    wanted = ", ".join(name if name in existing else f"NULL AS {name}" for name in columns)
    room = await asyncio.to_thread(room_in, path)
    async for rowid, *values in _rows(file, table, wanted):
        room -= weight(values)
        if room < 0:
            raise TablesUnusable(f"{path}: the rows of {table} hold more than the file")
        payload: dict[str, object] = dict(zip(columns, values, strict=True))
        for name in _TIMES:
            if name in payload:
                payload[name] = _seconds(payload[name])
        if payload.get("success") in (0, 1):
            payload["success"] = bool(payload["success"])
        hk = payload["history_key"]
        fault = content_fault(record.kind, payload, hk if isinstance(hk, str) else "")
        if fault is not None:
            yield Unusable(table, rowid, fault.removeprefix("content."))
        else:
            yield record(**payload)  # type: ignore[arg-type]


async def _rows(
    file: aiosqlite.Connection, table: str, columns: str
) -> AsyncIterator[Sequence[Any]]:
    """rowid and these columns of every row."""
    query = f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
    last = -_MAX_INTEGER - 1
    while rows := list(await file.execute_fetchall(query, (last, _BATCH))):
        for row in rows:
            yield row
        last = rows[-1][0]


def _seconds(value: object) -> object:
    """Unix seconds of a time given as text or number; other values are returned unchanged."""
    if not isinstance(value, str):
        return value
    if (number := whole_number(value)) is not None:
        return number  # a number in a text column
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp())
