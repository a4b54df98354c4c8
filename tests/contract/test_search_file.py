"""The file of the text index: it may be lost at any time, and deleted texts are removed from it."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from contextlib import closing
from itertools import count
from threading import Event
from time import monotonic, sleep
from typing import TYPE_CHECKING

import pytest

from relay.access.actors import Actors
from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.errors import StoreVersion, TooSlow, TooWide
from relay.groups.group import Groups
from relay.nostr.event import event_from_raw
from relay.storage import PageQuery
from relay.storage.sqlite import connections, loop_reader, readers, searching, text_index
from relay.storage.sqlite import store as sqlite_store
from relay.storage.sqlite.sql import recall
from relay.storage.sqlite.sql.conditions import Query
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.test_sqlite_erasure import becomes
from tests.contract.test_store_search import found, indexed, says, sought
from tests.contract.writing import EVERYTHING, MAX, TERMS, asked, change, unsigned, write
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from relay.access.visibility import Visibility
    from relay.nostr.keys import SecretKey
    from relay.storage import Verb


async def opened(folder: Path) -> SqliteStore:
    return await SqliteStore.open(folder / "rookery.db", TERMS)


async def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await says(store, "tea")
    assert modes(tmp_path) == {0o600}
    await store.close()


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(file.stat().st_mode) for file in folder.glob("search.db*")}


@pytest.mark.parametrize("harm", ["missing", "damaged", "empty", "of an older version"])
async def test_an_unusable_file_is_rebuilt_from_the_log(tmp_path: Path, harm: str) -> None:
    store = await opened(tmp_path)
    await says(store, "tea", "coffee")
    await store.close()
    file = tmp_path / "search.db"
    if harm == "missing":
        file.unlink()
    elif harm == "of an older version":
        with closing(sqlite3.connect(file)) as db:
            db.execute("PRAGMA user_version = 0")
    else:
        file.write_bytes(b"no database at all" * 500 if harm == "damaged" else b"")
    store = await opened(tmp_path)
    assert await found(store, "tea") == []
    await indexed(store)
    assert await found(store, "tea") == ["tea"]
    await store.close()


async def test_the_file_of_another_store_is_rebuilt(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        store = await opened(tmp_path / name)
        await says(store, f"tea of {name}")
        await store.close()
    (tmp_path / "one" / "search.db").replace(tmp_path / "other" / "search.db")
    store = await opened(tmp_path / "other")
    assert await store.index(lambda event: event.content, "content", 9) == 1
    assert await found(store, "other") == ["tea of other"]
    assert await found(store, "one") == []
    await store.close()


async def test_an_index_ahead_of_a_restored_store_is_rebuilt(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await says(store, "tea")
    await store.close()
    older = (tmp_path / "rookery.db").read_bytes()
    store = await opened(tmp_path)
    await says(store, "coffee", "milk")
    await store.close()
    (tmp_path / "rookery.db").write_bytes(older)
    store = await opened(tmp_path)
    await says(store, "sugar")
    assert await found(store, "sugar") == ["sugar"]
    assert await found(store, "coffee") == []
    await store.close()


async def test_an_index_with_rows_ahead_of_a_restored_store_is_rebuilt(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await says(store, "tea")
    await store.close()
    older = (tmp_path / "rookery.db").read_bytes()
    store = await opened(tmp_path)
    await write(store, unsigned(cast.alice, 78, content="coffee"))
    await store.index(lambda event: event.content, "content", 9, {78})
    await store.close()
    (tmp_path / "rookery.db").write_bytes(older)
    store = await opened(tmp_path)
    await write(store, unsigned(cast.alice, 78, content="sugar"))
    await indexed(store)
    assert await found(store, "sugar") == ["sugar"]
    assert await found(store, "coffee") == []
    await store.close()


async def test_rows_that_are_ahead_are_looked_for_among_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be one of them among millions."""
    monkeypatch.setattr(text_index, "SCANNED_ROWS", 4)
    store = await opened(tmp_path)
    notes = [unsigned(cast.alice, content=f"tea {number}", at=1) for number in range(9)]
    await write(store, *notes, unsigned(cast.alice, 78, content="my tea"))
    reached = [await store.index(lambda event: event.content, "1", 9, {78}) for _ in range(4)]
    assert reached == [4, 8, 10, 10]
    assert await found(store, "tea") == ["my tea"]
    await store.close()


