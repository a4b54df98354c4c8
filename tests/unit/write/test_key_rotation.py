"""relay/write/key_rotation.py: a relay with a new key or another `compat`. N29-73, N29-74."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from relay.facts import Origin
from relay.nostr import kinds
from relay.write import key_rotation, list_signing
from tests.cast import admin, alice, bob, carol, dave, owner, person, robot, stranger
from tests.contract.writing import stored
from tests.harness.relay_in_process import RELAY, STORED, Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

NEW = person("the relay's new key")


@pytest.fixture(params=["reference", "sqlite"])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    async with store_of(request.param) as store, Home(store, policy_of("open")) as home:
        await home.do(admin, 9007, ["name", "Tea"], ["private"], ["closed"], h="tea")
        await home.do(admin, 9007, ["parent", "tea"], h="green")
        await home.do(admin, 9000, ["p", alice.pubkey], ["p", carol.pubkey], h="tea")
        await home.do(admin, 9009, ["code", "open sesame"], h="tea")
        await home.do(bob, 9021, ["code", "open sesame"], h="tea")
        await home.do(carol, 9022, h="tea")
        said = await home.do(alice, 9, h="tea")
        await home.do(admin, 9010, ["e", said.id], h="tea")
        await home.do(admin, 9007, h="gone")
        await home.do(admin, 9008, h="gone")
        yield home


async def state(home: Home) -> list[Event]:
    rows = [row for row in await home.log() if row.kind in kinds.GROUP_STATE]
    return sorted(rows, key=lambda row: (row.d, row.kind))


@pytest.mark.proves("N29-73")
async def test_a_new_key_says_anew_what_the_groups_are(home: Home) -> None:
    before, groups = await state(home), home.groups
    home.relay = NEW
    await home.restart()
    after = await state(home)
    assert {row.pubkey for row in before} == {RELAY.pubkey}
    assert {row.pubkey for row in after} == {NEW.pubkey}
    assert [(row.kind, row.tags) for row in after] == [(row.kind, row.tags) for row in before]
    assert all(new.created_at > old.created_at for new, old in zip(after, before, strict=True))
    assert home.groups.memberships == groups.memberships
    assert home.groups.ended == groups.ended
    tea, was = home.groups.by_id["tea"], groups.by_id["tea"]
    assert (tea.flags, tea.metadata, tea.pins, tea.children) == (
        was.flags,
        was.metadata,
        was.pins,
        was.children,
    )
    assert tea.removed == was.removed == {}
    assert tea.invites == was.invites
    assert await home.rebuilt() == home.groups


@pytest.mark.proves("N29-73", "N29-60")
async def test_the_old_key_has_no_rights(home: Home) -> None:
    home.relay = NEW
    await home.restart()
    old = home.made(RELAY, 9000, ["p", carol.pubkey], h="tea")
    assert await home.take(old) == [(False, "restricted: not a member")]
    named = ["name", "Tea!"], ["private"], ["closed"], ["child", "green"]
    await home.do(admin, 9002, *named, h="tea")
    assert {row.pubkey for row in await state(home)} == {NEW.pubkey}


@pytest.mark.proves("N29-73")
async def test_a_relay_that_keeps_its_key_says_nothing(home: Home) -> None:
    for key in (RELAY, NEW):
        home.relay = key
        await home.restart()
        head = await home.store.head()
        await home.restart()
        assert await home.store.head() == head


@pytest.mark.proves("N29-73")
async def test_what_the_new_key_signed_before_holds(home: Home) -> None:
    home.relay = NEW
    await home.restart()
    late = RELAY.sign(39000, [["d", "tea"], ["name", "As it was"]], "", home.now + 50)
    await stored(home.store, late)
    before = home.groups
    await home.restart()
    assert {row.pubkey for row in await state(home)} == {NEW.pubkey}
    assert home.groups.by_id["tea"].metadata == before.by_id["tea"].metadata
    assert home.groups.by_id["tea"].flags == before.by_id["tea"].flags


@pytest.mark.proves("N29-73")
async def test_an_old_key_may_be_taken_up_again(home: Home) -> None:
    before = await state(home)
    for key in (NEW, RELAY):
        home.relay = key
        await home.restart()
    assert [(row.pubkey, row.tags) for row in await state(home)] == [
        (RELAY.pubkey, row.tags) for row in before
    ]
    assert await home.take(home.made(bob, 9, h="tea")) == [STORED]


async def test_a_used_code_admits_nobody_when_an_old_key_vanishes(home: Home) -> None:
    """The old key may be known to others. Its 9000s, which count the uses of codes, are deleted."""
    await home.do(admin, 9009, ["code", "come in all"], ["reusable"], h="tea")
    await home.do(stranger, 9021, ["code", "come in all"], h="tea")
    unused = await home.do(admin, 9009, ["code", "not yet said"], h="tea")
    members = home.groups.by_id["tea"].members
    home.relay = NEW
    await home.restart()
    await home.vanish(RELAY)
    refused = (False, "restricted: the group is closed: this code is not valid")
    assert await home.take(home.made(dave, 9021, ["code", "open sesame"], h="tea")) == [refused]
    tea = home.groups.by_id["tea"]
    assert tea.members == members
    assert tea.invites.keys() == {"come in all", "not yet said"}
    assert unused.id in {event.id for event in await home.log()}
    assert await home.rebuilt() == home.groups
    withdrawn = home.made(admin, 9009, ["code", "open sesame"], h="tea")
    assert await home.take(withdrawn) == [STORED], "another code, of the same text"


async def test_a_code_that_an_old_key_took_along_is_not_imported_again(home: Home) -> None:
    (made,) = [event for event in await home.log() if event.kind == 9009]
    home.relay = NEW
    await home.restart()
    await home.vanish(RELAY)
    await home.take(made, origin=Origin.TRUSTED_IMPORT)
    assert home.groups.by_id["tea"].invites == {}


async def test_who_made_a_group_is_known_when_an_old_key_vanishes(home: Home) -> None:
    """Of a stranger's group; as one that an agent made it would have agents by their role."""
    await home.do(stranger, 9007, h="den")
    await home.do(stranger, 9000, ["p", robot.pubkey, "admin"], h="den")
    await home.do(stranger, 9000, ["p", dave.pubkey, "agent"], h="den")
    home.relay = NEW
    await home.restart()
    await home.vanish(RELAY)
    den = home.groups.by_id["den"]
    assert den.founder == stranger.pubkey
    assert den.former_relay_keys == frozenset()
    assert await home.rebuilt() == home.groups


