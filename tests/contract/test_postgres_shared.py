"""Several stores on one database, as several processes have them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import asyncpg
import pytest

from relay.access.management import ListChange, ListName
from relay.errors import Outdated, StoreFault
from relay.groups.group import EndedGroup
from relay.lifecycle.rows import Stored, WritePlan
from relay.nostr.erasure import Erasure
from relay.storage import PageQuery
from relay.storage.postgres import following, listening, writer
from relay.storage.postgres.connections import Connections
from relay.storage.postgres.moving import PostgresSide
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.test_store_search import indexed, sought
from tests.contract.writing import (
    EVERYTHING,
    MAX,
    TERMS,
    Batch,
    asked,
    change,
    in_order,
    read,
    set_groups,
    stored,
    takes_over,
    unsigned,
    write,
)
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import eventually, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from relay.lifecycle.rows import Found
    from relay.storage import Others
    from tests.harness.postgres import PostgresServer

pytestmark = pytest.mark.process

T = TypeVar("T")

BATCHES = 20
_LAST_STATEMENT = "SELECT max(query_start) FROM pg_stat_activity WHERE application_name = 'rookery'"
TRIES = 6
STORM = 20_000
"""Notifications."""
NEWEST = PageQuery(asked(), EVERYTHING, 10, MAX, now=0, size=10)


class Process:
    """One of them: its store, and what it took over from others."""

    def __init__(self) -> None:
        self.store: PostgresStore
        self.taken: list[int] = []
        self.others: list[Others] = []
        self.written: list[int] = []

    async def open(self, url: str) -> None:
        self.url = url
        self.store = await PostgresStore.open(url, TERMS, is_shared=True)
        self.store.take_over = self.take_over

    async def take_over(self, others: Others) -> None:
        self.others.append(others)
        self.taken += range(others.after + 1, others.upto + 1)

    async def hears(self) -> Others:
        """The next that others commit."""
        number = len(self.others)
        async with asyncio.timeout(ANSWER_S):
            while len(self.others) == number:
                await self.store.news()
                await self.store.follow()
        return self.others[-1]

    async def write(self, number: int) -> None:
        for at in range(number):
            row = await stored(self.store, unsigned(cast.alice, at=at, content=f"{id(self)}"))
            self.written.append(row.seq)

    async def followed(self, upto: int) -> list[int]:
        """seq of all rows, as whoever reads on after each commit finds them."""
        seen: list[int] = []
        head = 0
        following = asyncio.create_task(self._follow())
        while head < upto:
            head = await self.store.committed_after(head)
            last = seen[-1] if seen else 0
            seen += [row.seq for row in await self.store.since(last, 1000) if row.seq <= head]
        following.cancel()
        await asyncio.wait([following])
        return seen

    async def _follow(self) -> None:
        while True:
            await self.store.news()
            await self.store.follow()


@asynccontextmanager
async def processes(server: PostgresServer, number: int) -> AsyncIterator[list[Process]]:
    url = await server.new_schema()
    async with AsyncExitStack() as opened:
        opened.push_async_callback(server.empty, url)
        made = [Process() for _ in range(number)]
        for each in made:
            await each.open(url)
            opened.push_async_callback(each.store.close)
        yield made


async def taken(server: PostgresServer, url: str, *, is_shared: bool) -> PostgresStore:
    """Another store, on a database that the first one has lost its connections to."""
    while True:
        await server.kill_connections()
        with suppress(StoreFault):  # the first one was faster
            return await PostgresStore.open(url, TERMS, is_shared=is_shared)


async def read_pages_on(store: PostgresStore) -> None:
    while True:
        await read(store)
        await asyncio.sleep(0.05)


async def read_on(store: PostgresStore) -> None:
    while True:
        await store.since(0, 1)
        await asyncio.sleep(0.05)


async def test_seq_is_the_order_of_commits_of_all(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        total = 2 * BATCHES
        *seen, _, _ = await asyncio.gather(
            one.followed(total), other.followed(total), one.write(BATCHES), other.write(BATCHES)
        )
        assert seen == [list(range(1, total + 1))] * 2
        assert sorted(one.written + other.written) == seen[0]


async def test_a_batch_is_decided_on_what_others_committed(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        event = unsigned(cast.alice)
        row = await stored(one.store, event)
        batch = Batch(event)
        taken_before_decision: list[int] = []

        def decide(found: Found) -> WritePlan:
            taken_before_decision.extend(other.taken)
            return batch.decide(found)

        assert await other.store.append(batch.wanted, decide) == row.seq
        assert batch.found is not None
        assert batch.found.rows == {event.id: row}
        assert taken_before_decision == [row.seq]


async def test_each_takes_over_all_that_it_did_not_write(postgres: PostgresServer) -> None:
    async with processes(postgres, 3) as made:
        await asyncio.gather(*[each.write(BATCHES) for each in made])
        for each in made:
            last = await stored(each.store, unsigned(cast.bob, content=f"{id(each)}"))
            assert sorted(each.taken + each.written) == list(range(1, last.seq))
            assert each.taken == sorted(each.taken)


async def test_an_idle_one_hears_of_a_commit(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        waiting = asyncio.create_task(one.store.committed_after(0))
        event = unsigned(cast.alice)
        row = await stored(other.store, event)
        assert (await one.hears()).upto == row.seq
        assert await waiting == row.seq
        assert await read(one.store) == in_order(event)


async def test_nothing_of_others_is_committed_before_it_is_taken_over(
    postgres: PostgresServer,
) -> None:
    async with processes(postgres, 2) as (one, other):
        await stored(other.store, unsigned(cast.alice))
        await one.store.news()
        assert one.store.committed() == 0
        await one.store.follow()
        assert one.store.committed() == 1


async def test_a_count_has_no_row_that_is_not_taken_over(postgres: PostgresServer) -> None:
    """What was committed with it may be that the reader has left the group."""
    who = cast.alice.pubkey
    filters = {
        "all": [asked()],
        "kinds": [asked(kinds=[1, 7])],
        "an author": [asked(authors=[who])],
        "a tag": [asked(tag_t=["tea"])],
        "tags": [asked(tag_t=["tea", "milk"])],
        "words": [sought("tea")],
        "several": [asked(kinds=[1]), asked(authors=[who])],
    }
    async with processes(postgres, 2) as (one, other):
        event = unsigned(cast.alice, tags=[["t", "tea"]], content="tea")
        for expected in (0, 1):
            await stored(other.store, event)
            await indexed(other.store)
            for name, listed in filters.items():
                count = await one.store.count(listed, EVERYTHING, now=0)
                authors = await one.store.authors(listed[0], EVERYTHING, now=0, at_most=9)
                assert (name, count, authors) == (name, expected, [bytes.fromhex(who)] * expected)
            await one.store.news()
            await one.store.follow()
            event = unsigned(cast.alice, tags=[["t", "tea"]], content="more tea", at=1001)


async def keeps_a_page(store: PostgresStore) -> bytes:
    """Of one row; the listener may not have heard of the database yet."""
    async with until("a page is kept") as tries:
        async for _ in tries:
            (raw,) = (await store.page(NEWEST)).raws
            if store.page_now(NEWEST) is not None:
                return raw
    raise AssertionError


async def test_a_page_is_kept_until_a_deletion_is_taken_over(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        row = await stored(one.store, unsigned(cast.alice))
        await other.hears()
        assert await keeps_a_page(other.store) == row.event.raw
        await change(one.store, lambda plan: plan.removes.add(row.seq))
        await other.hears()
        assert other.store.page_now(NEWEST) is None
        assert (await other.store.page(NEWEST)).raws == []


async def test_no_page_is_kept_for_long_that_others_may_have_changed(
    postgres: PostgresServer,
) -> None:
    async with processes(postgres, 2) as (one, other):
        row = await stored(one.store, unsigned(cast.alice))
        await other.hears()
        await keeps_a_page(other.store)
        await change(one.store, lambda plan: plan.removes.add(row.seq))
        await eventually("it is not given any more", lambda: other.store.page_now(NEWEST) is None)
        assert not other.store.is_current()


async def test_who_does_not_follow_the_others_keeps_no_page(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        await stored(one.store, unsigned(cast.alice))
        other.store.take_over = None
        assert len((await other.store.page(NEWEST)).raws) == 1
        assert other.store.page_now(NEWEST) is None


async def test_a_page_is_not_given_while_the_connection_is_lost(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another relay may have the database."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await stored(store, unsigned(cast.alice))
    await keeps_a_page(store)
    monkeypatch.setattr(listening, "_AGAIN_S", ANSWER_S)
    await postgres.kill_connections()
    await eventually("it is not given any more", lambda: store.page_now(NEWEST) is None)
    with pytest.raises(StoreFault):
        await store.page(NEWEST)
    await store.close()
    await postgres.empty(url)


async def test_what_others_deleted_and_set_is_told(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        put = await stored(one.store, unsigned(cast.alice, 9000, [["h", "tea"]]))
        code = await stored(one.store, unsigned(cast.alice, 9009, [["h", "den"]]))
        await set_groups(one.store, ended=EndedGroup(frozenset({cast.bob.pubkey})))
        typing = unsigned(cast.bob, 20001, [["h", "tea"]])

        def plan(out: WritePlan) -> None:
            out.removes |= {put.seq, code.seq}
            out.list_changes.append(ListChange(ListName.BANNED_KEYS, cast.carol.pubkey, "rude"))
            out.passed_on.append(Stored(0, typing, "tea"))

        head = await change(one.store, plan)
        told = await other.hears()
        assert (told.upto, told.gone, told.rebuilt) == (
            head,
            {"den": {code.event.id}},
            {"tea": [], "ended": []},
        )
        assert told.ended == {"ended": EndedGroup(frozenset({cast.bob.pubkey}))}
        assert told.lists == {ListName.BANNED_KEYS: {cast.carol.pubkey: "rude"}}
        assert told.passed_on == {head: [Stored(0, typing, "tea")]}
        assert told.rights_at == head


async def test_nothing_passes_for_erased_before_the_deletion_was_taken_over(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other relay signed a receipt at once."""
    monkeypatch.setattr("relay.storage.postgres.store._FOLLOWED_S", 0)
    erasure = Erasure("ab" * 32, cast.alice.pubkey, 5, 1000)
    async with processes(postgres, 2) as (one, other):
        row = await stored(one.store, unsigned(cast.alice))
        erasure.add(row.event.id, row.event.kind)

        def plan(out: WritePlan) -> None:
            out.removes.add(row.seq)
            out.erasures[erasure.request] = erasure

        head = await change(one.store, plan)
        assert await one.store.erasure(erasure.request) == erasure
        with pytest.raises(StoreFault, match="cannot be followed"):
            await other.store.erasure(erasure.request)
        while other.store.committed() < head:
            await other.hears()
        assert await other.store.erasure(erasure.request) == erasure
        assert not other.store.is_erased(erasure.request)


