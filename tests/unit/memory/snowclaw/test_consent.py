"""relay/memory/snowclaw/consent.py: in which groups an agent listens, whatever a relay sends."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from relay.memory.snowclaw.consent import Consent
from tests.cast import bob, owner, robot, rover

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

AT = 1_700_000_000


def event(kind: int, by: SecretKey, at: int = AT, whom: SecretKey = robot) -> Event:
    tags = [["h", "tea"]] if kind in (9021, 9022, 9008) else [["h", "tea"], ["p", whom.pubkey]]
    return by.sign(kind, tags, "", at)


def listens(*events: Event, named: list[str] | None = None) -> bool:
    consent = Consent(robot.pubkey, [owner.pubkey], named)
    for each in events:
        consent.apply(each)
    assert consent.listens_to("tea") == ("tea" in consent.groups())
    return consent.listens_to("tea")


@pytest.mark.proves("G-23", "S-28")
@pytest.mark.parametrize(
    ("events", "is_followed"),
    [
        ([], False),
        ([event(9000, owner)], True),
        ([event(9000, robot)], True),
        ([event(9021, robot)], True),
        ([event(9000, bob)], False),
        ([event(9000, rover)], False),
        ([event(9021, bob)], False),
        ([event(9021, owner)], False),
        ([event(9000, owner, whom=bob)], False),
        ([event(39002, bob)], False),
        ([event(9007, owner)], False),
        ([event(9000, owner), event(9001, owner, AT + 1)], False),
        ([event(9000, owner), event(9001, owner)], False),
        ([event(9000, owner), event(9022, robot, AT + 1)], False),
        ([event(9000, owner), event(9008, bob, AT + 1)], False),
        ([event(9008, bob), event(9000, owner, AT + 1)], True),
        ([event(9022, robot), event(9000, owner, AT + 1)], True),
        ([event(9000, owner), event(9001, bob, AT + 1)], True),
        ([event(9000, owner), event(9022, bob, AT + 1)], True),
    ],
)
def test_owners_and_the_agent_decide_in_any_order(events: list[Event], is_followed: bool) -> None:  # noqa: FBT001
    for order in permutations(events):
        assert listens(*order) == is_followed


@pytest.mark.proves("S-28")
def test_a_group_that_ended_is_another_one_when_it_comes_back() -> None:
    assert not listens(event(9000, owner), event(9008, bob, AT + 1), event(9000, bob, AT + 2))
    assert listens(event(9000, owner), event(9008, bob, AT + 1), event(9000, owner, AT + 2))


def test_named_groups_need_nothing_and_nothing_adds_to_them() -> None:
    assert listens(event(9001, owner), named=["tea"])
    assert not listens(event(9000, owner), named=["den"])
    assert Consent(robot.pubkey, [owner.pubkey], ["tea"]).filters(AT) == []
    assert not Consent(robot.pubkey, [owner.pubkey], []).listens_to(None)


@pytest.mark.proves("G-23", "S-28")
@pytest.mark.parametrize(
    ("known", "found", "is_followed"),
    [
        ([event(9000, owner)], [event(9000, owner)], True),
        ([event(9000, owner)], [], False),
        ([], [event(9000, owner)], True),
        ([event(9000, owner), event(9008, bob, AT + 1)], [event(9000, owner)], False),
        ([event(9000, owner), event(9008, bob, AT + 1)], [event(9000, owner, AT + 2)], True),
    ],
)
def test_after_an_absence_what_the_relay_has_counts_and_what_had_ended(
    known: list[Event], found: list[Event], *, is_followed: bool
) -> None:
    consent = Consent(robot.pubkey, [owner.pubkey], None)
    for each in known:
        consent.apply(each)
    fresh = consent.restarted()
    for each in found:
        fresh.apply(each)
    consent.become(fresh)
    assert consent.listens_to("tea") is is_followed