async def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "search.db")) as db:
        db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreVersion, match="another program"):
        await opened(tmp_path)


@pytest.mark.proves("N09-13", "N62-04")
async def test_words_of_deleted_texts_leave_the_file(tmp_path: Path) -> None:
    """Nothing of them is in the file once the index was tidied, nor of their kinds."""
    store = await opened(tmp_path)
    secret = unsigned(cast.alice, 7777, content="wombats everywhere", at=1)
    await says(store, *[f"tea number {number}" for number in range(50)])
    await write(store, secret)
    await indexed(store)
    assert holds(tmp_path, b"wombat")
    assert holds(tmp_path, b"7777")
    await write(store, unsigned(cast.alice, 5, [["e", secret.id]], "", 2))
    await indexed(store)
    while await store.tidy_index():
        pass
    assert not holds(tmp_path, b"wombat")
    assert not holds(tmp_path, b"7777")
    assert len(await found(store, "tea")) == 50
    await store.close()


async def test_long_texts_leave_the_file_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All words of a thousand long texts would take gigabytes of memory."""
    store, columns_of = await opened(tmp_path), text_index._columns_of
    texts = [unsigned(cast.alice, content=f"{'tea ' * 24_000}{at}", at=at) for at in range(8)]
    await write(store, *texts)
    await write(store, unsigned(cast.alice, content="milk", at=9))
    await indexed(store)
    dropped: list[int] = []

    def counted(found: Sequence[tuple[int, str, int]]) -> list[tuple[int, str, str, str, str]]:
        dropped.append(len(found))
        return columns_of(found)

    monkeypatch.setattr(text_index, "_columns_of", counted)
    await write(store, unsigned(cast.alice, 5, [["e", each.id] for each in texts], "", 10))
    while await store.tidy_index():
        pass
    assert dropped == [3, 3, 2]
    assert not holds(tmp_path, b"tea tea")
    assert await found(store, "milk") == ["milk"]
    await store.close()


def holds(folder: Path, words: bytes) -> bool:
    return any(words in file.read_bytes() for file in folder.glob("search.db*"))


async def test_rows_that_a_crash_left_in_the_index_are_removed(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await says(store, "tea", "coffee")
    with closing(sqlite3.connect(tmp_path / "rookery.db")) as db, db:
        db.execute("DELETE FROM events WHERE seq = 1")  # as if the news of it had been lost
    assert await found(store, "tea") == []
    await store.tidy_index()
    with closing(sqlite3.connect(tmp_path / "search.db")) as db:
        assert db.execute("SELECT seq FROM ranks").fetchall() == [(2,)]
        assert db.execute("SELECT seq, text FROM texts").fetchall() == [(2, "coffee")]
    await store.close()


@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_a_tidying_that_is_cancelled_as_it_begins_is_done_when_the_store_is_closed(
    tmp_path: Path, steps: int
) -> None:
    """Its transaction stayed open."""
    store = await opened(tmp_path)
    secret = unsigned(cast.alice, content="wombats everywhere", at=1)
    await write(store, secret)
    await indexed(store)
    await write(store, unsigned(cast.alice, 5, [["e", secret.id]], at=2))
    tidying = asyncio.ensure_future(store.tidy_index())
    for _ in range(steps):
        await asyncio.sleep(0)
    tidying.cancel()
    await asyncio.wait([tidying])
    await store.close()
    assert not holds(tmp_path, b"wombats")


async def test_a_truncation_gives_up_when_the_relay_itself_reads_for_long(tmp_path: Path) -> None:
    """Its reads have no limit of time, and clients waited for their end."""
    store = await opened(tmp_path)
    await says(store, "tea")
    async with store._relay_conn._lock:
        assert not await store._checkpoints._truncate()
    assert store._checkpoints.upkeep.busy == 1
    assert await store._checkpoints._truncate()
    await store.close()


async def test_expired_rows_are_removed_from_the_index_when_they_are_swept(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await says(store, "tea", tags=[["expiration", "100"]])
    await change(store, lambda plan: plan.removes.add(1))
    await store.tidy_index()
    with closing(sqlite3.connect(tmp_path / "search.db")) as db:
        assert db.execute("SELECT count(*) FROM ranks").fetchone() == (0,)
    await store.close()


async def test_writers_do_not_wait_for_the_index(tmp_path: Path) -> None:
    """While a step of the index runs, a batch is committed."""
    store = await opened(tmp_path)
    await says(store, "tea")
    with closing(sqlite3.connect(tmp_path / "search.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # the index cannot write
        await write(store, unsigned(cast.alice, content="coffee"))
        assert await store.head() == 2
        other.execute("ROLLBACK")
    await indexed(store)
    assert await found(store, "coffee") == ["coffee"]
    await store.close()


async def test_a_search_that_takes_too_long_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raises TooWide when it takes too long; the next search succeeds."""
    store = await opened(tmp_path)
    rows = [unsigned(cast.alice, content=f"tea {number}", at=number) for number in range(3000)]
    await write(store, *rows)
    while await store.index(lambda event: event.content, "content", 1000) < 3000:
        pass
    with monkeypatch.context() as hurried:
        hurried.setattr(searching, "_SEARCH_S", 0.0)
        with pytest.raises(TooWide):
            await store.search(sought("tea"), EVERYTHING, limit=5, upto=MAX, now=0)
        with pytest.raises(TooWide):
            await store.count([sought("tea")], EVERYTHING, now=0)
    assert len(await found(store, "tea", limit=5)) == 5
    await store.close()


