"""Commits of other processes: each notifies the others of its head. A query every half second
replaces missed notifications, and reads the newest version of the policies. Anybody who may connect
to the database can notify, with any payload: a notification is only a reason to query."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from relay.errors import StoreFault
from relay.storage.postgres.connections import FAULTS, end, fault_of
from relay.storage.postgres.opening import SCHEMA_VERSION
from relay.storage.postgres.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from relay.storage.postgres.connections import Connections
    from relay.storage.postgres.replica import Replica

_POLL_S: Final = 0.5
_ANSWER_S: Final = 1.5
_ALONE_ANSWER_S: Final = 10.0
"""Without other writers an answer may be late, because it has nothing new."""
_SLICE_S: Final = 0.1
_AGAIN_S: Final = 0.5
"""Delay after the connection was lost."""
_RECONNECT_S: Final = 10.0
"""Time to connect to one of the hosts."""
_RECENT_S: Final = _POLL_S + _ANSWER_S
_CATCH_UP_S: Final = 60.0
"""How long readers wait for it: a group of 150,000 records takes 5 s."""
_DROP_EVERY_S: Final = 10.0
OPENED_BY: Final = "opened_by"
_MAX_DIGITS: Final = 19
"""Digits of a head in a notification."""
TAKEN: Final = "another relay took the database while the connection was lost: restart this one"
MIGRATED: Final = "another version of the relay changed the tables: restart this one with it"
LOST: Final = "database: it does not answer"


class Touch:
    """Until when a relay that shares the database knows the commits of the others."""

    def __init__(self) -> None:
        self._at = inf  # nothing is read yet, or there are no others
        self._answered_at = -inf
        self.is_lost = False
        """The database does not answer."""
        self._confirmed = asyncio.Event()
        self._caught_up_at = -inf
        """When `catching_up` ended; in the future while it has not."""

    def begin(self, read_at: float) -> None:
        """`read_at`: `monotonic` time up to which everything that was committed has been read."""
        self._at = read_at

    def confirm(self, asked_at: float) -> None:
        """Everything that was committed by then has been taken over."""
        self._at = max(self._at, asked_at)
        self._confirmed.set()
        self._confirmed = asyncio.Event()

    def answered(self, asked_at: float) -> None:
        """The database has answered. There are no other relays, or `confirm` follows."""
        self._answered_at = asked_at

    def is_answered(self) -> bool:
        """Whether cached rows may be used without another query."""
        return self.is_current() and monotonic() - self._answered_at <= _RECENT_S

    def lag_s(self) -> float:
        """Seconds since all that others had committed was taken over."""
        return max(0.0, monotonic() - self._at)

    def is_current(self) -> bool:
        return not self.is_lost and monotonic() - self._at <= _RECENT_S

    def check_answers(self) -> None:
        """Raises StoreFault."""
        if self.is_lost:
            raise StoreFault(LOST)

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        """While commits of others are taken over: the database answers, so readers wait for it."""
        self._caught_up_at = inf
        try:
            yield
        finally:
            self._caught_up_at = monotonic()

    async def current(self) -> None:
        """Await before stored rows are given to a reader. Raises StoreFault."""
        began = monotonic()
        while not self.is_current():
            self.check_answers()
            until = max(began, min(self._caught_up_at, began + _CATCH_UP_S)) + _RECENT_S
            left = until - monotonic()
            if left <= 0:
                raise StoreFault(LOST)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _RECENT_S)):
                    await self._confirmed.wait()


class HeadListener:
    """Listens for heads, in one task with its own connection.

    `position` returns the seq and batch up to which everything is known. `advance` gets heads, also
    old ones, and the time at which the database was queried; None for a head from a notification,
    which may be wrong. `pushed` gets the newest version of the policies. The connection holds a
    lock until it is closed: `start` returns whether it got the lock.
    """

    def __init__(
        self,
        connections: Connections,
        touch: Touch,
        committed: Callable[[], int],
        position: Callable[[], tuple[int, str | None]],
        advance: Callable[[int, float | None], None],
        pushed: Callable[[int], None],
        *,
        is_shared: bool,
        replica: Replica | None = None,
    ) -> None:
        """`is_shared`: others may use the database too. When one used it exclusively while the
        connection was lost, nothing more is read or written: read rights may have changed."""
        self._connections = connections
        self._touch = touch
        self._is_shared = is_shared
        self._answer_s = _ANSWER_S if is_shared else _ALONE_ANSWER_S
        self._committed = committed
        self._position = position
        self._advance = advance
        self._pushed = pushed
        self._replica = replica
        self._token: str | None = None
        """Name of the process that last used the database exclusively; it may be this one."""
        self.is_first = not is_shared
        self._drop_at = 0.0
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """False: another process uses the database. Raises StoreFault."""
        try:
            db, may_have = await self._connected()
            if may_have and self._is_shared:
                self._token = await db.fetchval(QUERIES["get_meta"], OPENED_BY)
            elif may_have:
                self._token = secrets.token_hex(16)
                await db.execute(QUERIES["put_meta"], OPENED_BY, self._token)
        except FAULTS as error:
            raise fault_of(error) from error
        if may_have:
            self._connections.check_new = self._check_opened_by
        self._task = asyncio.create_task(self._run(db), name="store-listener")
        return may_have

    async def _connected(self) -> tuple[Any, bool]:
        db = await self._connections.listener(_ANSWER_S)
        try:
            may_have = await db.fetchval(self._hold)
            if self._is_shared:
                await db.add_listener(await db.fetchval(QUERIES["channel"]), self._noted)
        except BaseException:
            db.terminate()
            raise
        return db, may_have

    async def _run(self, db: Any) -> None:
        while True:
            with suppress(StoreFault, *FAULTS):
                await self._follow(db)
            if not self._end.is_set():
                self._touch.is_lost = True  # and so is its lock: another relay may have it
            if self._is_shared and not self._end.is_set():
                self.is_first = False
                self._connections.abandon()
            if await self._ended(_AGAIN_S):
                return
            with suppress(StoreFault, *FAULTS):
                async with asyncio.timeout(_RECONNECT_S):
                    db, may_have = await self._connected()
                try:
                    await self._check(db, may_have=may_have)
                except BaseException:
                    end(db)
                    raise

    async def _check(self, db: Any, *, may_have: bool) -> None:
        """Check that the server that answers now has what this process knows; else refuse all reads
        and writes. Waits for the lock: the server may keep the lost connection, or it has that of a
        relay that has not yet stored its token. Raises StoreFault when this process ends."""
        while True:  # once more with the lock: another relay may have had it meanwhile
            schema = await db.fetchval(QUERIES["get_meta"], "schema", timeout=_ANSWER_S)
            if schema != str(SCHEMA_VERSION):
                self._connections.refuse(MIGRATED)
                return
            try:
                await self._check_opened_by(db)
            except StoreFault:  # all is refused now
                return
            if may_have:
                break
            if not self._is_shared and await db.fetchval(
                QUERIES["is_held_shared"], timeout=_ANSWER_S
            ):
                self._connections.refuse(TAKEN)
                return
            if await self._ended(_POLL_S):
                raise StoreFault(LOST)
            may_have = await db.fetchval(self._hold, timeout=_ANSWER_S)
        if not await self._is_same_history(db):
            self._connections.refuse_set_back()

    async def _check_opened_by(self, db: Any) -> None:
        """A connection that is made after the network was cut may be there before this process
        notices that it has lost its lock. Raises StoreFault if another one has had the database."""
        opened_by = await db.fetchval(QUERIES["get_meta"], OPENED_BY, timeout=_ANSWER_S)
        if opened_by != self._token:
            self._connections.refuse(TAKEN)
            raise StoreFault(TAKEN)

    async def _is_same_history(self, db: Any) -> bool:
        """Whether the server has the batch that this process followed last: after a fail-over it
        may have other batches under the same seqs. Also False if the batch is too old to be
        compared, or if there is a later one that only relays that shared the database can have
        made, as they store no token, or this process without knowing it."""
        head = await db.fetchval(QUERIES["head"], timeout=_ANSWER_S)
        seq, batch = self._position()
        if not self._is_shared and head > seq:
            return False
        return batch is None or bool(
            await db.fetchval(QUERIES["has_committed"], seq, batch, timeout=_ANSWER_S)
        )

    @property
    def _hold(self) -> str:
        return QUERIES["hold_shared" if self._is_shared else "hold"]

    async def _follow(self, db: Any) -> None:
        """Runs until it is stopped or the connection is lost."""
        try:
            if self._replica is not None:
                await self._begin_history(db, self._replica)
            while True:
                asked_at, before = monotonic(), self._committed()
                head, policies = await self._answer(db.fetchrow(QUERIES["news"]))
                if head < before:
                    self._connections.refuse_set_back()
                self._touch.is_lost = False
                self._advance(head, asked_at)
                self._pushed(policies)
                await self._lead(db)
                if await self._ended(_POLL_S):
                    await db.close(timeout=_ANSWER_S)
                    return
        finally:
            db.terminate()

    async def _begin_history(self, db: Any, replica: Replica) -> None:
        """Store a new history name: a replica of another server, or of one that failed, does not
        have it."""
        token, replica.history = secrets.token_hex(16), ""
        with suppress(asyncpg.PostgresError):  # nothing can be written, so the replica is not used
            await db.execute(QUERIES["name_history"] % token, timeout=_ANSWER_S)
            replica.history = token

    async def _lead(self, db: Any) -> None:
        """One process drops the changes that all have read; another takes this over when it is
        lost."""
        if not self.is_first:
            self.is_first = await self._answer(db.fetchval(QUERIES["lead"]))
        if self.is_first and monotonic() >= self._drop_at:
            with suppress(asyncpg.PostgresError):  # nothing can be written, but reads go on
                await self._answer(db.execute(QUERIES["drop_changes"]))
            self._drop_at = monotonic() + _DROP_EVERY_S

    async def _answer(self, asked: Coroutine[Any, Any, Any]) -> Any:
        """Raises TimeoutError. Waits in slices: time in which this process did not run must not
        count, since the answer may have arrived meanwhile."""
        task = asyncio.ensure_future(asked)
        try:
            for _ in range(round(self._answer_s / _SLICE_S)):
                if (await asyncio.wait({task}, timeout=_SLICE_S))[0]:
                    return task.result()
            raise TimeoutError
        finally:
            task.cancel()

    async def _ended(self, within_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._end.wait()
        return self._end.is_set()

    def _noted(self, _db: Any, _pid: int, _channel: str, payload: object) -> None:
        head = str(payload)
        if head.isdecimal() and len(head) <= _MAX_DIGITS:
            self._advance(int(head), None)

    async def close(self) -> None:
        # Not cancelled: cancelling a statement opens another connection.
        self._end.set()
        if self._task is not None:
            await self._task
