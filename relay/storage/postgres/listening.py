"""What other processes commit: they tell their head, and a query every second makes up for a
notification that was missed."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from relay.errors import StoreFault
from relay.storage.postgres.connections import FAULTS, fault_of
from relay.storage.postgres.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.storage.postgres.connections import Connections

_POLL_S: Final = 1.0
_ANSWER_S: Final = 5.0
_AGAIN_S: Final = 0.5
"""After the connection was lost."""
_OPENED_BY: Final = "opened_by"
TAKEN: Final = "another relay took the database while the connection was lost: restart this one"


class HeadListener:
    """`advance` gets heads, also old ones. One task, with a connection of its own.

    The connection holds a lock for as long as it lives: `is_alone` tells whether no other process
    has it.
    """

    def __init__(
        self,
        connections: Connections,
        advance: Callable[[int], None],
        *,
        is_shared: bool,
    ) -> None:
        """`is_shared`: others may have the database too. If not, and one took it while the
        connection was lost, nothing more is read or written: who may read it changed meanwhile."""
        self._connections = connections
        self._is_shared = is_shared
        self._advance = advance
        self._token = secrets.token_hex(16)
        """Of this process: the database has that of the last one that opened it."""
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """False: another process has the database. Raises StoreFault."""
        try:
            db, is_alone = await self._connected()
            if is_alone or self._is_shared:
                await db.execute(QUERIES["put_meta"], _OPENED_BY, self._token)
        except FAULTS as error:
            raise fault_of(error) from error
        self._task = asyncio.create_task(self._run(db), name="store-listener")
        return is_alone

    async def _connected(self) -> tuple[Any, bool]:
        db = await self._connections.listener()
        try:
            is_alone = await db.fetchval(QUERIES["hold"])
            await db.add_listener(await db.fetchval(QUERIES["channel"]), self._noted)
        except BaseException:
            db.terminate()
            raise
        return db, is_alone

    async def _run(self, db: Any) -> None:
        while True:
            with suppress(StoreFault, *FAULTS):
                await self._follow(db)
            if await self._ended(_AGAIN_S):
                return
            with suppress(StoreFault, *FAULTS):
                db, is_alone = await self._connected()
                opened_by = await db.fetchval(QUERIES["get_meta"], _OPENED_BY, timeout=_ANSWER_S)
                if not (self._is_shared or (is_alone and opened_by == self._token)):
                    self._connections.refuse(TAKEN)

    async def _follow(self, db: Any) -> None:
        """Until the end, or until the connection is lost."""
        try:
            while True:
                self._advance(await db.fetchval(QUERIES["head"], timeout=_ANSWER_S))
                if await self._ended(_POLL_S):
                    return
        finally:
            await db.close(timeout=_ANSWER_S)

    async def _ended(self, within_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._end.wait()
        return self._end.is_set()

    def _noted(self, _db: Any, _pid: int, _channel: str, payload: object) -> None:
        self._advance(int(str(payload)))

    async def close(self) -> None:
        # Not cancelled: a statement that is cancelled opens a connection to say so.
        self._end.set()
        if self._task is not None:
            await self._task