QUERIES = (
    "kettle shelf",
    '"on the shelf" -milk',
    "kettle -milk",
    "match:any where is the kettle on the shelf",
    'match:any "the kettle" "the shelf"',
    "match:any near:0-100 kettle",
)


async def test_a_search_with_kinds_reads_no_texts_of_others(tmp_path: Path) -> None:
    """Strangers may store any number of them, also with what looks like the token of a kind."""
    store = await opened(tmp_path)
    text = "the kettle is on the shelf"
    own = [unsigned(cast.alice, 30078, [["d", f"{n}"]], f"{text} {n}", n) for n in range(9)]
    await write(store, *own)
    steps: list[list[int]] = []
    for more in (20, 2000):
        texts = [f"{text} \t30078 30078{' milk' * (n % 2)}" for n in range(more)]
        await write(
            store, *[unsigned(cast.bob, 1, (), each, more + n) for n, each in enumerate(texts)]
        )
        while await store.index(lambda event: event.content, "content", 2000) < await store.head():
            pass
        steps.append([await steps_of(store, query, [78, 30078]) for query in QUERIES])
    assert all(many < 4 * few for few, many in zip(*steps, strict=True)), steps
    await store.close()


async def steps_of(store: SqliteStore, query: str, kinds: list[int]) -> int:
    """How many tens of instructions it takes to find the nine rows, and to count them."""
    taken = count()
    await store._search_conn._db.set_progress_handler(lambda: next(taken) < 0, 10)
    assert len(await found(store, query, kinds=kinds)) == 9
    assert await store.count([sought(query, kinds=kinds)], EVERYTHING, now=0) == 9
    return next(taken)


