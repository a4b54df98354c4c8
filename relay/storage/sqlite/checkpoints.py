"""Checkpoints: brings the write-ahead log into the file, and erases deleted texts from both.

`PRAGMA secure_delete` overwrites a deleted row in the file; its old pages stay in the WAL until
that is truncated: after every commit that deletes something, at most every two seconds. SQLite can
truncate only while nobody reads or writes, so the queries of this process are held back meanwhile;
another program that reads the file is waited for.

Free pages go back to the file system when no commit was made for a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from relay.errors import StoreFault
from relay.storage.sqlite.sql.filters import Query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from relay.storage.sqlite.connections import AsyncReader

_log = logging.getLogger(__name__)

_LARGE_BYTES: Final = 128 << 20
"""A WAL of this size is checkpointed though nothing was deleted."""
_HUGE_BYTES: Final = 1 << 30
"""PASSIVE leaves what a reader still uses, and then the WAL goes on growing."""
_GATHER_S: Final = 0.5
"""From a deletion to the truncation: more deletions may follow at once."""
_PAUSE_S: Final = 2.0
"""Between two truncations."""
_FIRST_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 4.0
_WARN_S: Final = 30.0
_MAX_HOLD_S: Final = 1.0
"""How long the writer may be held at most."""
_QUIET_S: Final = 1.0
_BUSY_MS: Final = 50

_BUSY_TIMEOUT: Final = Query(f"PRAGMA busy_timeout = {_BUSY_MS}", ())
_PASSIVE: Final = Query("PRAGMA wal_checkpoint(PASSIVE)", ())
_TRUNCATE: Final = Query("PRAGMA wal_checkpoint(TRUNCATE)", ())


class Checkpoints:
    """For the event loop; works on a connection of its own. `start` once it is open."""

    def __init__(
        self,
        store: Path,
        connection: AsyncReader,
        readers: Sequence[AsyncReader],
        writing: Executor,
        vacuum: Callable[[], int],
    ) -> None:
        """`readers`: those that must not read while the WAL is truncated, the slowest first.

        `writing`: the writer's thread, where `vacuum` gives back some free pages and says how many.
        """
        self._wal = f"{store}-wal"
        self._connection = connection
        self._readers = readers
        self._writing = writing
        self._vacuum = vacuum
        self._oldest: float | None = None
        self._newest = 0.0
        self._committed_at = 0.0
        self._may_have_free_pages = True
        self._has_shrunk = False
        self._retry_s = _FIRST_RETRY_S
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._connection.rows(_BUSY_TIMEOUT)
        if self._wal_bytes():  # somebody was reading when the store was opened
            self.erased()

    @property
    def pending_s(self) -> float:
        """Seconds since the oldest commit whose deleted rows may still be in the WAL; 0: none."""
        return 0.0 if self._oldest is None else max(monotonic() - self._oldest, 0.001)

    def committed(self) -> None:
        """After each commit."""
        self._committed_at = monotonic()
        if self._task is None and self._wal_bytes() > _LARGE_BYTES:
            self._run(self._shorten())

    def erased(self) -> None:
        """After a commit that deleted or replaced something."""
        self._newest = monotonic()
        if self._oldest is None:
            self._oldest = self._newest
        self._may_have_free_pages = True
        if self._task is None:
            self._run(self._erase())

    async def close(self) -> None:
        """Finish the step that runs."""
        self._closing.set()
        if self._task is not None:
            await self._task

    def _run(self, work: Coroutine[None, None, None]) -> None:
        self._task = asyncio.create_task(work, name="checkpoints")
        self._task.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._task = None

    async def _shorten(self) -> None:
        try:
            if self._wal_bytes() > _HUGE_BYTES:
                await self._truncate()
            else:
                await self._connection.rows(_PASSIVE)
        except StoreFault as fault:
            _log.warning("the WAL was not checkpointed: %s", fault)
        if self._oldest is not None:
            await self._erase()

    async def _erase(self) -> None:
        wait: float | None = _GATHER_S
        while wait is not None and not await self._was_closed_within(wait):
            wait = await self._step()

    async def _step(self) -> float | None:
        """Seconds until the next one; None: nothing is left to do."""
        try:
            if self._oldest is not None:
                return await self._erasing_step()
            if not self._may_have_free_pages:
                return None
            wait = self._committed_at + _QUIET_S - monotonic()
            return wait if wait > 0 else await self._give_back()
        except StoreFault as fault:
            _log.warning("the WAL was not checkpointed: %s", fault)
            return _MAX_RETRY_S

    async def _erasing_step(self) -> float:
        if await self._truncate():
            self._retry_s = _FIRST_RETRY_S
            return _PAUSE_S
        if self.pending_s > _WARN_S:
            text = "deleted texts are in %s since %d s: does another program read the store?"
            _log.warning(text, self._wal, self.pending_s)
        self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)
        return self._retry_s

    async def _give_back(self) -> float | None:
        """Some free pages, while no commits are made."""
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._writing, self._vacuum):
            self._has_shrunk = True
            return 0
        self._may_have_free_pages = False
        if self._has_shrunk:  # the file gets shorter with the checkpoint
            self._has_shrunk = not await self._truncate()
        return None

    async def _truncate(self) -> bool:
        """False: something was reading."""
        await self._connection.rows(_PASSIVE)  # most of the work, while others read and write
        async with AsyncExitStack() as held:
            for reader in self._readers:
                await held.enter_async_context(reader.paused())
            await held.enter_async_context(self._writer_held())
            began = monotonic()
            ((busy, *_),) = await self._connection.rows(_TRUNCATE)
        if busy:
            return False
        if self._oldest is not None:
            self._oldest = began if self._newest >= began else None
        return True

    @asynccontextmanager
    async def _writer_held(self) -> AsyncIterator[None]:
        """Inside, no transaction runs."""
        loop, held, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def hold() -> None:
            loop.call_soon_threadsafe(held.set)
            release.wait(_MAX_HOLD_S)

        holding = loop.run_in_executor(self._writing, hold)
        try:
            await held.wait()
            yield
        finally:
            release.set()
            await holding

    async def _was_closed_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)
        return self._closing.is_set()

    def _wal_bytes(self) -> int:
        try:
            return os.stat(self._wal).st_size
        except FileNotFoundError:
            return 0