async def test_records_that_expire_at_once_are_told_as_deleted(postgres: PostgresServer) -> None:
    """Once: each sweep of a few made the others read all records of the group again."""
    async with processes(postgres, 2) as (one, other):
        created = await stored(one.store, unsigned(cast.bob, 9007, [["h", "tea"]]))
        put = await stored(one.store, unsigned(cast.alice, 9000, [["h", "tea"]]))
        await change(one.store, lambda plan: plan.expired.add(put.seq))
        told = await other.hears()
        assert [row.event.id for row in told.records] == [created.event.id]
        assert [row.event.id for row in told.rebuilt["tea"]] == [created.event.id]
        await change(one.store, lambda plan: plan.removes.add(put.seq))
        told = await other.hears()
        assert (told.gone, told.rebuilt) == ({}, {})


@pytest.mark.parametrize("kind", [9002, 9005, 9010, 9022])
async def test_deletions_that_change_no_group_make_no_relay_read_it_again(
    postgres: PostgresServer, kind: int
) -> None:
    """Each 9005 that named one of a member's 9022s made all others replay the records of its group:
    0.5 s for 11,400, while they take no writes."""
    async with processes(postgres, 2) as (one, other):
        row = await stored(one.store, unsigned(cast.alice, kind, [["h", "tea"]]))
        await change(one.store, lambda plan: plan.removes.add(row.seq))
        told = await other.hears()
        assert (told.gone, told.rebuilt) == ({}, {})


