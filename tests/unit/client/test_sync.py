"""relay/client/sync.py: synchronising two relays."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, Incomparable, PublishRefused, QueryClosed, Unanswered, sync_order
from relay.client import sync as syncing
from relay.client.sync import Direction, Moderation, RelaySide, Sync, Tally, halves
from relay.nostr.filters import Filter
from relay.nostr.kinds import MARMOT
from tests.cast import alice, bob, carol
from tests.harness.fake_relay import FakeRelay, items, refusing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from relay.client import Timeouts
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.harness.fake_relay import Visitor

NOW = 1_700_000_000
NOTES = [alice.sign(1, [], f"note {number}", NOW + number) for number in range(600)]


@pytest.fixture
async def ours() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as relay:
        yield relay


EVERYTHING = Filter()


async def synced(
    ours: FakeRelay,
    theirs: FakeRelay,
    timeouts: Timeouts,
    *,
    filter_: Filter = EVERYTHING,
    direction: Direction | None = Direction.BOTH,
    moderation: Moderation = Moderation.LEFT,
    foreign_h: Collection[int] = MARMOT,
) -> Tally:
    async with (
        Client(ours.url, timeouts=timeouts) as here,
        Client(theirs.url, timeouts=timeouts) as there,
    ):
        side = RelaySide(here, here)
        sync = Sync(
            side,
            there,
            filter_,
            now=NOW + 1000,
            note=lambda _: None,
            moderation=moderation,
            foreign_h=foreign_h,
        )
        await sync.compare()
        if direction is not None:
            await sync.move(direction)
        return sync.tally


def ids(relay: FakeRelay) -> set[str]:
    return {event.id for event in relay.events}


def all_ids(events: Sequence[Event]) -> set[str]:
    return {event.id for event in events}


# What moves


async def test_both_sides_receive_missing_events(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    ours.events += NOTES[:400]
    fake.events += NOTES[300:]
    tally = await synced(ours, fake, timeouts)
    assert ids(ours) == ids(fake) == all_ids(NOTES)
    assert (tally.compared, tally.need, tally.have) == (400, 200, 300)
    assert (tally.received, tally.sent) == (200, 300)
    # Only what differs was on the way, and what was sent went in the order of time.
    assert [frame[1]["id"] for frame in fake.verbs("EVENT")] == [note.id for note in NOTES[:300]]
    assert sum(len(frame[2]["ids"]) for frame in fake.verbs("REQ")) == 200


async def test_a_second_run_transfers_nothing(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    ours.events += NOTES[:40]
    fake.events += NOTES[10:50]
    await synced(ours, fake, timeouts)
    ours.seen.clear()
    fake.seen.clear()
    tally = await synced(ours, fake, timeouts)
    assert (tally.need, tally.have, tally.rounds) == (0, 0, 1)
    assert not ours.verbs("EVENT")
    assert not fake.verbs("EVENT")
    assert not fake.verbs("REQ")


@pytest.mark.parametrize("direction", [Direction.DOWN, Direction.UP, None])
async def test_one_direction_transfers_nothing_in_the_other(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, direction: Direction | None
) -> None:
    ours.events += NOTES[:40]
    fake.events += NOTES[10:50]
    tally = await synced(ours, fake, timeouts, direction=direction)
    assert (tally.need, tally.have) == (10, 10)
    assert len(ours.events) == (50 if direction is Direction.DOWN else 40)
    assert len(fake.events) == (50 if direction is Direction.UP else 40)


async def test_events_outside_the_filter_are_not_transferred(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    reaction = bob.sign(7, [], "+", NOW)
    ours.events += [*NOTES[:5], reaction]
    await synced(ours, fake, timeouts, filter_=Filter(kinds=frozenset({7})))
    assert fake.events == [reaction]


async def test_relay_signed_events_are_not_transferred(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    ours.events += [alice.sign(39000, [["d", "tea"]], "", NOW), NOTES[0]]
    signed = [*range(39000, 39006), 8000, 8001, 13534, 33534]
    fake.events += [bob.sign(kind, [["d", "tea"]], "", NOW) for kind in signed]
    fake.events += [NOTES[1]]
    tally = await synced(ours, fake, timeouts)
    assert (tally.received, tally.sent, tally.relay_signed) == (1, 1, len(signed))
    assert len(ours.events) == 3
    assert len(fake.events) == len(signed) + 2
    asked = [frame[2]["ids"] for frame in fake.verbs("REQ")]
    assert asked == [[NOTES[1].id]]


RECORDS = [alice.sign(kind, [["h", "tea"]], "", NOW) for kind in (9000, 9001, 9007, 9008, 9021)]


@pytest.mark.parametrize("kinds", [None, {1, 9008}])
async def test_group_records_are_taken_when_asked_for_only(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, kinds: set[int] | None
) -> None:
    filter_ = Filter(kinds=None if kinds is None else frozenset(kinds))
    wanted = [record for record in RECORDS if kinds is None or record.kind in kinds]
    ours.events += [alice.sign(9002, [["h", "den"]], "", NOW)]
    fake.events += [*RECORDS, NOTES[0]]
    tally = await synced(ours, fake, timeouts, filter_=filter_)
    assert (tally.received, tally.moderation) == (1, len(wanted))
    asked = [frame[2]["ids"] for frame in fake.verbs("REQ") if "ids" in frame[2]]
    assert asked == [[NOTES[0].id]]
    tally = await synced(ours, fake, timeouts, filter_=filter_, moderation=Moderation.TAKEN)
    assert (tally.received, tally.moderation) == (len(wanted), 0)
    assert ids(ours) >= all_ids(wanted)


@pytest.mark.parametrize("moderation", Moderation)
async def test_group_records_that_a_relay_lists_as_other_events_are_not_taken(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, moderation: Moderation
) -> None:
    """It says nothing to the filter by kinds."""
    fake.events += [RECORDS[3], NOTES[0]]
    answer = fake.on["NEG-OPEN"]

    async def deny(visitor: Visitor, frame: list[Any]) -> None:
        if "kinds" in frame[2]:
            fake.events.remove(RECORDS[3])
            await answer(visitor, frame)
            fake.events.append(RECORDS[3])
        else:
            await answer(visitor, frame)

    fake.on["NEG-OPEN"] = deny
    tally = await synced(ours, fake, timeouts, moderation=moderation)
    assert (tally.received, tally.moderation + tally.not_asked) == (1, 1)
    assert ours.events == [NOTES[0]]


async def test_events_that_the_filter_does_not_match_are_not_taken(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    """They are fetched by the ids that the relay lists."""
    others = bob.sign(1, [], "not asked for", NOW)
    fake.events += [others, NOTES[0]]
    answer = fake.on["NEG-OPEN"]

    async def all_of_them(visitor: Visitor, frame: list[Any]) -> None:
        wanted = {name: value for name, value in frame[2].items() if name != "authors"}
        await answer(visitor, [*frame[:2], wanted, *frame[3:]])

    fake.on["NEG-OPEN"] = all_of_them
    of_alice = Filter(kinds=frozenset({1}), authors=frozenset({alice.pubkey}))
    tally = await synced(ours, fake, timeouts, filter_=of_alice, direction=Direction.DOWN)
    assert (tally.received, tally.not_asked) == (1, 1)
    assert ours.events == [NOTES[0]]


async def test_a_relay_gets_what_names_events_after_them(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its target, a reaction to a message of a private group would be public there."""
    monkeypatch.setattr(syncing, "_FETCH_BATCH", 5)
    tea = alice.sign(9007, [["h", "tea"]], "", NOW)
    ours.events.append(tea)
    fake.events.append(tea)
    for number in range(20):
        post = alice.sign(9, [["h", "tea"]], f"post {number}", NOW + number)
        reaction = bob.sign(7, [["e", post.id]], "+", NOW + 100 + number)
        comment = bob.sign(1111, [["A", f"30023:{alice.pubkey}:{number}"]], "", NOW + 200 + number)
        to_reaction = alice.sign(7, [["e", reaction.id]], "+", NOW + 300 + number)
        fake.events += [post, reaction, comment, to_reaction]
    tally = await synced(ours, fake, timeouts)
    assert (tally.need, tally.received, tally.not_given) == (80, 80, 0)
    assert [frame[1]["kind"] for frame in ours.verbs("EVENT")[:20]] == [9] * 20
    got = [frame[1]["id"] for frame in ours.verbs("EVENT")]
    for event in fake.events[1:]:
        assert all(got.index(id_) < got.index(event.id) for id_ in event.tag_values("e"))


