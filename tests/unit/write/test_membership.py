"""Members of the relay in the write pipeline: requests, the register, what the relay signs. NIP-43.

On both stores, with the policies that `rookery init` makes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.access.management import MAX_ENTRIES, ListChange, ListName
from relay.access.membership import MAX_WITHOUT_CODE, Claim, claim_change, claims_of
from relay.facts import Origin
from relay.nostr import kinds
from relay.write.commands import ManagementChange
from tests.cast import alice, bob, carol, owner, person, robot
from tests.harness.relay_in_process import NOON, RELAY, STORED, Home, policy_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

WELCOME = (True, "info: welcome to this relay")
MEMBER = (True, "duplicate: you are already a member of this relay")
LEFT = (True, "info: you have left this relay")
NO_MEMBER = (True, "duplicate: you are not a member of this relay")
NEEDS_CODE = (False, "restricted: an invite code is needed to join this relay")
BAD_CODE = (False, "restricted: this invite code is not valid")
TOO_MANY = (False, "rate-limited: too many invite codes tried, wait a minute")
NOT_KNOWN = (False, "restricted: only people known here may write; join a group first")
CODE = "a-code-that-somebody-made"


@pytest.fixture
async def home(store: Store) -> AsyncIterator[Home]:
    async with Home(store, policy_of("group")) as home:
        yield home


def join(home: Home, who: SecretKey, code: str = "", at: int | None = None) -> Event:
    """As Flotilla sends it: without the tag `-`."""
    return home.made(who, kinds.RELAY_JOIN, ["claim", code], at=at)


async def joined(home: Home, who: SecretKey, code: str = "") -> tuple[bool, str]:
    (answer,) = await home.take(join(home, who, code))
    return answer


async def left(home: Home, who: SecretKey) -> tuple[bool, str]:
    letter = home.post(home.made(who, kinds.RELAY_LEAVE, ["-"]), logins={who.pubkey})
    return await letter.answer


async def invite(home: Home, code: str = CODE, claim: Claim | None = None) -> None:
    claim = claim or Claim(owner.pubkey, NOON)
    home.ingest.manage(ManagementChange((claim_change(code, claim),), lambda _: None))
    await home.take(home.made(owner, 20001))  # answered after the commit of the change


def register(home: Home) -> set[str]:
    return set(home.state.management.of(ListName.ALLOWED_KEYS))


async def fill_register(home: Home, number: int, note: str | None = "") -> None:
    """By one change, as calls of owners would."""
    done = asyncio.get_running_loop().create_future()
    keys = [f"{key:064x}" for key in range(number)]
    changes = tuple(ListChange(ListName.ALLOWED_KEYS, key, note) for key in keys)
    home.ingest.manage(ManagementChange(changes, done.set_result))
    assert await done is None


async def listed(home: Home) -> list[str]:
    """The keys in the one 13534."""
    (event,) = await home.found(kinds=[kinds.RELAY_MEMBERS])
    assert event.pubkey == RELAY.pubkey
    assert event.tags[0] == ["-"]
    return [tag[1] for tag in event.tags[1:]]


async def announced(home: Home) -> list[tuple[int, str]]:
    """(kind, key) of each 8000 and 8001, in the order of the log."""
    events = [event for event in await home.log() if event.kind in (8000, 8001)]
    assert all(event.pubkey == RELAY.pubkey and event.has_tag("-") for event in events)
    return [(event.kind, event.tag("p") or "") for event in events]


# joining -----------------------------------------------------------------------------------------


@pytest.mark.proves("N43-03")
async def test_a_good_code_admits_its_bearer_once(home: Home) -> None:
    await invite(home)
    assert await home.take(home.made(bob, 1)) == [NOT_KNOWN]
    assert await joined(home, bob, CODE) == WELCOME
    assert await home.take(home.made(bob, 1)) == [STORED]
    assert await joined(home, bob, CODE) == MEMBER
    assert await joined(home, carol, CODE) == BAD_CODE
    assert register(home) == {bob.pubkey}
    assert not home.state.management.of(ListName.CLAIMS)


@pytest.mark.proves("N43-03")
async def test_who_is_a_member_already_is_told_so_whatever_the_code(home: Home) -> None:
    await home.do(owner, 9007, h="tea")
    await home.do(owner, 9000, ["p", alice.pubkey], h="tea")
    await home.call("allowpubkey", bob.pubkey)
    for who in (owner, robot, alice, bob):
        assert await joined(home, who) == MEMBER
        assert await joined(home, who, "no such code") == MEMBER
    assert register(home) == {bob.pubkey}


@pytest.mark.proves("N43-03")
async def test_nobody_joins_a_private_home_without_a_code(home: Home) -> None:
    assert await joined(home, bob) == NEEDS_CODE
    assert await joined(home, bob, "x" * 5000) == BAD_CODE
    assert register(home) == set()


async def test_an_open_relay_welcomes_everybody_and_registers_only_bearers_of_a_code(
    store: Store,
) -> None:
    async with Home(store, policy_of("open")) as home:
        await invite(home)
        assert await joined(home, bob) == WELCOME
        assert register(home) == set()
        assert await joined(home, bob, "wrong") == BAD_CODE
        assert await joined(home, bob, CODE) == WELCOME
        assert register(home) == {bob.pubkey}


@pytest.mark.proves("Z-14")
async def test_one_client_does_not_fill_the_register(store: Store) -> None:
    """300 a minute from one address, as of invite codes."""
    async with Home(store, policy_of("group", '[members]\njoin = "anyone"')) as home:
        people = [person(f"neighbour {number}") for number in range(301)]
        logins = [owner.pubkey]  # others have a slower pace by a rule
        answers = await home.take(*[join(home, who) for who in people], logins=logins)
        assert answers == [WELCOME] * 300 + [TOO_MANY]
        home.now += 60
        assert await joined(home, people[-1]) == WELCOME


@pytest.mark.proves("Z-14")
async def test_300_keys_a_minute_join_without_a_code(store: Store) -> None:
    """From all addresses: each batch with one of them makes the relay sign its list of members."""
    async with Home(store, policy_of("group", '[members]\njoin = "anyone"')) as home:
        people = [person(f"visitor {number}") for number in range(302)]
        letters = [home.letter_from(f"2001:db8:{number}::1") for number in range(302)]
        for who, letter in zip(people, letters, strict=True):
            home.ingest.submit(join(home, who), letter, Origin.WIRE)
        too_many = (False, "rate-limited: too many keys join this relay, wait a minute")
        answers = Counter([await letter.answer for letter in letters])
        assert answers == {WELCOME: 300, too_many: 2}, "in any order of their addresses"
        assert len(register(home)) == 300
        home.now += 60
        refused = next(n for n, letter in enumerate(letters) if letter.answers[0] == too_many)
        assert await joined(home, people[refused]) == WELCOME


@pytest.mark.proves("Z-14")
async def test_keys_that_join_without_a_code_leave_room_for_those_of_an_owner(
    store: Store,
) -> None:
    """Made-up keys filled the list of 10,000, and an owner could allow nobody."""
    async with Home(store, policy_of("group", '[members]\njoin = "anyone"')) as home:
        await fill_register(home, MAX_WITHOUT_CODE - 1)
        full = "restricted: this relay has no more room for members without an invite code"
        assert await joined(home, alice) == WELCOME
        assert await joined(home, bob) == (False, full)
        assert await joined(home, bob, "no such code") == BAD_CODE
        assert await home.call("allowpubkey", carol.pubkey) == STORED
        await invite(home)
        assert await joined(home, bob, CODE) == WELCOME
        assert await left(home, alice) == LEFT
        assert register(home) >= {bob.pubkey, carol.pubkey}


async def test_a_relay_for_anyone_who_asks_registers_everybody(store: Store) -> None:
    async with Home(store, policy_of("group", '[members]\njoin = "anyone"')) as home:
        assert await joined(home, bob) == WELCOME
        assert await joined(home, carol, "whatever") == WELCOME
        assert register(home) == {bob.pubkey, carol.pubkey}
        assert await home.take(home.made(bob, 1)) == [STORED]


@pytest.mark.proves("Z-14")
async def test_codes_are_used_up_expire_and_fall_with_their_maker(home: Home) -> None:
    await invite(home, "twice", Claim(owner.pubkey, NOON, left=2))
    assert await joined(home, alice, "twice") == WELCOME
    assert await joined(home, bob, "twice") == WELCOME
    assert await joined(home, carol, "twice") == BAD_CODE
    await invite(home, "for a minute", Claim(owner.pubkey, NOON, until=NOON + 60, left=None))
    await invite(home, "of the relay", Claim(RELAY.pubkey, NOON))
    await invite(home, "of a member", Claim(alice.pubkey, NOON))
    assert await joined(home, carol, "of a member") == BAD_CODE
    home.now += 60
    assert await joined(home, carol, "for a minute") == BAD_CODE
    assert await joined(home, carol, "of the relay") == WELCOME


@pytest.mark.parametrize("end", ["unallowpubkey", "banpubkey"])
async def test_who_was_removed_does_not_join_again_by_a_code_from_before(
    home: Home, end: str
) -> None:
    await invite(home, "many", Claim(owner.pubkey, NOON, left=None))
    await invite(home, "one", Claim(owner.pubkey, NOON))
    await home.call("allowpubkey", alice.pubkey)
    assert await joined(home, bob, "many") == WELCOME
    home.now += 60
    for who in (alice, bob):
        await home.call(end, who.pubkey)
        if end == "banpubkey":
            await home.call("unbanpubkey", who.pubkey)
            await home.call("banpubkey", who.pubkey)
            await home.call("unbanpubkey", who.pubkey)
    await home.restart()
    home.now += 60
    for who in (alice, bob):
        for code in ("many", "one"):
            assert await joined(home, who, code) == BAD_CODE
        await home.vanish(who)
        home.now += 60
        assert await joined(home, who, "many") == BAD_CODE, "nor after a request to vanish"
    assert await joined(home, carol, "many") == WELCOME, "others do"
    await invite(home, "new", Claim(owner.pubkey, home.now))
    assert await joined(home, bob, "new") == WELCOME
    await home.call("allowpubkey", alice.pubkey)
    assert register(home) == {alice.pubkey, bob.pubkey, carol.pubkey}
    assert await left(home, alice) == LEFT
    assert await left(home, bob) == LEFT
    for who in (alice, bob):
        assert await joined(home, who, "many") == WELCOME, "who leaves may come back"


@pytest.mark.parametrize("end", ["unallowpubkey", "banpubkey"])
async def test_nor_by_a_code_that_was_made_while_the_clock_was_ahead(home: Home, end: str) -> None:
    ahead = NOON + 7200
    await invite(home, "many", Claim(owner.pubkey, ahead, ahead + 60, left=None))
    await invite(home, "of bob", Claim(bob.pubkey, ahead, left=None))
    assert await joined(home, bob, "many") == WELCOME
    await home.call(end, bob.pubkey)
    if end == "banpubkey":
        await home.call("unbanpubkey", bob.pubkey)
    claims = dict(claims_of(home.state.management))
    assert claims["many"] == Claim(owner.pubkey, NOON, ahead + 60, left=None)
    assert ("of bob" in claims) is (end == "unallowpubkey"), "those of a banned key are withdrawn"
    await home.restart()
    for at in (NOON, NOON + 1, ahead, ahead + 1):
        home.now = at
        assert await joined(home, bob, "many") == BAD_CODE
    assert await joined(home, carol, "many") == WELCOME, "others do"
    home.now = NOON + 1
    await invite(home, "new", Claim(owner.pubkey, home.now))
    assert await joined(home, bob, "new") == WELCOME


async def test_of_removals_the_newest_10000_are_kept(home: Home) -> None:
    await invite(home, "many", Claim(owner.pubkey, NOON, left=None))
    for who in (alice, bob):
        await home.call("allowpubkey", who.pubkey)
        home.now += 1
        await home.call("unallowpubkey", who.pubkey)
    await fill_register(home, MAX_ENTRIES - 1)
    home.now += 1
    await fill_register(home, MAX_ENTRIES - 1, note=None)
    assert not register(home)
    assert len(home.state.management.of(ListName.MEMBERS_SINCE)) == MAX_ENTRIES
    assert await joined(home, alice, "many") == WELCOME, "forgotten"
    assert await joined(home, bob, "many") == BAD_CODE


@pytest.mark.proves("Z-14", "N43-03")
async def test_the_31st_code_in_a_minute_is_not_looked_at(home: Home) -> None:
    await invite(home)
    for number in range(30):
        assert await joined(home, bob, f"guess {number}") == BAD_CODE
    assert await joined(home, bob, CODE) == TOO_MANY
    assert await joined(home, bob) == NEEDS_CODE
    assert await joined(home, carol, CODE) == WELCOME
    home.now += 60
    assert await joined(home, bob, CODE) == BAD_CODE


@pytest.mark.proves("N43-03")
async def test_a_request_to_join_is_good_for_a_few_minutes(home: Home) -> None:
    await invite(home)
    early, late = join(home, bob, CODE, NOON - 601), join(home, bob, CODE, NOON + 601)
    assert await home.take(early, late) == [
        (False, "invalid: created_at: 601 s in the past, at most 600 s allowed"),
        (False, "invalid: created_at: 601 s in the future, at most 600 s allowed"),
    ]
    assert await home.take(join(home, bob, CODE, NOON - 600)) == [WELCOME]


async def test_a_banned_key_does_not_join(home: Home) -> None:
    await invite(home)
    await home.call("banpubkey", bob.pubkey)
    assert await joined(home, bob, CODE) == (False, "blocked: this key is banned here")
    assert home.state.management.of(ListName.CLAIMS)


@pytest.mark.proves("N43-06")
@pytest.mark.parametrize("origin", [Origin.IMPORT, Origin.TRUSTED_IMPORT])
async def test_a_request_is_neither_stored_nor_passed_on_nor_imported(
    home: Home, origin: Origin
) -> None:
    await invite(home)
    request = join(home, bob, CODE)
    (imported,) = await home.take(request, origin=origin)
    assert imported == (False, "restricted: kind: a request to join or leave is not imported")
    assert await home.take(request) == [WELCOME]
    assert await left(home, bob) == LEFT
    requests = {kinds.RELAY_JOIN, kinds.RELAY_LEAVE}
    assert not [event for event in await home.log() if event.kind in requests]
    assert not [event for event in home.live.said if event.kind in requests]


@pytest.mark.parametrize("end", ["ban", "vanish"])
async def test_codes_of_a_banned_or_vanished_key_are_gone(home: Home, end: str) -> None:
    await invite(home, CODE, Claim(bob.pubkey, NOON, left=None))
    if end == "ban":
        await home.call("banpubkey", bob.pubkey)
    else:
        await home.vanish(bob)
    assert not home.state.management.of(ListName.CLAIMS)
    assert not (await home.store.management()).of(ListName.CLAIMS)


# leaving -----------------------------------------------------------------------------------------


@pytest.mark.proves("N43-05")
async def test_who_leaves_is_out_of_the_register_and_writes_no_more(home: Home) -> None:
    await home.call("allowpubkey", bob.pubkey)
    assert await left(home, bob) == LEFT
    assert await left(home, bob) == NO_MEMBER
    assert register(home) == set()
    assert await home.take(home.made(bob, 1)) == [NOT_KNOWN]


@pytest.mark.proves("N43-05")
async def test_a_request_to_leave_is_its_authors_own(home: Home) -> None:
    await home.call("allowpubkey", bob.pubkey)
    open_request = home.made(bob, kinds.RELAY_LEAVE)
    protected = home.made(bob, kinds.RELAY_LEAVE, ["-"])
    for request in (open_request, protected):
        assert await home.take(request) == [
            (False, "auth-required: this event may be published by its author only")
        ]
        other = await home.post(request, logins={carol.pubkey}).answer
        assert other == (False, "restricted: this event may be published by its author only")
    assert register(home) == {bob.pubkey}
    # As Flotilla sends it: without the tag `-`.
    assert await home.post(open_request, logins={bob.pubkey}).answer == LEFT
    assert register(home) == set()


async def test_owners_agents_and_members_of_groups_do_not_leave_this_way(home: Home) -> None:
    await home.do(owner, 9007, h="tea")
    await home.do(owner, 9000, ["p", alice.pubkey], h="tea")
    for who in (owner, robot, alice):
        accepted, text = await left(home, who)
        assert not accepted
        assert text.startswith("restricted: your access comes from a group")


@pytest.mark.proves("N43-05")
async def test_members_leave_at_a_pace_by_address(home: Home) -> None:
    """Members who left and joined again held up every write, logged in on few connections."""
    people = [person(f"visitor {number}") for number in range(121)]
    changes = tuple(ListChange(ListName.ALLOWED_KEYS, who.pubkey, "") for who in people)
    home.ingest.manage(ManagementChange(changes, lambda _: None))
    answers = []
    for who in people:
        letter = home.letter_from("2001:db8::7")
        letter.authenticated = frozenset(each.pubkey for each in people)
        home.ingest.submit(home.made(who, kinds.RELAY_LEAVE), letter, Origin.WIRE)
        answers.append(letter)
    refused = [await letter.answer for letter in answers]
    for _ in range(120):
        refused.remove(LEFT)
    assert refused == [(False, "rate-limited: too many events; try again in 1 s")]


# what the relay signs ----------------------------------------------------------------------------


@pytest.mark.proves("N43-01", "N43-02")
async def test_the_list_of_members_follows_every_change(home: Home) -> None:
    assert await home.found(kinds=[13534]) == []
    staff = [owner.pubkey, robot.pubkey]
    await invite(home)
    await joined(home, alice, CODE)
    assert await listed(home) == [*staff, alice.pubkey]
    await home.call("allowpubkey", bob.pubkey)
    await home.call("allowpubkey", bob.pubkey, "another reason")
    assert await listed(home) == [*staff, *sorted([alice.pubkey, bob.pubkey])]
    await left(home, alice)
    await home.call("unallowpubkey", bob.pubkey)
    assert await listed(home) == staff
    assert await announced(home) == [
        (8000, alice.pubkey),
        (8000, bob.pubkey),
        (8001, alice.pubkey),
        (8001, bob.pubkey),
    ]


@pytest.mark.proves("N43-02", "N86-11")
async def test_a_ban_ends_membership_and_its_end_does_not_restore_it(home: Home) -> None:
    await home.call("allowpubkey", bob.pubkey)
    await home.call("banpubkey", bob.pubkey)
    assert register(home) == set()
    assert await listed(home) == [owner.pubkey, robot.pubkey]
    await home.call("unbanpubkey", bob.pubkey)
    assert await home.take(home.made(bob, 1)) == [NOT_KNOWN]
    await home.call("banpubkey", robot.pubkey)
    assert await listed(home) == [owner.pubkey]
    await home.call("unbanpubkey", robot.pubkey)
    assert await listed(home) == [owner.pubkey, robot.pubkey]
    assert await announced(home) == [
        (8000, bob.pubkey),
        (8001, bob.pubkey),
        (8001, robot.pubkey),
        (8000, robot.pubkey),
    ]


@pytest.mark.proves("N43-02", "N62-07")
async def test_a_key_that_vanishes_is_no_member(home: Home) -> None:
    await home.call("allowpubkey", bob.pubkey)
    await home.vanish(bob)
    assert register(home) == set()
    assert await listed(home) == [owner.pubkey, robot.pubkey]
    assert (8001, bob.pubkey) in await announced(home)
    assert await home.take(join(home, bob, at=NOON)) == [(False, "blocked: deleted")]


@pytest.mark.proves("N62-07")
async def test_an_old_request_to_vanish_does_not_end_a_later_membership(home: Home) -> None:
    await home.call("allowpubkey", bob.pubkey)
    await home.vanish(bob, at=NOON - 3600)
    assert register(home) == {bob.pubkey}


@pytest.mark.proves("N43-02")
async def test_each_list_is_newer_than_the_one_before(home: Home) -> None:
    times = []
    for method in ("allowpubkey", "unallowpubkey", "allowpubkey"):
        await home.call(method, bob.pubkey)
        (event,) = await home.found(kinds=[13534])
        times.append(event.created_at)
    assert times == [NOON, NOON + 1, NOON + 2]


async def test_changes_of_one_batch_come_to_one_list_and_all_announcements(home: Home) -> None:
    answers = home.calls(
        ("allowpubkey", bob.pubkey), ("unallowpubkey", bob.pubkey), ("allowpubkey", bob.pubkey)
    )
    assert [await answer for answer in answers] == [STORED] * 3
    assert [kind for kind, _ in await announced(home)] == [8000, 8001, 8000]
    times = [event.created_at for event in await home.log() if event.kind in (8000, 8001)]
    assert times == sorted(set(times))
    assert len([event for event in home.live.said if event.kind == 13534]) == 1


@pytest.mark.proves("N43-06")
@pytest.mark.parametrize("kind", [8000, 8001, 13534, 33534, 28935])
async def test_nobody_else_signs_what_the_relay_says_of_its_members(home: Home, kind: int) -> None:
    await home.call("allowpubkey", bob.pubkey)
    before = await home.log()
    tags = [["-"], ["d", "king"], ["p", carol.pubkey], ["member", carol.pubkey]]
    text = "restricted: kind: only a relay says who its members are"
    for who in (bob, owner, robot):
        forged = home.made(who, kind, *tags)
        assert await home.post(forged, logins={who.pubkey}).answer == (False, text)
        assert await home.take(forged, origin=Origin.TRUSTED_IMPORT) == [(False, text)]
    own = home.made(RELAY, kind, *tags)
    accepted, why = await home.post(own, logins={RELAY.pubkey}).answer
    assert not accepted
    assert why.startswith("restricted: ")
    again = (True, "duplicate: the relay signs this itself")
    assert await home.take(own, origin=Origin.TRUSTED_IMPORT) == [again]
    assert await home.log() == before


async def test_the_lists_themselves_cannot_be_banned(home: Home) -> None:
    await home.call("allowpubkey", bob.pubkey)
    (event,) = await home.found(kinds=[13534])
    assert await home.call("banevent", event.id) == (
        False,
        "restricted: the relay's lists of members and roles cannot be banned",
    )


# roles -------------------------------------------------------------------------------------------


async def roles(home: Home) -> dict[str, list[list[str]]]:
    """Id → the other tags of each 33534."""
    found = await home.found(kinds=[kinds.RELAY_ROLE])
    assert all(event.tags[0] == ["-"] and event.pubkey == RELAY.pubkey for event in found)
    return {event.d: event.tags[2:] for event in found}


@pytest.mark.proves("N86-17", "N86-18", "N86-19", "N43-01")
async def test_a_role_is_published_edited_and_deleted(home: Home) -> None:
    assert await home.call("createrole", "king", "King", "ruler of the relay", 37, 1) == STORED
    assert await roles(home) == {
        "king": [
            ["label", "King"],
            ["description", "ruler of the relay"],
            ["color", "37"],
            ["order", "1"],
        ]
    }
    assert await home.call("createrole", "king") == (
        False,
        "restricted: there is a role with this id: call editrole",
    )
    assert await home.call("editrole", "king", "Queen") == STORED
    assert await roles(home) == {"king": [["label", "Queen"]]}
    assert await home.call("deleterole", "king") == STORED
    assert await roles(home) == {}
    for method in ("editrole", "deleterole"):
        missing = (False, "restricted: there is no role with this id")
        assert await home.call(method, "king") == missing


@pytest.mark.proves("N86-20", "N43-01")
async def test_the_list_of_members_names_their_roles(home: Home) -> None:
    async def held() -> dict[str, list[str]]:
        (event,) = await home.found(kinds=[kinds.RELAY_MEMBERS])
        return {tag[1]: tag[2:] for tag in event.tags[1:] if tag[2:]}

    await home.call("createrole", "king")
    await home.call("createrole", "cook")
    assert await home.call("assignrole", owner.pubkey, "king") == STORED
    assert await held() == {owner.pubkey: ["king"]}
    assert await home.call("assignrole", bob.pubkey, "king") == (
        False,
        "restricted: this key is not a member of this relay: call allowpubkey first",
    )
    await home.call("allowpubkey", bob.pubkey)
    assert await home.call("assignrole", bob.pubkey, "jester") == (
        False,
        "restricted: there is no role with this id",
    )
    await home.call("assignrole", bob.pubkey, "king")
    await home.call("assignrole", bob.pubkey, "cook")
    assert (await held())[bob.pubkey] == ["cook", "king"]
    await home.call("unassignrole", owner.pubkey, "king")
    await home.call("deleterole", "cook")
    assert await held() == {bob.pubkey: ["king"]}
    await home.call("unallowpubkey", bob.pubkey)
    await home.call("allowpubkey", bob.pubkey)
    assert await held() == {}


# restarts ----------------------------------------------------------------------------------------


async def test_register_codes_and_list_survive_a_restart(home: Home) -> None:
    await invite(home, "twice", Claim(owner.pubkey, NOON, left=2))
    await joined(home, alice, "twice")
    await home.restart()
    assert register(home) == {alice.pubkey}
    assert await listed(home) == [owner.pubkey, robot.pubkey, alice.pubkey]
    assert await joined(home, bob, "twice") == WELCOME
    assert await joined(home, carol, "twice") == BAD_CODE


@pytest.mark.proves("N43-01")
async def test_another_key_of_the_relay_signs_the_lists_again(store: Store) -> None:
    home = Home(store, policy_of("group"))
    async with home:
        await home.call("allowpubkey", bob.pubkey)
        await home.call("createrole", "king", "King")
    new = person("another relay key")
    home.relay = new
    async with home:
        for kind in (kinds.RELAY_MEMBERS, kinds.RELAY_ROLE):
            (event,) = await home.found(kinds=[kind])
            assert event.pubkey == new.pubkey
        await home.call("allowpubkey", carol.pubkey)
        (event,) = await home.found(kinds=[kinds.RELAY_MEMBERS])
        assert ["member", carol.pubkey] in event.tags


@pytest.mark.proves("N43-01")
async def test_the_list_follows_the_owners_of_the_files_when_it_is_asked_to(store: Store) -> None:
    home = Home(store, policy_of("group"))
    nothing = ManagementChange((), lambda _: None)
    async with home:
        home.ingest.manage(nothing)
        await home.take(home.made(owner, 20001))
        assert await home.log() == []
        await home.call("allowpubkey", bob.pubkey)
        actors = home.policy.actors
        home.state.enforce(home.policy.with_actors(replace(actors, agents=frozenset())))
        home.ingest.manage(nothing)
        await home.take(home.made(owner, 20001))
        assert await listed(home) == [owner.pubkey, bob.pubkey]
        before = await home.log()
        home.ingest.manage(nothing)
        await home.take(home.made(owner, 20001))
        assert await home.log() == before