async def test_a_group_is_not_read_again_for_all_codes_that_a_sweep_ends(
    postgres: PostgresServer,
) -> None:
    async with processes(postgres, 2) as (one, other):
        codes = [unsigned(cast.alice, 9009, [["h", "tea"]], str(number)) for number in range(256)]
        await write(one.store, *codes)
        rows = await one.store.since(0, 300)
        head = await change(one.store, lambda plan: plan.expired.update(row.seq for row in rows))
        while other.store.committed() < head:
            told = await other.hears()
        assert told.gone == {"tea": {code.id for code in codes}}
        assert told.rebuilt == {}


async def _post(process: Process) -> int:
    return (await stored(process.store, unsigned(cast.alice, 9, [["h", "tea"]]))).seq


async def _moderate(process: Process) -> int:
    return (await stored(process.store, unsigned(cast.alice, 9000, [["h", "tea"]]))).seq


async def _end_group(process: Process) -> int:
    await set_groups(process.store, tea=EndedGroup())
    return process.store.committed()


async def _ban(process: Process) -> int:
    ban = ListChange(ListName.BANNED_KEYS, cast.carol.pubkey, "rude")
    return await change(process.store, lambda plan: plan.list_changes.append(ban))


@pytest.mark.parametrize(
    ("changed", "may_give_rights"),
    [(_post, False), (_moderate, True), (_end_group, True), (_ban, True)],
)
async def test_it_is_told_when_rights_may_have_changed(
    postgres: PostgresServer,
    changed: Callable[[Process], Awaitable[int]],
    *,
    may_give_rights: bool,
) -> None:
    typing = Stored(0, unsigned(cast.bob, 20001, [["h", "tea"]]), "tea")
    async with processes(postgres, 2) as (one, other):
        before = await change(one.store, lambda plan: plan.passed_on.append(typing))
        at = await changed(one)
        after = await change(one.store, lambda plan: plan.passed_on.append(typing))
        assert before < at < after
        while other.store.committed() < after:
            await other.hears()
        (told,) = other.others
        assert told.rights_at == (at if may_give_rights else 0)
        assert list(told.passed_on) == [before, after]