@pytest.mark.parametrize("limit", [500, 7])
async def test_group_records_are_stored_in_the_order_of_writing(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, limit: int
) -> None:
    """A group that is made private in its first second must not be public with its messages."""
    made = alice.sign(9007, [["h", "den"]], "", NOW)
    closed = alice.sign(9002, [["h", "den"], ["private"]], "", NOW)
    posts = [alice.sign(9, [["h", "den"]], f"post {n}", NOW + n // 3) for n in range(600)]
    # The clock of who answers may be behind.
    comments = [bob.sign(1111, [["e", post.id]], "?", post.created_at - 5) for post in posts[::50]]
    answers = [alice.sign(1111, [["E", row.id]], "!", row.created_at - 5) for row in comments]
    fake.events += sorted([*answers, *comments, *posts, closed, made], key=lambda row: row.id)
    fake.most_rows = limit
    await synced(ours, fake, timeouts, direction=Direction.DOWN, moderation=Moderation.TAKEN)
    assert [row.id for row in ours.events[:2]] == [made.id, closed.id]
    assert ids(ours) == ids(fake)
    place = {row.id: place for place, row in enumerate(ours.events)}
    assert [place[row.id] for row in posts[::3]] == sorted(place[row.id] for row in posts[::3])
    for named, naming in ((posts[::50], comments), (comments, answers)):
        assert all(
            place[one.id] < place[other.id] for one, other in zip(named, naming, strict=True)
        )


async def test_what_a_group_is_to_be_comes_before_its_messages_although_clocks_differ(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    """The clock of an admin was 40 s ahead: his group was public here with what came after it."""

    def den(who: SecretKey, kind: int, *tags: list[str], at: int) -> Event:
        return who.sign(kind, [["h", "den"], *tags], "", NOW + at)

    early = den(bob, 9, at=-901)
    made = den(alice, 9007, at=0)
    before = den(bob, 9, at=50)  # the group was public
    private = den(alice, 9002, ["private"], at=1000)
    after = [den(bob, 9, at=at) for at in (100, 960, 999)]
    comment = carol.sign(1111, [["e", after[1].id]], "?", NOW + 970)
    again = den(alice, 9002, ["private"], ["name", "Den"], at=1500)
    last = den(bob, 9, at=1499)  # nothing changed for it
    wanted = [early, made, before, private, *after, comment, last, again]
    fake.events += sorted(wanted, key=lambda row: row.id)
    await synced(ours, fake, timeouts, direction=Direction.DOWN, moderation=Moderation.TAKEN)
    assert [row.id for row in ours.events if row.id != early.id] == [row.id for row in wanted[1:]]


@pytest.mark.parametrize("kind", [9000, 9021])
async def test_a_message_comes_after_what_made_its_author_a_member_although_clocks_differ(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, kind: int
) -> None:
    """It was refused, and a comment on it was shown to everybody until it was tried again."""

    def den(who: SecretKey, kind: int, *tags: list[str], at: int) -> Event:
        return who.sign(kind, [["h", "den"], *tags], "", NOW + at)

    made = den(alice, 9007, ["private"], at=0)
    asked = den(bob, 9021, at=540)
    put = den(alice, 9000, ["p", bob.pubkey], at=540)
    others = den(alice, 9, at=530)
    message = den(bob, 9, at=500)
    article = den(bob, 30023, ["d", "tea"], at=510)
    comments = [
        carol.sign(1111, [["e", message.id]], "?", NOW + 505),
        carol.sign(1111, [["a", f"30023:{bob.pubkey}:tea"]], "?", NOW + 506),
    ]
    wanted = [made, others, asked if kind == 9021 else put, message, article, *comments]
    fake.events += sorted(wanted, key=lambda row: row.id)
    await synced(ours, fake, timeouts, direction=Direction.DOWN, moderation=Moderation.TAKEN)
    assert [row.id for row in ours.events] == [row.id for row in wanted]


async def test_of_one_second_rights_come_first_and_what_ends_them_last(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    def den(kind: int, *tags: list[str], by: SecretKey = alice) -> Event:
        return by.sign(kind, [["h", "den"], *tags], "", NOW)

    put, out = ["p", bob.pubkey, "admin"], ["p", bob.pubkey]
    wanted = [
        [den(9007)],
        [den(9002, ["name", "Den"], ["public"])],  # before there are members, like the next
        [den(9002, ["name", "Den"], ["private"]), den(9002, ["hidden"])],
        [den(9000, put)],
        [den(9000, out), den(9009, ["code", "sesame"])],
        [den(9002, ["name", "Den"], ["public"], by=bob), den(9021), den(9010)],
        [den(9002, ["private"], by=bob), den(9002, ["hidden"], by=bob)],
        [den(9001, out), den(9022), den(9008)],
        [den(9), den(9, ["t", "tea"])],
    ]
    fake.events += sorted([row for rows in wanted for row in rows], key=lambda row: row.id)
    await synced(ours, fake, timeouts, direction=Direction.DOWN, moderation=Moderation.TAKEN)
    got = iter(ours.events)
    assert [{next(got).id for _ in rows} for rows in wanted] == [all_ids(rows) for rows in wanted]


async def test_what_is_sent_of_one_second_begins_with_the_group(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    made = alice.sign(9007, [["h", "den"]], "", NOW)
    posts = [alice.sign(9, [["h", "den"]], f"post {n}", NOW) for n in range(20)]
    closed = [alice.sign(9002, [["h", "den"], ["private"]], f"{n}", NOW) for n in range(20)]
    comments = [bob.sign(1111, [["e", post.id]], "?", NOW) for post in posts]
    ours.events += sorted([made, *closed, *posts, *comments], key=lambda row: row.id)
    await synced(ours, fake, timeouts, direction=Direction.UP)
    kinds = [row.kind for row in fake.events]
    assert kinds == [9007] + [9002] * 20 + [9] * 20 + [1111] * 20


def den_of(who: SecretKey, *, at: int = 0) -> list[Event]:
    """A group that this key made, with what a relay signs about it."""
    made = who.sign(9007, [["h", "den"]], "", NOW + at)
    return [made, carol.sign(39000, [["d", "den"]], who.npub, NOW + at)]


@pytest.mark.parametrize("moderation", Moderation)
@pytest.mark.parametrize("direction", [Direction.DOWN, Direction.UP])
async def test_messages_do_not_get_into_another_group_of_the_same_id(
    ours: FakeRelay,
    fake: FakeRelay,
    timeouts: Timeouts,
    direction: Direction,
    moderation: Moderation,
) -> None:
    """Anybody may have made it, and shows it to everybody."""
    source, target = (fake, ours) if direction is Direction.DOWN else (ours, fake)
    secrets = [bob.sign(9, [["h", "den"]], f"secret {n}", NOW + n) for n in range(3)]
    source.events += [*den_of(alice), *secrets, NOTES[0]]
    target.events += den_of(carol, at=-50)
    tally = await synced(ours, fake, timeouts, direction=direction, moderation=moderation)
    assert NOTES[0].id in ids(target)
    assert not ids(target) & all_ids(secrets)
    assert tally.other_groups == {"den": 3}


@pytest.mark.parametrize("shows_9007", [True, False])
@pytest.mark.parametrize("direction", [Direction.DOWN, Direction.UP])
async def test_records_of_another_group_of_the_same_id_are_not_transferred(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, direction: Direction, *, shows_9007: bool
) -> None:
    """Alice leads both: hers there would have become public, or got members of the other one. Also
    where the relay with the records does not show who made its group."""
    source, target = (fake, ours) if direction is Direction.DOWN else (ours, fake)
    h = ["h", "den"]
    records = [
        alice.sign(9002, [h, ["public"]], "", NOW + 1),
        alice.sign(9000, [h, ["p", bob.pubkey]], "", NOW + 2),
        bob.sign(9021, [h], "", NOW + 3),
    ]
    elsewhere = alice.sign(9000, [["h", "tea"], ["p", bob.pubkey]], "", NOW)
    source.events += [*den_of(alice)[not shows_9007 :], *records, elsewhere]
    target.events += den_of(alice, at=-50)
    tally = await synced(ours, fake, timeouts, direction=direction, moderation=Moderation.TAKEN)
    assert elsewhere.id in ids(target)
    assert not ids(target) & all_ids(records)
    assert tally.other_groups == {"den": 3}


@pytest.mark.parametrize("direction", [Direction.DOWN, Direction.UP])
async def test_messages_do_not_get_where_their_group_cannot_be_read(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, direction: Direction
) -> None:
    """Of a hidden group of this id, made by others there, nothing tells."""
    source, target = (fake, ours) if direction is Direction.DOWN else (ours, fake)
    secret = bob.sign(9, [["h", "den"]], "secret", NOW)
    source.events += [*den_of(alice)[1:], secret, NOTES[0]]
    tally = await synced(ours, fake, timeouts, direction=direction)
    assert NOTES[0].id in ids(target)
    assert secret.id not in ids(target)
    assert tally.refused_here + tally.refused_there == {
        "restricted: there is no such group, or none that the key reads": 1
    }


async def test_a_group_made_during_the_run_gets_no_messages_of_another(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was there had been asked once, at the beginning."""
    monkeypatch.setattr(syncing, "_FETCH_BATCH", 5)
    secrets = [bob.sign(9, [["h", "den"]], f"secret {n}", NOW + n) for n in range(40)]
    fake.events += [*den_of(alice), *secrets, *NOTES[:40]]

    async def made_meanwhile(visitor: Visitor, frame: list[Any]) -> None:
        if len(ours.verbs("EVENT")) == 20:
            ours.events += den_of(carol)
        await ours.take(visitor, frame)

    ours.on["EVENT"] = made_meanwhile
    tally = await synced(ours, fake, timeouts, direction=Direction.DOWN)
    assert all_ids(NOTES[:40]) <= ids(ours)
    assert not ids(ours) & all_ids(secrets)
    assert tally.other_groups["den"] + sum(tally.refused_here.values()) == 40
    assert tally.other_groups["den"], "once it was there"


@pytest.mark.parametrize("direction", [Direction.DOWN, Direction.UP])
async def test_messages_of_a_group_that_both_have_are_transferred(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, direction: Direction
) -> None:
    source, target = (fake, ours) if direction is Direction.DOWN else (ours, fake)
    named_by_id = "6b3f1c5e-0f00-4a00-8000-000000000000"  # of a 9007 without `h`
    messages = [bob.sign(9, [["h", h]], "hello", NOW) for h in ("den", named_by_id)]
    for relay in (ours, fake):
        relay.events += [*den_of(alice), carol.sign(39000, [["d", named_by_id]], "", NOW)]
    source.events += messages
    await synced(ours, fake, timeouts, direction=direction)
    assert all_ids(messages) <= ids(target)


@pytest.mark.parametrize("direction", [Direction.DOWN, Direction.UP])
async def test_events_whose_h_names_no_group_are_transferred(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, direction: Direction
) -> None:
    source, target = (fake, ours) if direction is Direction.DOWN else (ours, fake)
    outside = [
        alice.sign(445, [["h", "aa"]], "", NOW),
        alice.sign(30315, [["d", "a"], ["h", "aa"]], "", NOW),
        alice.sign(1, [["h", ""]], "", NOW),
        alice.sign(1, [["h"]], "", NOW + 1),
    ]
    inside = [alice.sign(1, [["h", "aa"]], "", NOW), alice.sign(1, [["h", ""], ["h", "aa"]], "", 9)]
    source.events += [*outside, *inside]
    foreign_h = {445, 30315}
    tally = await synced(ours, fake, timeouts, direction=direction, foreign_h=foreign_h)
    assert ids(target) == all_ids(outside)
    assert (tally.refused_here + tally.refused_there).total() == 2


async def test_a_kind_that_is_of_groups_here_gets_into_no_other_group(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    """`[groups] foreign_h` of the admin has no kind of Marmot's."""
    secret = bob.sign(445, [["h", "den"]], "secret", NOW)
    fake.events += [*den_of(alice), secret]
    ours.events += den_of(carol)
    tally = await synced(ours, fake, timeouts, direction=Direction.DOWN, foreign_h=())
    assert secret.id not in ids(ours)
    assert tally.other_groups == {"den": 1}


async def test_of_groups_that_are_made_together_is_asked_once(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    h = [["h", f"group {n}"] for n in range(100)]
    made = [alice.sign(9007, [each], "", NOW) for each in h]
    messages = [alice.sign(9, [each], "", NOW + 1) for each in h]
    ours.events += [*made, *messages]
    await synced(ours, fake, timeouts, direction=Direction.UP)
    assert ids(fake) == ids(ours)
    there, here = ([f for f in side.verbs("REQ") if "#h" in f[-1]] for side in (fake, ours))
    assert len(there) == 2, "before the 9007, and after them"
    assert len(here) == 1


async def test_a_relay_does_not_learn_which_groups_exist_here(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listed a message for each id of a dictionary, and was asked about the hidden group."""
    monkeypatch.setattr(syncing, "_FETCH_BATCH", 5)
    ours.events += den_of(carol)
    guessed = ["den", "hut", "inn"]
    probes = [bob.sign(9, [["h", h]], f"{n}", NOW + n) for n in range(10) for h in guessed]
    fake.events += [*probes, NOTES[0]]
    tally = await synced(ours, fake, timeouts, direction=Direction.DOWN)
    assert tally.received == 1
    asked = [filter_ for frame in fake.verbs("REQ") for filter_ in frame[2:]]
    assert Counter(h for each in asked for h in each.get("#d", ())) == dict.fromkeys(guessed, 1)
    fetched = Counter(id_ for each in asked for id_ in each.get("ids", ()))
    assert fetched == dict.fromkeys(all_ids(fake.events), 1)


async def test_protected_events_are_not_sent_and_not_fetched_twice(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    here, both = alice.sign(1, [["-"]], "mine", NOW), alice.sign(1, [["-"]], "everywhere", NOW)
    ours.events += [here, both]
    fake.events += [both]
    tally = await synced(ours, fake, timeouts)
    assert (tally.need, tally.have, tally.protected, tally.sent) == (0, 1, 1, 0)
    assert fake.events == [both]


async def test_a_relay_with_a_low_limit_is_queried_repeatedly(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events += NOTES
    fake.most_rows = 90
    tally = await synced(ours, fake, timeouts)
    assert (tally.received, tally.not_given) == (600, 0)


async def test_a_relay_that_returns_one_event_a_minute_is_not_waited_for(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "_FETCH_S", 0.0)
    monkeypatch.setattr(syncing, "_PACE_S", 0.0)
    fake.events += NOTES
    fake.most_rows = 1
    with pytest.raises(Unanswered, match="250 events"):
        await synced(ours, fake, timeouts, direction=Direction.DOWN)


async def test_a_relay_that_is_slow_at_every_batch_ends_the_run(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "_FETCH_S", 0.5)
    monkeypatch.setattr(syncing, "_PACE_S", 0.0)
    monkeypatch.setattr(syncing, "_PACE_BYTES", 1 << 30)
    monkeypatch.setattr(syncing, "_FETCH_BATCH", 1)

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        await asyncio.sleep(0.02)  # 600 times are 12 s
        await fake.answer(visitor, frame)

    fake.on["REQ"] = answer
    fake.events += NOTES
    with pytest.raises(Unanswered, match="of 1 events"):
        await synced(ours, fake, timeouts, direction=Direction.DOWN)


async def test_all_parts_of_a_comparison_have_one_deadline(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "_COMPARISON_S", 0.5)

    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        await asyncio.sleep(0.02)
        await visitor.say("NEG-ERR", frame[1], "blocked: too many records")

    fake.on["NEG-OPEN"] = refuse
    with pytest.raises(Unanswered, match="the comparison took over"):
        await synced(ours, fake, timeouts)


@pytest.mark.parametrize("ended", [1, 9, 65])
async def test_a_comparison_that_a_change_of_rights_ended_begins_again(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, ended: int
) -> None:
    ours.events += NOTES[:2]
    fake.events += NOTES[1:]
    asked = 0

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal asked
        asked += 1
        if asked > ended:
            await fake.negotiate(visitor, frame)
        else:
            text = "restricted: your read rights have changed, send NEG-OPEN again"
            await visitor.say("NEG-ERR", frame[1], text)

    fake.on["NEG-OPEN"] = answer
    if ended > syncing._MAX_AGAIN:
        with pytest.raises(QueryClosed, match="your read rights have changed"):
            await synced(ours, fake, timeouts)
        assert asked == syncing._MAX_AGAIN + 1
        return
    await synced(ours, fake, timeouts)
    assert {event.id for event in ours.events} == {event.id for event in NOTES}
    assert {event.id for event in fake.events} == {event.id for event in NOTES}


@pytest.mark.parametrize("at_a_time", [1, 500])
async def test_a_batch_of_large_events_is_fetched_in_smaller_ones(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    """Whatever a relay sends at a time; older events stay first."""
    monkeypatch.setattr(syncing, "_BATCH_BYTES", 50_000)
    essays = [alice.sign(1, [], "a" * 10_000, NOW + number) for number in range(40)]
    fake.events += essays
    fake.most_rows = at_a_time
    async with Client(fake.url, timeouts=timeouts) as client:
        ids = [bytes.fromhex(event.id) for event in essays]
        batches = [batch async for batch in RelaySide(client, client).events(EVERYTHING, ids)]
    assert [event for batch in batches for event in batch] == essays
    assert max(map(len, batches)) < 3


async def test_after_large_events_batches_grow_again(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four large ones side by side made each later batch one of three."""
    monkeypatch.setattr(syncing, "_BATCH_BYTES", 500_000)
    large = [alice.sign(1, [], "a" * 150_000, NOW + number) for number in range(4)]
    small = [alice.sign(1, [], str(number), NOW + 9 + number) for number in range(1_000)]
    fake.events += [*large, *small]
    async with Client(fake.url, timeouts=timeouts) as client:
        ids = [bytes.fromhex(event.id) for event in fake.events]
        batches = [batch async for batch in RelaySide(client, client).events(EVERYTHING, ids)]
    assert [event for batch in batches for event in batch] == [*large, *small]
    assert len(batches) < 20
    assert len(fake.verbs("REQ")) < 40


async def test_an_event_that_is_too_large_is_left_out(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "_BATCH_BYTES", 50_000)
    fake.events += [*NOTES[:20], alice.sign(1, [], "a" * 50_000, NOW)]
    tally = await synced(ours, fake, timeouts)
    assert (tally.received, tally.not_given) == (20, 1)


async def test_of_what_events_name_a_bounded_part_is_kept(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_order, "MAX_ALL_BYTES", 10_000)
    fake.events += [
        alice.sign(9007, [["h", "tea"]], "", NOW),
        alice.sign(7, [["e", f"{number:064x}"] for number in range(1_000)], "+", NOW),
    ]
    tally = await synced(ours, fake, timeouts, moderation=Moderation.TAKEN)
    assert tally.received == 2
    put = alice.sign(9000, [["h", "tea"], *(["p", f"{n:064x}"] for n in range(1_000))], "", NOW)
    fake.events.append(put)
    with pytest.raises(Incomparable, match="name too much"):
        await synced(ours, fake, timeouts, moderation=Moderation.TAKEN)


async def test_ids_that_the_relay_does_not_return_are_counted(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def give_less(visitor: Visitor, frame: list[Any]) -> None:
        fake.events = fake.events[5:]  # deleted, since they were compared
        await fake.answer(visitor, frame)

    fake.on["REQ"] = give_less
    fake.events += NOTES[:50]
    tally = await synced(ours, fake, timeouts)
    assert tally.received < 50
    assert tally.received + tally.not_given == 50


# What is refused


async def test_refusals_are_counted_by_reason_and_do_not_stop_the_run(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def be_strict(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["content"] in ("note 3", "note 4"):
            await visitor.say_no(frame[1]["id"], "blocked: not this")
        elif frame[1]["content"] == "note 5":
            await visitor.say_no(frame[1]["id"], "invalid: too long")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = be_strict
    ours.events += NOTES[:10]
    tally = await synced(ours, fake, timeouts)
    assert tally.sent == len(fake.events) == 7
    assert tally.refused_there == {"blocked: not this": 2, "invalid: too long": 1}


async def test_the_number_of_distinct_reasons_is_bounded(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def be_chatty(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_no(frame[1]["id"], f"blocked: not {frame[1]['id']}")

    fake.on["EVENT"] = be_chatty
    ours.events += NOTES[:100]
    tally = await synced(ours, fake, timeouts)
    assert tally.refused_there.total() == 100
    assert len(tally.refused_there) == 33
    assert tally.refused_there["other reasons"] == 68


async def test_an_event_refused_before_its_author_became_a_member_is_retried(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    """The clock of who added the member was ahead."""
    notes = NOTES[:300]
    added = bob.sign(9000, [], "", NOW + 900)

    async def only_members(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["id"] == added.id or added in ours.events:
            await ours.take(visitor, frame)
        else:
            await visitor.say_no(frame[1]["id"], "restricted: not a member")

    ours.on["EVENT"] = only_members
    fake.events += [*notes, added]
    tally = await synced(ours, fake, timeouts, moderation=Moderation.TAKEN)
    assert len(ours.verbs("EVENT")) > 301, "it was to come after others"
    assert (tally.received, tally.refused_here.total()) == (301, 0)
    assert ids(ours) == ids(fake)


async def test_a_refused_group_record_has_no_effect_at_the_end(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    """A member whom it had put in, and who was removed later, was one again."""
    h = ["h", "den"]
    put = bob.sign(9000, [h, ["p", alice.pubkey]], "", NOW)
    appointed = alice.sign(9000, [h, ["p", bob.pubkey, "admin"]], "", NOW + 1)
    said = bob.sign(9, [h], "hello", NOW)

    async def only_admins(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["pubkey"] == alice.pubkey or appointed in ours.events:
            await ours.take(visitor, frame)
        else:
            await visitor.say_no(frame[1]["id"], "restricted: not a member")

    ours.on["EVENT"] = only_admins
    fake.events += [*den_of(alice), put, appointed, said]
    ours.events += den_of(alice)
    tally = await synced(ours, fake, timeouts, moderation=Moderation.TAKEN)
    assert ids(ours) == {appointed.id, said.id} | all_ids(den_of(alice))
    assert tally.refused_here == {"restricted: not a member": 1}


async def test_temporary_refusals_are_retried(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "_RETRY_DELAYS_S", (0.0, 0.0))
    tries: dict[str, int] = {}

    async def third_time_lucky(visitor: Visitor, frame: list[Any]) -> None:
        id_ = frame[1]["id"]
        tries[id_] = tries.get(id_, 0) + 1
        if tries[id_] < 3 and frame[1]["content"] != "note 0":
            await visitor.say_no(id_, "rate-limited: slow down")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = third_time_lucky
    ours.events += NOTES[:10]
    tally = await synced(ours, fake, timeouts)
    assert (tally.sent, tally.refused_there.total()) == (10, 0)
    assert tries[NOTES[0].id] == 1


async def test_a_group_record_is_sent_again_before_later_ones(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed member was one again at the other relay."""
    monkeypatch.setattr(syncing, "_RETRY_DELAYS_S", (0.0, 0.0))
    h, p, tries = ["h", "tea"], ["p", bob.pubkey], 0
    put, out = (alice.sign(kind, [h, p], "", NOW + kind) for kind in (9000, 9001))

    async def second_time_lucky(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal tries
        tries += frame[1]["id"] == put.id
        if tries == 1:
            await visitor.say_no(frame[1]["id"], "rate-limited: slow down")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = second_time_lucky
    ours.events += [put, out]
    await synced(ours, fake, timeouts, moderation=Moderation.TAKEN)
    assert [event.id for event in fake.events] == [put.id, out.id]
    assert tries == 2


async def test_a_group_record_that_is_not_taken_ends_the_run(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "_RETRY_DELAYS_S", (0.0,))
    h, p = ["h", "tea"], ["p", bob.pubkey]
    ours.events += [alice.sign(kind, [h, p], "", NOW + kind) for kind in (9000, 9001)]

    fake.on["EVENT"] = refusing("error: disk full")
    with pytest.raises(PublishRefused, match="disk full"):
        await synced(ours, fake, timeouts, moderation=Moderation.TAKEN)
    assert {frame[1]["kind"] for frame in fake.verbs("EVENT")} == {9000}


async def test_lasting_temporary_refusals_end_the_run(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.on["EVENT"] = refusing("error: disk full")
    monkeypatch.setattr(syncing, "_RETRY_DELAYS_S", (0.0,))
    ours.events += NOTES
    with pytest.raises(PublishRefused, match="disk full"):
        await synced(ours, fake, timeouts)
    # The first batch, twice; the rest was not refused one by one.
    assert len(fake.verbs("EVENT")) == 500


async def test_a_full_quota_does_not_end_the_run(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wraps for a recipient who takes no more ended each run at the same place."""
    monkeypatch.setattr(syncing, "_RETRY_DELAYS_S", (0.0,))
    monkeypatch.setattr(syncing, "_REFUSED_S", 0.0)
    full = all_ids(NOTES[:500])

    async def be_full(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["id"] in full:
            await visitor.say_no(frame[1]["id"], "rate-limited: full")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = be_full
    ours.events += NOTES
    tally = await synced(ours, fake, timeouts)
    assert (tally.sent, tally.refused_there) == (100, {"rate-limited: full": 500})
    # The first batch twice, the second once.
    assert len(fake.verbs("EVENT")) == 850


async def test_a_group_record_is_sent_again_after_a_batch_that_was_refused(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "_RETRY_DELAYS_S", (0.0,))
    monkeypatch.setattr(syncing, "_REFUSED_S", 0.0)
    put = alice.sign(9000, [["h", "tea"], ["p", bob.pubkey]], "", NOW + 9000)
    tries = 0

    async def second_time_lucky(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal tries
        tries += frame[1]["id"] == put.id
        if tries == 2:
            await fake.take(visitor, frame)
        else:
            await visitor.say_no(frame[1]["id"], "rate-limited: full")

    fake.on["EVENT"] = second_time_lucky
    ours.events += [*NOTES[:2], put]
    tally = await synced(ours, fake, timeouts, moderation=Moderation.TAKEN)
    assert (tally.sent, tally.refused_there.total()) == (1, 2)


async def test_a_relay_that_takes_very_many_not_ends_the_run(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "_RETRY_DELAYS_S", (0.0,))
    monkeypatch.setattr(syncing, "_REFUSED_S", 0.0)
    monkeypatch.setattr(syncing, "_MAX_REFUSED", 300)
    fake.on["EVENT"] = refusing("rate-limited: slow down")
    ours.events += NOTES
    with pytest.raises(PublishRefused, match="slow down"):
        await synced(ours, fake, timeouts)
    assert len(fake.verbs("EVENT")) == 750


async def test_gift_wraps_that_are_not_taken_never_end_the_run(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "_RETRY_DELAYS_S", (0.0,))
    monkeypatch.setattr(syncing, "_REFUSED_S", 0.0)
    monkeypatch.setattr(syncing, "_MAX_REFUSED", 300)

    async def be_full(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["kind"] == 1059:
            await visitor.say_no(frame[1]["id"], "rate-limited: full")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = be_full
    p = ["p", bob.pubkey]
    ours.events += [carol.sign(1059, [p], f"{number}", NOW - number) for number in range(500)]
    ours.events += NOTES[:3]
    tally = await synced(ours, fake, timeouts)
    assert (tally.sent, tally.refused_there.total()) == (3, 500)


async def test_nobody_chooses_which_events_are_fetched_first(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events += NOTES
    await synced(ours, fake, timeouts)
    (asked, *_) = [frame[2]["ids"] for frame in fake.verbs("REQ") if "ids" in frame[2]]
    found = sorted(all_ids(NOTES))
    assert not set(asked) <= {*found[:300]}
    assert not set(asked) <= all_ids(NOTES[:300])


# A relay that finds too many


async def test_a_set_too_large_for_the_relay_is_bisected(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    ours.events += NOTES[:400]
    fake.events += NOTES[100:]
    fake.most_records = 60
    tally = await synced(ours, fake, timeouts)
    assert ids(ours) == ids(fake) == all_ids(NOTES)
    assert (tally.received, tally.sent) == (200, 100)


async def test_an_empty_local_set_is_bisected_too(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events += NOTES[:100]
    fake.most_records = 20
    await synced(ours, fake, timeouts)
    assert ids(ours) == ids(fake)


async def test_too_many_events_in_one_second_raise(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events += [alice.sign(1, [], f"{number}", NOW) for number in range(5)]
    fake.most_records = 4
    with pytest.raises(QueryClosed, match="too many records"):
        await synced(ours, fake, timeouts)


async def test_a_relay_that_refuses_all_but_the_smallest_parts_is_left(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.events += NOTES
    fake.most_records = 2
    monkeypatch.setattr(syncing, "_MAX_PARTS", 50)
    with pytest.raises(Incomparable, match="use a narrower filter"):
        await synced(ours, fake, timeouts)
    assert len(fake.verbs("NEG-OPEN")) == 50


async def test_the_ids_that_all_parts_need_are_bounded(
    ours: FakeRelay, fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.events += NOTES
    fake.most_records = 60
    monkeypatch.setattr(syncing, "MAX_NEED", 200)
    with pytest.raises(Incomparable, match="use a narrower filter"):
        await synced(ours, fake, timeouts)
    assert not fake.verbs("REQ")


def test_halves_cover_the_whole() -> None:
    whole = Filter(kinds=frozenset({1}))
    for some in (NOTES[:9], NOTES[:1], [], [alice.sign(1, [], f"{n}", NOW) for n in range(3)]):
        waiting, seconds, parts = [(whole, items(some))], 0, 0
        while waiting:
            filter_, here = waiting.pop()
            assert all(
                (bytes.fromhex(note.id) in here.ids(0, len(here))) == filter_.matches(note)
                for note in some
            )
            parts += 1
            split = halves(filter_, here, NOW + 5) if len(here) or parts == 1 else None
            if split is None:
                seconds += len(here)
                continue
            (lower, _), (upper, _) = split
            assert lower.until is not None
            assert upper.since == lower.until + 1
            assert (lower.since, upper.until) == (filter_.since, filter_.until)
            waiting += split
        assert seconds == len(some)


@pytest.mark.parametrize(
    "filter_",
    [
        Filter(limit=5),
        Filter(search="tea"),
        Filter(kinds=frozenset({39000, 39002})),
        Filter(authors=frozenset(), impossible=True),
    ],
)
async def test_a_filter_that_cannot_be_compared_is_refused(
    fake: FakeRelay, timeouts: Timeouts, filter_: Filter
) -> None:
    with pytest.raises(ValueError, match="match"):
        await synced(fake, fake, timeouts, filter_=filter_)
