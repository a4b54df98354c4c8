"""Deleted texts leave the files: the store's, its WAL, the text index. N09-13, N62-04.

SQLite here behaves as one that is built without SECURE_DELETE.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.management import ListChange, ListName
from relay.errors import StoreFault
from relay.lifecycle.rows import Vanish
from relay.nostr.erasure import Erasure
from relay.storage.sqlite import text_index
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.test_store_search import sought
from tests.contract.writing import EVERYTHING, MAX, TERMS, asked, change, read, unsigned, write
from tests.harness.erasure import erased, left_of, planted, without_secure_delete
from tests.harness.patience import here
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from relay.lifecycle.rows import WritePlan
    from relay.nostr.event import Event


@pytest.fixture(autouse=True)
def _built_without_secure_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    without_secure_delete(monkeypatch)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[SqliteStore]:
    """A store whose index is kept up to date, as the relay does it."""
    store = await SqliteStore.open(folder / "rookery.db", TERMS)

    async def follow() -> None:
        while True:
            await store.index(lambda event: event.content, "content", 100)
            if not await store.tidy_index():
                await asyncio.sleep(0.02)

    following = asyncio.create_task(follow())
    try:
        yield store
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await store.close()


def saying(texts: Sequence[str], kind: int = 1, at: int = 1000) -> list[Event]:
    return [
        unsigned(cast.alice, kind, [["d", text]], f"{text} " * 40, at=at + number)
        for number, text in enumerate(texts)
    ]


def deletion(*events: Event) -> Event:
    return unsigned(cast.alice, 5, [["e", event.id] for event in events], at=9000)


async def becomes(what: str, is_so: Callable[[], bool]) -> None:
    async with until(what) as tries:
        async for _ in tries:
            if is_so():
                return


async def is_indexed(store: SqliteStore, text: str) -> None:
    async with until("the text is indexed") as tries:
        async for _ in tries:
            if await store.search(sought(text), EVERYTHING, limit=1, upto=MAX, now=0):
                return


async def plant(store: SqliteStore, number: int, kind: int = 1) -> tuple[list[str], list[Event]]:
    """Ten stored and indexed texts."""
    texts = planted(number)
    events = saying(texts, kind)
    await write(store, *events)
    await is_indexed(store, texts[-1])
    return texts, events


async def after_a_first_deletion(store: SqliteStore, folder: Path) -> None:
    """The first one in a new file is no example: pages and segments are new."""
    texts, events = await plant(store, 0)
    await write(store, *[unsigned(cast.bob, content=f"tea {number}") for number in range(50)])
    await write(store, deletion(*events))
    await erased(texts, folder, seconds=here(5))


async def by_kind_5(store: SqliteStore, events: list[Event]) -> None:
    await write(store, deletion(*events))


async def by_a_vanish(store: SqliteStore, _: list[Event]) -> None:
    await change(store, lambda plan: plan.vanishes.append(Vanish(cast.alice.pubkey, 9999)))


async def by_a_ban(store: SqliteStore, _: list[Event]) -> None:
    await change(store, lambda plan: plan.deleted_authors.update({cast.alice.pubkey: MAX}))


async def by_a_sweep(store: SqliteStore, events: list[Event]) -> None:
    seqs = {
        row.seq
        for row in await store.matching(asked(), limit=99, now=0)
        if row.event.raw in {event.raw for event in events}
    }
    await change(store, lambda plan: plan.removes.update(seqs))


@pytest.mark.proves("N09-13", "N62-04")
@pytest.mark.parametrize("delete", [by_kind_5, by_a_vanish, by_a_ban, by_a_sweep])
async def test_no_byte_of_a_deleted_text_is_left(tmp_path: Path, delete: Any) -> None:
    async with running(tmp_path) as store:
        await after_a_first_deletion(store, tmp_path)
        texts, events = await plant(store, 2)
        assert left_of(texts, tmp_path)
        await delete(store, events)
        await erased(texts, tmp_path, seconds=here(5))
        assert len(await read(store, asked(authors=[cast.bob.pubkey]))) == 50


async def test_requests_whose_rows_are_still_to_be_erased_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind 5 counted, also one of nothing, and each commit that deletes looks at all."""
    monkeypatch.setattr("relay.storage.sqlite.store._MAX_REQUESTS", 2)
    async with running(tmp_path) as store:
        await write(store, *saying([f"text {number}" for number in range(5)]))
        requests = [f"{number:064x}" for number in range(5)]

        def remove(number: int, plan: WritePlan) -> None:
            for name in (requests[number], "f" * 64):
                plan.erasures[name] = Erasure(name, cast.alice.pubkey, 5, 1000)
            plan.erasures[requests[number]].add("1" * 64, 1)
            plan.removes.add(number + 1)

        for number in range(5):
            await change(store, partial(remove, number))
            # With the third, all are too many: each counts as deleted just now.
            named = requests[: number + 1] if number == 2 else [requests[number]]
            assert not any(map(store.is_erased, named))
            assert len(store._erasing) <= 2
            assert "f" * 64 not in store._erasing


