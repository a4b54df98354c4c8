"""What a statement costs on the loop, and by a trip to the thread of an aiosqlite connection.

`python -m tests.bench.trips`: why short reads of the store run on the event loop, and why a batch
of the writer is one call to its thread.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Final

from relay.nostr.event import signed
from relay.nostr.filters import FilterTerms, filter_from
from relay.storage import PageQuery
from relay.storage.sqlite.connections import open_threaded
from relay.storage.sqlite.store import SqliteStore
from tests.contract.writing import EVERYTHING, MAX, Batch

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable

    import aiosqlite

    from relay.nostr.event import Event
    from relay.storage.sqlite.sql.conditions import Query

_ROUNDS: Final = 300
_BATCH: Final = 512


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await SqliteStore.open(Path(folder) / "rookery.db", FilterTerms())
        try:
            await _measure(store)
        finally:
            await store.close()


async def _measure(store: SqliteStore) -> None:
    append: list[float] = []
    for number in range(20):
        batch = Batch(*[_event(number * _BATCH + n) for n in range(_BATCH)])
        began = perf_counter()
        await store.append(batch.wanted, batch.decide)
        append.append(perf_counter() - began)
    _show(f"append of {_BATCH} events, one call to the writer's thread", median(append))

    statements: list[str] = []
    store._writer._db.set_trace_callback(statements.append)
    batch = Batch(*[_event(20 * _BATCH + n) for n in range(_BATCH)])
    await store.append(batch.wanted, batch.decide)
    store._writer._db.set_trace_callback(None)
    print(f"statements of it, each a call if aiosqlite carried it: {len(statements)}")

    by_time: dict[str, object] = {}
    by_author: dict[str, object] = {"authors": ["a1" * 32]}
    for name, asked in (("newest", by_time), ("of an author", by_author)):
        filter_ = filter_from(asked, FilterTerms())
        query = store._compiler.page(PageQuery(filter_, EVERYTHING, 10, MAX, 0, 10), "e.raw")
        with closing(store._factory.quick_reader()) as here:

            async def on_loop(db: sqlite3.Connection = here, query: Query = query) -> None:
                db.execute(*query).fetchall()

            _show(f"10 rows, {name}: on the loop", await _median(on_loop))
        reader = await open_threaded(store._factory.quick_reader)
        try:

            async def by_thread(db: aiosqlite.Connection = reader, query: Query = query) -> None:
                await db.execute_fetchall(*query)

            _show(f"10 rows, {name}: aiosqlite, one call", await _median(by_thread))
        finally:
            await reader.close()


async def _median(work: Callable[[], Awaitable[None]]) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        began = perf_counter()
        await work()
        seconds.append(perf_counter() - began)
    return median(seconds)


def _event(number: int) -> Event:
    tags = [["t", f"topic{number % 50}"], ["e", f"{number:064x}"]]
    return signed("a1" * 32, number, 1, tags, "some words " * 10, lambda _: "0" * 128)


def _show(name: str, seconds: float) -> None:
    print(f"{name:62} {seconds * 1e6:10.1f} us")


if __name__ == "__main__":
    asyncio.run(main())
