"""The table `policy_versions`: see relay/storage/policy_versions.py."""

from __future__ import annotations

from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from relay.errors import StoreVersion
from relay.storage.policy_versions import KEPT, Overtaken, PolicyVersion, packed, unpacked
from relay.storage.postgres.connections import Connections
from relay.storage.postgres.opening import SCHEMA_VERSION
from relay.storage.postgres.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence


class PolicyVersions:
    """The policy versions of one database. All methods raise StoreFault."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.newest = 0
        """Number of the newest version that this relay knows; 0: none was pushed, or none is
        known."""
        self.changed: Callable[[], None] = lambda: None
        """Called when `newest` has changed."""

    def heard(self, newest: int) -> None:
        if newest != self.newest:
            self.newest = newest
            self.changed()

    async def versions(self, limit: int) -> Sequence[PolicyVersion]:
        """Newest first."""
        async with self._connections.for_relay() as db:
            rows = await db.fetch(QUERIES["policy_versions"], limit)
        return [PolicyVersion(*row) for row in rows]

    async def read(
        self, number: int | None = None
    ) -> tuple[PolicyVersion, dict[str, bytes]] | None:
        """A version and its files; `number` None: the newest. None: not found. Raises ConfigFaults
        for a damaged one."""
        async with self._connections.for_relay() as db:
            row = await db.fetchrow(QUERIES["policy_files"], number)
        if row is None:
            return None
        *columns, data = row
        version = PolicyVersion(*columns)
        return version, unpacked(data, version)

    async def push(
        self, files: Mapping[str, bytes], *, over: int, at: int, by: str, message: str
    ) -> PolicyVersion:
        """The next version. `over`: the newest that the pusher has seen, 0 for none.

        Raises Overtaken when another one is the newest, Invalid for too many or too large files.
        """
        data = packed(files)
        size = sum(map(len, files.values()))
        digest = sha256(data).hexdigest()
        version = PolicyVersion(over + 1, at, by, message, digest, len(files), size)
        async with self._connections.writing() as db, db.transaction():
            await db.execute(QUERIES["lock_policies"])
            newest = await db.fetchrow(QUERIES["policy_versions"], 1)
            if over != (0 if newest is None else newest["version"]):
                raise Overtaken(None if newest is None else PolicyVersion(*newest))
            await db.execute(QUERIES["add_policies"], *version, data)
            await db.execute(QUERIES["drop_policies"], version.number - KEPT)
        return version


@asynccontextmanager
async def opened_policies(url: str, password: str | None) -> AsyncIterator[PolicyVersions]:
    """Relays may use the database meanwhile. Raises StoreFault, StoreVersion."""
    connections = Connections(url, password)
    await connections.open()
    try:
        async with connections.reading() as db:
            tables, has_meta = await db.fetchrow(QUERIES["tables"])
            schema = await db.fetchval(QUERIES["get_meta"], "schema") if has_meta else None
        if not tables:
            raise StoreVersion("the database has no tables yet: start a relay on it first")
        if schema != str(SCHEMA_VERSION):
            raise StoreVersion(
                f"the database has schema {schema}, this Rookery needs {SCHEMA_VERSION}: start a"
                " relay of this version on an older one first, use a newer Rookery for a newer one"
            )
        yield PolicyVersions(connections)
    finally:
        await connections.close()