async def test_a_replaced_version_is_erased(tmp_path: Path) -> None:
    async with running(tmp_path) as store:
        await after_a_first_deletion(store, tmp_path)
        texts = planted(3)
        old = unsigned(cast.alice, 30_078, [["d", "x"]], " ".join(texts), at=1)
        await write(store, old)
        await is_indexed(store, texts[-1])
        await write(store, unsigned(cast.alice, 30_078, [["d", "x"]], "new", at=2))
        await erased(texts, tmp_path, seconds=here(5))


async def test_a_removed_note_of_an_admin_is_erased(tmp_path: Path) -> None:
    text = planted(4)[0]
    banned = ListChange(ListName.BANNED_KEYS, cast.bob.pubkey, text)
    lifted = ListChange(ListName.BANNED_KEYS, cast.bob.pubkey, None)
    async with running(tmp_path) as store:
        await after_a_first_deletion(store, tmp_path)
        await change(store, lambda plan: plan.list_changes.append(banned))
        assert left_of([text], tmp_path)
        await change(store, lambda plan: plan.list_changes.append(lifted))
        await erased([text], tmp_path, seconds=here(5))


async def test_scans_do_not_hold_up_an_erasure(tmp_path: Path) -> None:
    """One after the other, so that at every moment one is running."""
    async with running(tmp_path) as store:
        await after_a_first_deletion(store, tmp_path)
        for start in range(0, 5000, 500):
            await write(
                store,
                *[unsigned(cast.bob, content=f"{n}", at=n) for n in range(start, start + 500)],
            )
        texts, events = await plant(store, 5)

        async def scan() -> None:
            while True:
                await store.items(asked(), EVERYTHING, limit=None, upto=MAX, now=0, at_most=10_000)

        scanning = [asyncio.create_task(scan()) for _ in range(3)]
        await write(store, deletion(*events))
        await erased(texts, tmp_path, seconds=here(5))
        assert not any(task.done() for task in scanning)
        for task in scanning:
            task.cancel()
        await asyncio.gather(*scanning, return_exceptions=True)


class OneSearchAfterAnother:
    """A reader of the index that always has a snapshot, but while it is paused."""

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(folder / "search.db", isolation_level=None)
        self._begin()

    def _begin(self) -> None:
        self._db.execute("BEGIN")
        self._db.execute("SELECT count(*) FROM meta").fetchall()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        self._db.execute("COMMIT")
        yield
        self._begin()

    def close(self) -> None:
        self._db.close()


@pytest.mark.parametrize("whose", ["search", "unknown_search", "long", "unknown_long"])
async def test_searches_one_after_another_do_not_hold_up_an_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS)
    texts = planted(0)
    events = saying(texts)
    await write(store, *events)
    await store.index(lambda event: event.content, "content", 100)
    with closing(OneSearchAfterAnother(tmp_path)) as searches:
        await write(store, deletion(*events))
        monkeypatch.setattr(getattr(store, f"_{whose}_conn"), "paused", searches.paused)
        while await store.tidy_index():
            pass
        assert store._index.pending_s == 0
        assert not any("search" in name for name in left_of(texts, tmp_path))
    await store.close()


