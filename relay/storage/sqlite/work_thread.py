"""WorkThread: one thread that runs functions for the event loop, one at a time; and WorkClock.

A ThreadPoolExecutor does the same with three locks, two futures and some thirty calls for each
function: a third more processor time for the commit of a single event.
"""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from relay.errors import StoreFault
from relay.storage.sqlite.connections import sqlite_faults

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_BLOCK_S: Final = 0.001 / 8
"""Seconds that 512 bytes take on a disk that reads 1,000 pages of a file in a second."""


class WorkThread:
    """Runs what `run` gets, in that order. For one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None]
        self._queue = SimpleQueue()
        self._thread: Thread | None = None
        self._is_closed = False

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """The result of `work`. Cancelled before it begins, it does not run; later it runs to its
        end. Raises StoreFault, also when closed."""
        if self._is_closed:
            raise StoreFault(f"the thread {self._name} has ended")
        loop = asyncio.get_running_loop()
        if self._thread is None:
            # Daemon: a store left open by an error must not keep the process from exiting.
            self._thread = Thread(target=self._work, args=(loop,), name=self._name, daemon=True)
            self._thread.start()
        done: asyncio.Future[T] = loop.create_future()
        self._queue.put((done, work))
        return done

    def close(self) -> None:
        """Wait for the end of what was given to `run`."""
        self._is_closed = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (item := self._queue.get()) is not None:
            done, work = item
            if done.cancelled():
                continue
            result, error = None, None
            try:
                with sqlite_faults():
                    result = work()
            except BaseException as raised:  # as an executor: the caller gets it  # noqa: BLE001
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_end, done, result, error)
            del item, done, work, result, error  # or they live until the next


def _end(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if done.done():  # cancelled
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class WorkClock:
    """Seconds for which this thread works, or waits for blocks of a disk, from its making on.

    Waiting for the processor or for the GIL looks like waiting for a block: so no more of all
    waiting counts than the blocks that were read take on a slow disk.
    """

    __slots__ = ("_began", "_disk_reads", "_worked")

    def __init__(self) -> None:
        self._worked, self._disk_reads = thread_time(), disk_reads()
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """All that counts. To be called on the same thread, as the others."""
        return self.worked_s + self.waited_s

    @property
    def worked_s(self) -> float:
        return thread_time() - self._worked

    @property
    def waited_s(self) -> float:
        """Waiting for blocks."""
        waited = perf_counter() - self._began - self.worked_s
        return max(0.0, min(waited, (disk_reads() - self._disk_reads) * _BLOCK_S))


def disk_reads() -> int:
    """How many blocks of a disk, of 512 bytes, this thread has read and waited for; 0 where the
    system does not tell."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    if who is None:
        return 0
    used = resource.getrusage(who)
    return used.ru_majflt + used.ru_inblock
