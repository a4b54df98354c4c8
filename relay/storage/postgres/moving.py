"""A database for `rookery move`, by connections besides those of relays."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from relay.errors import StoreVersion
from relay.storage.moving import TABLES, Line, is_unfinished
from relay.storage.postgres.connections import Connections
from relay.storage.postgres.listening import OPENED_BY
from relay.storage.postgres.opening import SCHEMA_VERSION
from relay.storage.postgres.sql.moving import (
    LOG_SCRIPT,
    MOVE_QUERIES,
    TOMBSTONE_SCRIPT,
    TRIGGERS,
    add_entry,
    drop_entries,
    entries_at,
    entries_of,
)
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.rows import rows_after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from relay.storage.moving import Entry, OldRow, Row, Table, Value

_MARK: Final = "moving"
_SEAL: Final = "moved_away"
_PAGE: Final = 1_000
_SETTLE_S: Final = 3_600
_TEXT: Final = frozenset({("management", "register"), ("erasures", "numbers"), ("erasures", "ids")})
"""Columns of type text; other texts are bytea."""


class PostgresSide:
    """`relay.storage.moving.Side` of one database. One call at a time. Use `open`."""

    name = "the database"

    def __init__(self, url: str, password: str | None) -> None:
        self._connections = Connections(url, password)
        self._snapshot: Any = None
        self._held = AsyncExitStack()

    @classmethod
    async def open(cls, url: str, password: str | None) -> PostgresSide:
        """Raises StoreFault."""
        side = cls(url, password)
        await side._connections.open()
        return side

    async def schema_fault(self) -> StoreVersion | None:
        """Why it cannot be copied, or None."""
        async with self._reading() as db:
            if not await db.fetchval(MOVE_QUERIES["has_tables"]):
                return StoreVersion("the database holds nothing yet: there is nothing to move")
        schema = await self._meta("schema")
        if schema == str(SCHEMA_VERSION):
            return None
        return StoreVersion(
            f"the database has schema {schema}, this Rookery writes {SCHEMA_VERSION}: start the"
            " relay once with this version, then move"
        )

    async def why_closed(self) -> str:
        """Why no relay may open it; empty: a relay may."""
        async with self._reading() as db:
            if not await db.fetchval(MOVE_QUERIES["has_tables"]):
                return ""
        if is_unfinished(await self._meta(_MARK)):
            return (
                "the database holds a part of what is moved to it: run `rookery move` again, or"
                " drop its tables"
            )
        return await self._meta(_SEAL) or ""

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Any]:
        if self._snapshot is not None:
            yield self._snapshot
            return
        async with self._connections.reading() as db:
            yield db

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        async with self._connections.snapshot() as db:
            self._snapshot = db
            try:
                yield
            finally:
                self._snapshot = None

    async def _rows(self, name: str, *values: object) -> list[Any]:
        async with self._reading() as db:
            rows: list[Any] = await db.fetch(MOVE_QUERIES[name], *values)
            return rows

    # -- reading --------------------------------------------------------------------------------

    async def check(self) -> None:
        """Does nothing: the database checks types itself."""

    async def head(self) -> int:
        async with self._reading() as db:
            return int(await db.fetchval(QUERIES["head"]))

    async def rows(self, after: int, limit: int) -> Sequence[Row]:
        return await self._rows_after("rows", after, limit)

    async def old_rows(self, after: int, limit: int) -> Sequence[OldRow]:
        return await self._rows_after("old_rows", after, limit)

    async def old_rows_at(self, seqs: Sequence[int]) -> Sequence[OldRow]:
        return list(map(_plain, await self._rows("old_rows_at", seqs)))

    async def placed_at(self, seqs: Sequence[int]) -> Mapping[int, tuple[str | None, int | None]]:
        rows = await self._rows("placed_at", seqs)
        return {
            seq: (None if group is None else group.decode(), expires_at)
            for seq, group, expires_at in rows
        }

    async def _rows_after(self, name: str, after: int, limit: int) -> list[Any]:
        found = await rows_after(lambda seq, most: self._rows(name, seq, most), after, limit)
        return list(map(_plain, found))

    async def entries(self, table: Table) -> AsyncIterator[Sequence[Entry]]:
        page: list[Entry] = []
        async with self._cursor(entries_of(table)) as records:
            async for record in records:
                page.append(_entry(table, record))
                if len(page) == _PAGE:
                    yield page
                    page = []
        if page:
            yield page

    @asynccontextmanager
    async def _cursor(self, sql: str) -> AsyncIterator[Any]:
        if self._snapshot is not None:
            yield self._snapshot.cursor(sql, prefetch=_PAGE)
            return
        async with self._connections.snapshot() as db:
            yield db.cursor(sql, prefetch=_PAGE)

    async def entries_at(self, table: Table, key: Sequence[Value]) -> Sequence[Entry]:
        values = [
            _stored(table, column, value) for column, value in zip(table.keys, key, strict=True)
        ]
        async with self._reading() as db:
            found = await db.fetch(entries_at(table), *values)
        return [_entry(table, record) for record in found]

    async def sizes(self) -> Sequence[tuple[int, int, int]]:
        return list(map(tuple, await self._rows("sizes")))

    # -- writing --------------------------------------------------------------------------------

    async def put(
        self, table: Table, keys: Collection[tuple[Value, ...]], entries: Sequence[Entry]
    ) -> None:
        named = [
            [_stored(table, column, value) for column, value in zip(table.keys, key, strict=True)]
            for key in keys
        ]
        rows = [
            [
                _stored(table, column, value)
                for column, value in zip(table.columns, entry, strict=True)
            ]
            for entry in entries
        ]
        async with self._connections.writing() as db, db.transaction():
            await db.executemany(drop_entries(table), named)
            await db.executemany(add_entry(table), rows)

    async def _meta(self, name: str) -> str | None:
        async with self._reading() as db:
            found: str | None = await db.fetchval(QUERIES["get_meta"], name)
            return found

    async def _set_meta(self, name: str, text: str) -> None:
        async with self._connections.writing() as db:
            await db.execute(QUERIES["put_meta"], name, text)

    async def mark(self) -> str | None:
        return await self._meta(_MARK)

    async def set_mark(self, text: str | None) -> None:
        if text is not None:
            await self._set_meta(_MARK, text)
            return
        async with self._connections.writing() as db:
            await db.execute(MOVE_QUERIES["drop_meta"], _MARK)

    async def settle(self) -> None:
        async with self._connections.writing() as db:
            await db.execute(MOVE_QUERIES["settle"], timeout=_SETTLE_S)

    async def tidy(self) -> None:
        """Does nothing: dead rows are removed in the background."""

    # -- the log --------------------------------------------------------------------------------

    async def begin_log(self) -> str:
        async with self._connections.writing() as db, db.transaction():
            await db.execute(QUERIES["lock"])
            await db.execute(TOMBSTONE_SCRIPT)
            log = await db.fetchval(QUERIES["get_meta"], "moving_log")
            if log is None or await db.fetchval(MOVE_QUERIES["log_triggers"]) != TRIGGERS:
                await db.execute(MOVE_QUERIES["drop_log"])
                await db.execute(TOMBSTONE_SCRIPT)
                await db.execute(LOG_SCRIPT)
                log = await db.fetchval(QUERIES["get_meta"], "moving_log")
        return str(log)

    async def lines(self, after: int, limit: int) -> Sequence[Line]:
        return [_line(*row) for row in await self._rows("lines", after, limit)]

    async def end_log(self) -> None:
        async with self._connections.writing() as db, db.transaction():
            await db.execute(MOVE_QUERIES["drop_log"])

    async def hold(self) -> bool:
        db = await self._held.enter_async_context(self._connections.reading())
        if not await db.fetchval(QUERIES["hold"]):
            return False
        # A relay that was cut off from the database must not go on with it afterwards.
        await self._set_meta(OPENED_BY, secrets.token_hex(16))
        return True

    async def seal(self, text: str) -> None:
        await self._set_meta(_SEAL, text)

    async def close(self) -> None:
        await self._held.aclose()
        await self._connections.close()


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    seq, raw, group, *others = row
    return (seq, raw, None if group is None else group.decode(), *others)


def _line(number: int, name: str, seq: int | None, key: bytes, by: bytes) -> Line:
    if seq is not None:
        return Line(number, name, (seq,))
    (table,) = [each for each in TABLES if each.name == name]
    values = [
        value.decode() if table.columns[column] is str else value
        for column, value in zip(table.keys, (key, by), strict=False)
    ]
    return Line(number, name, tuple(values))


def _entry(table: Table, record: Sequence[Any]) -> Entry:
    return tuple(
        [_given(type_, value) for type_, value in zip(table.columns.values(), record, strict=True)]
    )


def _given(type_: type, value: Any) -> Value:
    if type_ is str and isinstance(value, bytes):
        return value.decode()
    return int(value) if type_ is bool else value


def _stored(table: Table, column: str, value: Value) -> object:
    if isinstance(value, str) and (table.name, column) not in _TEXT:
        return value.encode()
    return bool(value) if table.columns[column] is bool else value