async def test_a_question_over_many_long_texts_reads_little_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All their stems are more than one value may have."""
    monkeypatch.setattr(connections, "MAX_VALUE", 1_000_000)
    store = await opened(tmp_path)
    others = " ".join([f"word{number}" for number in range(10_000)])
    for text in ("tea", "tea milk"):
        await says(store, *[f"{text} {n} {others}" for n in range(6)], at=len(text))
    await says(store, "tea tea")
    best = await found(store, "match:any tea milk")
    assert [text[:8] for text in best] == ["tea tea"] + ["tea milk"] * 6 + [
        f"tea {n} wo" for n in range(5, -1, -1)
    ]
    await store.close()


async def test_a_question_that_finds_too_many_long_texts_reads_the_short_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the others a word counts once, where it found them."""
    store = await opened(tmp_path)
    long = " ".join([f"word{number}" for number in range(50)])
    texts = f"kettle kettle {long}", f"kettle is {long}", "tea", "tea tea tea tea", f"milk {long}"
    await says(store, *texts)
    with monkeypatch.context() as limited:
        limited.setattr(recall, "_MAX_READ", 60)
        limited.setattr(recall, "_SIZED_ROWS", 2)
        few = await found(store, "match:any tea kettle")
    assert few == [texts[3], texts[2], texts[1], texts[0]]
    assert await found(store, "match:any tea kettle") == [texts[3], texts[2], *texts[:2]]
    await store.close()


async def test_a_read_that_takes_too_long_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not end on the loop has a bound on the reader's thread; others go on."""
    store = await opened(tmp_path)
    await write(store, *[unsigned(cast.alice, content="x", at=number) for number in range(3000)])
    wide = asked(kinds=[1])
    with monkeypatch.context() as hurried:
        hurried.setattr(loop_reader, "_LOOP_READ_S", -1.0)
        hurried.setattr(loop_reader, "_PROGRESS_STEPS", 1)
        hurried.setattr(sqlite_store, "_READ_S", 0.0)
        hurried.setattr(sqlite_store, "_COUNT_S", {True: ANSWER_S, False: 0.0})
        store._loop_conn = loop_reader.LoopReader(store._factory.quick_reader)
        with pytest.raises(TooSlow):
            await store.count([wide], UNKNOWN, now=0)
        assert await store.count([wide], EVERYTHING, now=0) == 3000
        with pytest.raises(TooSlow):
            await store.page(PageQuery(wide, EVERYTHING, limit=3000, upto=MAX, now=0, size=3000))
    assert await store.count([asked(kinds=[1])], EVERYTHING, now=0) == 3000
    await store.close()


UNKNOWN = visibility_for(ANONYMOUS, (), Actors(), Groups())


async def hold_reads_of_unknown_keys(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Event:
    """They go to their thread, and end when the event is set."""
    monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)
    monkeypatch.setattr(searching, "_SEARCH_S", ANSWER_S)
    monkeypatch.setattr(sqlite_store, "_COUNT_S", {True: ANSWER_S, False: ANSWER_S})
    may_end = Event()
    for reader in (store._unknown_conn, store._unknown_search_conn):
        await reader._db.set_progress_handler(lambda: not may_end.wait(ANSWER_S), 1)
    return may_end


@pytest.mark.parametrize("reads", ["count", "search"])
async def test_a_known_key_waits_for_no_read_of_unknown_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """Of reads that do not end on the loop: each may take ten seconds of its thread."""
    store = await opened(tmp_path)
    await says(store, "tea")
    may_end = await hold_reads_of_unknown_keys(store, monkeypatch)

    async def read(viewer: Visibility) -> list[int]:
        if reads == "count":
            return [await store.count([asked(kinds=[1])], viewer, now=0)]
        return list(await store.search(sought("tea"), viewer, limit=5, upto=MAX, now=0))

    unknown_reads = [asyncio.ensure_future(read(UNKNOWN)) for _ in range(5)]
    assert await read(EVERYTHING) == [1]
    assert not any(each.done() for each in unknown_reads)
    may_end.set()
    assert await asyncio.gather(*unknown_reads) == [[1]] * 5
    await store.close()


