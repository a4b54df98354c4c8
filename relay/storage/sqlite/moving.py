"""A store's file for `rookery move`, by a connection besides those of the relay."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.errors import StoreVersion, UserError
from relay.storage.moving import TABLES, Line
from relay.storage.rows import rows_after
from relay.storage.sqlite.connections import connection, sqlite_faults
from relay.storage.sqlite.copying import schema_of
from relay.storage.sqlite.opening import SCHEMA_VERSION, check_schema, check_values
from relay.storage.sqlite.sql.moving import (
    LOG_SCRIPT,
    MOVE_QUERIES,
    TRIGGERS,
    add_entry,
    drop_entries,
    drop_trigger,
    entries_at,
    entries_of,
)
from relay.storage.sqlite.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from relay.storage.moving import Entry, OldRow, Row, Table, Value

_MARK: Final = "moving"
_PAGE: Final = 1_000


class SqliteSide:
    """`relay.storage.moving.Side` of one file. One call at a time."""

    def __init__(self, path: Path) -> None:
        """Raises StoreFault, StoreVersion; UserError when there is no store."""
        schema = schema_of(path)
        if schema is None:
            raise UserError(f"{path} holds nothing yet: there is nothing to move")
        if schema != SCHEMA_VERSION:
            raise StoreVersion(
                f"{path} has schema {schema}, this Rookery writes {SCHEMA_VERSION}: start the relay"
                " once with this version, then move"
            )
        self.name = str(path)
        with sqlite_faults(path):
            self._db = connection(path)
            check_schema(self._db, path)

    async def _run(self, work: Callable[..., Any], *args: object) -> Any:
        with sqlite_faults(self.name):
            return await asyncio.to_thread(work, *args)

    async def _rows(self, sql: str, *values: Value) -> list[Any]:
        found: list[Any] = await self._run(lambda: self._db.execute(sql, values).fetchall())
        return found

    # -- reading --------------------------------------------------------------------------------

    async def check(self) -> None:
        await self._run(check_values, self._db, self.name)

    async def head(self) -> int:
        ((head,),) = await self._rows(MOVE_QUERIES["head"])
        return int(head)

    async def rows(self, after: int, limit: int) -> Sequence[Row]:
        return await self._rows_after("rows", after, limit)

    async def old_rows(self, after: int, limit: int) -> Sequence[OldRow]:
        return await self._rows_after("old_rows", after, limit)

    async def old_rows_at(self, seqs: Sequence[int]) -> Sequence[OldRow]:
        return list(map(_plain, await self._rows(MOVE_QUERIES["old_rows_at"], _listed(seqs))))

    async def placed_at(self, seqs: Sequence[int]) -> Mapping[int, tuple[str | None, int | None]]:
        rows = await self._rows(MOVE_QUERIES["placed_at"], _listed(seqs))
        return {seq: (group, expires_at) for seq, group, expires_at in rows}

    async def _rows_after(self, name: str, after: int, limit: int) -> list[Any]:
        found = await rows_after(
            lambda seq, most: self._rows(MOVE_QUERIES[name], seq, most), after, limit
        )
        return list(map(_plain, found))

    async def entries(self, table: Table) -> AsyncIterator[Sequence[Entry]]:
        cursor = await self._run(self._db.execute, entries_of(table))
        while page := await self._run(cursor.fetchmany, _PAGE):
            yield page

    async def entries_at(self, table: Table, key: Sequence[Value]) -> Sequence[Entry]:
        return await self._rows(entries_at(table), *key)

    async def sizes(self) -> Sequence[tuple[int, int, int]]:
        return await self._rows(MOVE_QUERIES["sizes"])

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        await self._rows("BEGIN")
        try:
            yield
        finally:
            await self._rows("ROLLBACK")  # nothing was written in it

    # -- writing --------------------------------------------------------------------------------

    async def put(
        self, table: Table, keys: Collection[tuple[Value, ...]], entries: Sequence[Entry]
    ) -> None:
        def write() -> None:
            kept = self._db.execute(MOVE_QUERIES["partitions"]).fetchall()
            self._db.executemany(drop_entries(table), list(keys))
            self._db.executemany(add_entry(table), entries)
            if table.name == "groups":
                self._db.executemany(QUERIES["set_partition"], kept)
                self._db.execute(QUERIES["put_meta"], ("unplaced", 1))

        await self._write(write)

    async def _write(self, work: Callable[[], None]) -> None:
        def write() -> None:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                work()
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

        await self._run(write)

    async def mark(self) -> str | None:
        rows = await self._rows(QUERIES["get_meta"], _MARK)
        return rows[0][0] if rows else None

    async def set_mark(self, text: str | None) -> None:
        if text is None:
            await self._rows(QUERIES["drop_meta"], _MARK)
        else:
            await self._rows(QUERIES["put_meta"], _MARK, text)

    async def settle(self) -> None:
        """Does nothing: this store plans no query by statistics."""

    async def tidy(self) -> None:
        """Otherwise the relay would do it when it stops, while clients wait."""
        await self._rows("PRAGMA wal_checkpoint(PASSIVE)")

    # -- the log --------------------------------------------------------------------------------

    async def begin_log(self) -> str:
        ((log, triggers),) = await self._rows(MOVE_QUERIES["log_state"])
        if log is None or triggers != TRIGGERS:
            await self.end_log()
            await self._run(self._db.executescript, f"BEGIN IMMEDIATE; {LOG_SCRIPT} COMMIT;")
            ((log, _),) = await self._rows(MOVE_QUERIES["log_state"])
        return str(log)

    async def lines(self, after: int, limit: int) -> Sequence[Line]:
        keys = {"events": 1, "old_versions": 1} | {table.name: len(table.keys) for table in TABLES}
        return [
            Line(number, name, tuple(key[: keys[name]]))
            for number, name, *key in map(
                tuple, await self._rows(MOVE_QUERIES["lines"], after, limit)
            )
        ]

    async def end_log(self) -> None:
        def drop() -> None:
            for (name,) in self._db.execute(MOVE_QUERIES["log_triggers"]).fetchall():
                self._db.execute(drop_trigger(name))
            self._db.execute(MOVE_QUERIES["drop_log"])
            self._db.execute(QUERIES["drop_meta"], ("moving_log",))

        await self._write(drop)

    async def hold(self) -> bool:
        return True  # the lock of its folder does

    async def seal(self, text: str) -> None:
        """Renames the file; its WAL must be empty."""
        await self._rows("PRAGMA wal_checkpoint(TRUNCATE)")

    async def close(self) -> None:
        await self._run(self._db.close)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """`quiet` as PostgreSQL has it."""
    return (*row[:3], bool(row[3]), *row[4:])


def _listed(seqs: Sequence[int]) -> str:
    return orjson.dumps(list(seqs)).decode()