async def test_another_program_that_reads_is_waited_for_and_named(tmp_path: Path) -> None:
    async with running(tmp_path) as store:
        await after_a_first_deletion(store, tmp_path)
        texts, events = await plant(store, 6)
        with closing(sqlite3.connect(tmp_path / "rookery.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            await write(store, deletion(*events))
            await becomes("the deletion waits", lambda: store.unerased_s() > 1.0)
            # Nobody else waits for it.
            await write(store, unsigned(cast.bob, content="still writing"))
            assert "rookery.db-wal" in left_of(texts, tmp_path)
            reader.execute("COMMIT")
        await erased(texts, tmp_path)
        await becomes("nothing waits", lambda: store.unerased_s() == 0)


async def test_unerased_s_ends_while_deletions_go_on(tmp_path: Path) -> None:
    """It is the age of the oldest deletion, however many follow."""
    async with running(tmp_path) as store:
        await after_a_first_deletion(store, tmp_path)
        _, events = await plant(store, 7)
        _, more = await plant(store, 8)
        waiting = [*events, *more]
        age = 0.0
        async with until("an erasure while deletions go on") as tries:
            async for _ in tries:
                await write(store, deletion(waiting.pop()))
                if store.unerased_s() < age:
                    return
                age = store.unerased_s()
                await asyncio.sleep(0.2)


class FailingOnce:
    """Statements of a connection, the one after `passing` of which fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, db: object, passing: int) -> None:
        self.passing = passing
        for name in ("execute", "executemany", "execute_fetchall"):
            monkeypatch.setattr(db, name, partial(self._run, getattr(db, name)))

    async def _run(self, run: Callable[..., Any], *args: Any) -> Any:
        self.passing -= 1
        if self.passing == -1:
            raise sqlite3.OperationalError("disk I/O error")
        return await run(*args)


async def indexed_and_tidied(store: SqliteStore) -> None:
    """Until the index has nothing to remove, passing over what fails."""
    for _ in range(1000):
        with suppress(StoreFault):
            await store.index(lambda event: event.content, "content", 100)
            if not await store.tidy_index() and store._index.pending_s == 0:
                return
    raise AssertionError("the index is never done")


@pytest.mark.proves("N09-13")
async def test_nothing_counts_as_erased_after_a_statement_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it was: a receipt of erasure would be signed while the text is in the index."""
    monkeypatch.setattr(text_index, "_PAUSE_RATIO", 0)
    for number in count():
        folder = tmp_path / str(number)
        folder.mkdir()
        store = await SqliteStore.open(folder / "rookery.db", TERMS)
        texts = planted(1)
        events = saying(texts)
        await write(store, *events)
        await indexed_and_tidied(store)
        await write(store, deletion(*events))
        with monkeypatch.context() as patched:
            failing = FailingOnce(patched, store._index._db, number)
            await indexed_and_tidied(store)
            assert not {"search.db", "search.db-wal"} & left_of(texts, folder).keys(), number
        await store.close()
        if failing.passing >= 0:
            assert number > 10
            return


@pytest.mark.parametrize("is_indexed_before", [True, False])
async def test_what_a_crash_left_is_erased_at_the_next_start(
    tmp_path: Path, *, is_indexed_before: bool
) -> None:
    """Both WALs hold deleted texts when the process dies."""
    left = tmp_path / "left"
    left.mkdir()
    running_in = tmp_path / "data"
    running_in.mkdir()
    async with running(running_in) as store:
        await after_a_first_deletion(store, running_in)
        texts, events = await plant(store, 9)
        await write(store, deletion(*events))
        if is_indexed_before:
            await store.tidy_index()
        for name in ("search.db-wal", "search.db", "rookery.db-wal", "rookery.db"):
            shutil.copy(running_in / name, left / name)
    assert left_of(texts, left)
    async with running(left) as store:
        assert "rookery.db-wal" not in left_of(texts, left)
        await erased(texts, left, seconds=here(5))


async def test_what_a_command_deletes_is_erased_when_it_ends(tmp_path: Path) -> None:
    """No index is kept up to date meanwhile."""
    async with running(tmp_path) as store:
        await after_a_first_deletion(store, tmp_path)
        texts, events = await plant(store, 2)
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS)
    await write(store, deletion(*events))
    await store.close()
    assert left_of(texts, tmp_path) == {}


# -- free pages -----------------------------------------------------------------------------------


async def test_free_pages_go_back_in_quiet_moments(tmp_path: Path) -> None:
    file = tmp_path / "rookery.db"
    async with running(tmp_path) as store:
        events = [unsigned(cast.alice, content="x" * 4000, at=at) for at in range(500)]
        await write(store, *events)
        await write(store, *[unsigned(cast.bob, content=f"{n}", at=n) for n in range(50)])
        await by_a_ban(store, [])
        await becomes("the file is small", lambda: 0 < file.stat().st_size < 600_000)
        assert len(await read(store)) == 50


async def test_the_space_of_a_large_log_goes_back_in_quiet_moments(tmp_path: Path) -> None:
    log = tmp_path / "rookery.db-wal"
    async with running(tmp_path) as store:
        events = [unsigned(cast.alice, content="x" * 4000, at=at) for at in range(2000)]
        await write(store, *events)
        assert log.stat().st_size > 5_000_000
        await becomes("the log is empty", lambda: log.stat().st_size == 0)
        assert len(await read(store)) == 2000


async def test_an_older_file_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "rookery.db"
    async with running(tmp_path) as store:
        await write(store, unsigned(cast.bob))
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA auto_vacuum = NONE")
        db.execute("VACUUM")
    async with running(tmp_path) as store:
        texts, events = await plant(store, 2)
        await write(store, deletion(*events))
        await erased(texts, tmp_path)
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA auto_vacuum").fetchone() == (0,)