@pytest.mark.parametrize("verb", ["REQ", "COUNT"])
@pytest.mark.parametrize("viewer", [UNKNOWN, EVERYTHING], ids=["unknown", "known"])
async def test_a_long_search_gives_way_and_ends_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, viewer: Visibility, verb: Verb
) -> None:
    """16 clients with one search of 2 s after the other kept agents waiting for 30 s, and COUNTs of
    one key the feeds of members for 5."""
    store = await opened(tmp_path)
    await says(store, "tea")
    monkeypatch.setattr(searching, "_SEARCH_S", ANSWER_S)
    monkeypatch.setattr(readers, "_LOOK_S", 0.001)
    first, then = store._search_conn, store._long_conn
    if not viewer.is_known:
        first, then = store._unknown_search_conn, store._unknown_long_conn
    monkeypatch.setattr(first, "_most_s", 0.0)
    is_quick, may_end = Event(), Event()
    await first._db.set_progress_handler(lambda: None if is_quick.is_set() else sleep(0.1), 10)
    await then._db.set_progress_handler(lambda: not may_end.wait(ANSWER_S), 1)

    async def search(address: str, verb: Verb) -> int:
        asked = sought("tea")
        if verb == "COUNT":
            return await store.count([asked], viewer, now=0, address=address)
        found = await store.search(asked, viewer, limit=5, upto=MAX, now=0, address=address)
        return len(found)

    long = asyncio.ensure_future(search("198.18.0.1", verb))
    await becomes("it has begun", first._lock.locked)
    other = asyncio.ensure_future(search("192.0.2.1", "REQ"))
    await becomes("it has begun elsewhere", then._lock.locked)
    is_quick.set()
    assert await other == 1
    assert not long.done()
    may_end.set()
    assert await long == 1
    await store.close()


async def test_a_page_of_an_unknown_key_waits_for_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path)
    await says(store, "tea")
    monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)
    monkeypatch.setattr(searching, "_SEARCH_S", ANSWER_S)
    may_end = Event()
    reader = store._unknown_search_conn
    await reader._db.set_progress_handler(lambda: not may_end.wait(ANSWER_S), 1)
    search = store.search(sought("tea"), UNKNOWN, limit=5, upto=MAX, now=0)
    searching_ = asyncio.ensure_future(search)
    await becomes("it has begun", reader._lock.locked)
    query = PageQuery(asked(kinds=[1]), UNKNOWN, 1, MAX, 0, size=1)
    assert len((await store.page(query)).raws) == 1
    assert not searching_.done()
    may_end.set()
    assert list(await searching_) == [1]
    await store.close()


@pytest.mark.parametrize("reads", ["page", "search"])
async def test_an_unknown_key_waits_for_one_count_however_many_addresses_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """60 addresses with one COUNT of 3 s each made searches of all strangers take 3 minutes."""
    store = await opened(tmp_path)
    await says(store, "tea")
    may_end = await hold_reads_of_unknown_keys(store, monkeypatch)
    answered = list[str]()

    wanted = asked(kinds=[1]) if reads == "page" else sought("tea")

    async def count(address: str) -> None:
        await store.count([wanted], UNKNOWN, now=0, address=address)
        answered.append("count")

    async def read() -> None:
        if reads == "page":
            await store.page(PageQuery(asked(kinds=[1]), UNKNOWN, 1, MAX, 0, size=1))
        else:
            await store.search(sought("tea"), UNKNOWN, limit=5, upto=MAX, now=0)
        answered.append(reads)

    async with asyncio.TaskGroup() as tasks:
        for number in range(60):
            tasks.create_task(count(f"192.0.2.{number}"))
        reader = store._unknown_conn if reads == "page" else store._unknown_search_conn
        await becomes("one has begun", reader._lock.locked)
        tasks.create_task(read())
        await asyncio.sleep(0)
        may_end.set()
    assert answered == ["count", reads, *["count"] * 59]
    await store.close()


