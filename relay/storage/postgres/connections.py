"""Connections to the database: pools that read, one connection that writes.

Errors of asyncpg are raised as StoreFault, without the values of a statement. The next call
replaces a lost connection, on the first host that accepts it.
"""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, Literal

import asyncpg
from asyncpg.connection import _StatementCache

from relay.errors import StoreFault, TooSlow
from relay.storage.postgres.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from asyncpg.pool import Pool

_READERS: Final = 6
_PAGERS: Final = 7
_FOR_RELAY: Final = 3
_CONNECT_S: Final = 10
_COMMAND_S: Final = 60
"""A server that does not answer for this time counts as gone."""
_CLOSE_S: Final = 5
_VANISHED_S: Final = 10
"""A host that has acknowledged nothing for this time counts as gone; the kernel would wait for a
quarter of an hour."""
_HOSTS: Final = (
    re.compile(r"(?P<before>//(?:[^/?]*@)?)(?P<hosts>[^/?@]*,[^/?@]*)(?=[/?]|$)"),
    re.compile(r"(?P<before>[?&]host=)(?P<hosts>[^&]*,[^&]*)"),
)
_PORTS: Final = re.compile(r"(?P<before>[?&]port=)(?P<ports>[\d,]*)")
_SETTINGS: Final = {
    "application_name": "rookery",
    "jit": "off",  # no query here runs long enough to benefit from it
    "timezone": "UTC",
    # As `_TCP_OPTIONS`, for the server: it would keep a relay's locks for two hours.
    "tcp_keepalives_idle": f"{_VANISHED_S // 2}s",
    "tcp_keepalives_interval": "1s",
    "tcp_keepalives_count": f"{_VANISHED_S // 2}",
    "tcp_user_timeout": f"{_VANISHED_S}s",
}
_WRITE_SETTINGS: Final = {
    **_SETTINGS,
    # Ends the batch of a relay that hangs or is cut off, because all others wait for its lock.
    "idle_in_transaction_session_timeout": "10s",
}
_PAGE_SETTINGS: Final = {
    **_SETTINGS,
    # A page follows an index and stops early; planning the condition of visibility takes ten times
    # as long. Without these settings a generic plan would read and sort all that could match.
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(
        ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"
    ),
}
_CANCEL_S: Final = 2
"""How long a read waits until its statement is cancelled; then its connection is ended. A request
to cancel that comes before the statement has begun does nothing."""
_ENDS_WHEN_LEFT: Final = f"SET client_connection_check_interval = '{_CANCEL_S}s'"
"""Else a statement goes on to its end when its connection is ended, or the relay."""
_TCP_OPTIONS: Final = {
    getattr(socket, name): value
    for name, value in {
        "TCP_KEEPIDLE": _VANISHED_S // 2,
        "TCP_KEEPINTVL": 1,
        "TCP_KEEPCNT": _VANISHED_S // 2,
        "TCP_USER_TIMEOUT": 1000 * _VANISHED_S,
    }.items()
    if hasattr(socket, name)  # not on every platform
}
_OWN_STATEMENTS: Final = 512, 32_768
"""How many texts a connection keeps prepared, and characters of the longest. The server's memory
for one is 60 to 200 bytes for each character, …"""
_READ_STATEMENTS: Final = 64, 4_096
"""… and clients choose those of counts and searches, which are planned for their values anyway …"""
_PAGE_STATEMENTS: Final = 256, 12_288
"""… and those of pages, which take up to ten times as long if they are not prepared. With the
packaged rules they have up to 9,500; those of common clients are some 170, most of 1,000."""
_CHARACTERS: Final = 420_000
"""In the texts that a connection keeps prepared …"""
_TEXT: Final = 500
"""… where each counts as so many more: 48 MB of the server's memory at most."""
_INTERRUPTED: Final = 16
"""Of so many statements that end early, as clients leave, one ends its connection."""
On = Literal["reading", "paging", "snapshot", "for_relay"]
"""The method of `Connections` that a read takes its connection from."""
SET_BACK: Final = "the database is not as this relay knew it: the relay starts again"


