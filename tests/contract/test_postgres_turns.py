"""Reads of PostgresStore: which wait for each other, and what the server keeps of them."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from contextlib import asynccontextmanager
from itertools import product
from typing import TYPE_CHECKING

import pytest

from relay.access.actors import Actors
from relay.access.quotas import SizedBy
from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.groups.group import Groups
from relay.storage import PageQuery
from relay.storage.postgres import connections, reading
from relay.storage.postgres import store as postgres_store
from relay.storage.postgres.connections import Connections
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.writing import EVERYTHING, MAX, TERMS, asked, read, unsigned, write
from tests.harness.patience import ANSWER_S
from tests.harness.relay_in_process import policy_of
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.access.visibility import Visibility
    from relay.nostr.keys import SecretKey
    from tests.harness.postgres import PostgresServer

pytestmark = pytest.mark.process

_KEPT = """SELECT coalesce(sum(total_bytes), 0)::bigint FROM pg_backend_memory_contexts
    WHERE name LIKE 'CachedPlan%'"""
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
UNKNOWN = visibility_for(ANONYMOUS, (), Actors(), Groups())


@asynccontextmanager
async def opened(postgres: PostgresServer) -> AsyncIterator[tuple[PostgresStore, str]]:
    """A store, and the URL of its database."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    try:
        yield store, url
    finally:
        await store.close()
    await postgres.empty(url)


