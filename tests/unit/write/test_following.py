"""Two relays on one database: each follows what the other commits."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from threading import Event as Flag
from threading import get_ident
from typing import TYPE_CHECKING, Self

import pytest

from relay.access.membership import Claim, claim_change
from relay.access.visibility import ANONYMOUS
from relay.errors import WriteOutcome
from relay.lifecycle.rows import ExpiredRow, Stored
from relay.nostr import kinds
from relay.nostr.filters import Filter
from relay.read.fanout import Subscription
from relay.storage import PageQuery
from relay.storage.postgres import connections, listening, writer
from relay.storage.postgres.listening import _RECENT_S
from relay.storage.postgres.store import PostgresStore
from relay.write.commands import ExpireRows, ManagementChange, Purpose
from relay.write.following import Following
from relay.write.replay import groups_after
from tests import cast
from tests.cast import admin, alice, bob, carol, owner
from tests.contract.test_postgres_troubles import is_waiting, without_its_replica
from tests.contract.writing import EVERYTHING, MAX, TERMS, asked
from tests.harness.client_in_memory import Client
from tests.harness.patience import ANSWER_S
from tests.harness.postgres import postgres
from tests.harness.relay_in_process import DUPLICATE, NOON, STORED, Home, Loudspeaker, policy_of
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from relay.groups.group import Groups
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.read.linked_rows import Links
    from relay.storage import Others
    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]

pytestmark = pytest.mark.process


class Heard(Loudspeaker):
    """Somebody has a subscription."""

    def __len__(self) -> int:
        return 1


class Relay(Home):
    """One of them; it follows the others when a test says so."""

    speaker = Heard
    store: PostgresStore
    url = ""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.following = Following(self.store, self.state, self.ingest, self.relay.pubkey)
        return self

    async def catch_up(self) -> None:
        """With all that was committed."""
        head = await self.store.head()
        while self.store.committed() < head:
            await self.store.news()
            await self.deliver()

    async def take_over(self) -> None:
        """All that was committed; may be called in a delivery."""
        head = await self.store.head()
        while self.store.committed() < head:
            await self.store.news()
            await self.ingest.change_state(self.following.follow)

    async def deliver(self) -> None:
        await self.ingest.change_state(self.following.follow)
        await self.ingest.delivered()


@asynccontextmanager
async def relays(server: PostgresServer, *, more: str = "") -> AsyncIterator[tuple[Relay, Relay]]:
    """`more`: policies of the second alone."""
    url = await server.new_schema()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.empty, url)
        made = []
        for own in ("", more):
            store = await PostgresStore.open(url, TERMS, is_shared=True)
            stack.push_async_callback(store.close)
            made.append(await stack.enter_async_context(Relay(store, policy_of("open", own))))
            made[-1].url = url
        yield made[0], made[1]


async def agree(*made: Relay) -> None:
    """All have the state that a restart would find."""
    for each in made:
        await each.catch_up()
        assert each.groups == await each.rebuilt()
        assert each.state.management == await each.store.management()


async def moderated_by_alice(one: Relay, other: Relay) -> None:
    """A group whose records are replayed when alice vanishes."""
    await one.do(admin, 9007, h="tea")
    await one.do(admin, 9000, ["p", alice.pubkey, "admin"], h="tea")
    await one.do(alice, 9000, ["p", bob.pubkey], h="tea")
    await agree(one, other)


async def test_a_group_made_on_one_can_be_written_to_on_the_other(postgres: PostgresServer) -> None:
    async with relays(postgres) as (one, other):
        await one.do(admin, 9007, h="tea")
        await one.do(admin, 9002, ["restricted"], h="tea")
        await one.do(admin, 9000, ["p", alice.pubkey], h="tea")
        await other.do(alice, 9, h="tea", content="hello")
        await one.do(admin, 9001, ["p", alice.pubkey], h="tea")
        late = other.made(alice, 9, h="tea", content="and again")
        ((is_stored, why),) = await other.take(late)
        assert (is_stored, why.split(":")[0]) == (False, "restricted")


async def test_state_is_what_a_restart_would_find(postgres: PostgresServer) -> None:
    """After each sort of change, made on either."""
    async with relays(postgres) as (one, other):
        await one.do(admin, 9007, h="tea")
        await other.do(admin, 9000, ["p", alice.pubkey, "moderator"], h="tea")
        code = await one.do(alice, 9009, ["code", "sesame-1"], h="tea")
        await other.do(admin, 9002, ["closed"], ["name", "Tea"], h="tea")
        await one.do(bob, 9021, ["code", "sesame-1"], h="tea")
        await agree(one, other)
        post = await other.do(bob, 9, h="tea", content="pinned")
        await one.do(admin, 9010, ["e", post.id], h="tea")
        await agree(one, other)
        await other.do(bob, 5, ["e", post.id], ["k", "9"])
        await agree(one, other)
        await other.do(admin, 9005, ["e", code.id], h="tea")
        assert "sesame-1" not in other.groups.by_id["tea"].invites
        await agree(one, other)
        await one.do(admin, 9002, ["name", "Tea"], ["private"], ["closed"], h="tea")
        await other.take(other.made(carol, 9021, h="tea"))
        await one.take(one.made(carol, 9021, h="tea"))
        await agree(one, other)
        await one.do(bob, 9022, h="tea")
        await other.vanish(alice)
        await agree(one, other)
        assert await one.call("banpubkey", carol.pubkey, "rude") == (True, "")
        assert await other.call("changerelayname", "Two") == (True, "")
        await agree(one, other)
        await other.do(admin, 9007, h="den")
        await one.do(admin, 9008, h="tea")
        await agree(one, other)
        await other.vanish(admin)
        await agree(one, other)
        assert list(other.groups.ended) == ["tea"]


async def test_a_join_request_that_expires_is_forgotten_by_all(postgres: PostgresServer) -> None:
    async with relays(postgres) as (one, other):
        await one.do(admin, 9007, h="tea")
        await one.do(admin, 9002, ["closed"], h="tea")
        until = ["expiration", str(NOON + 60)]
        await one.do(admin, 9009, ["code", "sesame-1"], until, h="tea")
        await agree(one, other)
        code = await one.found(kinds=[9009])
        one.now = other.now = NOON + 61
        expiry = ExpireRows(
            [ExpiredRow(code[0].id, 1, None)],
            Purpose.SWEEP,
            asyncio.get_running_loop().create_future(),
        )
        one.ingest.expire(expiry)
        assert await expiry.done
        await agree(one, other)
        assert not other.groups.by_id["tea"].invites


async def test_each_delivers_all_once_in_the_order_of_commits(postgres: PostgresServer) -> None:
    async with relays(postgres) as (one, other):
        sent: list[Event] = []
        for number in range(6):
            at = (one, other)[number % 2]
            sent.append(await at.do(alice, 1, content=f"{number}"))
            sent += [await at.do(alice, 20_001, content=f"{number} {n}") for n in range(2)]
            sent.append(await at.do(alice, 1, content=f"{number} again"))
        for each in (one, other):
            await each.catch_up()
            assert each.live.said == sent


async def test_nothing_is_delivered_while_it_is_not_known_who_may_read(
    postgres: PostgresServer,
) -> None:
    async with relays(postgres) as (one, other):
        other.state.is_current = lambda: False
        events = [
            await at.do(alice, 1, content=f"{number}")
            for number, at in enumerate((one, other, one))
        ]
        await other.catch_up()
        assert other.live.said == []
        other.state.is_current = lambda: True
        await other.deliver()
        assert other.live.said == events


_TYPING = 20_001
SECRET = "the key is under the mat"


@asynccontextmanager
async def den(server: PostgresServer) -> AsyncIterator[tuple[Relay, Relay]]:
    """With a private group "den", of which alice is a member."""
    async with relays(server) as (one, other):
        await one.do(admin, 9007, ["private"], h="den")
        await one.do(admin, 9000, ["p", alice.pubkey], h="den")
        await other.catch_up()
        yield one, other


def reads(relay: Relay, *who: SecretKey) -> Client:
    """Everything, live."""
    client = Client(*who)
    subscription = Subscription("s", (Filter(),), client, client.outbox, 0)
    subscription.begin_backlog(100)
    relay.live.open(subscription)
    subscription.end_backlog()
    return client


@pytest.mark.parametrize("widened", ["by a new member", "for everybody"])
async def test_what_was_passed_on_before_a_change_of_rights_is_dropped(
    postgres: PostgresServer, widened: str
) -> None:
    """When both are taken over at once, also for those who might have read it."""
    async with den(postgres) as (one, other):
        member = reads(other, alice)
        later = reads(other, *([bob] if widened == "by a new member" else []))
        await one.do(alice, _TYPING, h="den", content=SECRET)
        if widened == "by a new member":
            await one.do(admin, 9000, ["p", bob.pubkey], h="den")
        else:
            await one.do(admin, 9002, ["public"], h="den")
        await one.do(alice, _TYPING, h="den", content="after it")
        await one.do(alice, 9, h="den", content="stored")
        await other.catch_up()
        for client in (member, later):
            said = client.contents()
            assert SECRET not in said
            assert said[-2:] == ["after it", "stored"]


async def test_a_group_is_replayed_on_a_thread(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 60,000 records that held up the loop for 2 s."""
    replayed_on: list[int] = []

    def folded(groups: Groups, others: Others, relay: str) -> Groups:
        if others.rebuilt:
            replayed_on.append(get_ident())
        return groups_after(groups, others, relay)

    monkeypatch.setattr("relay.write.following.groups_after", folded)
    async with relays(postgres) as (one, other):
        await moderated_by_alice(one, other)
        await one.vanish(alice)
        await agree(one, other)
        assert other.groups.by_id["tea"].members.keys() == {admin.pubkey, bob.pubkey}
    assert get_ident() not in replayed_on != []