class _Statements(_StatementCache):  # type: ignore[misc]
    """Those used last; asyncpg bounds only their number."""

    __slots__ = ()

    @classmethod
    def take_over(cls, db: Any) -> None:
        """Before its first statement."""
        theirs = db._stmt_cache
        size, on_remove = theirs.get_max_size(), theirs._on_remove
        db._stmt_cache = cls(loop=db._loop, max_size=size, on_remove=on_remove, max_lifetime=0)

    def put(self, query: object, statement: Any) -> None:
        super().put(query, statement)
        most, size = self.get_max_size(), sum(map(_size, self.iter_statements()))
        while size > _CHARACTERS:
            size -= _size(next(self.iter_statements()))  # used longest ago
            self.set_max_size(len(self) - 1)
        self.set_max_size(most)


def _size(statement: Any) -> int:
    return len(statement.query) + _TEXT


POOLED: Final = "a pooler is in between: name the server itself in [storage] url"
_OF_POOLERS: Final = (
    asyncpg.DuplicatePreparedStatementError,
    asyncpg.InvalidSQLStatementNameError,
)
"""Errors of statements that were prepared on another connection of the server."""


def fault_of(error: BaseException) -> StoreFault:
    """Without details: they may quote rows."""
    if isinstance(error, asyncpg.PostgresError):
        text = str(error.args[0]) if error.args else type(error).__name__
        # PgBouncer's own words suggest a setting with which the relay starts and cannot write.
        if isinstance(error, _OF_POOLERS) or "unsupported startup parameter" in text:
            text = f"{POOLED} ({text})"
        return StoreFault(f"database: {text}")
    if isinstance(error, asyncpg.exceptions.DataError):  # quotes the value
        return StoreFault("database: a value that PostgreSQL cannot hold")
    if isinstance(error, TimeoutError):
        return StoreFault("database: no answer in time")
    return StoreFault(f"database: {error}")


FAULTS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # TimeoutError too
)


def urls_of(url: str) -> list[str]:
    """One URL for each host and port in it."""
    for several in _HOSTS:
        if found := several.search(url):
            ports = _PORTS.search(url)
            given = cycle(ports["ports"].split(",") if ports else [""])
            return [
                _PORTS.sub(rf"\g<before>{port}", several.sub(rf"\g<before>{host}", url, 1), 1)
                for host, port in zip(found["hosts"].split(","), given, strict=False)
            ]
    return [url]


def end(db: Any) -> None:
    """Close a connection that is broken or already lost."""
    with suppress(asyncpg.InterfaceError):  # the pool has already released it
        db.terminate()


async def _kept_as_is(_: Any) -> None:
    """Resets nothing when a connection returns to the pool: asyncpg rolls back, and nothing else is
    ever set."""


async def _out_of_transaction(db: Any) -> None:
    """The same for a read that may have been interrupted between preparing its statement and
    executing it: the server has begun a transaction that asyncpg does not know of, and ends it with
    any statement. ROLLBACK would have it warn of each other one that has none."""
    await db.execute(QUERIES["nothing"])


