"""Invite codes that the relay makes for those who may invite (NIP-43)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from relay.access.management import MAX_CLAIMS, ListName
from relay.access.membership import Claim, claim_change, claims_of
from relay.access.visibility import ANONYMOUS, Viewer
from relay.errors import Refused
from relay.nostr import kinds
from relay.write.commands import ManagementChange
from relay.write.invitations import Invitations
from tests.cast import alice, bob, carol, owner, robot
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import NOON, RELAY, Home, policy_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.keys import SecretKey

WELCOME = (True, "info: welcome to this relay")
BAD_CODE = (False, "restricted: this invite code is not valid")
MEMBERS = '[members]\ninvite = ["owner", "known"]\nclaim_uses = 2\nclaim_days = 1\n'


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    async with Home(ReferenceStore(), policy_of("group")) as home:
        yield home


@pytest.fixture
async def generous() -> AsyncIterator[Home]:
    """Everybody known invites two keys within a day."""
    async with Home(ReferenceStore(), policy_of("group", MEMBERS)) as home:
        yield home


def invitations(home: Home) -> Invitations:
    return Invitations.of(home.state, home.ingest, RELAY, lambda: home.now)


def viewer(*keys: SecretKey) -> Viewer:
    return Viewer(frozenset(key.pubkey for key in keys))


async def code_for(invites: Invitations, who: SecretKey) -> str:
    event = await invites.event_for(viewer(who))
    assert event is not None
    assert (event.pubkey, event.kind) == (RELAY.pubkey, kinds.RELAY_INVITE)
    assert event.tags[0] == ["-"]
    return event.tag("claim") or ""


async def joined(home: Home, who: SecretKey, code: str) -> tuple[bool, str]:
    (answer,) = await home.take(home.made(who, kinds.RELAY_JOIN, ["claim", code]))
    return answer


@pytest.mark.proves("N43-04")
async def test_who_asks_again_gets_the_same_code_until_it_is_used(home: Home) -> None:
    invites = invitations(home)
    first = await code_for(invites, owner)
    assert await code_for(invites, owner) == first
    assert await joined(home, bob, first) == WELCOME
    second = await code_for(invites, owner)
    assert second != first
    assert await joined(home, carol, first) == BAD_CODE
    assert await joined(home, carol, second) == WELCOME


@pytest.mark.proves("N43-04")
async def test_two_questions_at_once_make_one_code(home: Home) -> None:
    invites = invitations(home)
    both = await asyncio.gather(code_for(invites, owner), code_for(invites, owner))
    assert both[0] == both[1]
    assert len(home.state.management.of(ListName.CLAIMS)) == 1


@pytest.mark.proves("N43-04")
async def test_only_those_get_one_whom_the_policy_names(home: Home, generous: Home) -> None:
    await home.call("allowpubkey", bob.pubkey)
    await generous.call("allowpubkey", bob.pubkey)
    for who in (ANONYMOUS, viewer(alice), viewer(bob), viewer(robot)):
        assert not invitations(home).may_ask(who)
        assert await invitations(home).event_for(who) is None
    assert not home.state.management.of(ListName.CLAIMS)
    assert invitations(home).may_ask(viewer(alice, owner))
    invites = invitations(generous)
    assert await code_for(invites, bob) != await code_for(invites, owner)
    await generous.call("banpubkey", bob.pubkey)
    assert not invites.may_ask(viewer(bob, owner))


@pytest.mark.proves("Z-14")
async def test_a_code_has_the_uses_and_the_days_of_the_policy(generous: Home) -> None:
    invites = invitations(generous)
    code = await code_for(invites, owner)
    assert await joined(generous, alice, code) == WELCOME
    generous.now += 86_399
    assert await code_for(invites, owner) == code
    generous.now += 1
    assert await joined(generous, bob, code) == BAD_CODE
    later = await code_for(invites, owner)
    assert [known for known, _ in claims_of(generous.state.management)] == [later]


async def test_a_code_falls_with_the_rights_of_its_maker(generous: Home) -> None:
    await generous.call("allowpubkey", alice.pubkey)
    code = await code_for(invitations(generous), alice)
    await generous.call("unallowpubkey", alice.pubkey)
    assert await joined(generous, bob, code) == BAD_CODE
    assert await invitations(generous).event_for(viewer(alice)) is None


async def test_codes_survive_a_restart(home: Home) -> None:
    code = await code_for(invitations(home), owner)
    await home.restart()
    assert await code_for(invitations(home), owner) == code


async def test_too_many_open_codes_are_refused_and_expired_ones_make_room(home: Home) -> None:
    full = tuple(
        claim_change(f"code {number}", Claim(owner.pubkey, NOON, until=NOON + 60))
        for number in range(MAX_CLAIMS)
    )
    home.ingest.manage(ManagementChange(full, lambda _: None))
    with pytest.raises(Refused, match="rate-limited: too many invite codes are open"):
        await code_for(invitations(home), owner)
    home.now += 60
    code = await code_for(invitations(home), owner)
    assert [known for known, _ in claims_of(home.state.management)] == [code]
