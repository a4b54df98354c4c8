"""A connection or the server is lost in a batch: what is in the database is what the relay says."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from threading import Event as Signal
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.management import ListChange, ListName
from relay.errors import Outdated, StoreFault
from relay.lifecycle.rows import WritePlan
from relay.lifecycle.versions import History
from relay.storage.postgres import connections, listening, writer
from relay.storage.postgres.connections import _WRITE_SETTINGS
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.writing import (
    NOTHING_WANTED,
    TERMS,
    Batch,
    change,
    read,
    stored,
    takes_over,
    unsigned,
    write,
)
from tests.harness.database_proxy import AtCommit, Proxy
from tests.harness.patience import ANSWER_S
from tests.harness.postgres import MISSING, PostgresServer, programs
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from relay.lifecycle.rows import Found, Stored
    from relay.nostr.event import Event

pytestmark = pytest.mark.process


@asynccontextmanager
async def store_behind(
    proxy: Proxy, server: PostgresServer, *, is_shared: bool
) -> AsyncIterator[tuple[PostgresStore, str]]:
    """And the address of its database."""
    direct = await server.new_schema()
    url = direct.replace(str(server.socket.parent), str(proxy.host))
    store = await PostgresStore.open(url, TERMS, is_shared=is_shared)
    store.take_over = takes_over
    try:
        yield store, direct
    finally:
        await store.close()
    await server.empty(direct)


async def stored_again(store: PostgresStore, event: Event) -> Stored:
    """As soon as the database answers."""
    async with until("it is stored") as tries:
        async for _ in tries:
            with suppress(StoreFault):
                return await stored(store, event)
    raise AssertionError


async def read_again(store: PostgresStore) -> list[bytes]:
    """As soon as the connection that follows the database is back, too."""
    async with until("it is read") as tries:
        async for _ in tries:
            with suppress(StoreFault):
                return await read(store)
    raise AssertionError


class Noted(dict[str, str]):
    """Statements; `asked`: the names of those that were."""

    def __init__(self, statements: Mapping[str, str]) -> None:
        super().__init__(statements)
        self.asked: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.asked.append(name)
        return super().__getitem__(name)


async def test_a_batch_is_committed_whether_or_not_its_connection_can_be_closed_then(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event was stored, its author was told `error:`, and the relay's state lacked it."""
    async with (
        Proxy(postgres.socket) as proxy,
        store_behind(proxy, postgres, is_shared=False) as (store, url),
    ):
        first = await stored(store, unsigned(cast.alice))
        monkeypatch.setattr(connections, "_CLOSE_S", 0.1)
        (holder,) = store._connections._writers._holders
        holder._max_queries = 1
        proxy.keeps_open = True
        second = await stored(store, unsigned(cast.bob))
        assert not holder.is_connected(), "it was closed"
        assert await postgres.value(f"SELECT seq FROM {postgres.schema_of(url)}.head") == 2
        third = await stored(store, unsigned(cast.carol))
        assert [each.seq for each in (first, second, third)] == [1, 2, 3]


