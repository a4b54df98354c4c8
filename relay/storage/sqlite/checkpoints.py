"""Checkpoints: brings the write-ahead log into the file, and erases deleted texts from both.

`PRAGMA secure_delete` overwrites a deleted row in the file; its old pages stay in the WAL until
that is truncated: after every commit that deletes something, at most every two seconds. SQLite can
truncate only while there are no readers and writers, so the queries of this process wait meanwhile,
for at most a fifth of the time; another program that reads the file delays it.

Shortly after the last commit the tags of the newest rows are flushed and the WAL is checkpointed:
reads then find tags in one index, and pages in the memory map. Under load the WAL is truncated
whenever it has 48 MiB, and tags that come faster than the commits flush them are flushed between
these, a slice at a time. The space of the WAL and free pages are returned to the file system after
a longer time without commits.

Rows that have to be moved to another partition are moved a slice at a time, with pauses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from relay.errors import StoreFault
from relay.storage.sqlite.sql.conditions import Query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from relay.storage.sqlite.readers import AsyncReader, Pauses
    from relay.storage.sqlite.work_thread import WorkThread

_log = logging.getLogger(__name__)

_LARGE_BYTES: Final = 48 << 20
"""A WAL of this size is truncated even if nothing was deleted, because reads search all of it."""
_MOST_PAGES: Final = 4 * _LARGE_BYTES >> 12
"""While the WAL has more that a long query keeps from being checkpointed, no rows are moved."""
_KEPT_BYTES: Final = 4 << 20
"""A larger WAL is truncated when there are no commits: SQLite overwrites but never shortens it."""
_GATHER_S: Final = 0.5
"""Delay of the truncation after a deletion, so that it covers deletions that follow."""
_PAUSE_S: Final = 2.0
"""Shortest time between two truncations."""
_REST_RATIO: Final = 4
"""Truncations are apart at least so many times as long as reads waited for the last one."""
_FIRST_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 4.0
_WARN_S: Final = 30.0
_MAX_HOLD_S: Final = 1.0
"""Longest time that the writer may have to wait."""
_SETTLE_S: Final = 0.3
"""Time without a commit after which tags are flushed and the WAL is checkpointed."""
_QUIET_S: Final = 1.0
"""Time without a commit after which free pages and a large WAL are returned to the file system."""
_MOVE_RATIO: Final = 0.1
"""A slice of moved rows is followed by a pause of so many times its length. Commits go in between.
Until the rows of a group that was closed are moved, reads by tag fetch and pass over each."""
_MOVE_LATER_S: Final = 0.5
"""Pause before rows are tried again that could not be moved: the table lacks their tags."""
_SIZED_S: Final = 0.02
"""Shortest time between two looks at the size of the WAL, 9 us each."""
_LOOK_S: Final = 0.02
"""Between two looks for rows to move while a truncation waits for long queries."""
_BUSY_MS: Final = 50

_BUSY_TIMEOUT: Final = Query(f"PRAGMA busy_timeout = {_BUSY_MS}", ())
_PASSIVE: Final = Query("PRAGMA wal_checkpoint(PASSIVE)", ())
_TRUNCATE: Final = Query("PRAGMA wal_checkpoint(TRUNCATE)", ())


@dataclass(slots=True)
class Upkeep:
    """Counts of the upkeep since the store was opened."""

    truncated: int = 0
    """How often the WAL was truncated."""
    busy: int = 0
    """Truncations that failed because another program was reading the store."""
    held_s: float = 0.0
    """Seconds for which reads and writes had to wait."""
    vacuumed: int = 0
    """Pages given back to the file system."""


class Checkpoints:
    """Runs on the event loop, with a connection of its own. `start` once that is open."""

    def __init__(
        self,
        store: Path,
        connection: AsyncReader,
        readers: Sequence[Sequence[AsyncReader]],
        pauses: Pauses,
        relay_reader: AsyncReader,
        writing: WorkThread,
        check_files: Callable[[], None],
        flush: Callable[[], int],
        is_behind: Callable[[], bool],
        vacuum: Callable[[], int],
        has_moves: Callable[[], bool],
        move: Callable[[], bool],
    ) -> None:
        """`check_files` raises StoreFault when the files are no longer those that were opened: the
        log would be written into a deleted file. `readers`, as stages of `Pauses.of`, and
        `relay_reader`: must not read while the WAL is truncated. What the relay reads for itself
        waits for no query of a client.

        `writing`: the writer's thread; there `flush` flushes some tags and returns how many there
        were, and `vacuum` returns some free pages to the file system and their number.
        `is_behind`: whether tags are to be flushed during the commits. `has_moves`: whether `move`
        is to be called there, which moves some rows and returns whether it could.
        """
        self._wal = f"{store}-wal"
        self._connection = connection
        self._readers = readers
        self._pauses = pauses
        self._relay_reader = relay_reader
        self._writing = writing
        self._check_files = check_files
        self._flush = flush
        self._is_behind = is_behind
        self._vacuum = vacuum
        self._has_moves = has_moves
        self._move = move
        self.upkeep = Upkeep()
        self._is_settled = True
        """The WAL was checkpointed, and all tags flushed, since the last commit."""
        self._oldest: float | None = None
        """Time (of all these: `monotonic`) of the oldest commit whose deleted rows may still be in
        the WAL; None: there are none."""
        self._newest = 0.0
        """Time of the newest one."""
        self._erase_at = 0.0
        """From then on the WAL may be truncated for these …"""
        self._truncate_at = 0.0
        """… if it is also after this, as for any truncation."""
        self._retry_at = 0.0
        """No step is taken before: one has failed."""
        self._flush_at = 0.0
        """From then on a slice of tags may be flushed between commits: after a pause as long as the
        last one took."""
        self._move_at = 0.0
        self._checkpoint_at = 0.0
        """From then on the WAL may be checkpointed between moves."""
        self._has_room = True
        """Whether the WAL may grow by moves."""
        self._committed_at = 0.0
        self._sized_at = 0.0
        self._may_have_free_pages = True
        self._has_to_truncate = False
        self._retry_s = _FIRST_RETRY_S
        self._is_closing = False
        self._woken = asyncio.Event()
        """Set when a step is due earlier than the task waits for."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._connection.rows(_BUSY_TIMEOUT)
        if self._wal_bytes():  # another program was reading when the store was opened
            self.erased()
        elif self._has_moves():
            self._start()

    @property
    def pending_s(self) -> float:
        """Seconds since the oldest commit whose deleted rows may still be in the WAL; 0: none."""
        return 0.0 if self._oldest is None else max(monotonic() - self._oldest, 0.001)

    def committed(self) -> None:
        """After each commit."""
        self._committed_at = now = monotonic()
        self._is_settled = False
        if self._task is None:
            self._start()
        elif self._is_behind():
            self._woken.set()
        elif now - self._sized_at > _SIZED_S:
            self._sized_at = now
            if self._is_large():
                self._woken.set()

    def erased(self) -> None:
        """After a commit that deleted or replaced something."""
        self._newest = monotonic()
        if self._oldest is None:
            self._oldest = self._newest
            self._erase_at = self._newest + _GATHER_S
            self._woken.set()
        self._may_have_free_pages = True
        if self._task is None:
            self._start()

    async def close(self) -> None:
        """Finish the current step."""
        self._is_closing = True
        self._woken.set()
        if self._task is not None:
            await self._task

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="checkpoints")

    async def _run(self) -> None:
        try:
            await self._steps()
        finally:  # not later: a commit that comes now has to start another task
            self._task = None

    async def _steps(self) -> None:
        wait = self._wait()
        while wait is not None and not self._is_closing:
            if wait > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), wait)
                self._woken.clear()
            else:
                try:
                    await self._step()
                except StoreFault as fault:
                    _log.warning("the WAL was not checkpointed: %s", fault)
                    self._retry_at = monotonic() + _MAX_RETRY_S
            wait = self._wait()

    def _wait(self) -> float | None:
        """Seconds until the next step; None: nothing is left to do."""
        due = []
        if self._oldest is not None:
            due.append(max(self._erase_at, self._truncate_at))
        if not self._is_settled:
            due.append(self._committed_at + _SETTLE_S)
            if self._is_behind():
                due.append(self._flush_at)
        elif self._may_have_free_pages or self._wal_bytes() > _KEPT_BYTES:
            due.append(self._committed_at + _QUIET_S)
        if self._has_moves():
            due.append(self._move_at)
        if (self._has_moves() or not self._is_settled) and self._is_large():
            due.append(self._truncate_at)
        return max(min(due), self._retry_at) - monotonic() if due else None

    def _is_large(self) -> bool:
        return self._wal_bytes() > _LARGE_BYTES

    async def _step(self) -> None:
        self._check_files()
        may_truncate = monotonic() >= self._truncate_at
        if self._oldest is not None and may_truncate and monotonic() >= self._erase_at:
            self._erase_at = monotonic() + await self._erasing_step()
        elif may_truncate and self._is_large():
            if not await self._truncate():
                self._retry_at = monotonic() + _GATHER_S
        elif not await self._moved_or_flushed():
            await (self._give_back() if self._is_settled else self._settle())

    async def _moved_or_flushed(self) -> bool:
        """Move a slice of rows, or flush a slice of tags, as one of them is due first. False:
        neither is due.

        Moves and flushes take turns: while somebody writes many tags, flushes are always due."""
        began, is_behind = monotonic(), self._is_behind()
        latest = min(began, self._flush_at) if is_behind else began
        if self._has_moves() and self._move_at <= latest:
            await self._move_rows()
        elif is_behind and self._flush_at <= began:
            await self._writing.run(self._flush)
            self._flush_at = 2 * monotonic() - began
        else:
            return False
        return True

    async def _move_rows(self) -> None:
        began = monotonic()
        self._move_at = began + _MOVE_LATER_S
        if not self._is_large():
            self._has_room = True
        elif began >= self._checkpoint_at:
            # When all of the WAL is checkpointed, what follows is written over it.
            ((_, pages, checkpointed),) = await self._connection.rows(_PASSIVE)
            self._has_room = pages == checkpointed or pages < _MOST_PAGES
            now = monotonic()
            self._checkpoint_at, began = 2 * now - began, now
        if self._has_room and await self._writing.run(self._move):
            now = monotonic()
            self._move_at = now + _MOVE_RATIO * (now - began)
        if not self._has_moves():
            self._is_settled = False  # what the moves have written has to be checkpointed

    async def _settle(self) -> None:
        committed_at = self._committed_at
        while await self._writing.run(self._flush):
            if self._committed_at != committed_at or self._is_closing:
                return
        await self._connection.rows(_PASSIVE)
        self._is_settled = self._committed_at == committed_at

    async def _erasing_step(self) -> float:
        if await self._truncate():
            self._retry_s = _FIRST_RETRY_S
            return _PAUSE_S
        if self.pending_s > _WARN_S:
            text = "deleted texts are in %s since %d s: does another program read the store?"
            _log.warning(text, self._wal, self.pending_s)
        self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)
        return self._retry_s

    async def _give_back(self) -> None:
        """Return some free pages to the file system, then shorten the WAL, while no commits are
        made."""
        pages = await self._writing.run(self._vacuum)
        if pages:
            self.upkeep.vacuumed += pages
            self._has_to_truncate = True
            return
        self._may_have_free_pages = False
        # The file gets shorter with the checkpoint.
        if self._has_to_truncate or self._wal_bytes() > _KEPT_BYTES:
            self._has_to_truncate = not await self._truncate()
            if self._has_to_truncate:
                self._retry_at = monotonic() + _MAX_RETRY_S

    async def _truncate(self) -> bool:
        """Truncate the WAL. False: not possible, because there was a reader."""
        for _ in range(2):  # most of the work, during reads and writes
            await self._connection.rows(_PASSIVE)
        began = holding = monotonic()
        try:
            paused = self._readers_paused()
            async with paused as holding, self._relay_reader_paused(), self._writer_held():
                began = monotonic()
                ((busy, *_),) = await self._connection.rows(_TRUNCATE)
        except TimeoutError:
            busy = True
        # The long query of one reader is waited for while the others go on.
        held_s = monotonic() - holding
        self._truncate_at = monotonic() + _REST_RATIO * held_s
        self.upkeep.held_s += held_s
        if busy:
            self.upkeep.busy += 1
            return False
        self.upkeep.truncated += 1
        if self._oldest is not None:
            self._oldest = began if self._newest >= began else None
        return True

    @asynccontextmanager
    async def _readers_paused(self) -> AsyncIterator[float]:
        """As `Pauses.of`. Rows are moved and tags are flushed while long queries are waited for."""
        are_paused = asyncio.Event()
        meanwhile = asyncio.create_task(self._move_and_flush_until(are_paused))
        try:
            async with self._pauses.of(*self._readers) as since:
                are_paused.set()
                await meanwhile
                yield since
        finally:
            are_paused.set()
            await meanwhile

    async def _move_and_flush_until(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            try:
                if await self._moved_or_flushed():
                    continue
            except StoreFault as fault:  # the truncation may go on, and is to erase
                _log.warning("rows were not moved, or their tags not flushed: %s", fault)
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), _LOOK_S)

    @asynccontextmanager
    async def _relay_reader_paused(self) -> AsyncIterator[None]:
        """Raises TimeoutError after `_MAX_HOLD_S`: its reads have no limit of time, and clients
        wait meanwhile."""
        async with asyncio.timeout(_MAX_HOLD_S) as waiting, self._relay_reader.paused():
            waiting.reschedule(None)
            yield

    @asynccontextmanager
    async def _writer_held(self) -> AsyncIterator[None]:
        """Inside, no transaction runs."""
        loop, held, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def hold() -> None:
            loop.call_soon_threadsafe(held.set)
            release.wait(_MAX_HOLD_S)

        holding = self._writing.run(hold)
        try:
            await held.wait()
            yield
        finally:
            release.set()
            await holding

    def _wal_bytes(self) -> int:
        try:
            return os.stat(self._wal).st_size
        except FileNotFoundError:
            return 0