@pytest.mark.slow
async def test_readers_wait_while_a_large_group_is_replayed(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came two seconds after it had begun were told that the database does not answer,
    until two seconds before its end."""
    begun, may_end = Flag(), Flag()

    def folded(groups: Groups, others: Others, relay: str) -> Groups:
        if others.rebuilt:
            begun.set()
            may_end.wait(ANSWER_S)
        return groups_after(groups, others, relay)

    monkeypatch.setattr("relay.write.following.groups_after", folded)
    async with relays(postgres) as (one, other):
        await moderated_by_alice(one, other)
        await one.vanish(alice)
        following = asyncio.create_task(other.catch_up())
        try:
            await eventually("it is replayed", begun.is_set)
            await eventually("rights are old", lambda: not other.store.is_current())
            query = PageQuery(asked(), EVERYTHING, 10, MAX, now=0, size=10)
            reading = asyncio.ensure_future(other.store.page(query))
            ended, _ = await asyncio.wait({reading}, timeout=2 * _RECENT_S)
            assert not ended
        finally:
            may_end.set()
        await following
        assert len((await reading).raws) > 0


async def test_what_was_passed_on_before_a_list_changed_is_dropped(
    postgres: PostgresServer,
) -> None:
    async with den(postgres) as (one, other):
        member = reads(other, alice)
        await one.do(alice, _TYPING, h="den", content=SECRET)
        assert await one.call("allowpubkey", carol.pubkey) == (True, "")
        await one.do(alice, _TYPING, h="den", content="after it")
        await other.catch_up()
        said = member.contents()
        assert SECRET not in said
        assert "after it" in said


async def test_messages_change_no_rights(postgres: PostgresServer) -> None:
    """Else what is passed on would be dropped without reason."""
    async with den(postgres) as (one, other):
        before = other.state.rights
        await one.do(alice, 9, h="den", content="stored")
        await one.do(alice, _TYPING, h="den")
        await other.catch_up()
        await other.do(alice, 9, h="den", content="stored")
        assert other.state.rights == before


async def test_a_commit_gives_no_right_to_what_it_has_taken_over(postgres: PostgresServer) -> None:
    async with den(postgres) as (one, other):
        later = reads(other, bob)
        await one.do(alice, _TYPING, h="den", content=SECRET)
        put = other.made(admin, 9000, ["p", bob.pubkey], h="den")
        typing = other.made(alice, _TYPING, h="den", content="after it")
        assert await other.take(put, typing) == [STORED] * 2
        await other.deliver()
        said = later.contents()
        assert SECRET not in said
        assert "after it" in said


async def test_what_is_taken_over_for_a_batch_that_reads_too_much_is_taken_over_once(
    postgres: PostgresServer,
) -> None:
    """A second time, a code that was used admitted one key more."""
    async with relays(postgres) as (one, other):
        for number in range(16):
            await one.do(alice, 9007, h=f"group-{number}")
        await one.do(admin, 9007, ["closed"], h="tea")
        await other.catch_up()
        await one.do(admin, 9009, ["code", "sesame-1"], h="tea")
        await one.do(bob, 9021, ["code", "sesame-1"], h="tea")
        await one.do(alice, 9007, h="one-too-many")
        assert await other.take(other.request(alice)) == [STORED]
        await agree(one, other)


@pytest.mark.parametrize("place", ["one", "other"])
async def test_a_delivery_that_waits_gives_up_what_is_only_passed_on_when_rights_change(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Wherever it was published."""
    async with den(postgres) as (one, other):
        later = reads(other, bob)
        links_of = other.live.links_of

        async def late(rows: Sequence[Stored]) -> Links:
            found = await links_of(rows)
            if SECRET in [row.event.content for row in rows]:
                await one.do(admin, 9000, ["p", bob.pubkey], h="den")
                await other.take_over()
            return found

        monkeypatch.setattr(other.live, "links_of", late)
        at = one if place == "one" else other
        await at.do(alice, _TYPING, h="den", content=SECRET)
        await at.do(alice, 9, h="den", content="stored")
        await other.catch_up()
        await other.do(alice, 1)  # after the delivery of its last batch
        said = later.contents()
        assert SECRET not in said
        assert "stored" in said


async def test_what_is_due_is_read_again_after_a_change_of_rights(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been deleted before."""
    async with den(postgres) as (one, other):
        later = reads(other, bob)
        links_of = other.live.links_of
        is_first = True

        async def late(rows: Sequence[Stored]) -> Links:
            nonlocal is_first
            if is_first and "first" in [row.event.content for row in rows]:
                is_first = False
                said = await other.do(alice, 9, h="den", content=SECRET)
                await one.do(alice, 5, ["e", said.id])
                await one.do(admin, 9000, ["p", bob.pubkey], h="den")
                await other.take_over()
            return await links_of(rows)

        monkeypatch.setattr(other.live, "links_of", late)
        await one.do(alice, 9, h="den", content="first")
        await other.catch_up()
        await other.do(alice, 1)  # after the delivery of its last batch
        said = later.contents()
        assert SECRET not in said
        assert "first" in said


async def test_what_is_being_delivered_is_read_again_after_a_change_of_rights(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message, deleted on one relay before somebody is put in there, while it is delivered on the
    other."""
    async with den(postgres) as (one, other):
        member, later = reads(other, alice), reads(other, bob)
        links_of = other.live.links_of

        async def late(rows: Sequence[Stored]) -> Links:
            if any(row.event.content == SECRET for row in rows):
                await one.do(alice, 5, ["e", rows[0].event.id])
                await one.do(admin, 9000, ["p", bob.pubkey], h="den")
                await other.take_over()
            return await links_of(rows)

        monkeypatch.setattr(other.live, "links_of", late)
        secret, kept = (one.made(alice, 9, h="den", content=text) for text in (SECRET, "welcome"))
        assert await one.take(secret, kept) == [STORED] * 2
        await other.catch_up()
        await other.do(alice, 1)
        assert SECRET not in later.contents()
        assert "welcome" in member.contents()


async def test_a_ban_on_one_refuses_on_the_other(postgres: PostgresServer) -> None:
    async with relays(postgres) as (one, other):
        banned_when_told: list[bool] = []
        other.following.rights_changed = lambda: banned_when_told.append(
            bob.pubkey in other.state.actors.banned
        )
        assert await one.call("banpubkey", bob.pubkey, "rude") == (True, "")
        ((is_stored, why),) = await other.take(other.made(bob, 1))
        assert (is_stored, why) == (False, "blocked: this key is banned here")
        assert banned_when_told == [True]


async def test_quotas_and_duplicates_hold_for_all(postgres: PostgresServer) -> None:
    async with relays(postgres) as (one, other):
        event = one.made(alice, 0, content="{}")
        assert await one.take(event) == [STORED]
        assert await other.take(event) == [(True, "duplicate: already have this event")]


async def test_who_missed_too_much_reads_all_again(postgres: PostgresServer) -> None:
    async with relays(postgres) as (one, other):
        await one.do(admin, 9007, h="tea")
        code = await one.do(admin, 9009, ["code", "sesame-1"], h="tea")
        await agree(one, other)
        await one.do(admin, 9005, ["e", code.id], h="tea")
        assert await one.call("banpubkey", bob.pubkey, "rude") == (True, "")
        await postgres.forget_changes(one.url)
        assert (await other.take(other.made(alice, 1)))[0][0] is False
        await agree(one, other)
        await other.do(alice, 1)


async def test_lists_of_members_are_signed_once(postgres: PostgresServer) -> None:
    """Lists of the relay are signed by the relay whose batch changed them, once."""
    async with relays(postgres) as (one, other):
        assert await one.call("allowpubkey", carol.pubkey) == (True, "")
        assert await other.call("allowpubkey", bob.pubkey) == (True, "")
        (listed,) = await one.found(kinds=[13534])
        named = {tag[1] for tag in listed.tags if tag[0] == "member"}
        assert {bob.pubkey, carol.pubkey, owner.pubkey, cast.robot.pubkey} >= named
        assert {bob.pubkey, carol.pubkey} <= named


async def test_who_was_removed_by_one_joins_by_no_older_code_at_another(
    postgres: PostgresServer,
) -> None:
    async with relays(postgres) as (one, other):
        claim = claim_change("for-many-keys", Claim(owner.pubkey, NOON - 1, left=None))
        one.ingest.manage(ManagementChange((claim,), lambda _: None))
        request = one.made(bob, kinds.RELAY_JOIN, ["claim", "for-many-keys"])
        assert await one.take(request) == [(True, "info: welcome to this relay")]
        assert await one.call("unallowpubkey", bob.pubkey) == (True, "")
        assert await other.take(request) == [(False, "restricted: this invite code is not valid")]


_OWN_RULES = """
[[rule]]
name = "no notes"
match = { kinds = [1] }
write = ["nobody"]

[[rule]]
name = "lists"
match = { kinds = [10003] }
read = ["owner"]
"""


async def test_each_judges_by_its_own_policies_what_comes_to_it(postgres: PostgresServer) -> None:
    """For as long as they differ; what the others took is in the log, and stays."""
    async with relays(postgres, more=_OWN_RULES) as (one, other):
        note = await one.do(alice, 1, content="tea")
        assert not (await other.take(other.made(alice, 1)))[0][0]
        marks = await other.do(alice, 10_003)
        await agree(one, other)
        for each in (one, other):
            found = await each.found(authors=[alice.pubkey])
            assert {event.id for event in found} == {note.id, marks.id}
        assert [_may_read(each, marks) for each in (one, other)] == [True, False]
        await one.do(admin, 9007, h="tea")
        await other.do(admin, 9000, ["p", alice.pubkey], h="tea")
        await agree(one, other)


def _may_read(relay: Relay, event: Event) -> bool:
    return relay.state.visibility(ANONYMOUS).may_read(Stored(1, event, None), asked())


async def test_lists_say_the_newest_whatever_the_clocks_say(postgres: PostgresServer) -> None:
    """The older of two versions loses, also when the clock of its relay is an hour slow."""
    async with relays(postgres) as (one, other):
        other.now = NOON - 3600
        await one.do(admin, 9007, h="tea", at=NOON)
        people = [alice, bob, carol]
        for number, who in enumerate(people):
            at = (other, one)[number % 2]
            await at.do(admin, 9000, ["p", who.pubkey], h="tea")
            await agree(one, other)
            (listed,) = await one.found(kinds=[39002], tag_d=["tea"])
            named = {tag[1] for tag in listed.tags if tag[0] == "p"}
            assert named == {admin.pubkey, *(key.pubkey for key in people[: number + 1])}


async def test_each_expires_by_its_own_clock(postgres: PostgresServer) -> None:
    async with relays(postgres) as (one, other):
        other.now = NOON + 3600
        event = await one.do(alice, 1, ["expiration", str(NOON + 60)])
        await agree(one, other)
        assert [len(await each.found(ids=[event.id])) for each in (one, other)] == [1, 0]
        assert (await other.take(event))[0][0] is False


_END_COMMITS = """
SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
WHERE wait_event = 'SyncRep' AND query LIKE 'UPDATE head%'
"""
"""Those that wait for a replica: the server has them."""
_WAITS_FOR_LOCK = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.mark.parametrize("what", ["an answer", "a check"])
async def test_a_relay_follows_while_something_waits_for_a_replica(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its reads failed, as it could not take over what the server had. The check is that of
    /readyz."""
    monkeypatch.setattr(listening, "_RECENT_S", ANSWER_S)
    monkeypatch.setattr(writer, "_REPLICA_S", ANSWER_S)
    async with relays(postgres) as (one, other):
        await one.do(admin, 9007, h="tea")
        event = await other.do(alice, 9, h="tea")
        await one.catch_up()
        async with without_its_replica(postgres), asyncio.timeout(ANSWER_S):
            begun = one.take(event) if what == "an answer" else one.store.is_writable()
            waiting: asyncio.Task[object] = asyncio.create_task(begun)
            await is_waiting(postgres, waiting)
            late = other.made(bob, 9, h="tea")
            writing = asyncio.create_task(other.take(late))
            await eventually("it is committed", lambda: postgres.value(_END_COMMITS))
            await one.catch_up()
            assert await one.found(kinds=[9]) == [late, event]
            tried = await one.ingest.dry_run(event, one.letter_from("192.0.2.1"))
            assert tried.result is WriteOutcome.DUPLICATE
            assert one.live.said[-1] == late
            assert not waiting.done()
            assert not writing.done()
        assert await waiting == ([DUPLICATE] if what == "an answer" else True)
        assert await writing == [STORED]


async def test_a_relay_follows_a_batch_that_was_in_doubt_before_the_next_one(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another relay has the lock, and waits for a replica: so does the next batch, then."""
    monkeypatch.setattr(listening, "_RECENT_S", ANSWER_S)
    monkeypatch.setattr(connections, "_COMMAND_S", 2 * ANSWER_S)
    monkeypatch.setattr(writer, "_ASK_AGAIN_S", (0.1,))
    monkeypatch.setattr(writer, "_REPLICA_S", 0.5)
    async with relays(postgres) as (one, other), one.following:
        await one.do(alice, 1)
        await other.do(bob, 1)
        async with without_its_replica(postgres), asyncio.timeout(ANSWER_S):
            lost = asyncio.create_task(one.take(one.made(alice, 1)))
            await is_waiting(postgres, lost)
            writing = asyncio.create_task(other.take(other.made(bob, 1)))
            await eventually("it waits for the lock", lambda: postgres.value(_WAITS_FOR_LOCK))
            later = one.post(one.made(alice, 1))
            await eventually("it is committed", lambda: postgres.value(_END_COMMITS))
            await one.store.committed_after(await one.store.head() - 1)
            assert await lost == [(False, "error: the event could not be stored, try again later")]
            assert not later.answer.done()
            assert not writing.done()
        assert await later.answer == STORED
        assert await writing == [STORED]