async def test_a_deletion_asks_once_whether_there_are_old_versions(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind 5 with 1,000 made-up ids took 0.7 s: a round trip for each."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    named = [["e", f"{number:064x}"] for number in range(50)]
    noted = Noted(QUERIES)
    monkeypatch.setattr(writer, "QUERIES", noted)
    await stored(store, unsigned(cast.alice, 5, named))
    assert noted.asked.count("has_old") == 1
    assert "forget_named" not in noted.asked
    await store.close()
    await postgres.empty(url)


async def test_a_deletion_asks_once_for_the_old_versions_of_all_names(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there were any it took 2 to 3 s, in which nobody could write."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    versions = [unsigned(cast.alice, 30023, [["d", d]], at=at) for at in (3, 4, 5) for d in "ab"]
    await write(store, *versions, history=History(5))
    named = [["a", f"30023:{cast.alice.pubkey}:{d}"] for d in "xaby"]
    named += [["e", f"{number:064x}"] for number in range(50)] + [["e", versions[0].id]]
    noted = Noted(QUERIES)
    monkeypatch.setattr(writer, "QUERIES", noted)
    await stored(store, unsigned(cast.alice, 5, named, at=9))
    assert await store.old_versions(0, 9) == []
    assert noted.asked.count("forget_named") == 1
    assert noted.asked.count("add_tombstone") == 2  # for the versions, and for the names
    assert len(noted.asked) < 30
    await store.close()
    await postgres.empty(url)


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_commit_whose_answer_is_lost_is_known_to_be_one(
    postgres: PostgresServer, *, is_shared: bool
) -> None:
    async with (
        Proxy(postgres.socket) as proxy,
        store_behind(proxy, postgres, is_shared=is_shared) as (store, _),
    ):
        for number in range(2):
            proxy.at_commit = AtCommit.LOSE_ANSWER
            row = await stored(store, unsigned(cast.alice, content=f"{number}"))
            assert (row.seq, proxy.cut_commits) == (number + 1, number + 1)
        assert len(await read(store)) == 2


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_commit_that_never_arrives_is_an_error_and_the_next_is_none(
    postgres: PostgresServer, *, is_shared: bool
) -> None:
    async with (
        Proxy(postgres.socket) as proxy,
        store_behind(proxy, postgres, is_shared=is_shared) as (store, _),
    ):
        proxy.at_commit = AtCommit.LOSE_REQUEST
        event = unsigned(cast.alice)
        with pytest.raises(StoreFault):
            await stored(store, event)
        assert (await stored_again(store, event)).seq == 1


async def store_an_event(store: PostgresStore) -> None:
    await stored(store, unsigned(cast.alice))


async def ban(store: PostgresStore) -> None:
    """Adds no row."""
    entry = ListChange(ListName.BANNED_KEYS, cast.bob.pubkey, "")
    await change(store, lambda plan: plan.list_changes.append(entry))


@pytest.mark.parametrize("begin", [store_an_event, ban])
async def test_a_commit_that_was_in_doubt_is_no_other_relay(
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[PostgresStore], Awaitable[None]],
) -> None:
    """It was told as an error, so state lacks it: the relay has to start again."""
    monkeypatch.setattr(writer, "_ASK_AGAIN_S", ())  # nothing answers
    async with (
        Proxy(postgres.socket) as proxy,
        store_behind(proxy, postgres, is_shared=False) as (store, _),
    ):
        store.take_over = None
        proxy.at_commit = AtCommit.LOSE_ANSWER
        with pytest.raises(StoreFault):
            await begin(store)
        async with until("it is noticed") as tries:
            async for _ in tries:
                with pytest.raises((StoreFault, Outdated)):
                    await stored(store, unsigned(cast.bob))
                if store.set_back.is_set():
                    break


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """Of this test alone, to be crashed."""
    bin_ = programs()
    if bin_ is None:
        pytest.skip(MISSING)
    server = PostgresServer(bin_)
    yield server
    server.stop()


@pytest.mark.slow
async def test_a_batch_that_a_crash_undid_is_not_taken_for_the_one_after_it(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives the number of an undone transaction again."""
    monkeypatch.setattr(listening, "_ANSWER_S", ANSWER_S)  # else it may notice the loss first
    lost = unsigned(cast.alice, content="lost")
    async with (
        Proxy(own_server.socket) as proxy,
        store_behind(proxy, own_server, is_shared=True) as (store, url),
    ):
        other = await PostgresStore.open(url, TERMS, is_shared=True)
        other.take_over = takes_over
        is_over = asyncio.Event()

        async def crash() -> None:
            await asyncio.to_thread(own_server.crash)
            await asyncio.to_thread(own_server.start)
            await stored_again(other, unsigned(cast.bob))
            is_over.set()

        proxy.at_commit, proxy.crash = AtCommit.CRASH, crash
        with pytest.raises(StoreFault):
            await stored(store, lost)
        await is_over.wait()
        proxy.mend()
        assert (await stored_again(store, lost)).seq == 2
        await other.close()


async def test_a_relay_that_stands_still_in_a_batch_does_not_hold_up_the_others(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_WRITE_SETTINGS, "idle_in_transaction_session_timeout", "200ms")
    async with (
        Proxy(postgres.socket) as proxy,
        store_behind(proxy, postgres, is_shared=True) as (store, url),
    ):
        batch, has_begun, may_end = Batch(unsigned(cast.alice)), Signal(), Signal()

        def decide(found: Found) -> WritePlan:
            has_begun.set()
            may_end.wait(ANSWER_S)
            return batch.decide(found)

        stopped = asyncio.create_task(store.append(batch.wanted, decide))
        await asyncio.to_thread(has_begun.wait, ANSWER_S)
        other = await PostgresStore.open(url, TERMS, is_shared=True)
        assert (await stored(other, unsigned(cast.bob))).seq == 1
        await other.close()
        may_end.set()
        with pytest.raises(StoreFault):
            await stopped


async def test_others_are_heard_of_after_connections_were_lost_in_a_batch(
    postgres: PostgresServer,
) -> None:
    async with (
        Proxy(postgres.socket) as proxy,
        store_behind(proxy, postgres, is_shared=True) as (store, _),
    ):
        loop, batch = asyncio.get_running_loop(), Batch(unsigned(cast.alice))

        def decide(found: Found) -> WritePlan:
            async def lose_all() -> None:
                proxy.cut()
                while not store._touch.is_lost:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                proxy.mend()

            asyncio.run_coroutine_threadsafe(lose_all(), loop).result()
            return batch.decide(found)

        with pytest.raises(StoreFault):
            await store.append(batch.wanted, decide)
        await stored_again(store, unsigned(cast.alice))


async def test_what_was_loaded_long_ago_is_not_taken_for_all_that_others_have_committed(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and rights of a relay that started were as old as its loading had taken."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS, is_shared=True)
    try:
        loaded_at = time.monotonic() + 10
        monkeypatch.setattr(listening, "monotonic", lambda: loaded_at)
        store.take_over = takes_over
        assert store.lag_s() >= 10
    finally:
        monkeypatch.undo()
        await store.close()
    await postgres.empty(url)


async def test_a_process_that_stood_still_has_not_lost_the_database(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer came meanwhile, or the question was not sent yet."""
    monkeypatch.setattr(listening, "_POLL_S", 0.0)
    monkeypatch.setattr(listening, "_ANSWER_S", 1.0)  # the server of a busy machine answers later
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS, is_shared=True)
    try:
        for number in range(4):
            await asyncio.sleep(number / 300)
            time.sleep(1.1)  # noqa: ASYNC251
            await asyncio.sleep(0.05)
            assert not store._touch.is_lost
    finally:
        await store.close()
    await postgres.empty(url)


async def test_a_batch_that_stores_nothing_does_not_pay_for_the_one_before(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused or ephemeral event had taken as long as the last one that was stored, whoever sent
    that; one with long look-ups nothing."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS, is_shared=True)
    late = 0.0
    monkeypatch.setattr(writer, "monotonic", lambda: time.monotonic() + late)

    def taking(seconds: float, plan: WritePlan) -> Callable[[Found], WritePlan]:
        def decide(_: Found) -> WritePlan:
            nonlocal late
            late += seconds
            return plan

        return decide

    try:
        batch = Batch(unsigned(cast.alice))
        await store.append(batch.wanted, lambda found: taking(100.0, batch.decide(found))(found))
        assert store.append_s > 99
        await store.append(NOTHING_WANTED, taking(0.0, WritePlan()))
        assert store.append_s < 99
        await store.append(NOTHING_WANTED, taking(100.0, WritePlan()))
        assert store.append_s > 99
    finally:
        await store.close()
    await postgres.empty(url)


async def test_a_batch_does_not_pay_for_how_far_the_database_is(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100 ms for each statement every client was slow, and all waited for half a minute."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    late, statement_s, decide_s = 0.0, 0.1, 0.0
    monkeypatch.setattr(writer, "monotonic", lambda: late)
    writing = store._connections.writing

    class Far:
        def __init__(self, db: Any) -> None:
            self._db = db

        def __getattr__(self, name: str) -> object:
            nonlocal late
            late += statement_s
            return getattr(self._db, name)

    @asynccontextmanager
    async def far() -> AsyncIterator[Far]:
        async with writing() as db:
            yield Far(db)

    async def took_s(number: int) -> float:
        batch = Batch(unsigned(cast.alice, content=f"{number}"))

        def decide(found: Found) -> WritePlan:
            nonlocal late
            late += decide_s
            return batch.decide(found)

        await store.append(batch.wanted, decide)
        return store.append_s

    monkeypatch.setattr(store._connections, "writing", far)
    try:
        assert {await took_s(number) for number in range(5)} == {0.0}
        decide_s = 2.0
        assert await took_s(5) > 1.0, "what takes long there is noticed"
        statement_s = decide_s = 0.0
        assert {await took_s(number) for number in range(6, 40)} == {0.0}
        statement_s = 0.1
        assert await took_s(40) > 0.25, "it is not always so far"
    finally:
        await store.close()
    await postgres.empty(url)