@pytest.mark.parametrize("reads", ["page", "count", "search"])
async def test_members_wait_for_one_read_of_another_however_many_it_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """40 COUNTs of one key made the slow reads of all members and owners take minutes, also of
    those that a reverse proxy gives the same address."""
    store = await opened(tmp_path)
    await says(store, "tea")
    monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)
    monkeypatch.setattr(searching, "_SEARCH_S", ANSWER_S)
    monkeypatch.setattr(sqlite_store, "_COUNT_S", {True: ANSWER_S, False: ANSWER_S})
    held = store._search_conn if reads == "search" else store._reader_conn
    monkeypatch.setattr(held, "connections", [held])
    monkeypatch.setattr(held.turns, "_free", 1)
    may_end, answered = Event(), list[str]()
    await held._db.set_progress_handler(lambda: not may_end.wait(ANSWER_S), 1)
    actors = Actors(frozenset({cast.owner.pubkey}), agents=frozenset({cast.alice.pubkey}))

    async def read(who: SecretKey, *, is_count: bool = False) -> None:
        viewer = visibility_for(Viewer(frozenset({who.pubkey})), (), actors, Groups())
        if is_count:
            terms = sought("tea") if reads == "search" else asked(kinds=[1])
            await store.count([terms], viewer, now=0, address="192.0.2.1")
        elif reads == "page":
            query = PageQuery(asked(kinds=[1]), viewer, 1, MAX, 0, size=1, address="192.0.2.1")
            await store.page(query)
        else:
            await store.search(sought("tea"), viewer, limit=5, upto=MAX, now=0, address="192.0.2.1")
        answered.append(next(name for name in ("owner", "alice") if getattr(cast, name) is who))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(9):
            tasks.create_task(read(cast.alice, is_count=True))
        await becomes("one has begun", held._lock.locked)
        tasks.create_task(read(cast.owner, is_count=reads == "count"))
        await asyncio.sleep(0)
        may_end.set()
    assert answered == ["alice", "owner", *["alice"] * 8]
    await store.close()