@pytest.mark.parametrize("greedy", [UNKNOWN, EVERYTHING], ids=["unknown", "known"])
async def test_short_reads_do_not_wait_for_long_ones(
    postgres: PostgresServer, greedy: Visibility, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tag nothing is read while the table of tags is locked."""
    monkeypatch.setattr(reading, "_SHORT_S", 0.3)  # a busy machine takes long for a short one
    monkeypatch.setattr(reading, "_COUNT_S", {True: ANSWER_S, False: ANSWER_S})
    async with opened(postgres) as (store, url):
        event = unsigned(cast.alice, tags=[["t", "tea"]])
        await write(store, event)
        by_tag = asked(tag_t=["tea"])
        async with postgres.unreadable(f"{postgres.schema_of(url)}.tags"):
            pages = [asyncio.create_task(read(store, by_tag, greedy)) for _ in range(5)]
            counts = [asyncio.create_task(store.count([by_tag], greedy, now=0)) for _ in range(8)]
            async with until("several wait for the table") as tries:
                async for _ in tries:
                    if await postgres.value(_WAITING) > 1:
                        break
            for reader in (UNKNOWN, EVERYTHING):
                async with asyncio.timeout(ANSWER_S):
                    assert await read(store, asked(ids=[event.id]), reader) == [event.raw]
            async with asyncio.timeout(ANSWER_S):
                assert [each.of for each in await store.sizes(SizedBy.KIND, 5)] == [1]
            assert not any(each.done() for each in (*pages, *counts))
        assert await asyncio.gather(*pages) == [[event.raw]] * 5
        assert await asyncio.gather(*counts) == [1] * 8


async def test_an_address_with_long_reads_lets_short_ones_of_others_go_first(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 addresses with one connection each made the short reads of all strangers take 4 s."""
    now, answered = 0.0, list[str]()
    monkeypatch.setattr(reading, "_AT_ONCE", 1)
    monkeypatch.setattr(reading, "_SHORT_S", ANSWER_S)
    monkeypatch.setattr(postgres_store, "Turns", lambda: reading.Turns(lambda: now))
    async with opened(postgres) as (store, url), asyncio.TaskGroup() as tasks:

        async def ask(name: str, **conditions: object) -> None:
            address = name.split()[0]
            await store.page(PageQuery(asked(**conditions), UNKNOWN, 9, MAX, 0, 9, None, address))
            answered.append(name)

        @asynccontextmanager
        async def waiting(name: str, tag: str, *, took_s: float) -> AsyncIterator[None]:
            nonlocal now
            async with postgres.unreadable(f"{postgres.schema_of(url)}.tags"):
                task = tasks.create_task(ask(name, tag_t=[tag]))
                async with until("it waits for the table") as tries:
                    async for _ in tries:
                        if await postgres.value(_WAITING):
                            break
                yield
                now += took_s
            await task

        async with waiting("greedy long", "tea", took_s=2.0):
            pass
        async with waiting("another", "cocoa", took_s=1.0):
            for name in ("greedy", "modest"):
                tasks.create_task(ask(name, kinds=[len(name)]))
            await asyncio.sleep(0)
    assert answered == ["greedy long", "another", "modest", "greedy"]


@pytest.mark.parametrize("reads", ["count", "search", "page", "short page"])
async def test_one_member_has_one_turn_however_many_it_wants(reads: str) -> None:
    """Short pages of known keys had no turns: 128 keys took all connections, and members waited
    for 5 to 15 s."""
    actors = Actors(agents=frozenset({cast.alice.pubkey, cast.bob.pubkey}))
    turns, begun, may_end = reading.Turns(), list[str](), asyncio.Event()

    async def read(who: SecretKey) -> None:
        viewer = visibility_for(Viewer(frozenset({who.pubkey})), (), actors, Groups())
        turn = {
            "count": turns.count(viewer, "192.0.2.1"),
            "search": turns.search(viewer, "192.0.2.1", "COUNT"),
            "page": turns.long_page(viewer, "192.0.2.1"),
            "short page": turns.short_page(viewer, "192.0.2.1"),
        }[reads]
        async with turn:
            begun.append("alice" if who is cast.alice else "bob")
            await may_end.wait()

    async with asyncio.TaskGroup() as tasks:
        for who in (*[cast.alice] * 5, cast.bob):
            tasks.create_task(read(who))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert begun == ["alice", "bob"]
        may_end.set()


async def test_unknown_keys_search_one_at_a_time_and_known_keys_beside_them() -> None:
    turns, begun, may_end = reading.Turns(), list[str](), asyncio.Event()

    async def search(who: str, visibility: Visibility) -> None:
        async with turns.search(visibility, who, "REQ"):
            begun.append(who)
            await may_end.wait()

    async with asyncio.TaskGroup() as tasks:
        for who, visibility in (("a", UNKNOWN), ("b", UNKNOWN), ("c", EVERYTHING)):
            tasks.create_task(search(who, visibility))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert begun == ["a", "c"]
        may_end.set()
    assert begun == ["a", "c", "b"]


async def test_what_closes_waits_for_a_read_and_no_longer(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_CLOSE_S", 2 * ANSWER_S)
    database = Connections(postgres.url("public"))
    await database.open()
    async with asyncio.timeout(ANSWER_S), asyncio.TaskGroup() as tasks, database.paging() as db:
        tasks.create_task(database.close())
        await asyncio.sleep(0)
        assert await db.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("reads", ["pages", "short pages", "counts"])
async def test_statements_of_clients_keep_a_bounded_part_of_the_memory_of_the_server(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """Clients choose their texts: 5 MB of COUNTs and REQs took 1 GB of it, for good."""
    monkeypatch.setattr(connections, "_PAGERS", 1)
    monkeypatch.setattr(connections, "_READERS", 1)
    policy = policy_of("group")
    seen = visibility_for(ANONYMOUS, policy.read_rules, policy.actors, Groups())
    seen = EVERYTHING if reads == "short pages" else seen
    async with opened(postgres) as (store, _):
        named = {"authors": [cast.alice.pubkey, cast.bob.pubkey]}
        named |= {f"#{letter}": ["x", "y"] for letter in "abc"}
        times: list[list[dict[str, object]]] = [[{}, {"since": 1}], [{}, {"until": 9}]]
        lists: list[list[dict[str, object]]] = [
            [{}, {name: values[:1]}, {name: values}] for name, values in named.items()
        ]
        for chosen in product(*times, *lists):
            filter_ = asked(**ChainMap(*chosen))
            if reads != "counts":
                await read(store, filter_, seen)
                await read(store, filter_, seen, size=10)
            else:
                await store.count([filter_] * 12, seen, now=0)
                await store.count([filter_], EVERYTHING, now=0)
        of_pages, of_reads = store._connections.paging(), store._connections.reading()
        async with of_pages as pages, of_reads as others:
            assert await pages.fetchval(_KEPT) < 48 << 20
            assert await others.fetchval(_KEPT) < 20 << 20


async def test_pages_of_common_clients_stay_prepared(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 64 texts on a connection each was prepared again for every page."""
    monkeypatch.setattr(connections, "_PAGERS", 1)
    policy = policy_of("open")
    viewers = [ANONYMOUS, *(Viewer(frozenset({who.pubkey})) for who in (cast.alice, cast.owner))]
    seen = [visibility_for(each, policy.read_rules, policy.actors, Groups()) for each in viewers]
    async with opened(postgres) as (store, _):
        conditions: list[dict[str, object]] = [
            {"authors": [cast.alice.pubkey]},
            {"#t": ["x"]},
            {"#e": ["0" * 64]},
            {"#p": [cast.bob.pubkey]},
            {"#h": ["tea"]},
            {"since": 5},
            {"until": 9},
        ]
        for chosen in product(*[({}, each) for each in conditions]):
            for visibility in seen:
                await read(store, asked(kinds=[1, 6], **ChainMap(*chosen)), visibility)
        async with store._connections.paging() as db:
            assert await db.fetchval("SELECT count(*) FROM pg_prepared_statements") > 100
