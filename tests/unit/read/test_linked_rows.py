"""relay/read/linked_rows.py: what points to another row is sent live to who may read that one just
then.

X-22.
"""

from __future__ import annotations

import asyncio
from threading import Event as ThreadEvent
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.visibility import ANONYMOUS, Viewer
from relay.groups.actions import Flag
from relay.observe import Metrics
from relay.read import fanout, linked_rows
from relay.read.fanout import Subscription
from relay.read.query import QueryRunner
from relay.read.query_queue import QueryQueue
from relay.storage.sqlite.store import SqliteStore
from tests.cast import alice, bob, carol, dave, owner, robot
from tests.contract.writing import asked, read
from tests.harness.client_in_memory import Client
from tests.harness.controlled_store import ControlledStore
from tests.harness.patience import ANSWER_S
from tests.harness.read_side import Limits
from tests.harness.relay_in_process import STORED, Home, policy_of, store_of
from tests.unit.read.test_query import settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

HASH = "a" * 64
POLICY = policy_of(
    "open",
    '[groups]\nalways = []\nnew = []\n[memory.anamnesis]\nschema = "off"',
    f'[[actors.household]]\nname = "bobs"\nowner = "{bob.npub}"\nagents = ["{carol.npub}"]',
)


@pytest.fixture(params=["reference", "sqlite"])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    async with store_of(request.param) as store, Home(store, POLICY) as home:
        await den_is_made(home)
        yield home


@pytest.fixture
async def controlled() -> AsyncIterator[tuple[Home, ControlledStore]]:
    store = ControlledStore()
    async with Home(store, POLICY) as home:
        await den_is_made(home)
        yield home, store


async def den_is_made(home: Home) -> None:
    """A private group of robot, owner and alice; bob leads another."""
    await home.do(owner, 9007, h="den")
    await home.do(owner, 9002, ["private"], h="den")
    await home.do(owner, 9000, ["p", alice.pubkey], h="den")
    await home.do(owner, 9000, ["p", robot.pubkey], h="den")
    await home.do(bob, 9007, h="tea")
    group = home.groups.get("den")
    assert group is not None
    assert Flag.PRIVATE in group.flags


def entry(home: Home, h: str | None = "den", hashed: str = HASH) -> Event:
    tags = [["d", f"anamnesis:memory:{hashed}"], ["x", hashed]]
    return home.made(robot, 78, *tags, h=h, content="{}")


def vouch(home: Home, hashed: str = HASH) -> Event:
    """The next version: a second later."""
    home.now += 1
    tags = [["d", f"anamnesis:vouch:{hashed}"], ["x", hashed]]
    return home.made(robot, 30078, *tags, content="{}")


async def sent(home: Home, *events: Event) -> list[tuple[bool, str]]:
    """Taken and delivered: a batch is decided when the one before it is on its way."""
    queries = await home.take(*events)
    await home.take(events[-1])
    return queries


def opens(home: Home, client: Client, *filters: Filter) -> Subscription:
    """A REQ whose stored rows are still being read."""
    subscription = Subscription(
        "s", filters or (asked(),), client, client.outbox, home.store.committed()
    )
    subscription.begin_backlog(100)
    home.live.open(subscription)
    return subscription


def queries_of(home: Home) -> QueryRunner:
    return QueryRunner(
        home.store, home.state, home.live, Limits(), clock=lambda: home.now, metrics=Metrics()
    )


def follows(home: Home, client: Client, *filters: Filter) -> Client:
    """A REQ that has had its EOSE."""
    opens(home, client, *filters).end_backlog()
    return client


def kinds_of(client: Client) -> list[int]:
    return [frame[2]["kind"] for frame in client.frames()]


@pytest.mark.proves("X-22", "G-16")
async def test_a_linking_row_is_sent_to_the_readers_of_the_linked_row(home: Home) -> None:
    await sent(home, entry(home))
    members, others = follows(home, Client(alice)), follows(home, Client(bob))
    strangers, owners = follows(home, Client()), follows(home, Client(owner))
    several = follows(home, Client(bob, alice), asked(tag_x=[HASH]))
    assert await sent(home, vouch(home)) == [STORED]
    assert kinds_of(members) == [30078]
    assert kinds_of(owners) == [30078]
    assert kinds_of(several) == [30078]
    assert kinds_of(others) == kinds_of(strangers) == []


@pytest.mark.proves("X-22")
async def test_a_link_to_an_entry_of_no_group_opens_to_its_readers(home: Home) -> None:
    member, agent, nobody = [follows(home, Client(*who)) for who in ([bob], [carol], [])]
    assert await sent(home, entry(home, None), vouch(home)) == [STORED] * 2
    assert kinds_of(member) == [78, 30078]
    assert kinds_of(nobody) == []
    # A household's agent reads what its household wrote; as one who is known here, nothing else.
    assert kinds_of(agent) == []