async def test_a_pause_goes_ahead_of_all_reads_of_unknown_keys_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the time of the pause count as that of a read."""
    store = await opened(tmp_path)
    await says(store, "tea")
    may_end = await hold_reads_of_unknown_keys(store, monkeypatch)
    answered = list[str]()

    async def count(address: str) -> None:
        await store.count([asked(kinds=[1])], UNKNOWN, now=0, address=address)
        answered.append("count")

    async def pause() -> None:
        async with store._unknown_conn.paused():
            await becomes("the one that had begun is answered", lambda: bool(answered))
            answered.append("pause")
            await asyncio.sleep(0)
            now = monotonic()
            monkeypatch.setattr(readers, "monotonic", lambda: now + 1000)

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(count(f"192.0.2.{number}"))
        await becomes("one has begun", store._unknown_conn._lock.locked)
        tasks.create_task(pause())
        await asyncio.sleep(0)
        may_end.set()
    assert answered == ["count", "pause", *["count"] * 4]
    assert store._unknown_conn.turns._counts._first_cost < ANSWER_S**2
    await store.close()


async def test_a_truncation_waits_for_negentropy_sets_while_long_pages_go_on(
    tmp_path: Path,
) -> None:
    store = await opened(tmp_path)
    await says(store, "tea")
    may_end = Event()
    reader = store._unknown_bulk_conn
    await reader._db.set_progress_handler(lambda: not may_end.wait(ANSWER_S), 1)
    items = store.items(asked(kinds=[1]), UNKNOWN, limit=None, upto=MAX, now=0, at_most=9)
    reading = asyncio.ensure_future(items)
    await becomes("it has begun", reader._lock.locked)
    truncation = asyncio.ensure_future(store._checkpoints._truncate())
    await becomes("the truncation waits for it", lambda: reader._pauses > 0)
    for long in (store._long_conn, store._unknown_long_conn):
        async with asyncio.timeout(ANSWER_S / 2):
            assert await long.rows(Query("SELECT 1", ())) == [(1,)]
    assert not reading.done()
    may_end.set()
    found = await reading
    assert found is not None
    assert await truncation
    await store.close()


@pytest.mark.parametrize("reads", ["count", "search"])
async def test_a_known_key_waits_for_no_truncation_that_waits_for_unknown_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """The WAL is truncated after each deletion, which waits for reads that have begun."""
    store = await opened(tmp_path)
    await says(store, "tea")
    may_end = await hold_reads_of_unknown_keys(store, monkeypatch)
    unknown_read = asyncio.ensure_future(store.count([asked(kinds=[1])], UNKNOWN, now=0))
    await becomes("it has begun", store._unknown_conn._lock.locked)
    truncation = asyncio.ensure_future(store._checkpoints._truncate())
    await becomes("the truncation waits for it", lambda: store._unknown_conn._pauses > 0)
    if reads == "count":
        assert await store.count([asked(kinds=[1])], EVERYTHING, now=0) == 1
    else:
        assert await store.search(sought("tea"), EVERYTHING, limit=5, upto=MAX, now=0) == [1]
    assert not unknown_read.done()
    may_end.set()
    assert await unknown_read == 1
    assert await truncation
    await store.close()


async def test_a_known_key_finds_what_is_stored_while_unknown_keys_hold_up_a_truncation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the index: its files are truncated after texts were deleted."""
    store = await opened(tmp_path)
    secret = unsigned(cast.alice, content="wombats everywhere", at=1)
    await write(store, secret)
    await indexed(store)
    await write(store, unsigned(cast.alice, 5, [["e", secret.id]], "", 2))
    await indexed(store)
    may_end = await hold_reads_of_unknown_keys(store, monkeypatch)
    unknown_read = asyncio.ensure_future(store.count([sought("tea")], UNKNOWN, now=0))
    await becomes("it has begun", store._unknown_search_conn._lock.locked)

    async def tidied() -> None:
        while await store.tidy_index():
            pass

    tidying = asyncio.ensure_future(tidied())
    await becomes("the truncation waits for it", lambda: store._unknown_search_conn._pauses > 0)
    async with asyncio.timeout(ANSWER_S / 2):
        await says(store, "tea")
        assert await found(store, "tea") == ["tea"]
    assert not tidying.done()
    assert not unknown_read.done()
    assert holds(tmp_path, b"wombat")
    assert store._index.pending_s > 0
    may_end.set()
    await asyncio.gather(tidying, unknown_read)
    assert not holds(tmp_path, b"wombat")
    assert store._index.pending_s == 0
    await store.close()


async def test_a_row_that_is_deleted_while_it_is_indexed_is_removed(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    rows = [unsigned(cast.alice, content=f"tea {number}", at=number) for number in range(9)]
    await write(store, *rows)
    deleted: list[int] = []

    def text_of(event: object) -> str:
        if not deleted:
            deleted.append(1)
            with closing(sqlite3.connect(tmp_path / "rookery.db")) as db, db:
                db.execute("DELETE FROM events WHERE seq = 1")
            store._index.forget([1])
        return "tea"

    await store.index(text_of, "content", 100)
    with closing(sqlite3.connect(tmp_path / "search.db")) as db:
        assert db.execute("SELECT min(seq) FROM ranks").fetchone() == (2,)
    await store.close()


async def test_deleting_earlier_rows_leaves_the_words_of_a_row(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await says(store, "tea 1", "tea 2", "tea 3")
    await change(store, lambda plan: plan.removes.update({1, 2}))
    await indexed(store)
    await store.tidy_index()
    seqs = await store.search(sought("tea"), EVERYTHING, limit=5, upto=MAX, now=0)
    raws, _ = await store.rows(seqs, sought("tea"), EVERYTHING, now=0)
    assert [event_from_raw(raw).content for raw in raws] == ["tea 3"]
    await store.close()
