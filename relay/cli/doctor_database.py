"""What `rookery doctor` finds wrong with the database of `[storage] url`.

Time zones and collations are not looked at: times are kept as seconds, texts as bytes.
"""

from __future__ import annotations

from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from relay.cli.database import password_in
from relay.cli.findings import Finding, error, warning
from relay.cli.humanize import counted
from relay.config import LOOPBACK, PolicySource
from relay.errors import RookeryError, UserError, how_to_install
from relay.storage.moving import is_unfinished

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from relay.config import StorageConfig
    from relay.storage.postgres.health import Health

_CONNECTIONS: Final = 18
"""Most connections of a relay."""
_DURABLE: Final = frozenset({"on", "remote_apply", "local", "remote_write"})
_MANY_DEAD: Final = 100_000
_DEAD_SHARE: Final = 0.3
_MANY_ROWS: Final = 50_000
_OPEN_S: Final = 3_600
_OLD_TRANSACTIONS: Final = 1_000_000_000


async def database_findings(storage: StorageConfig, *, is_running: bool) -> Sequence[Finding]:
    """Empty for settings without a database."""
    if storage.url is None:
        return ()
    if find_spec("asyncpg") is None:
        why = "[storage] url needs a package that is not installed"
        return [error(why, how_to_install("postgres"))]
    from relay.storage.postgres.health import health_of

    try:
        health = await health_of(storage.url, password_in(storage.password_file))
    except UserError as wrong:
        return [error(str(wrong), "write the password of the database there, mode 0600")]
    except RookeryError as wrong:
        cure = "start the server, or correct [storage] url; `psql` with the same address tells more"
        return [error(f"the database does not answer: {wrong}", cure)]
    found = [*_server(health.server), *_safety(health.server), *_tables(health)]
    if "sslmode=disable" not in storage.url:  # else somebody has thought of it
        found += _encryption(health.server)
    if storage.policies is PolicySource.DATABASE and health.policies == 0:
        cure = "`rookery policy push --data DIR` stores those of DIR/policies"
        found.append(error("no policies were pushed to the database", cure))
    found += _places(health.server, is_running=is_running)
    if storage.replica is not None and health.program == "rookery":
        found += await _replica(storage.url, storage.replica, password_in(storage.password_file))
    return found


async def _replica(url: str, replica: str, password: str | None) -> Sequence[Finding]:
    """A relay reads on the primary instead, whatever it is."""
    from relay.storage.postgres.health import replica_health

    try:
        health = await replica_health(url, replica, password)
    except RookeryError as wrong:
        cure = "start the server, or correct [storage] replica"
        return [warning(f"the replica does not answer: {wrong}", cure)]
    if not health.is_of_same:
        cure = "name a server that follows the one of url by streaming replication"
        return [error("[storage] replica is a server of another database", cure)]
    if not health.is_replica:
        return [error("[storage] replica names a primary server", "name one that follows it")]
    if health.behind > 0:
        cure = "see pg_stat_replication on the primary: is replay paused, or the server too slow?"
        return [warning(f"the replica is {counted(health.behind, 'row')} behind", cure)]
    return ()


def _server(server: Mapping[str, Any]) -> Iterator[Finding]:
    from relay.storage.postgres.health import OLDEST_SERVER

    version = server["version"] // 10_000
    if version < OLDEST_SERVER:
        yield error(f"PostgreSQL is {version}", f"install {OLDEST_SERVER} or newer")
    if server["encoding"] != "UTF8":
        yield error(
            f"the database has the encoding {server['encoding']}",
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )
    if server["is_replica"] or server["is_read_only"]:
        kind = "a replica" if server["is_replica"] else "read-only"
        yield error(f"the database is {kind}: nothing can be written", "name the primary server")
    if server["is_pooled"]:
        yield warning(
            "a pooler is between the relay and the database: in transaction mode writes fail",
            "name the server itself in [storage] url",
        )


def _encryption(server: Mapping[str, Any]) -> Iterator[Finding]:
    address = server["address"]
    if address and not server["is_encrypted"] and not _is_here(address):
        yield warning(
            f"the connection to the database at {address} is not encrypted",
            "add sslmode=verify-full to [storage] url",
        )


def _is_here(address: str) -> bool:
    return any(ip_address(address) in network for network in LOOPBACK)


def _safety(server: Mapping[str, Any]) -> Iterator[Finding]:
    if server["synchronous_commit"] not in _DURABLE:
        yield error(
            f"synchronous_commit is {server['synchronous_commit']}: a crash of the server loses"
            " acknowledged events",
            "ALTER ROLE … SET synchronous_commit = on, then restart the relay",
        )
    for name in ("fsync", "full_page_writes"):
        if not server[name]:
            yield error(
                f"{name} is off: a power failure may destroy the database",
                f"set {name} = on in postgresql.conf",
            )
    if server["is_open"]:
        yield warning(
            "every role of the server may connect to the database: it can hold the locks of the"
            " relay, and stop its writes",
            f'REVOKE CONNECT ON DATABASE "{server["name"]}" FROM PUBLIC',
        )
    if not server["autovacuum"]:
        yield warning(
            "autovacuum is off: tables grow, and plans are based on old statistics",
            "set autovacuum = on in postgresql.conf",
        )
    if server["open_s"] > _OPEN_S:
        yield warning(
            f"a transaction has been open for {counted(server['open_s'] // 60, 'minute')}: what was"
            " deleted since stays in the tables",
            "end it: pg_stat_activity has its process and its program, by xact_start",
        )
    if server["transactions"] > _OLD_TRANSACTIONS:
        yield error(
            f"the oldest row is {server['transactions']:,} transactions old: at 2,000,000,000 the"
            " server refuses writes",
            "VACUUM FREEZE, and see why autovacuum does not",
        )


def _tables(health: Health) -> Iterator[Finding]:
    from relay.storage.postgres.health import SCHEMA_VERSION

    if health.program is None:
        return  # the first start makes them
    if health.program != "rookery":
        yield error("the database has tables of another program", "make one for the relay alone")
        return
    if health.schema > SCHEMA_VERSION:
        yield error(
            f"the database has schema {health.schema}, this Rookery knows up to {SCHEMA_VERSION}",
            "install the newer version that wrote it",
        )
        return
    if is_unfinished(health.move):
        yield error("the database holds a part of what is moved to it", "run `rookery move` again")
    if health.schema == SCHEMA_VERSION:
        for name, statement in health.missing.items():
            yield error(f"the index {name} is missing", statement)
    for name in health.invalid:
        yield error(f"the index {name} cannot be used", f"REINDEX INDEX CONCURRENTLY {name}")
    for table in health.tables:
        if table.dead > max(_MANY_DEAD, _DEAD_SHARE * table.live):
            yield warning(
                f"table {table.name} has {table.dead:,} dead rows beside {table.live:,}",
                f"VACUUM {table.name}, and see what holds autovacuum up",
            )
        if table.live > _MANY_ROWS and not table.is_analyzed:
            yield warning(
                f"table {table.name} was never analyzed: plans ignore its {table.live:,} rows",
                f"ANALYZE {table.name}",
            )


def _places(server: Mapping[str, Any], *, is_running: bool) -> Iterator[Finding]:
    left = server["places"] - server["taken"]
    if left < (1 if is_running else _CONNECTIONS):
        yield warning(
            f"the server has {counted(max(left, 0), 'connection')} left of {server['places']}, and"
            f" a relay takes up to {_CONNECTIONS}",
            "raise max_connections in postgresql.conf",
        )