async def test_linking_and_linked_row_may_be_in_one_batch(home: Home) -> None:
    member, other = follows(home, Client(alice)), follows(home, Client(bob))
    assert await sent(home, vouch(home), entry(home)) == [STORED] * 2
    assert kinds_of(member) == [30078, 78]
    assert kinds_of(other) == []


@pytest.mark.proves("X-22")
async def test_a_linked_row_stored_later_opens_stored_reads_only(home: Home) -> None:
    member = follows(home, Client(alice))
    said, about = vouch(home), entry(home)
    assert await sent(home, said) == [STORED]
    assert kinds_of(member) == []
    assert await sent(home, about) == [STORED]
    assert kinds_of(member) == [78]
    sees = home.state.visibility(member.viewer)
    assert await read(home.store, asked(kinds=[30078]), sees, now=home.now) == [said.raw]
    await home.do(robot, 5, ["e", about.id])
    assert await read(home.store, asked(kinds=[30078]), sees, now=home.now) == []
    member.frames()
    assert await sent(home, vouch(home)) == [STORED]
    assert kinds_of(member) == []


async def test_a_reader_who_leaves_the_group_of_the_linked_row_stops_receiving(home: Home) -> None:
    """G-20. What was written before may come: on a busy machine the three are not one batch."""
    await sent(home, entry(home))
    member = follows(home, Client(alice), asked(kinds=[30078]))
    before, removal = vouch(home), home.made(owner, 9001, ["p", alice.pubkey], h="den")
    after = vouch(home)
    assert await sent(home, before, removal, after) == [STORED] * 3
    assert after.id not in [frame[2]["id"] for frame in member.frames()]
    await home.do(owner, 9000, ["p", alice.pubkey], h="den")
    assert await sent(home, vouch(home)) == [STORED]
    assert kinds_of(member) == [30078]


async def test_links_are_looked_up_only_for_viewers_who_need_them(
    controlled: tuple[Home, ControlledStore],
) -> None:
    home, store = controlled
    await sent(home, entry(home), vouch(home))
    follows(home, Client(owner))
    follows(home, Client(robot), asked(kinds=[30078]))
    follows(home, Client(alice), asked(kinds=[9]), asked(kinds=[30078], until=5))
    follows(home, Client())
    await sent(home, vouch(home))
    await home.do(robot, 30078, ["d", "snowclaw:core:plan"], ["x", HASH], content="{}")
    await home.do(alice, 9, ["x", HASH], h="den")
    assert store.matching_calls == 0
    follows(home, Client(alice))
    follows(home, Client(bob))
    await sent(home, *[vouch(home, f"{number:064x}") for number in range(20)])
    assert store.matching_calls == 1


@pytest.mark.proves("G-16")
async def test_a_failed_lookup_opens_nothing(
    controlled: tuple[Home, ControlledStore],
) -> None:
    home, store = controlled
    await sent(home, entry(home))
    member, owners = follows(home, Client(alice)), follows(home, Client(owner))
    store.matching_fails = True
    assert await sent(home, vouch(home)) == [STORED]
    await home.do(alice, 9, h="den")
    assert kinds_of(member) == [9]
    assert kinds_of(owners) == [30078, 9]
    store.matching_fails = False
    assert await sent(home, vouch(home)) == [STORED]
    assert kinds_of(member) == [30078]