class _Held:
    """Connections of a pool that stay acquired between two uses: releasing and acquiring one takes
    asyncpg longer than a short read."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._pool = pool
        self._free: list[Any] = []
        self._waiting = 0
        self._closes = False
        self._interrupted = 0

    async def take(self, within_s: float | None) -> Any:
        while self._free:
            db = self._free.pop()
            if _is_idle(db):
                return db
            await self._pool.release(db)
        self._waiting += 1
        try:
            return await self._pool.acquire(timeout=within_s)
        finally:
            self._waiting -= 1

    async def give_back(self, db: Any, *, is_done: bool) -> None:
        """`is_done`: no statement of it was interrupted."""
        if is_done and not (self._waiting or self._closes) and _is_idle(db):
            self._free.append(db)
            return
        if not is_done:
            # Its last statement may have been prepared, and asyncpg would never close it.
            self._interrupted = (self._interrupted + 1) % _INTERRUPTED
            if not self._interrupted:
                # Not `end`, which would drop the request to cancel the statement. Shielded: the
                # task may be cancelled again.
                with suppress(*FAULTS):
                    await asyncio.shield(db.close(timeout=_CANCEL_S))
            with suppress(*FAULTS):
                await self._pool.release(db, timeout=_CANCEL_S)
            return
        await self._pool.release(db)

    async def close(self) -> None:
        self._closes = True
        while self._free:
            await self._pool.release(self._free.pop())
        await self._pool.close()

    def terminate(self) -> None:
        self._pool.terminate()


def _is_idle(db: Any) -> bool:
    try:
        return not (db.is_closed() or db.is_in_transaction())
    except asyncpg.InterfaceError:  # lost: the pool has already released it
        return False


async def _accepted(_: Any) -> None: ...


class Connections:
    """Use as a context; `url` is a `postgresql://` one."""

    def __init__(
        self, url: str, password: str | None = None, *, acquire_s: float | None = None
    ) -> None:
        """`acquire_s`: longest time that a read waits for a connection."""
        self._urls = urls_of(url)
        """One URL per host; the one connected to last comes first."""
        self._password = password
        self._acquire_s = acquire_s
        self._readers: _Held
        self._pagers: _Held
        self._for_relay: _Held
        self._writers: Pool[Any]
        self._refused = ""
        self.check_new: Callable[[Any], Awaitable[None]] = _accepted
        """Awaited with each new connection of a pool before it is used. Raises StoreFault."""
        self.set_back = asyncio.Event()
        """Set when the database has another history than this process knows: nothing is read or
        written."""
        self._used: set[Any] = set()
        """Connections in use."""

    def refuse(self, why: str) -> None:
        """From now on every read and write raises StoreFault."""
        self._refused = why

    def refuse_set_back(self) -> None:
        self.refuse(SET_BACK)
        self.set_back.set()

    def check(self) -> None:
        """Raises StoreFault."""
        if self._refused:
            raise StoreFault(self._refused)

    async def open(self) -> None:
        """Raises StoreFault."""
        try:
            self._readers = _Held(await self._pool(_READERS, _SETTINGS, _READ_STATEMENTS))
            self._pagers = _Held(await self._pool(_PAGERS, _PAGE_SETTINGS, _PAGE_STATEMENTS))
            self._for_relay = _Held(await self._pool(_FOR_RELAY, _SETTINGS))
            self._writers = await self._pool(1, _WRITE_SETTINGS, reset=_kept_as_is)
        except (*FAULTS, ValueError) as error:  # ValueError: the url is none
            raise fault_of(error) from error

    async def _pool(
        self,
        size: int,
        settings: dict[str, str],
        kept: tuple[int, int] = _OWN_STATEMENTS,
        reset: Callable[[Any], Awaitable[None]] = _out_of_transaction,
    ) -> Pool[Any]:
        return await asyncpg.create_pool(
            min_size=0,
            max_size=size,
            reset=reset,
            max_inactive_connection_lifetime=0,
            connect=self._pooled,
            **self._options(settings, kept),
        )

    def _options(
        self, settings: dict[str, str], kept: tuple[int, int] = _OWN_STATEMENTS
    ) -> dict[str, Any]:
        statements, longest = kept
        return {
            "password": self._password,
            "timeout": _CONNECT_S / len(self._urls),
            "command_timeout": _COMMAND_S,
            "statement_cache_size": statements,
            "max_cacheable_statement_size": longest,
            "max_cached_statement_lifetime": 0,
            "server_settings": settings,
        }

    async def _pooled(self, _dsn: None = None, **options: Any) -> Any:
        db = await self._connected(**options)
        try:
            if db.get_server_version() >= (14,):
                with suppress(asyncpg.PostgresError):  # not on every platform
                    await db.execute(_ENDS_WHEN_LEFT)
            await self.check_new(db)
        except BaseException:
            db.terminate()
            raise
        return db

    async def _connected(self, **options: Any) -> Any:
        """Each host gets its own time; asyncpg would spend all of it on the first."""
        *others, last = self._urls
        for url in others:
            with suppress(*FAULTS):
                return self._on(url, await asyncpg.connect(url, **options))
        return self._on(last, await asyncpg.connect(last, **options))

    async def refuse_pooler(self) -> None:
        """Raises StoreFault where two connections share a process of the server: a statement of
        one could be that of another with its name."""
        async with self.reading() as db, self.for_relay() as other:
            pids = {await each.fetchval(QUERIES["process"]) for each in (db, other)}
            if len(pids) == 1 and db.get_server_pid() not in pids:
                raise StoreFault(f"database: {POOLED} (it is not in session mode)")

    def _on(self, url: str, db: Any) -> Any:
        self._urls = [url, *[each for each in self._urls if each != url]]
        _Statements.take_over(db)
        tcp = db._transport.get_extra_info("socket")  # asyncpg has no setting for it
        if tcp.family != socket.AF_UNIX:
            for option, value in _TCP_OPTIONS.items():
                tcp.setsockopt(socket.IPPROTO_TCP, option, value)
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return db

    def abandon(self) -> None:
        """The server does not answer: end everything that waits for it."""
        for db in self._used:
            end(db)

    async def listener(self, within_s: float = _CONNECT_S) -> Any:
        """A connection outside of the pools; `within_s`: for each host. Raises StoreFault."""
        try:
            return await self._connected(**self._options(_SETTINGS) | {"timeout": within_s})
        except FAULTS as error:
            raise fault_of(error) from error

    def holder(self, on: On) -> Callable[[float | None], AbstractAsyncContextManager[Any]]:
        """The method with this name."""
        return {
            "reading": self.reading,
            "paging": self.paging,
            "snapshot": self.snapshot,
            "for_relay": self.for_relay,
        }[on]

    def reading(self, within_s: float | None = None) -> AbstractAsyncContextManager[Any]:
        """A connection of the pool, each statement its own transaction. Raises StoreFault.

        Raises TooSlow when it is held longer than `within_s`; the statement is cancelled.
        """
        return self._held(self._readers, within_s)

    def paging(self, within_s: float | None = None) -> AbstractAsyncContextManager[Any]:
        """As `reading`, for statements that follow an index and return the first rows."""
        return self._held(self._pagers, within_s)

    def for_relay(self, within_s: float | None = None) -> AbstractAsyncContextManager[Any]:
        """As `reading`, for short statements of the relay itself: writes and other relays wait for
        some of them, so no read of a client may hold these connections."""
        return self._held(self._for_relay, within_s)

    @asynccontextmanager
    async def _held(self, held: _Held, within_s: float | None) -> AsyncIterator[Any]:
        self.check()
        try:
            db = await held.take(self._acquire_s)
            self._used.add(db)
            is_done = False
            limit = asyncio.timeout(within_s)
            try:
                async with limit:
                    yield db
                is_done = True
            except TimeoutError:
                if limit.expired():
                    raise TooSlow from None
                raise
            finally:
                self._used.discard(db)
                await held.give_back(db, is_done=is_done)
        except FAULTS as error:
            raise fault_of(error) from error

    @asynccontextmanager
    async def snapshot(self, within_s: float | None = None) -> AsyncIterator[Any]:
        """As `reading`, all statements on one state of the database, and server-side cursors."""
        async with (
            self.reading(within_s) as db,
            db.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield db

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Any]:
        """The one connection that writes batches. Raises StoreFault."""
        self.check()
        try:
            db = await self._writers.acquire()
            self._used.add(db)
            try:
                yield db
            finally:
                self._used.discard(db)
                # asyncpg closes the connection after 50,000 statements. That it fails says nothing
                # of the batch, which may be committed; the connection is ended then.
                with suppress(*FAULTS):
                    await self._writers.release(db, timeout=_CLOSE_S)
        except FAULTS as error:
            raise fault_of(error) from error

    async def close(self) -> None:
        for pool in (self._pagers, self._readers, self._for_relay, self._writers):
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await pool.close()
            except (TimeoutError, *FAULTS):
                pool.terminate()
