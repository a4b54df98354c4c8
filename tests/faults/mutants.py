"""A relay that was broken on purpose: `python -m tests.faults.mutants NAME serve …`.

Each is what a mistake in the relay would do. A test that passes with one of them proves nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from relay.launcher import main
from relay.storage.sqlite import writer
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.lifecycle.rows import Found, Lookups, WritePlan


def answers_first(store: type[Any] = SqliteStore) -> None:
    """OK is sent when the batch is judged, and it is committed a moment later."""
    append, kept = store.append, set[asyncio.Task[int]]()

    async def early(self: Any, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        loop, decided = asyncio.get_running_loop(), asyncio.Event()

        def deciding(found: Found) -> WritePlan:
            plan = decide(found)
            loop.call_soon_threadsafe(decided.set)
            time.sleep(0.05)
            return plan

        work = asyncio.create_task(append(self, lookups, deciding))
        kept.add(work)
        work.add_done_callback(kept.discard)
        waiting = asyncio.create_task(decided.wait())
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        head: int = self.committed()
        return head

    store.append = early


def deletes_later() -> None:
    """Rows are deleted when the store is closed."""
    delete, finish = Writer._delete, Writer.finish
    left: list[tuple[Any, ...]] = []

    def later(self: Writer, *given: Any, **_: Any) -> None:
        left.append(given)

    def at_last(self: Writer) -> None:
        for given in left:
            delete(self, *given)
        finish(self)

    Writer._delete = later  # type: ignore[method-assign]
    Writer.finish = at_last  # type: ignore[method-assign]


def groups_in_memory() -> None:
    """What read rules need of groups is not in the transaction."""
    Writer._put_group = lambda *_: None  # type: ignore[method-assign]


def no_lock() -> None:
    """A second process may open the folder."""
    from relay import files
    from relay.server.control import socket_file

    socket_file._remove_stale = lambda path: path.unlink(missing_ok=True)
    files.fcntl.flock = lambda *_: None  # type: ignore[attr-defined]


def any_file() -> None:
    """Nobody looks whether the files are the ones that were opened."""
    writer._FilesInPlace.check = lambda self: None  # type: ignore[method-assign]


MUTANTS: Final = {
    mutant.__name__: mutant
    for mutant in (answers_first, deletes_later, groups_in_memory, no_lock, any_file)
}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    sys.argv[0] = "rookery"
    main()
