"""A PostgreSQL server for tests: Debian's programs, a folder of its own, a Unix socket only.

It ends with the process that started it. Each test gets a schema of its own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from relay.nostr.filters import FilterTerms
from relay.storage.postgres.store import PostgresStore
from tests.harness.patience import PROGRAM_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from tests.harness.network import Place

MISSING: Final = "no PostgreSQL server is installed (on Debian: apt install postgresql)"
_USER: Final = "rookery"
_LEFT: Final = "pre-existing shared memory"
"""Of a server that was killed: it had forked a process meanwhile, which ends as well."""
_SETTINGS: Final = {
    "listen_addresses": "",
    "max_connections": "500",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "log_min_messages": "fatal",
}


def programs() -> Path | None:
    """The folder of the newest server's programs."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4])
    )
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    return None if on_path is None else Path(on_path).parent


class PostgresServer:
    """Runs until `stop`."""

    def __init__(
        self,
        bin_: Path,
        settings: Mapping[str, str] | None = None,
        follows: PostgresServer | None = None,
        place: Place | None = None,
    ) -> None:
        """`settings`: in place of those for tests, which keep nothing. `follows`: this is a replica
        of that one, by streaming replication. `place`: it runs there, and whoever has a cable to it
        may connect."""
        # Not below the folder of a test: the path of a socket has 107 bytes at most, and the
        # server, which does not run as root, must reach it.
        self._folder = Path(tempfile.mkdtemp(prefix="pg"))
        self._schemas = count(1)
        self._free: list[str] = []
        self._has_fresh = False
        owner = _owner()
        if owner is not None:
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
        data = self._folder / "data"
        words = (
            ("initdb", "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions")
            if follows is None
            else ("pg_basebackup", "-U", _USER, "-h", str(follows._folder), "-c", "fast", "-R")
        )
        subprocess.run(
            [*_as(owner), str(bin_ / words[0]), *words[1:], "-D", str(data), "--no-sync"],
            check=True,
            cwd="/",
            stdout=subprocess.DEVNULL,
            timeout=PROGRAM_S,
        )
        given = {**_SETTINGS, **(settings or {})}
        if place is not None:
            given["listen_addresses"] = "*"
            with (data / "pg_hba.conf").open("a") as rights:
                rights.write("host all all all trust\n")
        options = [word for item in given.items() for word in ("-c", "=".join(item))]
        self._bin = bin_
        self._log = self._folder / "log"
        places = "-D", str(data), "-k", str(self._folder)
        there = () if place is None else place.words
        self._command = [*there, *_as(owner), str(bin_ / "postgres"), *places, *options]
        self.start()

    def start(self) -> None:
        """Also again, after `crash`."""
        for _ in range(100):
            if self._is_up():
                return
            if _LEFT not in self._log.read_text().rpartition("FATAL")[2]:
                break
            time.sleep(0.1)
        raise RuntimeError(self._log.read_text())

    def _is_up(self) -> bool:
        """Started, and taking connections; False: it ended."""
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                self._command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        ready = [str(self._bin / "pg_isready"), "-q", "-h", str(self._folder)]
        patience = 0.01
        while subprocess.run(ready, check=False, cwd="/").returncode:
            patience *= 2  # each look takes some of the machine that the server waits for
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(patience)
                return False
        return True

    def crash(self) -> None:
        """All of its processes, in whatever they do."""
        self.send_signal(signal.SIGKILL)
        self._server.wait()

    def replica(self) -> PostgresServer:
        """A server that follows this one, and cancels a read that holds it up for 200 ms."""
        return PostgresServer(self._bin, {"max_standby_streaming_delay": "200ms"}, follows=self)

    async def promote(self) -> None:
        """A replica goes on as the primary."""
        assert await self.value("SELECT pg_promote()")

    def stop_at_once(self) -> None:
        """Without a checkpoint, as PostgreSQL's `immediate` does."""
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait()

    @property
    def socket(self) -> Path:
        return self._folder / ".s.PGSQL.5432"

    @property
    def host(self) -> Path:
        """As addresses name it."""
        return self._folder

    def url(self, schema: str, host: str | None = None) -> str:
        """`host`: not by its Unix socket."""
        where = self._folder if host is None else host
        return f"postgresql://{_USER}@/postgres?host={where}&search_path={schema}"

    @property
    def pid(self) -> int:
        return self._server.pid

    @staticmethod
    def schema_of(url: str) -> str:
        return url.rpartition("search_path=")[2].partition("&")[0]

    async def new_schema(self) -> str:
        """The address of an empty database: a schema that nothing else uses."""
        if self._free:
            return self._free.pop()
        schema = f"test_{next(self._schemas)}"
        await self.execute(f"CREATE SCHEMA {schema}")
        return self.url(schema)

    async def empty(self, url: str) -> None:
        """To be used again: that takes a tenth of what it takes to make the tables and to drop
        them."""
        if not self._has_fresh:
            # What a store is made with, from one that was just made.
            await self.execute("CREATE SCHEMA fresh")
            store = await PostgresStore.open(self.url("fresh"), FilterTerms())
            await store.close()
            self._has_fresh = True
        schema = self.schema_of(url)
        await self.execute(
            f"""
            DO $$ DECLARE name text; BEGIN
                FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'fresh' LOOP
                    EXECUTE format('DELETE FROM {schema}.%I', name);
                    EXECUTE format('INSERT INTO {schema}.%1$I SELECT * FROM fresh.%1$I', name);
                END LOOP;
            END $$
            """
        )
        self._free.append(url)

    async def waiting_for_locks(self) -> bool:
        """Whether a connection waits for another one's advisory lock."""
        db = await asyncpg.connect(self.url("public"))
        try:
            found = await db.fetchval(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            )
        finally:
            await db.close()
        return bool(found)

    async def kill_connections(self) -> None:
        """Those of all stores, in whatever they are doing."""
        await self.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'rookery'"
        )

    async def forget_changes(self, url: str) -> None:
        """As if a minute had gone by."""
        schema = self.schema_of(url)
        await self.execute(
            f"DELETE FROM {schema}.changes; UPDATE {schema}.head SET changes_after = seq"
        )

    def send_signal(self, number: int) -> None:
        """To all of its processes."""
        pid = self._server.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(each, number)

    async def execute(self, statement: str) -> None:
        async with self._connected() as db:
            await db.execute(statement)

    async def value(self, statement: str) -> Any:
        async with self._connected() as db:
            return await db.fetchval(statement)

    async def rows(self, statement: str) -> list[Any]:
        async with self._connected() as db:
            found: list[Any] = await db.fetch(statement)
            return found

    @asynccontextmanager
    async def unwritable(self, table: str) -> AsyncIterator[None]:
        """Inside, who writes to it waits."""
        async with self._locked(table, "EXCLUSIVE"):
            yield

    @asynccontextmanager
    async def unreadable(self, table: str) -> AsyncIterator[None]:
        """Inside, who reads it waits."""
        async with self._locked(table, "ACCESS EXCLUSIVE"):
            yield

    @asynccontextmanager
    async def _locked(self, table: str, mode: str) -> AsyncIterator[None]:
        async with self._connected() as db, db.transaction():
            await db.execute(f"LOCK TABLE {table} IN {mode} MODE")
            yield

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        db = await asyncpg.connect(self.url("public"))
        try:
            yield db
        finally:
            await db.close()

    def stop(self) -> None:
        self._server.terminate()
        try:
            self._server.wait(5)
        except subprocess.TimeoutExpired:  # a connection that a test left
            self._server.kill()
            self._server.wait()
        shutil.rmtree(self._folder)


def _owner() -> pwd.struct_passwd | None:
    """Whom the server runs as, when it cannot be us: PostgreSQL refuses root."""
    if os.geteuid():
        return None
    names = [name for name in ("postgres", "nobody") if _exists(name)]
    return pwd.getpwnam(names[0])


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _as(owner: pwd.struct_passwd | None) -> Sequence[str]:
    """Words before a command: as this user, and killed with us."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    ends_with_us = (setpriv, "--pdeathsig", "INT")
    if owner is None:
        return (*ends_with_us, "--")
    ids = f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"
    return (*ends_with_us, *ids, "--")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests of a worker."""
    bin_ = programs()
    if bin_ is None:
        pytest.skip(MISSING)
    server = PostgresServer(bin_)
    yield server
    server.stop()
