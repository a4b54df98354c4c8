"""Pins in the write pipeline: only stored events are pinned. N29-170…172."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest

from relay.facts import Origin
from relay.groups.group import Group, Groups
from relay.lifecycle.rows import Slot
from relay.nostr.event import made_from
from relay.read.fanout import Fanout
from relay.write.commands import ExpireRows, Purpose, Unconnected, WriteEvent
from relay.write.costs import cost_of
from relay.write.lookups import lookups_for
from tests.cast import admin, alice, bob, carol, owner, stranger
from tests.harness.relay_in_process import NOON, RELAY, STORED, Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from relay.lifecycle.rows import Found, Lookups, WritePlan
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

NOT_HERE = (False, "invalid: e, a: must name stored events of this group")
CHANGED = (False, "duplicate: the group was changed meanwhile")


@pytest.fixture(params=["reference", "sqlite"])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    """Groups tea and den, both open; admin leads them."""
    async with store_of(request.param) as store, Home(store, policy_of("open")) as home:
        await home.do(admin, 9007, h="tea")
        await home.do(admin, 9007, h="den")
        yield home


def e(*events: Event) -> list[list[str]]:
    return [["e", event.id] for event in events]


def a(event: Event) -> list[str]:
    return ["a", f"{event.kind}:{event.pubkey}:{event.d}"]


async def pins(home: Home, group: str = "tea") -> list[list[str]] | None:
    """The pins in 39005, which are those in memory, also after a restart."""
    assert await home.rebuilt() == home.groups
    shown = [row for row in await home.log() if (row.kind, row.d) == (39005, group)]
    assert [list(tag) for tag in home.groups.by_id[group].pins] == [
        tag for row in shown for tag in row.tags[1:]
    ]
    assert len(shown) <= 1
    return shown[0].tags[1:] if shown else None


async def looked_up(
    home: Home, sending: Awaitable[object], lists: list[set[Slot]] | None = None
) -> Lookups:
    """What the store is asked for one batch. `lists`: gets the slots of the 39005 that it finds."""
    wanted: list[Lookups] = []
    append = home.store.append

    async def noted(lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        def seen(found: Found) -> WritePlan:
            if lists is not None:
                lists.append({slot for slot in found.slots if slot.kind == 39005})
            return decide(found)

        wanted.append(lookups)
        return await append(lookups, seen)

    with patch.object(home.store, "append", noted):
        await sending
    return wanted[0]


async def said(home: Home, who: SecretKey, text: str, group: str = "tea") -> Event:
    return await home.do(who, 9, h=group, content=text)


async def test_of_two_lists_made_from_one_state_in_one_batch_one_wins(home: Home) -> None:
    one, two = await said(home, bob, "one"), await said(home, bob, "two")

    def pinned(base: Event | None, *listed: Event) -> Event:
        return home.made(admin, 9010, *e(*listed), made_from(base), h="tea")

    async def taken(*sent: Event) -> list[tuple[bool, str]]:
        return await home.take(*sent, logins=[admin.pubkey])

    assert await taken(pinned(None, one), pinned(None, two)) == [STORED, CHANGED]
    (now,) = await home.found(kinds=[39005])
    assert not now.has_tag("made-from")
    assert await taken(pinned(now, one, two), pinned(now)) == [STORED, CHANGED]
    assert await taken(pinned(None), pinned(now)) == [CHANGED, CHANGED]
    assert await pins(home) == e(one, two)


async def test_a_list_that_names_what_was_deleted_meanwhile_is_to_be_made_again(home: Home) -> None:
    one, two = await said(home, bob, "one"), await said(home, bob, "two")
    await home.do(admin, 9010, *e(one), h="tea")
    (before,) = await home.found(kinds=[39005])
    await home.do(bob, 5, ["e", one.id])
    late = home.made(admin, 9010, *e(one, two), made_from(before), h="tea")
    assert await home.take(late, logins=[admin.pubkey]) == [CHANGED]


@pytest.mark.proves("N29-67", "N29-170", "N29-172")
async def test_the_relay_says_what_is_pinned_in_the_order_of_the_list(home: Home) -> None:
    one, two = await said(home, bob, "one"), await said(home, bob, "two")
    essay = await home.do(bob, 30023, ["d", "x:y"], h="tea")
    listed = [["e", two.id, "wss://here"], a(essay), ["e", one.id]]
    await home.do(admin, 9010, *listed, h="tea")
    assert await pins(home) == listed
    (shown,) = [row for row in home.live.said if row.kind == 39005]
    assert shown.tags[0] == ["d", "tea"]
    await home.do(admin, 9010, *e(one), h="tea")
    assert await pins(home) == e(one)
    await home.do(admin, 9010, h="tea")
    assert await pins(home) == []


@pytest.mark.proves("N29-112", "N29-170")
async def test_moderators_and_owners_pin_and_members_do_not(home: Home) -> None:
    one = await said(home, bob, "one")
    await home.do(admin, 9000, ["p", bob.pubkey], ["p", alice.pubkey, "moderator"], h="tea")
    for who, text in ((bob, "only an admin of the group may do this"), (carol, "not a member")):
        pinning = home.made(who, 9010, *e(one), h="tea")
        assert await home.take(pinning) == [(False, f"restricted: {text}")]
    await home.do(alice, 9010, *e(one), h="tea")
    await home.do(owner, 9010, h="tea")


@pytest.mark.proves("N29-171")
async def test_only_events_of_the_group_are_pinned_and_refusals_reveal_nothing(home: Home) -> None:
    here, there = await said(home, bob, "here"), await said(home, bob, "there", "den")
    note = await home.do(bob, 1)
    gone = await said(home, bob, "gone")
    await home.do(bob, 5, *e(gone))
    essay = await home.do(bob, 30023, ["d", "x"], h="tea")
    elsewhere = await home.do(bob, 30023, ["d", "y"], h="den")
    brief = await home.do(bob, 9, ["expiration", str(NOON + 5)], h="tea")
    home.now += 5
    bad = [
        *e(there, note, gone, brief),
        a(elsewhere),
        ["e", "0" * 64],
        ["e", here.id[:63]],
        ["e"],
        ["e", ""],
        ["a", f"30023:{bob.pubkey}:z"],
        ["a", f"030023:{bob.pubkey}:x"],
        ["a", essay.id],
        ["a", here.id],
        ["e", a(essay)[1]],
        ["a"],
    ]
    for tag in bad:
        pinning = home.made(admin, 9010, *e(here), tag, h="tea")
        assert await home.take(pinning) == [NOT_HERE], tag
    assert await pins(home) is None


@pytest.mark.proves("N29-172")
async def test_a_pin_is_removed_with_its_event(home: Home) -> None:
    """By its author with or without `h`, by an admin, by a newer version of itself."""
    one, two, three = [await said(home, bob, text) for text in ("one", "two", "three")]
    essay = await home.do(bob, 30023, ["d", "x"], h="tea")
    await home.do(admin, 9010, *e(one, two, three, essay), a(essay), h="tea")
    await home.do(bob, 5, *e(one))
    assert await pins(home) == [*e(two, three, essay), a(essay)]
    await home.do(bob, 5, *e(two), h="tea")
    assert await pins(home) == [*e(three, essay), a(essay)]
    home.now += 1
    await home.do(bob, 30023, ["d", "x"], h="tea", content="newer")
    assert await pins(home) == [*e(three), a(essay)]
    await home.do(admin, 9005, *e(three), h="tea")
    assert await pins(home) == [a(essay)]
    await home.do(bob, 5, a(essay))
    assert await pins(home) == []


@pytest.mark.proves("N29-172", "N29-56")
async def test_a_pin_is_removed_in_the_transaction_that_removes_its_event(home: Home) -> None:
    """Whatever else the batch does with pins."""
    one, two, three = [await said(home, bob, text) for text in ("one", "two", "three")]
    await home.do(admin, 9010, *e(one), h="tea")
    batch = [
        home.made(admin, 9010, *e(one, two, three), h="tea"),
        home.made(bob, 5, *e(two)),
        home.made(bob, 5, *e(one)),
    ]
    assert await home.take(*batch) == [STORED] * 3
    assert await pins(home) == e(three)
    own = home.made(bob, 9, h="tea")
    batch = [own, *(home.made(admin, kind, *e(own), h="tea") for kind in (9010, 9005))]
    assert await home.take(*batch) == [STORED] * 3
    assert await pins(home) == []


@pytest.mark.proves("N29-171")
async def test_what_the_batch_has_removed_before_is_not_pinned(home: Home) -> None:
    """Also by an address, and what a newer version replaced."""
    one, two = await said(home, bob, "one"), await said(home, bob, "two")
    essay = await home.do(bob, 30023, ["d", "x"], h="tea")
    story = await home.do(bob, 30023, ["d", "y"], h="tea")
    home.now += 1
    batch = [
        home.made(bob, 5, *e(one, essay)),
        home.made(bob, 30023, ["d", "y"], h="tea", content="newer"),
        *(home.made(admin, 9010, tag, h="tea") for tag in (*e(one, essay, story), a(essay))),
        home.made(admin, 9010, *e(two), a(story), h="tea"),
    ]
    assert await home.take(*batch) == [STORED, STORED, *[NOT_HERE] * 4, STORED]
    assert await pins(home) == [*e(two), a(story)]


@pytest.mark.proves("N29-172")
async def test_of_what_is_pinned_no_row_is_read_for_a_message_another_list_or_a_ban(
    home: Home,
) -> None:
    """64 pins of 440 kB took each message into the group 0.7 s."""
    one = await said(home, bob, "one")
    essay = await home.do(bob, 30023, ["d", "x"], h="tea")
    listed = home.made(admin, 9010, *e(one), a(essay), h="tea")
    here: set[str | Slot] = {one.id, Slot(bob.pubkey, 30023, "x")}
    list_ = Slot(RELAY.pubkey, 39005, "tea")
    wanted = await looked_up(home, home.take(listed))
    assert wanted.present == here
    assert wanted.ids == {listed.id}
    assert not wanted.own_rows
    assert await pins(home) == [*e(one), a(essay)]
    message = home.made(bob, 9, h="tea")
    wanted = await looked_up(home, home.take(message))
    assert wanted.present == here
    assert wanted.ids == {message.id}
    assert wanted.slots == {list_}
    wanted = await looked_up(home, home.call("banpubkey", carol.pubkey))
    assert not wanted.present
    assert not wanted.ids
    assert not wanted.own_rows
    assert wanted.slots == {Slot(RELAY.pubkey, 13534, "")}


@pytest.mark.proves("N29-172", "N86-23")
async def test_of_a_banned_event_its_own_pins_alone_are_looked_up(home: Home) -> None:
    """Each ban looked up the pins of all groups: 400 with 64 each took it 0.7 s."""
    essay = await home.do(bob, 30023, ["d", "x"], h="den")
    one, two = await said(home, bob, "one"), await said(home, carol, "two", "den")
    await home.do(admin, 9010, *e(one), h="tea")
    await home.do(admin, 9010, *e(two), a(essay), h="den")
    for event, left in ((essay, e(two)), (two, [])):
        lists: list[set[Slot]] = []
        wanted = await looked_up(home, home.call("banevent", event.id), lists)
        assert not wanted.present
        assert lists == [{Slot(RELAY.pubkey, 39005, "den")}]
        assert (await pins(home, "den") or []) == left
    assert await pins(home) == e(one)
    assert await home.rebuilt() == home.groups


@pytest.mark.proves("N29-172", "N86-11")
@pytest.mark.parametrize("backend", ["reference", "sqlite"])
async def test_of_what_a_banned_key_wrote_the_pins_in_its_groups_alone_are_looked_up(
    backend: str,
) -> None:
    policy = policy_of("open", '[bans]\nstored = "delete"\n')
    async with store_of(backend) as store, Home(store, policy) as home:
        for group in ("tea", "den"):
            await home.do(alice, 9007, h=group)
        one, two = await home.do(alice, 9, h="tea"), await home.do(alice, 9, h="den")
        gone = [await home.do(bob, 9, h="den"), await home.do(bob, 30023, ["d", "x"], h="den")]
        await home.do(alice, 9010, *e(one), h="tea")
        await home.do(alice, 9010, *e(gone[0], two), a(gone[1]), h="den")
        lists: list[set[Slot]] = []
        await looked_up(home, home.call("banpubkey", bob.pubkey), lists)
        assert lists == [{Slot(RELAY.pubkey, 39005, "den")}]
        assert await pins(home, "den") == e(two)
        assert await pins(home) == e(one)
        assert await home.rebuilt() == home.groups


@pytest.mark.proves("N29-172")
async def test_of_what_a_deletion_names_the_pins_of_its_author_alone_are_looked_up(
    home: Home,
) -> None:
    """A stranger's kind 5 that named one pinned note of each of 1,000 groups made the store look up
    all their 64,000 pins and read their lists: 2 s."""
    first = []
    for group in ("tea", "den"):
        one, two = await said(home, bob, "one", group), await said(home, bob, "two", group)
        await home.do(admin, 9010, *e(one, two), h=group)
        first.append(one)
    mine = await said(home, carol, "mine", "den")
    await home.do(admin, 9010, *e(first[1], mine), h="den")
    lists: list[set[Slot]] = []

    async def asked(who: SecretKey, *tags: list[str], h: str | None = None) -> Lookups:
        return await looked_up(home, home.take(home.made(who, 5, *tags, h=h)), lists)

    wanted = await asked(stranger, *e(*first))
    assert not wanted.present
    assert lists.pop() == set()
    wanted = await asked(carol, *e(*first, mine))
    assert not wanted.present
    assert lists.pop() == {Slot(RELAY.pubkey, 39005, "den")}
    assert await pins(home, "den") == e(first[1])
    assert len(await pins(home) or []) == 2
    wanted = await asked(stranger, *e(*first), h="den")
    assert wanted.present == {first[1].id}, "those of its own group may have expired"
    assert lists.pop() == {Slot(RELAY.pubkey, 39005, "den")}


def test_lists_to_sign_and_pins_to_look_up_are_in_the_cost_of_an_event() -> None:
    """Of a deletion only as many lists as one transaction takes."""
    listed = tuple(("e", f"{n:064x}") for n in range(64))
    groups = Groups().with_group(Group("tea", pins=listed)).with_group(Group("den"))

    def cost(event: Event, among: Groups = groups) -> int:
        item = WriteEvent(event, 0, 0, Unconnected(), Origin.WIRE)
        return cost_of(item, among, Fanout(cast("Any", None)), RELAY.pubkey, lambda: 0, frozenset())

    def deletion(*pins: tuple[str, str]) -> Event:
        return bob.sign(5, [*map(list, pins)], "", NOON)

    assert cost(bob.sign(9, [["h", "tea"]], "", NOON)) > cost(bob.sign(9, [["h", "den"]], "", NOON))
    unpinned = deletion(("e", "f" * 64))
    assert cost(deletion(listed[0])) > cost(unpinned) + 4
    several: list[int] = []
    for number in (15, 16, 17):
        pins = [("e", f"{n:064x}") for n in range(number)]
        among = Groups()
        for n, pin in enumerate(pins):
            among = among.with_group(Group(f"g{n}", pins=(pin,)))
        several.append(cost(deletion(*pins), among) - cost(deletion(*pins), Groups()))
    assert several[0] < several[1] == several[2]


@pytest.mark.proves("N29-172")
async def test_a_pin_by_the_other_name_is_removed_with_its_event(home: Home) -> None:
    """By id if the deletion has an address, and by address if it has an id."""
    x = await home.do(bob, 30023, ["d", "x"], h="tea")
    y = await home.do(bob, 30023, ["d", "y"], h="tea")
    await home.do(admin, 9010, *e(x), a(y), h="tea")
    await home.do(bob, 5, a(x))
    assert await pins(home) == [a(y)]
    await home.do(bob, 5, *e(y))
    assert await pins(home) == []


@pytest.mark.proves("N29-172")
@pytest.mark.parametrize("role", ["admin", "moderator", None])
async def test_who_vanishes_takes_along_what_is_pinned_of_theirs(
    home: Home, role: str | None
) -> None:
    """Also when the relay restates what they did as an admin."""
    hers, his = await said(home, alice, "hers"), await said(home, bob, "his")
    await home.do(admin, 9000, ["p", alice.pubkey, *([role] if role else [])], h="tea")
    if role is not None:
        await home.do(alice, 9000, ["p", carol.pubkey], h="tea")
    await home.do(alice if role else admin, 9010, *e(hers, his), h="tea")
    await home.vanish(alice)
    assert await pins(home) == e(his)


@pytest.mark.proves("N29-124")
async def test_the_pins_of_a_group_end_with_it(home: Home) -> None:
    one = await said(home, bob, "one")
    await home.do(admin, 9010, *e(one), h="tea")
    await home.do(admin, 9008, h="tea")
    assert home.groups.pinned == {}
    assert not [row for row in await home.log() if row.kind == 39005]
    assert await home.rebuilt() == home.groups


@pytest.mark.proves("N29-172")
async def test_an_expired_pin_is_removed_with_the_next_event_of_the_group(home: Home) -> None:
    brief = await home.do(bob, 9, ["expiration", str(NOON + 5)], h="tea")
    one = await said(home, bob, "one")
    await home.do(admin, 9010, *e(brief, one), h="tea")
    home.now += 4
    await said(home, bob, "still")
    assert await pins(home) == e(brief, one)
    home.now += 1
    await said(home, bob, "elsewhere", "den")
    assert await pins(home) == e(brief, one)
    await said(home, bob, "now")
    assert await pins(home) == e(one)


@pytest.mark.proves("N29-28", "N29-152")
async def test_an_import_pins_what_is_left_of_the_list(home: Home) -> None:
    """The newest version of an address may come after the list that names it."""
    one, there = await said(home, bob, "one"), await said(home, bob, "there", "den")
    gone = home.made(bob, 9, h="tea")
    essay = home.made(bob, 30023, ["d", "x"], h="tea")
    old = home.made(admin, 9010, *e(gone, one, there), a(essay), h="tea", at=NOON - 10**6)
    assert await home.take(old, origin=Origin.TRUSTED_IMPORT) == [STORED]
    assert await pins(home) == [*e(one), a(essay)]
    between = home.made(bob, 9, h="tea")
    assert await home.take(between, essay, origin=Origin.IMPORT) == [STORED] * 2
    await said(home, bob, "on we go")
    assert await pins(home) == [*e(one), a(essay)]


@pytest.mark.proves("N29-172")
async def test_an_address_that_no_import_brought_is_no_pin_for_long(home: Home) -> None:
    old = home.made(admin, 9010, ["a", f"30023:{stranger.pubkey}:x"], h="tea")
    assert await home.take(old, origin=Origin.TRUSTED_IMPORT) == [STORED]
    assert len(await pins(home) or []) == 1
    await said(home, bob, "on we go")
    assert await pins(home) == []


@pytest.mark.proves("N29-172")
async def test_of_what_expires_the_pins_go_and_no_other_pinned_row_is_read(home: Home) -> None:
    """Each 256 rows that expired made the writer read all that is pinned: 0.2 s for 6,400 rows;
    then the lists of all groups that pin something by its address: 18 MB for 300 groups."""
    brief = await home.do(bob, 9, ["expiration", str(NOON + 5)], h="tea")
    record = await home.do(bob, 30023, ["d", "x"], ["expiration", str(NOON + 5)], h="den")
    one, two = await said(home, bob, "one"), await said(home, bob, "two", "den")
    await home.do(admin, 9010, *e(brief, one), h="tea")
    address = ["a", f"30023:{bob.pubkey}:x"]
    await home.do(admin, 9010, address, *e(two), h="den")
    await home.do(admin, 9007, h="attic")
    other = await home.do(bob, 30023, ["d", "y"], h="attic")
    await home.do(admin, 9010, ["a", f"30023:{bob.pubkey}:y"], *e(other), h="attic")
    home.now += 6
    expiry = ExpireRows(await home.store.expired(home.now, 9), Purpose.SWEEP, asyncio.Future())
    policy = home.policy
    wanted = lookups_for(
        (),
        (expiry,),
        groups=home.groups,
        actors=policy.actors,
        policy=policy,
        relay=RELAY.pubkey,
        now=home.now,
    )
    assert wanted.ids == {brief.id, record.id}
    assert wanted.slots == {Slot(RELAY.pubkey, 39005, group) for group in ("tea", "den")}
    home.ingest.expire(expiry)
    assert await expiry.done
    assert await pins(home) == e(one)
    assert await pins(home, "den") == e(two)


@pytest.mark.proves("N29-172")
@pytest.mark.parametrize("is_first", [True, False])
async def test_nothing_of_a_key_is_pinned_in_the_batch_in_which_it_vanishes(
    home: Home, *, is_first: bool
) -> None:
    one, record = await said(home, bob, "one"), await home.do(bob, 30023, ["d", "x"], h="tea")
    other = await said(home, alice, "other")
    pinned = home.made(admin, 9010, *e(one, other), a(record), h="tea")
    both = [home.request(bob), pinned] if is_first else [pinned, home.request(bob)]
    answers = [accepted for accepted, _ in await home.take(*both)]
    assert answers == [True, not is_first], "a 9010 must name what is there"
    assert await pins(home) == (None if is_first else e(other))
