"""What a batch sends live: nobody gets what was gone when he was given the right to read.

Each event is decided as the one before it left the world, but rows are delivered with the rights
that hold after the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.facts import Origin
from relay.nostr.filters import Filter
from relay.read.fanout import Subscription
from tests.cast import admin, alice, bob
from tests.harness.client_in_memory import Client
from tests.harness.relay_in_process import STORED, Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from relay.nostr.event import Event

SECRET = "the key is under the mat"


@pytest.fixture(params=["reference", "sqlite"])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    """With a hidden group "den", of which alice is a member."""
    async with store_of(request.param) as store, Home(store, policy_of("open")) as home:
        await home.do(admin, 9007, ["hidden"], ["private"], h="den")
        await home.do(admin, 9000, ["p", alice.pubkey], h="den")
        yield home


def reads(home: Home, client: Client) -> Client:
    """Everything, live."""
    subscription = Subscription("s", (Filter(),), client, client.outbox, 0)
    subscription.begin_backlog(100)
    home.live.open(subscription)
    subscription.end_backlog()
    return client


def deleted(home: Home) -> list[Event]:
    said = home.made(alice, 9, h="den", content=SECRET)
    return [said, home.made(alice, 5, ["e", said.id])]


def removed(home: Home) -> list[Event]:
    said = home.made(alice, 9, h="den", content=SECRET)
    return [said, home.made(admin, 9005, ["e", said.id], h="den")]


def replaced(home: Home) -> list[Event]:
    old = home.made(alice, 30023, ["d", "key"], h="den", content=SECRET)
    home.now += 1
    return [old, home.made(alice, 30023, ["d", "key"], h="den", content="in a safe place")]


def passed_on(home: Home) -> list[Event]:
    return [home.made(alice, 20001, h="den", content=SECRET)]


@pytest.mark.parametrize("widened", ["by a new member", "for everybody"])
@pytest.mark.parametrize("gone", [deleted, removed, replaced, passed_on])
async def test_what_was_gone_before_one_could_read_it_is_not_sent(
    home: Home, gone: Callable[[Home], list[Event]], widened: str
) -> None:
    before = reads(home, Client(alice))
    later = reads(home, Client(bob) if widened == "by a new member" else Client())
    events = gone(home)
    if widened == "by a new member":
        events.append(home.made(admin, 9000, ["p", bob.pubkey], h="den"))
    else:
        events.append(home.made(admin, 9002, ["public"], ["visible"], h="den"))
    events.append(home.made(alice, 9, h="den", content="welcome"))
    assert await home.take(*events) == [STORED] * len(events)
    said = later.contents()
    assert SECRET not in said
    assert "welcome" in said
    assert (SECRET in before.contents()) is (gone is passed_on)


async def test_what_was_passed_on_while_one_was_out_is_not_sent(home: Home) -> None:
    reader = reads(home, Client(alice))
    out = home.made(admin, 9001, ["p", alice.pubkey], h="den")
    said = home.made(admin, 20001, h="den", content=SECRET)
    back = home.made(admin, 9000, ["p", alice.pubkey], h="den")
    assert await home.take(out, said, back) == [STORED] * 3
    assert SECRET not in reader.contents()


@pytest.mark.parametrize("origin", [Origin.IMPORT, Origin.WIRE])
async def test_a_comment_that_comes_before_what_it_names_is_sent_as_one_of_its_group(
    home: Home, origin: Origin
) -> None:
    """An import may have it first, or a client sends it while a copy of the group is imported."""
    member, anyone = reads(home, Client(alice)), reads(home, Client())
    said = home.made(alice, 9, h="den", content="tea?")
    comment = home.made(alice, 1111, ["e", said.id], content=SECRET)
    answers = [home.post(comment, origin), home.post(said, Origin.IMPORT)]
    assert [await each.answer for each in answers] == [STORED] * 2
    assert SECRET not in anyone.contents()
    assert SECRET in member.contents()


async def test_an_event_that_was_removed_and_sent_again_keeps_nothing_back(home: Home) -> None:
    """It was delivered in its first place with its later seq, so that what came between was taken
    for sent."""
    client = reads(home, Client())
    older = home.made(bob, 0, content="older")
    home.now += 1
    newer = home.made(bob, 0, content="newer")
    withdrawn = home.made(bob, 5, ["e", newer.id])
    between = home.made(bob, 1, content="between")
    opened = home.made(admin, 9000, ["p", bob.pubkey], h="den")
    events = [older, newer, withdrawn, between, older, opened]
    assert await home.take(*events) == [STORED] * 6
    assert client.contents()[:3] == ["", "between", "older"]