async def test_who_was_away_reads_only_the_newest_of_what_was_passed_on(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    typing = [Stored(0, unsigned(cast.bob, 20001, [], f"{number}")) for number in range(5)]
    monkeypatch.setattr(following, "_MOST_PASSED", 2 * len(typing[0].event.raw))
    async with processes(postgres, 2) as (one, other):
        await change(one.store, lambda plan: plan.passed_on.extend(typing[:3]))
        middle, newest = [
            await change(one.store, lambda plan, row=row: plan.passed_on.append(row))  # type: ignore[misc]
            for row in typing[3:]
        ]
        told = await other.hears()
        assert told.passed_on == {middle: [typing[3]], newest: [typing[4]]}


async def test_who_missed_too_much_must_read_again(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        await set_groups(one.store, ended=EndedGroup())
        await postgres.forget_changes(one.url)
        await other.store.news()
        with pytest.raises(Outdated):
            await other.store.follow()
        with pytest.raises(Outdated):
            await write(other.store, unsigned(cast.alice))
        other.store.follow_from(await other.store.head())
        await stored(other.store, unsigned(cast.alice))


async def test_a_database_that_was_set_back_is_neither_read_nor_written(
    postgres: PostgresServer,
) -> None:
    """As after a fail-over that lost commits: others may use their seq again."""
    async with processes(postgres, 1) as (one,):
        await stored(one.store, unsigned(cast.alice))
        await postgres.execute(f"UPDATE {postgres.schema_of(one.url)}.head SET seq = 0")
        with pytest.raises(StoreFault, match="not as this relay knew it"):
            await asyncio.wait_for(read_on(one.store), ANSWER_S)


async def test_a_notification_of_somebody_else_is_no_commit(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        schema = postgres.schema_of(one.url)
        for forged in ("9223372036854775807", "9" * 5_000, "-1", "", "x"):
            await postgres.execute(f"SELECT pg_notify('rookery_{schema}', '{forged}')")
        storm = (
            f"SELECT pg_notify('rookery_{schema}', n::text) FROM generate_series(1, {STORM}) AS n"
        )
        await postgres.execute(storm)
        await one.store.news()
        await one.store.follow()
        assert one.others == []
        row = await stored(other.store, unsigned(cast.alice))
        assert (await one.hears()).upto == row.seq == one.store.committed()
        assert await read(one.store) == [row.event.raw]


async def test_a_call_is_used_once_by_all(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        assert await one.store.use_call("aa", until=10, now=9)
        assert not await other.store.use_call("aa", until=10, now=10)
        assert await other.store.use_call("bb", until=20, now=11)


async def test_one_of_all_sweeps_and_another_when_it_is_gone(postgres: PostgresServer) -> None:
    async with processes(postgres, 2) as (one, other):
        await eventually("one sweeps", lambda: one.store.is_first() or other.store.is_first())
        first, second = (one, other) if one.store.is_first() else (other, one)
        assert not second.store.is_first()
        await first.store.close()
        await eventually("the other sweeps", lambda: second.store.is_first())


async def test_a_commit_is_heard_of_though_the_connections_were_lost(
    postgres: PostgresServer,
) -> None:
    async with processes(postgres, 2) as (one, other):
        await postgres.kill_connections()
        async with until("it is stored") as tries:
            async for _ in tries:
                with suppress(StoreFault):
                    row = await stored(other.store, unsigned(cast.alice))
                    break
        assert (await one.hears()).upto == row.seq


async def test_a_connection_lost_in_a_batch_leaves_nothing_of_it(postgres: PostgresServer) -> None:
    async with processes(postgres, 1) as (one,):
        loop = asyncio.get_running_loop()
        event = unsigned(cast.alice)
        batch = Batch(event)

        def decide(found: Found) -> WritePlan:
            asyncio.run_coroutine_threadsafe(postgres.kill_connections(), loop).result()
            return batch.decide(found)

        with pytest.raises(StoreFault):
            await one.store.append(batch.wanted, decide)
        assert await in_the_end(lambda: read(one.store)) == []
        row = await in_the_end(lambda: stored(one.store, event))
        assert (row.seq, await in_the_end(one.store.head)) == (1, 1)


async def in_the_end(ask: Callable[[], Awaitable[T]]) -> T:
    """Each connection of the pool that was lost fails once."""
    async with until("it is answered") as tries:
        async for _ in tries:
            with suppress(StoreFault):
                return await ask()
    raise AssertionError


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_store_is_shared_by_all_or_by_none(
    postgres: PostgresServer, *, is_shared: bool
) -> None:
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS, is_shared=is_shared)
    with pytest.raises(StoreFault, match="another relay has the database open"):
        await PostgresStore.open(url, TERMS, is_shared=not is_shared)
    await store.close()
    await postgres.empty(url)


async def test_a_store_that_may_not_be_shared_is_opened_once(postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    with pytest.raises(StoreFault, match="another relay has the database open"):
        await PostgresStore.open(url, TERMS)
    await stored(store, unsigned(cast.alice))
    await store.close()
    await (await PostgresStore.open(url, TERMS)).close()
    await postgres.empty(url)


async def test_a_store_that_may_not_be_shared_writes_nothing_after_another(
    postgres: PostgresServer,
) -> None:
    """It has lost its lock, and does not know what the other one did."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    other = await taken(postgres, url, is_shared=True)
    await stored(other, unsigned(cast.alice))
    with pytest.raises(StoreFault, match=r"another process wrote|another relay took|not answer"):
        await write(store, unsigned(cast.bob))
    await other.close()
    await store.close()
    await postgres.empty(url)


_TOKEN = "UPDATE meta SET value = 'another' WHERE name = 'opened_by'"
_SCHEMA = "UPDATE meta SET value = '99' WHERE name = 'schema'"


@pytest.mark.parametrize(
    ("done", "fault"),
    [("", ""), (_TOKEN, listening.TAKEN), (_SCHEMA, listening.MIGRATED)],
    ids=["nothing", "taken", "migrated"],
)
async def test_a_store_waits_for_the_lock_of_its_lost_connection(
    postgres: PostgresServer, done: str, fault: str
) -> None:
    """The server may notice later that the connection is lost, and whoever has the lock may be
    another relay that starts; until then nothing is given."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    row = await stored(store, unsigned(cast.alice))
    left = await asyncpg.connect(url)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(left.execute("SELECT pg_advisory_lock('meta'::regclass::oid::bigint)"))
        await eventually("it waits for the lock", postgres.waiting_for_locks)
        await postgres.kill_connections()
    tried = set[object]()

    async def has_tried_often() -> bool:
        tried.add(await postgres.value(_LAST_STATEMENT))
        return len(tried) > TRIES

    await eventually("it has tried to get the lock", has_tried_often)
    with pytest.raises(StoreFault, match="it does not answer"):
        await read(store)
    if done:
        await left.execute(done)
    if not fault:
        await left.close()
    async with until("it reads again, or says why not") as tries:
        async for _ in tries:
            try:
                assert (await read(store), fault) == ([row.event.raw], "")
            except StoreFault as found:
                if not fault or fault not in str(found):
                    continue
            break
    await left.close()
    await store.close()
    await postgres.empty(url)


@pytest.mark.parametrize(
    ("stays", "is_shared"),
    [(True, False), (False, False), (True, True)],
    ids=["exclusive", "gone", "shared"],
)
async def test_a_store_that_may_not_be_shared_reads_nothing_after_another_took_it(
    postgres: PostgresServer,
    *,
    stays: bool,
    is_shared: bool,
) -> None:
    """It does not know whom the other one removed."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    other = await taken(postgres, url, is_shared=is_shared)
    if not stays:
        await other.close()

    with pytest.raises(StoreFault, match="another relay took the database"):
        await asyncio.wait_for(read_on(store), ANSWER_S)
    if stays:
        assert await other.since(0, 1) == []
    await other.close()
    await store.close()
    await postgres.empty(url)


async def test_a_store_that_may_not_be_shared_starts_again_after_one_that_wrote_and_left(
    postgres: PostgresServer,
) -> None:
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await stored(store, unsigned(cast.alice))
    other = await taken(postgres, url, is_shared=True)
    other.take_over = takes_over
    await stored(other, unsigned(cast.bob))
    await other.close()
    with pytest.raises(StoreFault, match=r"another relay took|the relay starts again"):
        await asyncio.wait_for(reads_until_it_says_why(store), ANSWER_S)
    await store.close()
    await postgres.empty(url)


async def reads_until_it_says_why(store: PostgresStore) -> None:
    while True:
        with suppress(StoreFault):
            await read(store)
        store._connections.check()
        await asyncio.sleep(0.05)


async def test_a_relay_that_was_cut_off_does_not_go_on_after_a_move(
    postgres: PostgresServer,
) -> None:
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    is_held = False
    while not is_held:  # else the store was faster
        await postgres.kill_connections()
        side = await PostgresSide.open(url, None)
        is_held = await side.hold()
        await side.close()
    with pytest.raises(StoreFault, match="another relay took the database"):
        await asyncio.wait_for(read_on(store), ANSWER_S)
    await store.close()
    await postgres.empty(url)


@pytest.mark.parametrize("is_result", [False, True])
async def test_a_relay_that_hangs_in_the_middle_of_a_statement_loses_the_lock(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, *, is_result: bool
) -> None:
    """The database does not count it as idle, and waited for as long as it hung; over a Unix socket
    also while it left a result unread."""
    monkeypatch.setattr(writer, "_HUNG_S", 0.2)
    async with processes(postgres, 1) as [one]:
        hung = Connections(one.url)
        await hung.open()
        try:
            async with hung.writing() as db:
                await db.execute(QUERIES["begin"])
                long = await db.prepare("SELECT repeat('x', 1000) FROM generate_series(1, 60000)")
                if is_result:
                    db._transport.pause_reading()
                    reading = asyncio.create_task(long.fetch())
                async with asyncio.timeout(ANSWER_S):
                    await one.write(1)
                if is_result:
                    db.terminate()
                    await asyncio.gather(reading, return_exceptions=True)
        finally:
            await hung.close()
        assert one.written == [1]
