"""Opening the database: which program made it, its schema version, its tag index."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.errors import StoreFault, StoreVersion
from relay.nostr.keys import npub
from relay.storage.postgres.connections import Connections
from relay.storage.postgres.hashes import KeyedHashes
from relay.storage.postgres.sql.named import FILES, QUERIES
from relay.storage.rows import event_in

if TYPE_CHECKING:
    from relay.nostr.filters import FilterTerms

SCHEMA_VERSION: Final = 5
OLDEST_SERVER: Final = 14
_RELAY: Final = "relay"
"""Public key of the relays that use the database."""
SCRIPTS: Final = ("schema.sql", "functions.sql", "search_schema.sql")
_TAGGED_ROWS: Final = 5_000
_MAX_INT: Final = 2**63 - 1


async def opened(connections: Connections, terms: FilterTerms) -> KeyedHashes:
    """Make or migrate the tables. Raises StoreFault, StoreVersion."""
    async with connections.writing() as db:
        await _check_server(db)
        async with db.transaction():
            await db.execute(QUERIES["lock_schema"])
            await _migrate(db)
            hashes = KeyedHashes(bytes.fromhex(await _needed(db, "hash_key")))
            await _index_new_tags(db, hashes, terms)
    return hashes


async def _check_server(db: Any) -> None:
    number, encoding, is_replica, is_read_only = await db.fetchrow(QUERIES["server"])
    if number // 10_000 < OLDEST_SERVER:
        raise StoreVersion(f"PostgreSQL {number // 10_000} is too old: {OLDEST_SERVER} is needed")
    if encoding != "UTF8":
        raise StoreVersion(f"the database has the encoding {encoding}: make one with UTF8")
    if is_replica or is_read_only:
        raise StoreFault("the database is read-only: name the primary server")


async def _migrate(db: Any) -> None:
    tables, has_meta = await db.fetchrow(QUERIES["tables"])
    if not tables:
        for name in SCRIPTS:
            await db.execute(FILES.script(name))
        await db.execute(QUERIES["put_meta"], "program", "rookery")
        await db.execute(QUERIES["put_meta"], "schema", str(SCHEMA_VERSION))
        await db.execute(QUERIES["put_meta"], "hash_key", secrets.token_hex(32))
        return
    if not has_meta or await db.fetchval(QUERIES["get_meta"], "program") != "rookery":
        raise StoreVersion("the database has tables of another program: make one of its own")
    version = int(await _needed(db, "schema"))
    if version > SCHEMA_VERSION:
        raise StoreVersion(
            f"the database has schema {version}, this Rookery knows up to {SCHEMA_VERSION}:"
            " run the newer version that wrote it"
        )
    if version < SCHEMA_VERSION and not await db.fetchval(QUERIES["is_nobodys"]):
        raise StoreFault(
            "the database has tables of an older version, and a relay on it: stop all of them first"
        )
    for step in range(version + 1, SCHEMA_VERSION + 1):
        await db.execute(FILES.migration(step))
        await db.execute(QUERIES["put_meta"], "schema", str(step))


async def take_key(db: Any, relay: str, *, is_shared: bool) -> None:
    """Call it while this process may use the database. The key is of this relay, or of those that
    share the database: with another one it would sign again what the others sign. Raises
    StoreFault.
    """
    if is_shared:
        await db.execute(QUERIES["add_meta"], _RELAY, relay)
        _check_key(await db.fetchval(QUERIES["get_meta"], _RELAY), relay)
    else:
        await db.execute(QUERIES["put_meta"], _RELAY, relay)


async def check_shared(url: str, password: str | None, relay: str) -> None:
    """Whether a relay with this key may share the database; changes nothing. Raises StoreFault."""
    connections = Connections(url, password)
    await connections.open()
    try:
        async with connections.reading() as db:
            _, has_meta = await db.fetchrow(QUERIES["tables"])
            _check_key(await db.fetchval(QUERIES["get_meta"], _RELAY) if has_meta else None, relay)
    finally:
        await connections.close()


def _check_key(found: str | None, relay: str) -> None:
    if found not in (None, relay):
        raise StoreFault(
            f"the relays on this database have another relay.key ({npub(str(found))}): copy it from"
            " one of them; for a new key stop all relays and run `rookery key rotate`"
        )


async def _needed(db: Any, name: str) -> str:
    value = await db.fetchval(QUERIES["get_meta"], name)
    if value is None:
        raise StoreFault(f"the database has no {name}: restore a backup")
    return str(value)


async def _index_new_tags(db: Any, hashes: KeyedHashes, terms: FilterTerms) -> None:
    """Index stored rows by tag names that are new in `[storage] index_tags`."""
    kept = await db.fetchval(QUERIES["get_meta"], "index_tags")
    known = terms.index_tags if kept is None else frozenset(orjson.loads(kept))
    if kept is not None and known == terms.index_tags:
        return
    new = terms.index_tags - known
    after = 0 if new else _MAX_INT
    while rows := await db.fetch(QUERIES["rows_to_tag"], after, _TAGGED_ROWS):
        after = rows[-1][0]
        found = [
            (seq, hashes.tag(name, value))
            for seq, raw in rows
            for name in new
            for value in event_in(raw).tag_values(name)
        ]
        if found:
            await db.execute(
                QUERIES["add_tags"], *[list(column) for column in zip(*found, strict=True)]
            )
    # Entries of names that are no longer indexed stay: harmless, and completed if the name is
    # indexed again.
    names = orjson.dumps(sorted(terms.index_tags)).decode()
    await db.execute(QUERIES["put_meta"], "index_tags", names)