@pytest.mark.proves("G-16")
async def test_a_lookup_that_takes_too_long_opens_nothing_and_holds_up_no_write(
    controlled: tuple[Home, ControlledStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, store = controlled
    await sent(home, entry(home))
    member, owners = follows(home, Client(alice)), follows(home, Client(owner))
    monkeypatch.setattr(fanout, "_LINKS_S", 0.01)
    store.may_match.clear()
    assert await sent(home, vouch(home)) == [STORED]
    await home.do(alice, 9, h="den")
    assert kinds_of(member) == [9]
    assert kinds_of(owners) == [30078, 9]


async def test_slow_reads_of_members_hold_up_no_write_and_no_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with store_of("sqlite") as store, Home(store, POLICY) as home:
        assert isinstance(store, SqliteStore)
        await den_is_made(home)
        await sent(home, entry(home))
        member = follows(home, Client(alice))
        monkeypatch.setattr(fanout, "_LINKS_S", ANSWER_S)
        monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)  # none ends there
        may_end = ThreadEvent()
        await store._reader_conn._db.set_progress_handler(lambda: not may_end.wait(ANSWER_S), 1)
        sees = home.state.visibility(Viewer(frozenset({bob.pubkey})))
        counts = [
            asyncio.ensure_future(store.count([asked()], sees, now=home.now)) for _ in range(3)
        ]
        try:
            async with asyncio.timeout(ANSWER_S / 2):
                assert await sent(home, vouch(home)) == [STORED]
                await home.do(alice, 9, h="den")
            assert kinds_of(member) == [30078, 9]
            assert not any(each.done() for each in counts)
        finally:
            may_end.set()
            await asyncio.gather(*counts, return_exceptions=True)


# while a subscription catches up ------------------------------------------------------------------


@pytest.mark.parametrize("is_left", [True, False])
async def test_a_backlog_row_is_sent_if_its_linked_row_still_exists(
    home: Home,
    is_left: bool,  # noqa: FBT001
) -> None:
    about = entry(home)
    await sent(home, about)
    member = Client(alice)
    subscription = opens(home, member, asked(kinds=[9, 30078]))
    assert await sent(home, vouch(home)) == [STORED]
    await home.do(alice, 9, h="den")
    if not is_left:
        await home.do(robot, 5, ["e", about.id])
    assert await queries_of(home).send_backlog(member, subscription)
    assert kinds_of(member) == ([30078, 9] if is_left else [9])


async def test_rows_that_come_while_the_backlog_is_read_wait_too(
    controlled: tuple[Home, ControlledStore],
) -> None:
    home, store = controlled
    await sent(home, entry(home), entry(home, "den", "b" * 64))
    member = Client(alice)
    subscription = opens(home, member, asked(kinds=[30078]))
    assert await sent(home, vouch(home)) == [STORED]
    rows = store.rows

    async def and_another(*args: Any, **more: Any) -> Any:
        store.rows = rows  # type: ignore[method-assign]
        assert await home.take(vouch(home, "b" * 64)) == [STORED]
        return await rows(*args, **more)

    store.rows = and_another  # type: ignore[method-assign]
    assert await queries_of(home).send_backlog(member, subscription)
    assert kinds_of(member) == [30078, 30078]


async def test_a_late_query_looks_up_the_links_of_its_backlog() -> None:
    store = ControlledStore()
    async with Home(store, POLICY) as home:
        await den_is_made(home)
        about = entry(home)
        await sent(home, about)
        client = Client(alice)
        scans = QueryQueue(queries_of(home), client)

        async def meanwhile() -> None:
            store.before_page, store.is_slow = None, False
            await sent(home, vouch(home))
            await home.do(alice, 9, h="den", content="said")
            await home.do(robot, 5, ["e", about.id])

        store.before_page, store.is_slow = meanwhile, True
        scans.subscribe("s", (asked(kinds=[9, 30078]),))
        await settled()
        assert client.stream() == ["<EOSE>", "said"]


# more targets than are held -----------------------------------------------------------------------


async def test_one_readable_of_many_linked_rows_is_enough(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is asked per viewer then, with the same result."""
    monkeypatch.setattr(linked_rows, "_MAX_HELD", 3)
    await sent(home, entry(home))
    d = ["d", f"anamnesis:memory:{HASH}"]
    for _ in range(4):  # app records of others that carry the same hash
        await home.do(bob, 78, ["d", "mine"], ["x", HASH], h="tea")
    member, other = follows(home, Client(alice)), follows(home, Client(dave))
    leads = follows(home, Client(bob))
    assert await sent(home, vouch(home)) == [STORED]
    assert kinds_of(member) == [30078]
    assert kinds_of(leads) == kinds_of(other) == []
    await home.do(owner, 9000, ["p", carol.pubkey], h="tea")
    await home.do(carol, 78, d, ["x", HASH], h="tea")  # an entry of another under the same hash
    leads.frames()
    assert await sent(home, vouch(home)) == [STORED]
    assert kinds_of(member)[-1:] == kinds_of(leads) == [30078]
    assert 30078 not in kinds_of(other)


@pytest.mark.proves("X-22")
async def test_a_row_of_ones_own_with_the_same_hash_opens_nothing(home: Home) -> None:
    await sent(home, entry(home))
    await home.do(bob, 78, ["d", "mine"], ["x", HASH])
    await home.do(bob, 78, ["x", HASH], h="tea")
    other = follows(home, Client(bob), asked(kinds=[30078]))
    assert await sent(home, vouch(home)) == [STORED]
    sees = home.state.visibility(other.viewer)
    assert await read(home.store, asked(kinds=[30078]), sees, now=home.now) == []
    assert kinds_of(other) == []


async def test_links_found_with_other_rights_are_ignored(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_rows, "_MAX_HELD", 1)
    await sent(home, entry(home), vouch(home))
    (row,) = [row for row in await home.store.since(0, 99) if row.event.kind == 30078]
    viewer = Viewer(frozenset({alice.pubkey}))
    looking = linked_rows.LinkedRows(home.store, home.state, lambda: home.now)
    found = await looking.links_of([(row, {viewer})])
    before = home.state.visibility(viewer)
    assert len(found.readable(row, before)) == 1
    await home.do(owner, 9001, ["p", alice.pubkey], h="den")
    assert found.readable(row, home.state.visibility(viewer)) == frozenset()
    assert found.readable(row, home.state.visibility(ANONYMOUS)) == frozenset()
