"""One NIP after another, as `nostr-sdk` understands it, on a relay of preset `open`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from nostr_sdk import (
    ClientBuilder,
    Event,
    Filter,
    NostrLmdb,
    PublicKey,
    RelayUrl,
    ReqTarget,
    SignerAuthenticator,
    SyncDirection,
    SyncOptions,
    UnwrappedGift,
    nip17_make_private_msg,
    uniffi_set_event_loop,
)

from tests import cast
from tests.e2e.test_nostr_sdk import LASTING_LOOP, WAIT, Person
from tests.harness.relay_program import Rookery, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.keys import SecretKey

pytestmark = [pytest.mark.slow, LASTING_LOOP]


class Place:
    """A relay, and who is connected to it."""

    def __init__(self, rookery: Rookery, stack: contextlib.AsyncExitStack) -> None:
        self.rookery = rookery
        self._stack = stack

    async def enter(self, key: SecretKey, *, login: bool = True) -> Person:
        person = Person(key, self.rookery.url)
        return await self._stack.enter_async_context(person.here(login=login))


@pytest_asyncio.fixture(loop_scope="session")
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    uniffi_set_event_loop(asyncio.get_running_loop())
    async with Rookery(tmp_path / "data") as rookery, contextlib.AsyncExitStack() as stack:
        keys = ("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        await rookery.init(*keys, "--preset", "open")
        await rookery.start()
        yield Place(rookery, stack)
        await stack.aclose()
        assert await rookery.stop() == 0
        assert not any("Traceback" in line for line in rookery.lines), rookery.lines


async def _why_not_again(person: Person, event: Event) -> str:
    """Why an event that was taken once is refused now."""
    sent = await person.client.send_event(event)
    assert not sent.success
    [reason] = sent.failed.values()
    return str(reason)


# -- NIP-01 ----------------------------------------------------------------------------------------


async def test_events_are_kept_by_their_kind(place: Place) -> None:
    """NIP-01: all of a regular kind, the newest of a replaceable one and of each address."""
    alice, now = await place.enter(cast.alice), int(time.time())
    for number in range(3):
        await alice.say(1, [], f"note {number}", at=now + number)
    await alice.say(0, [], '{"name":"old"}', at=now)
    await alice.say(0, [], '{"name":"new"}', at=now + 1)
    for d, text in (("a", "first of a"), ("b", "only b"), ("a", "second of a")):
        now += 1
        await alice.say(30023, [["d", d]], text, at=now)
    assert await alice.fetch(kinds=[1]) == ["note 2", "note 1", "note 0"]
    assert await alice.fetch(kinds=[1], limit=2) == ["note 2", "note 1"]
    assert await alice.fetch(kinds=[0]) == ['{"name":"new"}']
    assert await alice.fetch(kinds=[30023]) == ["second of a", "only b"]
    assert await alice.fetch(kinds=[30023], d=["a"]) == ["second of a"]
    late = alice.event(0, [], '{"name":"late"}', at=now - 100)
    assert (await alice.publish(late))[0] is False
    assert await alice.fetch(kinds=[0]) == ['{"name":"new"}']


async def test_what_is_ephemeral_is_heard_and_not_kept(place: Place) -> None:
    alice, bob = await place.enter(cast.alice), await place.enter(cast.bob)
    live = await bob.subscribe({"kinds": [20001]})
    await alice.say(20001, [], "now or never")
    await bob.gets(live, "now or never")
    assert await bob.fetch(kinds=[20001]) == []


# -- NIP-09 ----------------------------------------------------------------------------------------


@pytest.mark.proves("N09-02", "N09-03", "N09-04", "N09-08")
async def test_an_author_deletes_by_id_and_by_address(place: Place) -> None:
    alice, bob, now = await place.enter(cast.alice), await place.enter(cast.bob), int(time.time())
    note = alice.event(1, [], "a slip")
    assert await alice.publish(note) == (True, "")
    article = await alice.say(30023, [["d", "essay"]], "version 1", at=now - 1)
    address = f"30023:{cast.alice.pubkey}:essay"

    await bob.say(5, [["e", note.id().to_hex()], ["a", address]])
    assert await alice.fetch(kinds=[1, 30023]) == ["a slip", "version 1"]

    await alice.say(5, [["e", note.id().to_hex()], ["k", "1"]], "did not mean it")
    assert await alice.fetch(kinds=[1, 30023]) == ["version 1"]
    assert await _why_not_again(alice, note) == "blocked: deleted"

    await alice.say(5, [["a", address], ["k", "30023"]], at=now)
    assert await alice.fetch(ids=[article]) == []
    await alice.say(30023, [["d", "essay"]], "version 2", at=now + 1)
    assert await bob.fetch(kinds=[30023]) == ["version 2"]
    assert len(await bob.fetch(kinds=[5])) == 3


# -- NIP-17, 59 ------------------------------------------------------------------------------------


@pytest.mark.proves("N59-03", "N59-04")
async def test_a_private_message_reaches_its_recipient_and_nobody_else(place: Place) -> None:
    alice, bob = await place.enter(cast.alice), await place.enter(cast.bob)
    stranger = await place.enter(cast.stranger)
    unknown = await place.enter(cast.carol, login=False)
    gone = await place.enter(cast.dave)
    wanted: dict[str, Any] = {"kinds": [1059], "p": [cast.bob.pubkey]}
    live = await bob.subscribe(wanted)
    theirs = await stranger.subscribe({"kinds": [1059]}, {"kinds": [1]})

    wrap = nip17_make_private_msg(alice.keys, PublicKey.parse(cast.bob.pubkey), "psst")
    assert await alice.publish(wrap) == (True, "")
    await bob.heard(lambda frame: frame[:2] == ["EVENT", live])
    [stored] = await bob.fetch_events(**wanted)
    gift = UnwrappedGift.from_gift_wrap(bob.keys, Event.from_json(json.dumps(stored)))
    assert gift.sender().to_hex() == cast.alice.pubkey
    assert gift.rumor().content() == "psst"
    assert stored["pubkey"] != cast.alice.pubkey
    assert await bob.count(**wanted) == 1

    await alice.say(1, [], "marker")
    await stranger.gets(theirs, "marker")
    assert stranger.got(theirs) == ["marker"]
    for person in (alice, stranger, gone):
        assert await person.fetch(kinds=[1059]) == []
        assert await person.fetch(ids=[stored["id"]]) == []
        assert await person.count(kinds=[1059]) == 0
    assert "auth-required:" in await unknown.why_not(**wanted)
    assert await unknown.fetch(ids=[stored["id"]]) == []


# -- NIP-42 ----------------------------------------------------------------------------------------


async def test_who_asks_at_once_is_logged_in_on_the_way(place: Place) -> None:
    """No line of the program speaks of a login: the library answers the challenge by itself."""
    alice, bob = await place.enter(cast.alice), Person(cast.bob, place.rookery.url)
    wrap = nip17_make_private_msg(alice.keys, PublicKey.parse(cast.bob.pubkey), "psst")
    assert await alice.publish(wrap) == (True, "")
    client = ClientBuilder().authenticator(SignerAuthenticator(bob.keys)).build()
    try:
        await client.add_relay(bob.url)
        await client.connect(and_wait=WAIT)
        wanted = Filter.from_json(json.dumps({"kinds": [1059], "#p": [cast.bob.pubkey]}))
        found = await client.fetch_events(ReqTarget.single(bob.url, [wanted]), timeout=WAIT)
        assert [event.id() for event in found] == [wrap.id()]
    finally:
        await client.shutdown()


# -- NIP-62 ----------------------------------------------------------------------------------------


@pytest.mark.proves("N62-01", "N62-03", "N62-05", "N62-06")
@pytest.mark.parametrize("place_named", ["ALL_RELAYS", "this relay"])
async def test_whoever_asks_to_vanish_is_gone(place: Place, place_named: str) -> None:
    alice, bob, now = await place.enter(cast.alice), await place.enter(cast.bob), int(time.time())
    note = bob.event(1, [], "hello", at=now - 5)
    assert await bob.publish(note) == (True, "")
    await bob.say(30078, [["d", "app"]], "mine", at=now - 5)
    await alice.say(1, [["p", cast.bob.pubkey]], "hello bob")
    wrap = nip17_make_private_msg(alice.keys, PublicKey.parse(cast.bob.pubkey), "psst")
    assert await alice.publish(wrap) == (True, "")

    await bob.say(62, [["relay", "wss://elsewhere.example"]], at=now)
    assert await alice.fetch(kinds=[1]) == ["hello bob", "hello"]

    url = place.rookery.url if place_named == "this relay" else place_named
    await bob.say(62, [["relay", url]], "please", at=now)
    assert await alice.fetch(kinds=[1]) == ["hello bob"]
    assert await alice.fetch(authors=[cast.bob.pubkey], kinds=[1, 30078]) == []
    assert await bob.fetch(kinds=[1059]) == []
    assert await _why_not_again(bob, note) == "blocked: deleted"


# -- NIP-70 ----------------------------------------------------------------------------------------


@pytest.mark.proves("N70-01", "N70-02", "N70-06")
async def test_a_protected_event_is_taken_from_its_author_only(place: Place) -> None:
    """nostr-sdk sends again by itself after `auth-required:`, once it has logged in."""
    alice, bob = await place.enter(cast.alice), await place.enter(cast.bob)
    mine = alice.event(1, [["-"]], "mine alone")
    taken, text = await bob.publish(mine)
    assert (taken, text.split(":")[0]) == (False, "restricted")
    async with connected(place.rookery.url) as wire:
        await wire.send("EVENT", json.loads(mine.as_json()))
        answer = await wire.receive()
        assert (answer[2], answer[3].split(":")[0]) == (False, "auth-required")
    assert await alice.publish(mine) == (True, "")
    assert await bob.fetch(kinds=[1]) == ["mine alone"]


# -- NIP-50 ----------------------------------------------------------------------------------------


@pytest.mark.proves("N50-01", "N50-04", "N50-10")
async def test_a_search_finds_words_and_takes_any_query(place: Place) -> None:
    alice = await place.enter(cast.alice)
    for text in ("tea and cake", "only cake", "tea, tea and more tea", "nothing of it"):
        await alice.say(1, [], text)
    assert sorted(await alice.fetch(search="tea")) == ["tea and cake", "tea, tea and more tea"]
    assert await alice.fetch(search="tea cake") == ["tea and cake"]
    assert await alice.fetch(search='"more tea"', kinds=[1]) == ["tea, tea and more tea"]
    assert await alice.fetch(search="language:en tea and cake") == ["tea and cake"]
    for odd in ('"', "tea NEAR(", "{content}: tea", "*"):
        assert not await alice.fetch(search=odd, kinds=[7])


# -- NIP-77 ----------------------------------------------------------------------------------------


@pytest.mark.proves("N77-01", "N77-02", "N77-06")
@pytest.mark.parametrize(
    "direction",
    [SyncDirection.DOWN, SyncDirection.UP, SyncDirection.BOTH],
    ids=lambda direction: direction.name,
)
async def test_two_sides_get_what_the_other_has(
    place: Place, tmp_path: Path, direction: SyncDirection
) -> None:
    """By negentropy, between the library's own database and the relay."""
    alice = await place.enter(cast.alice)
    theirs = [alice.event(1, [], f"on the relay {number}") for number in range(20)]
    mine = [alice.event(1, [], f"at home {number}") for number in range(15)]
    both = [alice.event(1, [], f"on both sides {number}") for number in range(200)]
    for event in (*theirs, *both):
        assert await alice.publish(event) == (True, "")
    database = await NostrLmdb.open(str(tmp_path / "lmdb"))
    for event in (*mine, *both):
        await database.save_event(event)
    client = ClientBuilder().database(database).build()
    url = RelayUrl.parse(place.rookery.url)
    wanted = Filter.from_json(json.dumps({"kinds": [1], "authors": [cast.alice.pubkey]}))
    try:
        await client.add_relay(url)
        await client.connect(and_wait=WAIT)
        done = await client.sync(wanted, [url], SyncOptions().direction(direction))
    finally:
        await client.shutdown()
    assert done.failed == {}
    down = set() if direction is SyncDirection.UP else {event.id() for event in theirs}
    up = set() if direction is SyncDirection.DOWN else {event.id() for event in mine}
    assert set(done.report.received) == down
    assert set(done.report.sent) == up
    assert len(await database.query(wanted)) == len(mine) + len(both) + len(down)
    assert await alice.count(kinds=[1]) == len(theirs) + len(both) + len(up)