@pytest.mark.parametrize("puts", [stranger, bob], ids=["the maker", "an admin"])
async def test_who_made_a_group_is_unknown_when_maker_and_old_key_vanish(
    home: Home, puts: SecretKey
) -> None:
    await home.do(stranger, 9007, h="den")
    await home.do(stranger, 9000, ["p", bob.pubkey, "admin"], h="den")
    await home.do(puts, 9000, ["p", robot.pubkey, "admin"], h="den")
    await home.do(puts, 9000, ["p", dave.pubkey, "agent"], h="den")
    home.relay = NEW
    await home.restart()
    await home.vanish(stranger)
    await home.vanish(RELAY)
    den = home.groups.by_id["den"]
    assert den.founder not in (bob.pubkey, robot.pubkey, dave.pubkey)
    assert den.members.keys() == {bob.pubkey, robot.pubkey, dave.pubkey}
    assert await home.rebuilt() == home.groups


async def test_a_group_of_which_only_the_old_key_tells_is_taken_over(home: Home) -> None:
    """All of its records went with their author. The start was refused: the tables alone had it."""
    lone = home.made(alice, 9005, ["e", "7" * 64], h="den")
    assert await home.take(lone, origin=Origin.TRUSTED_IMPORT) == [STORED]
    await home.take(alice.sign(62, [["relay", "ALL_RELAYS"]], "", home.now))
    assert {row.pubkey for row in await state(home) if row.d == "den"} == {RELAY.pubkey}
    flags = home.groups.by_id["den"].flags
    home.relay = NEW
    await home.restart()
    assert home.groups.by_id["den"].flags == flags
    assert {row.pubkey for row in await state(home) if row.d == "den"} == {NEW.pubkey}


OXCHAT = '[groups]\ncompat = ["0xchat"]\n'


def tags_of(rows: list[Event], kind: int, group: str) -> list[list[str]]:
    return next(row.tags for row in rows if row.kind == kind and row.d == group)


@pytest.mark.proves("N29-74")
async def test_another_compat_signs_39000_and_39001_again_at_the_next_start(home: Home) -> None:
    """0xchat reads `public`, `open` and permissions (nostr-dart, lib/src/nips/nip_029.dart)."""
    before, groups = await state(home), home.groups
    home.policy = policy_of("open", OXCHAT)
    await home.restart()
    after = await state(home)
    assert ["public"] in tags_of(after, 39000, "green")
    assert ["open"] in tags_of(after, 39000, "green")
    assert tags_of(after, 39000, "tea") == tags_of(before, 39000, "tea")
    (_, named) = tags_of(after, 39001, "tea")
    assert named[:4] == ["p", admin.pubkey, "admin", "put-user"]
    assert {row.id for row in before if row.kind not in (39000, 39001)} <= {row.id for row in after}
    assert home.groups.by_id["green"].metadata == groups.by_id["green"].metadata
    assert await home.rebuilt() == home.groups
    head = await home.store.head()
    await home.restart()
    assert await home.store.head() == head

    home.policy = policy_of("open")
    await home.restart()
    assert [row.tags for row in await state(home)] == [row.tags for row in before]


@pytest.mark.parametrize("leaves_lists", [False, True])
async def test_lists_that_wait_at_another_relay_may_be_left_to_it(
    home: Home, monkeypatch: pytest.MonkeyPatch, *, leaves_lists: bool
) -> None:
    """A start beside it began anew with each of its writes."""
    monkeypatch.setattr(list_signing, "_BURST", 0)
    monkeypatch.setattr(list_signing.ListSigning, "begin", lambda _: None)
    await home.do(admin, 9000, ["p", dave.pubkey], h="tea")
    before = await state(home)
    await key_rotation.signed_again(
        home.store,
        home.groups,
        RELAY,
        home.policy.keep,
        home.policy.groups.compat,
        home.now,
        leaves_lists=leaves_lists,
    )
    changed = [row for row in await state(home) if row not in before]
    assert [row.kind for row in changed] == ([] if leaves_lists else [39002])


async def test_a_start_holds_few_of_the_descriptions_of_all_groups_at_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may make 100,000 groups: their states took a gigabyte at each start."""
    for number in range(60):
        await home.do(owner, 9007, ["about", "x" * 20_000], h=f"{number}")
    groups = home.groups
    monkeypatch.setattr(key_rotation, "_PAGE", 4)
    tracemalloc.start()
    policy = home.policy
    kept = await key_rotation.signed_again(
        home.store, groups, RELAY, policy.keep, policy.groups.compat, home.now
    )
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept is groups
    assert most < 1_000_000
