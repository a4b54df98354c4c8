"""Facts about a database, for `rookery doctor`. Changes nothing."""

from __future__ import annotations

import asyncio
import re
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relay.storage.postgres.connections import Connections
from relay.storage.postgres.opening import OLDEST_SERVER, SCHEMA_VERSION, SCRIPTS
from relay.storage.postgres.sql.named import FILES, QUERIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "OLDEST_SERVER",
    "SCHEMA_VERSION",
    "Health",
    "ReplicaHealth",
    "TableState",
    "health_of",
    "replica_health",
]

_QUERIES: Final = FILES.statements("health.sql")
_FOLLOWS_S: Final = 2.0
_STEP_S: Final = 0.1
_INDEX: Final = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+)[^;]*;", re.MULTILINE)


class TableState(NamedTuple):
    name: str
    live: int
    dead: int
    is_analyzed: bool


class Health(NamedTuple):
    server: Mapping[str, Any]
    """The columns of `server` in `sql/health.sql`, and `is_pooled`: something between answers for
    the server."""
    program: str | None
    """The program that made the tables; None: there are none yet."""
    schema: int
    missing: Mapping[str, str]
    """Missing indexes, each with the statement that creates it."""
    invalid: Sequence[str]
    tables: Sequence[TableState]
    move: str | None
    """The mark of `rookery move`."""
    policies: int | None = None
    """The newest version; 0: none was pushed. None: the tables are older."""


async def health_of(url: str, password: str | None) -> Health:
    """Raises StoreFault when it cannot be asked."""
    connections = Connections(url, password)
    await connections.open()
    try:
        async with connections.reading() as db:
            return await _asked(db)
    finally:
        await connections.close()


class ReplicaHealth(NamedTuple):
    is_replica: bool
    is_of_same: bool
    """The replica follows this database."""
    behind: int
    """Number of seqs that it does not have, after some time to catch up."""


async def replica_health(url: str, replica: str, password: str | None) -> ReplicaHealth:
    """Raises StoreFault when the replica cannot be asked."""
    primary, there = Connections(url, password), Connections(replica, password)
    await primary.open()
    await there.open()
    try:
        async with primary.reading() as db:
            system, head = await db.fetchval(_QUERIES["system"]), await db.fetchval(QUERIES["head"])
        async with there.reading() as db:
            is_of_same = system == await db.fetchval(_QUERIES["system"])
            until = monotonic() + _FOLLOWS_S
            while True:
                seq, is_replica, *_ = await db.fetchrow(QUERIES["replica"])
                if seq >= head or not is_replica or monotonic() > until:
                    return ReplicaHealth(is_replica, is_of_same, head - seq)
                await asyncio.sleep(_STEP_S)
    finally:
        await there.close()
        await primary.close()


async def _asked(db: Any) -> Health:
    server = dict(await db.fetchrow(_QUERIES["server"]))
    # A pooler makes up the number that cancels a statement.
    server["is_pooled"] = server["pid"] != db.get_server_pid()
    tables, has_meta = await db.fetchrow(QUERIES["tables"])
    if not tables:
        return Health(server, None, SCHEMA_VERSION, {}, (), (), None)
    meta = {}
    if has_meta:
        for name in ("program", "schema", "moving"):
            meta[name] = await db.fetchval(QUERIES["get_meta"], name)
    schema = int(meta.get("schema") or 0)
    policies = None
    if schema == SCHEMA_VERSION:
        _, policies = await db.fetchrow(QUERIES["news"])
    indices = dict(await db.fetch(_QUERIES["indices"]))
    wanted = {
        found[1]: found[0] for text in SCRIPTS for found in _INDEX.finditer(FILES.script(text))
    }
    return Health(
        server,
        meta.get("program") or "another",
        schema,
        {name: " ".join(text.split()) for name, text in wanted.items() if name not in indices},
        [name for name, is_valid in indices.items() if not is_valid],
        [TableState(*row) for row in await db.fetch(_QUERIES["tables"])],
        meta.get("moving"),
        policies,
    )
