"""Deletions of too much for one transaction: they go in pieces, and others are served meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.access.quotas import MAX_RECIPIENTS, SizedBy
from relay.errors import StoreFault
from relay.facts import Origin
from relay.groups import rules
from relay.groups.group import EndedGroup
from relay.groups.key_map import KeyMap
from relay.groups.subgroups import detach_subgroups
from relay.nostr import kinds
from relay.write.commands import ExpireRows
from relay.write.pieces import MOST_RECORDS
from tests.cast import admin, alice, bob, carol, owner, person
from tests.contract.writing import asked, write
from tests.effort import examples
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import (
    DELETED,
    DUPLICATE,
    STORED,
    Batches,
    Home,
    policy_of,
    store_of,
)
from tests.harness.relay_program import eventually
from tests.property.world import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from relay.groups.group import Group, Groups
    from relay.lifecycle.rows import Found, Lookups, WritePlan
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store
    from relay.write.batch import Batch
    from relay.write.commands import LaneItem
    from tests.harness.relay_in_process import Letter

OPEN = policy_of("open")
BOUND = "relay.write.pieces.MOST_DELETED"
AT_ONCE = "relay.write.pieces._RESTATED_AT_ONCE"
SMALL = 2000
"""Bytes: two rows of these tests."""


@pytest.fixture(params=["reference", "sqlite"])
async def home(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Home]:
    monkeypatch.setattr(BOUND, SMALL)
    async with store_of(request.param) as store, Home(store, OPEN) as home:
        yield home


async def rows_of_alice(home: Home, number: int = 12, h: str | None = None) -> list[Event]:
    return [
        await home.do(alice, 1 if h is None else 9, h=h, content="x" * 500) for _ in range(number)
    ]


def named(rows: Sequence[Event]) -> list[list[str]]:
    return [["e", row.id] for row in rows]


async def test_others_are_served_between_the_pieces(home: Home) -> None:
    rows = await rows_of_alice(home)
    deletion, later = home.made(alice, 5, *named(rows)), home.made(alice, 1)
    letters = [home.post(event, connection=1) for event in (deletion, later)]
    notes = [home.made(bob, 1) for _ in range(3)]
    letters += [home.post(note, connection=2) for note in notes]
    assert [await letter.answer for letter in letters] == [STORED] * 5
    log = [event.id for event in await home.log()]
    assert log == [*(note.id for note in notes), deletion.id, later.id]
    assert [len(letter.answers) for letter in letters] == [1] * 5


async def test_others_are_served_between_deletions_from_many_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each just under the limit: 60 were committed one after the other, and nothing in between."""
    monkeypatch.setattr(BOUND, SMALL)
    # Else some more are committed apart while others are, as many as the machine is busy.
    monkeypatch.setattr("relay.write.ingest.perf_counter", lambda: 1.0)
    async with store_of("sqlite") as store, Home(store, OPEN) as home:
        rows = [home.made(alice, 1, content=f"{number}" + "x" * 1200) for number in range(60)]
        assert await home.take(*rows) == [STORED] * 60
        watched = Batches(home.ingest)
        letters = []
        for place, row in enumerate(rows):
            letter = home.post(home.made(alice, 5, ["e", row.id]), connection=place + 2)
            letter.counted_as = f"192.0.2.{place}"
            letters.append(letter)
        waited = []
        for number in range(20):
            before = len(watched.committed)
            note = home.post(home.made(carol, 1, content=f"{number}"), connection=1)
            assert await note.answer == STORED
            waited.append(len(watched.committed) - before)
        assert max(waited) <= 3
        assert [await letter.answer for letter in letters] == [STORED] * 60
        assert len(watched.tried) < 100, "others are known to read much after one try"


async def test_keys_vanish_and_groups_end_one_at_a_time(home: Home) -> None:
    """51 requests of keys with one row of many tags each were one transaction of 4 s."""
    keys = [person(f"k{number}") for number in range(10)]
    rows = [home.made(key, 1, content="x" * 1200) for key in keys]
    founded = [home.made(key, 9007, h=f"g{place}") for place, key in enumerate(keys)]
    said = [home.made(key, 9, h=f"g{place}", content="x") for place, key in enumerate(keys)]
    assert await home.take(*rows, *founded, *said) == [STORED] * 30
    watched = Batches(home.ingest)
    ends = [home.made(key, 9008, h=f"g{place}") for place, key in enumerate(keys)]
    letters = [home.post(event, connection=1) for event in (*ends, *map(home.request, keys))]
    assert [await letter.answer for letter in letters] == [STORED] * 20
    assert max(map(len, watched.committed)) == 1


async def test_what_a_deletion_in_pieces_deleted_stays_deleted(home: Home) -> None:
    rows = await rows_of_alice(home)
    deletion = home.made(alice, 5, *named(rows))
    assert await home.take(deletion, deletion) == [STORED, DUPLICATE]
    assert [event.id for event in await home.log()] == [deletion.id]
    assert await home.take(*rows) == [DELETED] * len(rows)
    erasure = await home.store.erasure(deletion.id)
    assert erasure is not None
    assert {event_id for event_id, _ in erasure.ids} == {row.id for row in rows}
    assert erasure.numbers == {1: len(rows)}


async def test_who_loses_the_right_between_two_pieces_deletes_no_more(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tea_with_admin(home)
    rows = await rows_of_alice(home, h="tea")
    accepted, text = await refused_after_a_piece(home, rows, monkeypatch)
    assert not accepted
    assert text.startswith("restricted:")
    left = {event.id for event in await home.log()} & {row.id for row in rows}
    assert 0 < len(left) < len(rows)
    for row in rows:
        (answer,) = await home.take(row)
        assert answer == (DUPLICATE if row.id in left else DELETED)


async def test_a_code_ends_with_the_piece_that_deletes_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It admitted people until the next start, and then the group knew nothing of it."""
    await tea_with_admin(home)
    invite = await home.do(owner, 9009, ["code", "open-sesame"], h="tea")
    rows = [invite, *await rows_of_alice(home, h="tea")]
    assert not (await refused_after_a_piece(home, rows, monkeypatch))[0]
    assert invite.id not in {event.id for event in await home.log()}
    ((accepted, _),) = await home.take(home.made(bob, 9021, ["code", "open-sesame"], h="tea"))
    assert not accepted
    before = home.groups
    await home.restart()
    assert home.groups == before


async def test_codes_are_withdrawn_in_pieces(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind 5 of 700 codes read and deleted 259 MB of 9009s in one transaction."""
    await tea_with_admin(home)
    tags, invites = [], []
    for number in range(12):
        tags.append(["code", f"open-sesame-{number}"])
        invites.append(await home.do(owner, 9009, tags[-1], h="tea", content="x" * 500))
    read: list[int] = []
    stored = home.ingest._stored

    async def noted(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        read.append(len(batch.plan.removes))
        return batch

    monkeypatch.setattr(home.ingest, "_stored", noted)
    late = home.made(admin, 5, *tags, ["expiration", str(home.now - 9)], h="tea")
    assert not (await home.take(late))[0][0]
    assert len(home.groups.by_id["tea"].invites) == 12, "it was refused"
    deletion = home.made(admin, 5, *tags, h="tea")
    assert await home.take(deletion) == [STORED]
    assert sum(read) == 12
    assert max(read) <= 3
    assert not home.groups.by_id["tea"].invites
    assert await home.rebuilt() == home.groups
    erasure = await home.store.erasure(deletion.id)
    assert erasure is not None
    assert {event_id for event_id, _ in erasure.ids} == {invite.id for invite in invites}
    assert await home.take(*invites) == [STORED] * 12, "as if: it tells nobody what was there"
    assert not {invite.id for invite in invites} & {event.id for event in await home.log()}


async def test_who_becomes_a_moderator_in_the_batch_withdraws_codes_for_good(home: Home) -> None:
    """The group forgot the code, but its 9009 stayed: the next start gave it back."""
    await home.do(owner, 9007, h="tea")
    await home.do(owner, 9009, ["code", "open-sesame"], h="tea")
    role = home.made(owner, 9000, ["p", alice.pubkey, "admin"], h="tea")
    assert await home.take(role, home.made(alice, 5, ["code", "open-sesame"], h="tea")) == (
        [STORED] * 2
    )
    assert not home.groups.by_id["tea"].invites
    assert await home.rebuilt() == home.groups


async def test_pieces_of_a_deletion_tell_others_nothing_of_a_hidden_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pass is judged by what the connection may know, of rows that are deleted already too."""
    monkeypatch.setattr(BOUND, SMALL)
    paced = (
        '[[rule]]\nname = "paced"\nmatch = { kinds = [5], replaces = true }\n'
        'rate = { per = "address", burst = 1, per_minute = 1 }\n'
    )
    async with Home(ReferenceStore(), policy_of("open", paced)) as home:
        await home.do(owner, 9007, ["hidden"], h="den")
        await home.do(owner, 9000, ["p", alice.pubkey], h="den")
        rows = await rows_of_alice(home, h="den")
        deletions = [home.made(alice, 5, *named(some)) for some in (rows[:6], rows[6:])]
        letters = [home.post(deletion, connection=7) for deletion in deletions]
        assert [await letter.answer for letter in letters] == [STORED] * 2
        left = {event.id for event in await home.log()} & {row.id for row in rows}
        assert left == {row.id for row in rows[6:]}


@pytest.mark.parametrize("preset", ["group", "open"])
@pytest.mark.parametrize("last", ["public", "hidden"])
async def test_the_answer_to_pieces_does_not_depend_on_the_place_of_hidden_rows(
    preset: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece of a former member's kind 5 was refused if it had hidden rows alone."""
    monkeypatch.setattr(BOUND, SMALL)
    own = (
        '[[rule]]\nname = "own"\nmatch = { kinds = [5], replaces = true }\nwrite = ["owner"]\n'
        'reject = "only owners"\n'
    )
    answers = []
    for are_stored in (True, False):
        more = [own] if preset == "open" else []
        async with Home(ReferenceStore(), policy_of(preset, *more)) as home:
            await home.do(owner, 9007, ["hidden"], h="den")
            await home.do(owner, 9007, h="tea")
            for h in ("den", "tea"):
                await home.do(owner, 9000, ["p", alice.pubkey], h=h)
            public = await home.do(alice, 1)
            rows = [home.made(alice, 9, h="den", content="x" * 500) for _ in range(12)]
            if are_stored:
                assert await home.take(*rows) == [STORED] * len(rows)
            for h in ("den", "tea"):
                await home.do(owner, 9001, ["p", alice.pubkey], h=h)
            targets = [*rows, public] if last == "public" else [public, *rows]
            deletion = home.made(alice, 5, *named(targets))
            answers.append(await home.take(deletion))
    assert answers[0] == answers[1]


async def tea_with_admin(home: Home) -> None:
    await home.do(owner, 9007, h="tea")
    await home.do(owner, 9002, ["closed"], h="tea")
    await home.do(owner, 9000, ["p", admin.pubkey, "admin"], h="tea")
    await home.do(owner, 9000, ["p", alice.pubkey, "admin"], h="tea")


async def refused_after_a_piece(
    home: Home, rows: Sequence[Event], monkeypatch: pytest.MonkeyPatch
) -> tuple[bool, str]:
    """The answer to the admin's 9005 of these rows: he is removed after its first piece."""
    removal = home.made(owner, 9001, ["p", admin.pubkey], h="tea")
    letters: list[Letter] = []
    stored = home.ingest._stored

    async def then_remove(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        if batch.is_piece and not letters:
            letters.append(home.post(removal, connection=2))
            while not home.ingest.waiting["commit"]:  # noqa: ASYNC110 -- a thread verifies it
                await asyncio.sleep(0.001)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_remove)
    deletion = home.post(home.made(admin, 9005, *named(rows), h="tea"), connection=1)
    answer = await deletion.answer
    assert await letters[0].answer == STORED
    return answer


async def test_a_refused_deletion_deletes_nothing(home: Home) -> None:
    await home.do(owner, 9007, h="tea")
    await home.do(owner, 9000, ["p", alice.pubkey, "admin"], h="tea")
    rows = await rows_of_alice(home, h="tea")
    (answer,) = await home.take(home.made(bob, 9005, *named(rows), h="tea"))
    assert not answer[0]
    assert {row.id for row in rows} <= {event.id for event in await home.log()}


async def test_a_moderator_deletes_nothing_if_one_row_is_of_an_admin(home: Home) -> None:
    """As without pieces: the last row decides too."""
    await home.do(owner, 9007, h="tea")
    for who, *role in ((admin, "moderator"), (alice,)):
        await home.do(owner, 9000, ["p", who.pubkey, *role], h="tea")
    rows = [*await rows_of_alice(home, h="tea"), await home.do(owner, 9, h="tea")]
    ((accepted, text),) = await home.take(home.made(admin, 9005, *named(rows), h="tea"))
    assert not accepted
    assert text.startswith("restricted:")
    assert {row.id for row in rows} <= {event.id for event in await home.log()}
    assert await home.take(home.made(admin, 9005, *named(rows[:-1]), h="tea")) == [STORED]


async def test_targets_that_may_not_be_deleted_are_passed_over(home: Home) -> None:
    """The first ones among them, and so many that a piece finds nothing else."""
    await home.do(alice, 9007, h="tea")
    await home.do(alice, 9007, h="den")
    kept = await rows_of_alice(home, 10, h="den")
    gone = await rows_of_alice(home, 4, h="tea")
    for kind in (5, 9005):
        await home.do(alice, kind, *named([*kept, *gone]), h="tea")
        left = {event.id for event in await home.log()}
        assert {row.id for row in kept} <= left
        assert not {row.id for row in gone} & left
        gone = await rows_of_alice(home, 4, h="tea")


async def test_a_large_row_that_is_named_twice_is_deleted(home: Home) -> None:
    """It is one target, too large for one transaction and not divisible."""
    row = await home.do(alice, 1, content="x" * 2 * SMALL)
    assert await home.take(home.made(alice, 5, *named([row, row]))) == [STORED]
    assert row.id not in {event.id for event in await home.log()}


async def test_a_row_that_comes_between_two_pieces_is_deleted_too(home: Home) -> None:
    """Nothing could be deleted yet when the first piece looked for it."""
    late = home.made(alice, 1, content="x" * 500)
    rows = await rows_of_alice(home)
    deletion = home.post(home.made(alice, 5, *named([late, *rows])), connection=1)
    other = home.post(late, connection=2)
    assert await deletion.answer == STORED
    assert await other.answer in (STORED, DELETED)
    assert late.id not in {event.id for event in await home.log()}


async def test_a_pin_leaves_with_the_piece_that_deletes_its_row(home: Home) -> None:
    await home.do(alice, 9007, h="tea")
    rows = await rows_of_alice(home, h="tea")
    await home.do(alice, 9010, ["e", rows[0].id], ["e", rows[7].id], h="tea")
    await home.do(alice, 5, *named(rows))
    assert home.groups.by_id["tea"].pins == ()
    assert await home.rebuilt() == home.groups


class Failing:
    """A store that fails after so many changes."""

    def __init__(self, store: Store, changes: int) -> None:
        self._append = store.append
        self.left = changes

    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        def counted(found: Found) -> WritePlan:
            plan = decide(found)
            if not plan.is_empty():
                self.left -= 1
            if self.left < 0:
                raise StoreFault("the disk is full")
            return plan

        return await self._append(lookups, counted)


@pytest.mark.parametrize("kind", [5, 9005])
async def test_a_deletion_that_broke_off_is_completed_when_it_is_sent_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    await home.do(alice, 9007, h="tea")
    rows = await rows_of_alice(home, h="tea")
    deletion = home.made(alice, kind, *named(rows), h="tea")
    with monkeypatch.context() as broken:
        broken.setattr(home.store, "append", Failing(home.store, 3).append)
        ((accepted, text),) = await home.take(deletion)
        assert not accepted
        assert text.startswith("error:")
    left = {event.id for event in await home.log()} & {row.id for row in rows}
    assert 0 < len(left) < len(rows)
    await home.restart()
    assert await home.take(deletion) == [STORED]
    assert not {event.id for event in await home.log()} & {row.id for row in rows}
    assert await home.take(*rows) == [DELETED] * len(rows)
    erasure = await home.store.erasure(deletion.id)
    assert erasure is not None
    assert sorted(erasure.ids) == sorted((row.id, 9) for row in rows)


async def test_what_broke_off_does_not_show_which_hidden_rows_it_deleted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is sent again, nobody knows that they were hidden."""
    await home.do(alice, 9007, h="den")
    await home.do(alice, 9002, ["private"], h="den")
    hidden, notes = await rows_of_alice(home, 1, h="den"), await rows_of_alice(home, 11)
    deletion = home.made(alice, 5, *named([*hidden, *notes]))
    with monkeypatch.context() as broken:
        broken.setattr(home.store, "append", Failing(home.store, 2).append)
        ((accepted, _),) = await home.take(deletion)
        assert not accepted
    left = {event.id for event in await home.log()}
    assert hidden[0].id not in left
    assert left & {note.id for note in notes}
    await home.restart()
    assert await home.take(deletion) == [STORED]
    assert [row.quiet for row in await home.store.since(0, 1000) if row.event.kind == 5] == [True]


async def test_who_stops_the_relay_waits_for_the_last_piece(home: Home) -> None:
    rows = await rows_of_alice(home)
    letter = home.post(home.made(alice, 5, *named(rows)))
    await home.restart()
    assert await letter.answer == STORED


# keys that vanish and groups that end -------------------------------------------------------------


async def lived(home: Home) -> list[Event]:
    """Alice's group, its messages, and her notes."""
    await home.do(alice, 9007, h="tea")
    await home.do(alice, 9000, ["p", bob.pubkey], h="tea")
    rows = [*await rows_of_alice(home, 9, h="tea"), *await rows_of_alice(home, 9)]
    await home.do(alice, 9010, ["e", rows[0].id], h="tea")
    return rows


def emptying(home: Home, kind: int) -> Event:
    return home.request(alice) if kind == 62 else home.made(alice, 9008, h="tea")


async def test_the_members_of_a_group_leave_with_the_last_piece(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 10,000 of them each piece took 50 ms longer."""
    await lived(home)
    watched, ended = Batches(home.ingest), list[str]()

    def counted(groups: Groups, group: Group, left: EndedGroup) -> object:
        ended.append(group.id)
        return detach_subgroups(groups, group, left)

    monkeypatch.setattr(rules, "detach_subgroups", counted)
    assert await home.take(emptying(home, 9008)) == [STORED]
    assert len(watched.committed) > 3
    assert ended == ["tea"]


async def test_what_is_sent_again_while_its_author_vanishes_is_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored, told to subscribers and deleted by a later piece: who had the events could
    send them again for ever, and the request was never carried out."""
    rows = [*await rows_of_alice(home), await home.do(carol, 1059, ["p", alice.pubkey])]
    sent: list[Letter] = []
    stored, newer = home.ingest._stored, home.made(alice, 1, at=home.now + 1)

    async def then_send(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        if batch.is_piece and len(sent) < 10 * len(rows):
            gone = {row.id for row in rows} - {event.id for event in await home.log()}
            again = [*(row for row in rows if row.id in gone), newer]
            sent.extend(home.post(event, connection=2) for event in again)
            while home.ingest.waiting["verify"]:  # noqa: ASYNC110 -- threads verify them
                await asyncio.sleep(0.001)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_send)
    assert await home.post(home.request(alice), connection=1).answer == STORED
    answers = [await letter.answer for letter in sent]
    assert len(sent) < 10 * len(rows)
    assert set(answers) == {DELETED, STORED, DUPLICATE}
    assert [event.id for event in await home.log()] == [newer.id]
    assert {event.id for event in home.live.said} >= {newer.id}
    assert [event.id for event in home.live.said].count(rows[0].id) == 1


async def test_of_a_key_whose_request_to_vanish_was_not_carried_out_nothing_is_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = await rows_of_alice(home)
    stored, passes = home.ingest._stored, list[object]()

    async def then_fail(items: Sequence[Any]) -> Any:
        if passes:
            raise StoreFault("the disk is full")
        batch = await stored(items)
        passes.append(batch)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_fail)
    ((accepted, _),) = await home.take(home.request(alice))
    assert not accepted
    monkeypatch.setattr(home.ingest, "_stored", stored)
    assert STORED in await home.take(*rows)


@pytest.mark.parametrize("kind", [62, 9008])
async def test_others_are_served_while_a_key_vanishes_or_a_group_ends(
    home: Home, kind: int
) -> None:
    rows = await lived(home)
    letters = [home.post(emptying(home, kind), connection=1)]
    notes = [home.made(bob, 1), home.made(bob, 9, h="tea")]
    letters += [home.post(note, connection=2) for note in notes]
    assert [await letter.answer for letter in letters] == [STORED] * 3
    assert [len(letter.answers) for letter in letters] == [1] * 3
    left = {event.id for event in await home.log()}
    assert notes[0].id in left
    assert (notes[1].id in left) is (kind == 62)
    gone = rows if kind == 62 else rows[:9]
    assert not {row.id for row in gone} & left
    answers = await home.take(*gone)
    assert not any(accepted for accepted, _ in answers)
    assert await home.rebuilt() == home.groups


@pytest.mark.parametrize("kind", [62, 9008])
async def test_what_broke_off_is_completed_when_it_is_sent_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    rows = await lived(home)
    request = emptying(home, kind)
    with monkeypatch.context() as broken:
        broken.setattr(home.store, "append", Failing(home.store, 2).append)
        ((accepted, _),) = await home.take(request)
        assert not accepted
    left = {event.id for event in await home.log()} & {row.id for row in rows}
    assert 0 < len(left) < len(rows)
    await home.restart()
    assert await home.take(request) == [STORED]
    left = {event.id for event in await home.log()} & {row.id for row in rows}
    assert len(left) == (0 if kind == 62 else 9)
    erasure = await home.store.erasure(request.id)
    if kind == 62:
        assert erasure is not None
        assert {row.id for row in rows} <= {event_id for event_id, _ in erasure.ids}
    else:
        assert erasure is None


@pytest.mark.parametrize("kind", [5, 62, 9005, 9008])
@pytest.mark.parametrize("limit", ["quota", "rate"])
async def test_a_deletion_that_has_begun_is_refused_by_no_rate_or_quota(
    monkeypatch: pytest.MonkeyPatch, kind: int, limit: str
) -> None:
    """What others send meanwhile used them up. It takes as many tokens as any other event."""
    monkeypatch.setattr(BOUND, SMALL)
    most = "quota = { per = 'address', events = 3 }"
    if limit == "rate":
        most = "rate = { per = 'address', burst = 3, per_minute = 1 }"
    rule = f"[[rule]]\nname = 'few'\nmatch = {{ kinds = [{kind}, 30023] }}\n{most}"
    async with Home(ReferenceStore(), policy_of("open", rule)) as home:
        rows = (await lived(home))[:9]
        notes = [home.made(bob, 30023, ["d", f"{place}"]) for place in range(4)]
        sent: list[Letter] = []
        stored = home.ingest._stored

        async def then_send(items: Sequence[Any]) -> Any:
            batch = await stored(items)
            left = {event.id for event in await home.log()}
            if batch.is_piece and not sent and not {row.id for row in rows} <= left:
                sent.extend(home.post(note, connection=2) for note in notes)
                await eventually("they wait", lambda: home.ingest.waiting["commit"] == len(notes))
            return batch

        monkeypatch.setattr(home.ingest, "_stored", then_send)
        if kind in (62, 9008):
            deletion = emptying(home, kind)
        else:
            deletion = home.made(alice, kind, *named(rows), h="tea")
        assert await home.post(deletion, connection=1).answer == STORED
        answers = [await letter.answer for letter in sent]
        assert answers[:2] == [STORED] * 2
        assert [text.split(":")[0] for _, text in answers[2:]] == ["rate-limited"] * 2
        assert not {row.id for row in rows} & {event.id for event in await home.log()}


async def test_a_deletion_that_has_begun_may_expire_with_many(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.write.passed_over.MAX_EXPIRING", 1)
    rows, tag = await rows_of_alice(home), ["expiration", str(home.now + 600)]
    note, sent = home.made(bob, 1, tag), list[Any]()
    stored = home.ingest._stored

    async def then_send(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        left = {event.id for event in await home.log()}
        if batch.is_piece and not sent and not {row.id for row in rows} <= left:
            sent.append(home.post(note, connection=2))
            await eventually("it waits", lambda: home.ingest.waiting["commit"] == 1)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_send)
    deletion = home.made(alice, 5, *named(rows), tag)
    assert await home.post(deletion, connection=1).answer == STORED
    assert await sent[0].answer == STORED
    assert {event.id for event in await home.log()} == {deletion.id, note.id}


class Deleted:
    """Ids of the rows of each transaction from now on that deletes some."""

    def __init__(self, home: Home) -> None:
        self.by_transaction: list[set[str]] = []
        stored = home.ingest._stored

        async def noted(items: Sequence[Any]) -> Any:
            before = {event.id for event in await home.log()}
            batch = await stored(items)
            if gone := before - {event.id for event in await home.log()}:
                self.by_transaction.append(gone)
            return batch

        home.ingest._stored = noted  # type: ignore[method-assign]

    def most_of(self, rows: Sequence[Event]) -> int:
        """Of these, in one transaction."""
        ids = {row.id for row in rows}
        assert ids <= set[str]().union(*self.by_transaction)
        return max(len(gone & ids) for gone in self.by_transaction)


class OldVersions:
    """How many are stored before and after each transaction from now on."""

    def __init__(self, home: Home) -> None:
        self.left: list[int] = []
        stored = home.ingest._stored

        async def number() -> int:
            return len(await home.store.old_versions(0, 99))

        async def noted(items: Sequence[Any]) -> Any:
            self.left.append(await number())
            batch = await stored(items)
            self.left.append(await number())
            return batch

        home.ingest._stored = noted  # type: ignore[method-assign]

    @property
    def most_at_once(self) -> int:
        """Deleted in one transaction."""
        return max(before - after for before, after in pairwise(self.left))


async def test_rows_that_do_not_name_their_group_leave_in_pieces(home: Home) -> None:
    """Comments without `h` left in the last transaction, however many they were."""
    await home.do(alice, 9007, h="tea")
    root = await home.do(alice, 1, h="tea")
    rows = [
        await home.do(who, 1111, ["e", root.id], ["k", "1"], content="x" * 500)
        for _ in range(6)
        for who in (alice, bob)
    ]
    deleted = Deleted(home)
    assert await home.take(home.made(alice, 9008, h="tea")) == [STORED]
    assert deleted.most_of(rows) <= 3
    await home.take(*rows)
    assert not {event.id for event in await home.log()} & {row.id for row in rows}, "sent again"
    assert await home.rebuilt() == home.groups


async def test_what_many_groups_pin_is_deleted_in_pieces(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay signs a 39005 for each."""
    monkeypatch.setattr(BOUND, 64 << 10)
    monkeypatch.setattr("relay.lifecycle.rows.UNPINNED_AT_ONCE", 3)
    rows: list[Event] = []
    for n in range(10):
        await home.do(alice, 9007, h=f"g{n}")
        rows.append(await home.do(alice, 9, h=f"g{n}"))
        kept = await home.do(alice, 9, h=f"g{n}")
        await home.do(alice, 9010, *named([rows[-1], kept]), h=f"g{n}")
    deleted = Deleted(home)
    assert await home.take(home.made(alice, 5, *named(rows))) == [STORED]
    assert deleted.most_of(rows) <= 3
    assert [len(home.groups.by_id[f"g{n}"].pins) for n in range(10)] == [1] * 10
    assert await home.rebuilt() == home.groups
    rows = [(await home.do(alice, 9, h=f"g{n}")) for n in range(10)]
    for n, row in enumerate(rows):
        await home.do(alice, 9010, ["e", row.id], h=f"g{n}")
    one_each = [home.made(alice, 5, ["e", row.id]) for row in rows]
    assert await home.take(*one_each) == [STORED] * 10
    assert not home.groups.pinned
    assert await home.rebuilt() == home.groups


@pytest.mark.parametrize("kind", [62, 9008])
async def test_pinned_rows_leave_in_pieces(home: Home, kind: int) -> None:
    """They left in the last transaction: 64 large ones of each group."""
    pinned: list[Event] = []
    for group in ("tea", "den"):
        await home.do(alice, 9007, h=group)
        rows = await rows_of_alice(home, 6, h=group)
        rows.append(await home.do(alice, 30023, ["d", group], h=group, content="x" * 500))
        pins = [*named(rows[:6]), ["a", f"30023:{alice.pubkey}:{group}"]]
        await home.do(alice, 9010, *pins, h=group)
        pinned += rows
    await home.do(alice, 9000, ["p", bob.pubkey, "admin"], h="den")
    kept = await home.do(bob, 9, h="den")
    await home.do(bob, 9010, *pins, ["e", kept.id], h="den")
    deleted = Deleted(home)
    before = home.groups.by_id["den"].pins
    assert await home.take(emptying(home, kind)) == [STORED]
    gone = pinned if kind == 62 else pinned[:7]
    assert deleted.most_of(gone) <= 3
    assert home.groups.by_id["den"].pins == ((("e", kept.id),) if kind == 62 else before)
    assert await home.rebuilt() == home.groups


@pytest.mark.parametrize("kind", [62, 9008])
async def test_pins_of_what_broke_off_are_those_that_are_left(
    home: Home, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    await home.do(alice, 9007, h="tea")
    rows = await rows_of_alice(home, 9, h="tea")
    await home.do(alice, 9010, *named(rows), h="tea")
    request = emptying(home, kind)
    with monkeypatch.context() as broken:
        broken.setattr(home.store, "append", Failing(home.store, 2).append)
        ((accepted, _),) = await home.take(request)
        assert not accepted
    left = {event.id for event in await home.log()} & {row.id for row in rows}
    pinned = {name for _, name in home.groups.by_id["tea"].pins}
    assert 0 < len(left) < len(rows)
    assert pinned <= left
    assert await home.rebuilt() == home.groups
    await home.restart()
    assert await home.take(request) == [STORED]
    assert not {event.id for event in await home.log()} & {row.id for row in rows}
    assert await home.rebuilt() == home.groups


async def test_who_pins_again_what_leaves_does_not_keep_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home.do(bob, 9007, h="tea")
    rows = await rows_of_alice(home, 9, h="tea")
    await home.do(bob, 9010, *named(rows), h="tea")
    pinnings: list[Letter] = []
    stored = home.ingest._stored

    async def then_pin(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        if batch.is_piece and len(pinnings) < 100:
            pinnings.append(home.post(home.made(bob, 9010, *named(rows), h="tea"), connection=2))
            while home.ingest.waiting["verify"]:  # noqa: ASYNC110 -- threads verify it
                await asyncio.sleep(0.001)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_pin)
    assert await home.post(home.request(alice), connection=1).answer == STORED
    assert len(pinnings) < 100
    for letter in pinnings:
        await letter.answer
    assert not {event.id for event in await home.log()} & {row.id for row in rows}
    assert home.groups.by_id["tea"].pins == ()
    assert await home.rebuilt() == home.groups


async def founded(home: Home) -> None:
    """Groups of Alice's of many sorts: a subgroup, with pins, with a request, ended, of others."""
    for group in ("den", "end", "sub", "tea"):
        await home.do(alice, 9007, h=group)
        await home.do(alice, 9000, ["p", bob.pubkey, "moderator"], h=group)
    await home.do(alice, 9002, ["name", "Den"], ["private"], ["closed"], h="den")
    await home.do(alice, 9009, ["code", "open-sesame"], h="den")
    await home.do(bob, 9009, ["code", "close-sesame"], h="den")
    await home.do(alice, 9002, ["parent", "tea"], h="sub")
    pinned = [await home.do(who, 9, h="tea", content="x" * 500) for who in (alice, bob)]
    await home.do(alice, 9010, *named(pinned), h="tea")
    await home.do(alice, 9001, ["p", bob.pubkey], h="sub")
    await home.do(alice, 9008, h="end")
    await home.do(bob, 9007, h="pub")
    await home.do(bob, 9000, ["p", alice.pubkey, "moderator"], h="pub")
    await home.do(alice, 9000, ["p", carol.pubkey], h="pub")
    await rows_of_alice(home, 3)
    await home.do(owner, 9007, h="last")
    await home.do(owner, 9000, ["p", alice.pubkey], h="last")


async def groups_without_alice(store: Store, at_once: int, age: int, fails_after: int) -> Groups:
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(BOUND, SMALL)
        changed.setattr(AT_ONCE, at_once)
        async with Home(store, OPEN) as home:
            await founded(home)
            asked = home.now
            home.now += age
            await home.do(owner, 9000, ["p", alice.pubkey, "admin"], h="tea")
            stored, passes = home.ingest._stored, list[bool]()

            async def checked(items: Sequence[Any]) -> Batch:
                batch = await stored(items)
                passes.append(batch.is_piece)
                assert await home.rebuilt() == home.groups
                return batch

            changed.setattr(home.ingest, "_stored", checked)
            request = home.request(alice, at=asked)
            with pytest.MonkeyPatch.context() as broken:
                broken.setattr(store, "append", Failing(store, fails_after).append)
                answers = await home.take(request)
            if answers != [STORED]:
                assert await home.rebuilt() == home.groups
                await home.restart()
                assert await home.take(request) == [STORED]
            if at_once == 1 and answers == [STORED]:
                assert sum(passes) >= 4
            assert await home.take(request) == [DUPLICATE]
            assert await home.found(authors=[alice.pubkey]) == []
            await home.restart()
            return home.groups


@pytest.mark.parametrize("kind", ["reference", "sqlite"])
@pytest.mark.parametrize("age", [60, 1000])
@pytest.mark.parametrize("fails_after", [1000, 2, 4, 5])
async def test_groups_are_what_their_log_says_after_each_piece_of_a_request_to_vanish(
    kind: str, age: int, fails_after: int
) -> None:
    """Also if it breaks off. 1,000 s after the request, Alice is in a group again."""
    async with store_of("reference") as store:
        whole = await groups_without_alice(store, 16, age, 1000)
    async with store_of(kind) as store:
        assert await groups_without_alice(store, 1, age, fails_after) == whole
    assert whole.groups_of(alice.pubkey) == (frozenset() if age == 60 else {"tea"})


async def test_a_refused_end_of_a_group_deletes_nothing(home: Home) -> None:
    await lived(home)
    before = await home.log()
    ((accepted, _),) = await home.take(home.made(bob, 9008, h="tea"))
    assert not accepted
    assert await home.log() == before


# the records of a group that has ended -----------------------------------------------------------


async def recorded(home: Home, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Alice's group, and its 9000s, which are too large for one transaction."""
    monkeypatch.setattr("relay.storage.rows.MOST_DELETED", SMALL)
    monkeypatch.setattr("relay.write.sweeper._BATCH_BYTES", SMALL)
    await home.do(alice, 9007, h="tea")
    put = ["p", bob.pubkey]
    for _ in range(12):
        await home.do(alice, 9000, put, h="tea", content="x" * 500)
    return [event for event in await home.log() if event.kind == 9000]


async def records_left(home: Home) -> list[int]:
    """Their kinds."""
    return [event.kind for event in await home.log() if event.kind in kinds.GROUP_RECORDS]


async def rows_after_each_commit(home: Home, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many there are now, and then after each commit that follows."""
    stored, numbers = home.ingest._stored, [len(await home.log())]

    async def counted(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        numbers.append(len(await home.log()))
        return batch

    monkeypatch.setattr(home.ingest, "_stored", counted)
    return numbers


async def test_records_of_an_ended_group_are_deleted_a_few_at_a_time(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 MB of them, with 5,000 tags each, were one transaction of four seconds."""
    puts = await recorded(home, monkeypatch)
    numbers = await rows_after_each_commit(home, monkeypatch)
    await home.do(alice, 9008, h="tea")
    assert {put.id for put in puts} <= {event.id for event in await home.log()}
    assert not await home.store.matching(asked(kinds=[9000]), limit=99, now=home.now)
    assert await home.sweep.once() == len(puts)
    assert await records_left(home) == [9007, 9008]
    deleted = [before - after for before, after in pairwise(numbers)]
    assert max(deleted[1:]) <= 3, "rows in one transaction"
    assert await home.rebuilt() == home.groups


async def test_records_of_an_ended_group_are_gone_from_its_end_on(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are the same before the sweep and after it, and after a restart."""
    puts = await recorded(home, monkeypatch)
    await home.do(alice, 9008, h="tea")
    before = await home.take(*puts, home.made(alice, 9007, h="tea"))
    assert not any(accepted for accepted, _ in before)
    await home.restart()
    assert await home.take(*puts, home.made(alice, 9007, h="tea")) == before
    await home.sweep.once()
    assert await home.take(*puts, home.made(alice, 9007, h="tea")) == before
    assert await records_left(home) == [9007, 9008]


async def test_a_sweep_of_records_that_broke_off_goes_on_after_a_restart(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = await recorded(home, monkeypatch)
    await home.do(alice, 9008, h="tea")
    with monkeypatch.context() as broken:
        broken.setattr(home.store, "append", Failing(home.store, 2).append)
        with pytest.raises(StoreFault):
            await home.sweep.once()
    left = {event.id for event in await home.log()} & {put.id for put in puts}
    assert 0 < len(left) < len(puts)
    await home.restart()
    assert await home.sweep.once() == len(left)
    assert await records_left(home) == [9007, 9008]


async def moderators(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alice and Bob are admins of a group whose records are too many for a request to vanish
    without a turn. Nobody has one before `give_turn`."""
    monkeypatch.setattr("relay.write.pieces._RECORDS_AT_ONCE", 100)
    monkeypatch.setattr("relay.write.commit_limits._PAUSE", 1e6)
    # Else a client on a busy machine is slow, and waits as such.
    monkeypatch.setattr("relay.write.commit_limits.LONG_S", inf)
    home.ingest._slow.pause_ends = asyncio.get_running_loop().time() + 1e6
    await home.do(carol, 9007, h="tea")
    await home.do(carol, 9000, *(["p", who.pubkey, "admin"] for who in (alice, bob)), h="tea")
    for who in (alice, bob):
        await home.do(who, 9009, ["code", f"code-of-{who.pubkey}"], h="tea")


def vanishing(home: Home, who: SecretKey, address: str, at: int | None = None) -> Letter:
    letter = home.letter_from(address)
    letter.counted_as = address
    home.ingest.submit(home.request(who, at=at), letter, Origin.WIRE)
    return letter


async def waiting(home: Home, *addresses: str) -> None:
    while not all(map(home.ingest._slow.has_request, addresses)):  # noqa: ASYNC110
        await asyncio.sleep(0)


def give_turn(home: Home) -> None:
    home.ingest._slow.pause_ends = 0.0
    home.ingest._serve_slow()


async def stored_by_turns(home: Home, *letters: Letter) -> None:
    for letter in letters:
        while not letter.answer.done():
            if home.ingest._slow.due_at is not None:
                give_turn(home)
            await asyncio.sleep(0)
        assert letter.answers == [STORED]


async def test_requests_to_vanish_that_read_large_groups_wait_for_turns_and_others_do_not(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty read a group of 50 MB one after the other, 4 s each."""
    await moderators(home, monkeypatch)
    rows = [home.made(bob, 1, content="x" * 500) for _ in range(12)]
    assert await home.take(home.made(admin, 1), *rows) == [STORED] * 13
    first = vanishing(home, alice, "192.0.2.1")
    await waiting(home, "192.0.2.1")
    second = vanishing(home, bob, "198.51.100.2")
    await waiting(home, "198.51.100.2")
    assert await vanishing(home, admin, "192.0.2.3").answer == STORED, "no groups to restate"
    assert await home.take(home.made(carol, 1)) == [STORED]
    assert {alice.pubkey, bob.pubkey} <= home.groups.by_id["tea"].members.keys()
    give_turn(home)
    assert await first.answer == STORED
    assert not second.answer.done()
    give_turn(home)
    assert await second.answer == STORED
    assert home.groups.by_id["tea"].members.keys() == {carol.pubkey}
    assert await home.rebuilt() == home.groups


async def test_who_vanishes_again_and_again_keeps_no_admin_of_a_large_group_from_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key's requests, each a second younger, kept all others out for as long as it liked."""
    await moderators(home, monkeypatch)
    again = vanishing(home, alice, "192.0.2.1")
    await waiting(home, "192.0.2.1")
    other = vanishing(home, bob, "198.51.100.2")
    await waiting(home, "198.51.100.2")
    give_turn(home)
    assert await again.answer == STORED
    home.now += 1
    await home.do(carol, 9000, ["p", alice.pubkey, "admin"], h="tea")
    await home.do(alice, 9009, ["code", "another-code"], h="tea")
    again = vanishing(home, alice, "192.0.2.1")
    await waiting(home, "192.0.2.1")
    give_turn(home)
    assert await other.answer == STORED
    assert not again.answer.done()
    give_turn(home)
    assert await again.answer == STORED


async def test_nobody_waits_because_groups_that_others_moderated_took_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither after the first of a client nor when it is slow."""
    monkeypatch.setattr(BOUND, SMALL)
    store = ReferenceStore()
    append = store.append

    async def timed(wanted: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        of_turn = wanted.leaving is not None and wanted.leaving.most_records == MOST_RECORDS
        store.append_s = 1.0 if of_turn else 0.0
        return await append(wanted, decide)

    monkeypatch.setattr(store, "append", timed)
    async with Home(store, OPEN) as home:
        await moderators(home, monkeypatch)
        for who in (alice, bob):
            request = vanishing(home, who, "192.0.2.1")
            await stored_by_turns(home, request)
            assert await home.take(home.made(admin, 1)) == [STORED]
            assert await vanishing(home, admin, "192.0.2.2").answer == STORED
            home.now += 1


@pytest.mark.parametrize(
    ("address", "another"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1", "192.0.2.77"),
        ("2001:db8:1:2::1", "2001:db8:1:3::1"),
    ],
)
async def test_one_request_to_vanish_of_a_network_waits_for_a_turn(
    home: Home, monkeypatch: pytest.MonkeyPatch, address: str, another: str
) -> None:
    """Each batch looks at all requests that have begun, and each had a long turn: with one of each
    address others waited behind those of a /48 for hours."""
    await moderators(home, monkeypatch)
    first = vanishing(home, alice, address)
    await waiting(home, address)
    refusal = (False, "rate-limited: too many requests to vanish, wait a minute")
    assert await vanishing(home, bob, another).answer == refusal
    assert home.ingest.vanishing == {alice.pubkey}
    give_turn(home)
    assert await first.answer == STORED


async def test_a_known_key_waits_for_a_turn_whoever_else_of_its_network_does(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    await moderators(home, monkeypatch)
    first = vanishing(home, alice, "192.0.2.1")
    await waiting(home, "192.0.2.1")
    letter = home.letter_from("192.0.2.2")
    letter.counted_as, letter.is_known = "192.0.2.2", True
    home.ingest.submit(home.request(bob), letter, Origin.WIRE)
    await stored_by_turns(home, first, letter)


async def test_a_request_to_vanish_that_has_begun_is_done_although_its_client_has_gone(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else some of the rows would be deleted, and the key could write and be read as before."""
    await moderators(home, monkeypatch)
    monkeypatch.setattr(AT_ONCE, 1)
    await rows_of_alice(home)
    request = vanishing(home, alice, "192.0.2.1")
    await waiting(home, "192.0.2.1")
    assert alice.pubkey in home.ingest.vanishing
    request.is_over = True
    await stored_by_turns(home, request)
    assert alice.pubkey not in home.groups.by_id["tea"].members


async def test_a_request_to_vanish_that_has_begun_is_done_although_another_of_its_address_waits(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    await moderators(home, monkeypatch)
    monkeypatch.setattr(AT_ONCE, 1)
    await home.do(carol, 9007, h="coffee")
    await home.do(carol, 9000, ["p", alice.pubkey, "admin"], h="coffee")
    await home.do(alice, 9009, ["code", "of-coffee"], h="coffee")
    await rows_of_alice(home)
    first = vanishing(home, alice, "192.0.2.1")
    await waiting(home, "192.0.2.1")
    stored, gave = home.ingest._stored, list[bool]()

    async def giving_a_turn(items: Sequence[LaneItem]) -> Batch:
        batch = await stored(items)
        if batch.needs_turn and not gave:  # while the second is in the store
            gave.append(True)
            give_turn(home)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", giving_a_turn)
    second = vanishing(home, bob, "192.0.2.1")
    while not gave:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await stored_by_turns(home, first, second)


@pytest.mark.parametrize("way", ["owner", "import", "stop"])
async def test_requests_to_vanish_of_owners_of_an_import_or_at_the_end_need_no_turn(
    home: Home, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    await moderators(home, monkeypatch)
    letter = home.letter_from("192.0.2.1")
    letter.is_owner = way == "owner"
    origin = Origin.IMPORT if way == "import" else Origin.WIRE
    if way == "stop":
        home.ingest.hurry()
    home.ingest.submit(home.request(alice), letter, origin)
    assert await letter.answer == STORED
    assert alice.pubkey not in home.groups.by_id["tea"].members


async def test_a_large_group_that_waits_for_its_end_holds_no_stop(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken and put back without a pause, so that the loop did nothing else."""
    await home.do(alice, 9007, h="tea")
    await rows_of_alice(home, h="tea")
    monkeypatch.setattr(home.ingest, "_ends_large_group", lambda item: True)
    note_piece, waits = home.ingest._note_piece, asyncio.Event()

    def note(item: LaneItem) -> None:
        note_piece(item)
        home.ingest._end_from = asyncio.get_running_loop().time() + 1000
        waits.set()

    monkeypatch.setattr(home.ingest, "_note_piece", note)
    letter = home.post(home.made(alice, 9008, h="tea"), connection=1)
    await waits.wait()
    await home.restart()
    assert await letter.answer == STORED


async def test_a_key_vanishes_from_the_records_of_an_ended_group(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its receipt is about what has left the store."""
    puts = await recorded(home, monkeypatch)
    await home.do(alice, 9008, h="tea")
    request = home.request(alice)
    assert await home.take(request) == [STORED]
    puts = [put for put in puts if put.pubkey == alice.pubkey]
    assert not {put.id for put in puts} & {event.id for event in await home.log()}
    erasure = await home.store.erasure(request.id)
    assert erasure is not None
    assert {put.id for put in puts} <= {event_id for event_id, _ in erasure.ids}


# the records of a key that vanishes ---------------------------------------------------------------


async def moderated(home: Home) -> list[Event]:
    """Records by Alice in Bob's group and her own, too large for one transaction: the state of the
    groups depends on them."""
    await home.do(bob, 9007, h="tea")
    await home.do(bob, 9000, ["p", alice.pubkey, "admin"], h="tea")
    await home.do(alice, 9007, h="den")
    for group in ("tea", "den"):
        for who in (carol, owner):
            await home.do(alice, 9000, ["p", who.pubkey], h=group, content="x" * 500)
        await home.do(alice, 9001, ["p", carol.pubkey], h=group, content="x" * 500)
        await home.do(alice, 9002, ["name", "of Alice"], ["private"], h=group, content="x" * 500)
        await home.do(alice, 9009, ["code", f"open-{group}"], h=group, content="x" * 500)
    return [event for event in await home.log() if event.pubkey == alice.pubkey]


async def noted_in_receipt(home: Home, request: Event) -> set[str]:
    """Ids."""
    erasure = await home.store.erasure(request.id)
    assert erasure is not None
    return {event_id for event_id, _ in erasure.ids}


async def test_records_of_a_vanishing_key_are_deleted_a_few_at_a_time(home: Home) -> None:
    """2 MB of them, with 5,000 tags each, were one transaction of three seconds."""
    records = await moderated(home)
    deleted = Deleted(home)
    request = home.request(alice)
    assert await home.take(request) == [STORED]
    assert deleted.most_of(records) <= 3
    assert await noted_in_receipt(home, request) >= {record.id for record in records}
    assert await home.rebuilt() == home.groups
    assert carol.pubkey not in home.groups.by_id["tea"].members
    assert owner.pubkey in home.groups.by_id["den"].members
    assert alice.pubkey not in home.groups.by_id["den"].members


async def test_join_and_leave_requests_of_a_vanishing_key_leave_in_pieces(home: Home) -> None:
    """Also those that are pending, in groups that the key never moderated."""
    asks = [person(f"k{number}") for number in range(5)]
    for place, founder in enumerate(asks):
        group = f"g{place}"
        await home.do(founder, 9007, h=group)
        for kind in (9021, 9022, 9021):
            await home.do(alice, kind, h=group, content="x" * 500)
        await home.do(founder, 9001, ["p", alice.pubkey], h=group)
        await home.take(home.made(alice, 9021, h=group, content="x" * 500))
    requests = [event for event in await home.log() if event.pubkey == alice.pubkey]
    assert len(requests) == 20
    assert all(alice.pubkey in group.requests for group in home.groups.by_id.values())
    deleted = Deleted(home)
    stored = home.ingest._stored

    async def checked(items: Sequence[Any]) -> Batch:
        batch = await stored(items)
        assert await home.rebuilt() == home.groups
        return batch

    home.ingest._stored = checked  # type: ignore[method-assign]
    request = home.request(alice)
    assert await home.take(request) == [STORED]
    assert deleted.most_of(requests) <= 3
    assert await noted_in_receipt(home, request) >= {event.id for event in requests}
    assert not any(alice.pubkey in group.requests for group in home.groups.by_id.values())


async def test_notices_to_a_vanishing_key_leave_in_pieces(home: Home) -> None:
    """2,500 left in one transaction of a second: nothing counted them."""
    await home.do(bob, 9007, h="tea")
    for _ in range(5):
        await home.do(bob, 9000, ["p", alice.pubkey], h="tea")
        await home.do(bob, 9001, ["p", alice.pubkey], h="tea")
    notices = [event for event in await home.log() if event.kind in kinds.GROUP_MEMBER_NOTICES]
    notices = [event for event in notices if alice.pubkey in event.tag_values("p")]
    assert len(notices) == 10
    deleted = Deleted(home)
    assert await home.take(home.request(alice)) == [STORED]
    assert deleted.most_of(notices) <= 5


async def test_gift_wraps_for_many_recipients_leave_in_pieces(home: Home) -> None:
    """They are in no total by recipient: 200 left in one transaction of 19 s."""
    to = [["p", person(f"k{number}").pubkey] for number in range(MAX_RECIPIENTS)]
    wraps = [home.made(bob, 1059, *to, ["p", alice.pubkey]) for _ in range(6)]
    await write(home.store, *wraps)
    deleted = Deleted(home)
    assert await home.take(home.request(alice)) == [STORED]
    assert deleted.most_of(wraps) <= 1


async def test_what_comes_after_the_last_piece_leaves_in_pieces_too(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another relay with the same database knows nothing of the request."""
    monkeypatch.setattr("relay.storage.rows.MOST_DELETED", SMALL)
    await rows_of_alice(home)
    to_alice = ["p", alice.pubkey]
    wraps = [home.made(bob, 1059, to_alice, content=f"{n}" * 500) for n in range(12)]
    deleted, stored, late = Deleted(home), home.ingest._stored, [*wraps]

    async def then_add(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        pieces = items[0].pieces
        if pieces is not None and pieces.is_last and batch.is_piece:
            await write(home.store, *late)
            late.clear()
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_add)
    request = home.request(alice)
    assert await home.take(request) == [STORED]
    assert deleted.most_of(wraps) <= 3
    assert await noted_in_receipt(home, request) >= {wrap.id for wrap in wraps}


@pytest.mark.parametrize("kind", ["reference", "sqlite"])
async def test_old_versions_of_records_that_stay_leave_in_pieces(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The records are newer than the request: nothing else of the key leaves."""
    monkeypatch.setattr(BOUND, SMALL)
    monkeypatch.setattr("relay.storage.rows.MOST_DELETED", SMALL)
    rule = '[[retention]]\nname = "history"\nmatch = { kinds = [30023] }\nhistory = { count = 9 }\n'
    async with store_of(kind) as store, Home(store, policy_of("open", rule)) as home:
        old: list[Event] = []
        for name in "ab":
            for ago in range(6, -1, -1):
                at = home.now - ago if ago else home.now + 60
                old.append(await home.do(alice, 30023, ["d", name], content="x" * 500, at=at))
            old.pop()
        versions = OldVersions(home)
        request = home.request(alice)
        assert await home.take(request) == [STORED]
        assert (versions.left[0], versions.left[-1]) == (len(old), 0)
        assert versions.most_at_once <= 3
        assert await noted_in_receipt(home, request) == {event.id for event in old}
        assert len(await home.found(kinds=[30023])) == 2


@pytest.mark.parametrize("ends", [True, False])
async def test_nobody_delays_the_end_of_a_group_by_writing_into_it(
    home: Home, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """A 9008 was never answered while one client wrote more than its pieces deleted. Records do not
    go in pieces: admins may still change the group, or take the right from who ends it."""
    await tea_with_admin(home)
    await home.do(owner, 9002, ["open"], h="tea")
    rows = await rows_of_alice(home, h="tea")
    root, last = rows[-2:]
    stored = home.ingest._stored
    letters: list[Letter] = []
    comments: list[Event] = []
    elsewhere = [(await home.do(alice, 1, content=f"{number}")).id for number in range(40)]
    many = [["e", f"{number:064x}"] for number in range(8)]

    async def then_write(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        if batch.is_piece and len(letters) < 40:
            more = [
                home.made(alice, 9, h="tea", content="x" * 500),
                home.made(bob, 1111, ["e", root.id], ["k", "9"], content="x" * 500),
                home.made(bob, 1, content="elsewhere"),
            ]
            made_up = [["e", f"{len(letters):032x}{number:032x}"] for number in range(12)]
            more.append(home.made(alice, 5, *made_up, h="tea"))
            if elsewhere:
                more.append(home.made(alice, 5, ["e", elsewhere.pop()], *many, h="tea"))
            if not letters:
                more.insert(3, home.made(alice, 5, ["e", last.id]))
            if not letters and not ends:
                more.append(home.made(owner, 9001, ["p", admin.pubkey], h="tea"))
            comments.append(more[1])
            letters.extend(home.post(event, connection=2) for event in more)
            while home.ingest.waiting["commit"] < len(more):  # noqa: ASYNC110 -- a thread verifies
                await asyncio.sleep(0.001)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_write)
    (answer,) = await home.take(home.made(admin, 9008, h="tea"))
    assert len(letters) < 40
    assert answer[0] == ends
    answers = [await letter.answer for letter in letters]
    assert answers[0][1].startswith("error: this group is being deleted")
    assert answers[2:4] == [STORED] * 2
    assert last not in await home.found(kinds=[9])
    assert ("tea" in home.groups.ended) == ends
    assert bool(await home.found(kinds=[9])) != ends
    if not ends:
        assert answers[6] == STORED
        await home.do(alice, 9, h="tea")
        return
    await home.take(comments[0])
    assert comments[0] not in await home.found(kinds=[1111]), "it would be public now"


@pytest.mark.parametrize("logged_in", [True, False])
@pytest.mark.parametrize(("number", "size"), [(3, 1), (80, 1), (80, 3000)])
@pytest.mark.parametrize("is_hidden", [True, False])
async def test_a_deletion_of_few_rows_of_an_ending_group_and_many_others_is_done(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    size: int,
    *,
    is_hidden: bool,
    logged_in: bool,
) -> None:
    """It was refused until the group had ended, and then for ever; to who may know nothing of a
    hidden group the answer was OK true. All learn of it if they could read what it deletes."""
    await tea_with_admin(home)
    rows = await rows_of_alice(home, h="tea")
    notes = [await home.do(alice, 1, content=f"{n:0{size}}") for n in range(number)]
    await home.do(owner, 9002, ["name", "tea"], ["closed"], *HIDDEN[is_hidden], h="tea")
    deletion = home.made(alice, 5, *[["e", each.id] for each in (*notes, rows[-1])])
    logins = [alice.pubkey] if logged_in else []
    letters = posted_after_a_piece(home, monkeypatch, deletion, *logins)
    assert await home.take(home.made(admin, 9008, h="tea")) == [STORED]
    assert await letters[0].answer == STORED
    assert await home.found(kinds=[1]) == []
    assert "tea" in home.groups.ended
    group, is_quiet = await placed(home, deletion)
    assert group is None
    if number == 3:  # else the end may have taken the row
        assert is_quiet is is_hidden


def posted_after_a_piece(
    home: Home, monkeypatch: pytest.MonkeyPatch, event: Event, *logins: str
) -> list[Letter]:
    """It waits for the commit when the first piece of another event is stored."""
    letters: list[Letter] = []
    stored = home.ingest._stored

    async def then_post(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        if batch.is_piece and not letters:
            letters.append(home.post(event, logins=logins, connection=2))
            while not home.ingest.waiting["commit"]:  # noqa: ASYNC110 -- a thread verifies
                await asyncio.sleep(0.001)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_post)
    return letters


async def test_what_only_names_rows_of_a_hidden_group_that_ends_is_not_shown_to_all(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind 5 of rows that others wrote deletes nothing."""
    await tea_with_admin(home)
    await home.do(owner, 9002, ["name", "tea"], ["closed"], *HIDDEN[True], h="tea")
    rows = await rows_of_alice(home, h="tea")
    deletion = home.made(admin, 5, *named(rows))
    letters = posted_after_a_piece(home, monkeypatch, deletion, admin.pubkey)
    assert await home.take(home.made(admin, 9008, h="tea")) == [STORED]
    assert await letters[0].answer == STORED
    assert await placed(home, deletion) == (None, True)


HIDDEN: dict[bool, list[list[str]]] = {True: [["private"], ["hidden"]], False: []}


async def placed(home: Home, event: Event) -> tuple[str | None, bool]:
    """The group of a stored event, and whether it is quiet."""
    (row,) = [row for row in await home.store.since(0, 1000) if row.event.id == event.id]
    return row.group, row.quiet


@pytest.mark.parametrize("is_hidden", [True, False])
async def test_a_deletion_is_of_no_group_that_ends_between_its_pieces(
    home: Home, monkeypatch: pytest.MonkeyPatch, *, is_hidden: bool
) -> None:
    """Nothing would delete it any more there, and its author could not read it."""
    await tea_with_admin(home)
    await home.do(owner, 9002, ["name", "tea"], ["closed"], *HIDDEN[is_hidden], h="tea")
    rows = await rows_of_alice(home, 2, h="tea")
    notes = await rows_of_alice(home, 20)
    deletion, end = home.made(alice, 5, *named([*rows, *notes])), home.made(admin, 9008, h="tea")
    letters = posted_after_a_piece(home, monkeypatch, end, admin.pubkey)
    assert await home.take(deletion, logins=[alice.pubkey]) == [STORED]
    assert await letters[0].answer == STORED
    log = [event.id for event in await home.log()]
    assert log.index(end.id) < log.index(deletion.id)
    assert await home.found(kinds=[1]) == []
    assert await placed(home, deletion) == (None, is_hidden)


async def test_nobody_delays_a_request_to_vanish_by_putting_its_key_into_groups(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer, admins of 100 groups kept it from ending for as long as they had 9000s."""
    monkeypatch.setattr("relay.write.pieces._LEFT_AT_ONCE", 2)
    groups = [f"g{number}" for number in range(7)]
    for name in groups:
        await home.do(bob, 9007, h=name)
        await home.do(bob, 9000, ["p", alice.pubkey], h=name)
    await home.do(bob, 9007, ["private"], ["hidden"], h="quiet")
    stored = home.ingest._stored
    letters: list[Letter] = []
    with_role = home.made(bob, 9000, ["p", alice.pubkey, "admin"], h="g6")

    async def then_put(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        if batch.is_piece and len(letters) < 40:
            left = [name for name in groups if name not in home.groups.groups_of(alice.pubkey)]
            more = [
                home.made(bob, 9000, ["p", carol.pubkey], ["p", alice.pubkey], h=name)
                for name in (*left, "quiet")
            ]
            if not letters:
                more += [with_role, home.made(bob, 9000, ["p", carol.pubkey], h="g0")]
            letters.extend(home.post(event, connection=2) for event in more)
            while home.ingest.waiting["commit"] < len(more):  # noqa: ASYNC110 -- a thread verifies
                await asyncio.sleep(0.001)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_put)
    assert await home.take(home.request(alice)) == [STORED]
    assert len(letters) < 40
    answers = [await letter.answer for letter in letters]
    assert answers[0][1].startswith("error: p: a key that is put into the group is vanishing")
    assert answers[2] == STORED, "who may not know the group learns nothing of it"
    assert answers[3:5] == [STORED] * 2
    assert not home.groups.groups_of(alice.pubkey)
    assert home.groups.groups_of(carol.pubkey) == {"g0"}
    monkeypatch.setattr(home.ingest, "_stored", stored)
    await home.do(bob, 9000, ["p", alice.pubkey], h="g1")
    assert home.groups.groups_of(alice.pubkey) == {"g1"}


@pytest.mark.parametrize("kind", ["reference", "sqlite"])
@pytest.mark.parametrize("first", ["a row", "old versions", "nothing else"])
@pytest.mark.parametrize("preset", ["group", "open"])
@pytest.mark.parametrize("by", [5, 9005])
async def test_old_versions_that_a_deletion_names_leave_in_pieces(
    monkeypatch: pytest.MonkeyPatch, kind: str, first: str, preset: str, by: int
) -> None:
    """1,000 that a kind 5 named left in one transaction of 4 s. A deletion that names no row is
    refused where it would be without pieces."""
    monkeypatch.setattr(BOUND, SMALL)
    rule = '[[retention]]\nname = "history"\nmatch = { kinds = [30023] }\nhistory = { count = 9 }\n'
    async with store_of(kind) as store, Home(store, policy_of(preset, rule)) as home:
        await home.do(owner, 9007, h="tea")
        await home.do(owner, 9000, ["p", alice.pubkey], h="tea")
        old: list[Event] = []
        for ago in range(9, -1, -1):
            record = ["d", "x"]
            old.append(
                await home.do(alice, 30023, record, h="tea", content="x" * 500, at=home.now - ago)
            )
        newest, note = old.pop(), await home.do(alice, 9, h="tea")
        if by == 5:
            await home.do(owner, 9001, ["p", alice.pubkey], h="tea")
        targets = {"a row": [note, *old], "old versions": [*old, note], "nothing else": old}[first]
        versions = OldVersions(home)
        who, h = (alice, None) if by == 5 else (owner, "tea")
        deletion = home.made(who, by, *named(targets), h=h)
        (answer,) = await home.take(deletion, logins=[who.pubkey])
        if answer != STORED:
            assert first == "nothing else"
            assert (preset, by) != ("open", 5)
            assert set(versions.left) == {len(old)}
            return
        assert versions.left[-1] == 0
        assert versions.most_at_once <= 3
        assert {each.id for each in await home.found(kinds=[30023])} == {newest.id}
        if by == 5:
            assert await noted_in_receipt(home, deletion) == {each.id for each in targets}


async def test_a_sweep_meanwhile_takes_nothing_out_of_the_receipt(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = await moderated(home)
    stored, swept, tries = home.ingest._stored, list[asyncio.Task[int]](), list[object]()

    async def then_sweep(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        tries.extend(item for item in items if isinstance(item, ExpireRows))
        if batch.is_piece:
            swept.append(asyncio.create_task(home.sweep.once()))
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_sweep)
    request = home.request(alice)
    assert await home.take(request) == [STORED]
    assert len(swept) > 3
    assert sum([await each for each in swept]) == 0
    assert len(tries) <= len(swept), "none tries again what has to stay"
    assert await noted_in_receipt(home, request) >= {record.id for record in records}


@pytest.mark.parametrize("age", [0, 3600])
async def test_groups_that_have_ended_forget_a_vanishing_key_in_pieces(
    home: Home, monkeypatch: pytest.MonkeyPatch, age: int
) -> None:
    """All of them were rewritten in the last transaction, by an old request too: 0.25 s for 20,000,
    and each other relay on the database read them again."""
    monkeypatch.setattr("relay.write.pieces._FORGOTTEN_AT_ONCE", 2)
    at = home.now - age
    for number in range(7):
        await home.do(bob, 9007, h=f"g{number}")
        await home.do(bob, 9000, ["p", alice.pubkey], h=f"g{number}")
        await home.do(bob, 9008, h=f"g{number}")
    await home.do(alice, 1, at=at)
    stored, left = home.ingest._stored, [7]

    async def counted(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        left.append(len(home.groups.ended_with(alice.pubkey)))
        return batch

    monkeypatch.setattr(home.ingest, "_stored", counted)
    assert await home.take(home.request(alice, at=at)) == [STORED]
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) == 2
    before = home.groups
    await home.restart()
    assert home.groups == before
    assert len(home.groups.ended_with(bob.pubkey)) == 7


async def test_what_a_vanishing_key_leaves_for_later_keeps_no_sweep_from_other_rows(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records have the earliest date of all that expired. 256 of them ended each sweep."""
    monkeypatch.setattr("relay.write.sweeper._BATCH_ROWS", 1)
    await moderated(home)
    await home.do(bob, 1, ["expiration", str(home.now + 5)])
    stored, request = home.ingest._stored, home.request(alice)
    swept: list[asyncio.Task[int]] = []
    held: list[int] = []

    async def then_sweep(items: Sequence[Any]) -> Any:
        batch = await stored(items)
        held.append(len(await home.store.expired(home.now, 2)))
        if batch.is_piece and held[-1] == 2 and not swept:
            home.now += 9
            swept.append(asyncio.create_task(home.sweep.once()))
            await asyncio.sleep(0)
        return batch

    monkeypatch.setattr(home.ingest, "_stored", then_sweep)
    assert await home.take(request) == [STORED]
    assert [await each for each in swept] == [1]


@pytest.mark.parametrize("kept", range(1, 9))
async def test_groups_keep_their_state_where_ever_the_request_to_vanish_breaks_off(
    home: Home, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Of a member put in and taken out the second record could be gone and the first not."""
    monkeypatch.setattr(AT_ONCE, 1)
    await moderated(home)

    def state() -> dict[str, object]:
        """What the vanished key must not change."""
        return {
            each.id: (
                {key: roles for key, roles in each.members.items() if key != alice.pubkey},
                each.flags,
                each.metadata,
            )
            for each in home.groups.by_id.values()
        }

    before, request = state(), home.request(alice)
    with monkeypatch.context() as broken:
        broken.setattr(home.store, "append", Failing(home.store, kept).append)
        await home.take(request)
    now = home.groups
    await home.restart()
    assert home.groups == now, "as the log has them"
    assert state() == before
    await home.sweep.once()
    await home.restart()
    assert home.groups == now
    assert await home.take(request) in ([STORED], [DUPLICATE])
    assert state() == before
    assert alice.pubkey not in {event.pubkey for event in await home.log()}
    assert await home.rebuilt() == home.groups


# pieces of any size -------------------------------------------------------------------------------


async def rich(home: Home) -> list[Event]:
    """Rows of many sorts, most of them by Alice."""
    for group in ("tea", "den"):
        await home.do(alice, 9007, h=group)
        await home.do(alice, 9000, ["p", bob.pubkey], h=group)
    await home.do(alice, 9002, ["private"], ["closed"], h="den")
    made = [
        await home.do(alice, 1),
        await home.do(alice, 1, content="x" * 900),
        await home.do(bob, 1),
        await home.do(alice, 9, h="tea"),
        await home.do(bob, 9, h="tea"),
        await home.do(alice, 9, h="den"),
        await home.do(bob, 9, h="den", content="x" * 900),
        await home.do(carol, 1059, ["p", alice.pubkey]),
        await home.do(alice, 30023, ["d", "old"], at=home.now - 9),
        await home.do(alice, 30023, ["d", "new"], at=home.now + 9, content="x" * 900),
        await home.do(alice, 30023, ["d", "in"], h="tea", at=home.now - 9),
        await home.do(alice, 7, ["e", "f" * 64]),
        await home.do(
            alice, 9009, ["code", "sesame-one"], ["code", "sesame-two"], h="tea", content="x" * 900
        ),
        await home.do(alice, 9009, ["code", "sesame-three"], h="tea"),
        await home.do(alice, 9009, ["code", "sesame-four"], h="den"),
    ]
    await home.do(alice, 9010, ["a", f"30023:{alice.pubkey}:in"], h="tea")
    return made


def name_of(row: Event, deletion: int) -> list[str]:
    """The tag by which this kind names the row."""
    if deletion == 5 and row.kind == 9009:
        return ["code", row.tag("code") or ""]
    return ["a", f"{row.kind}:{row.pubkey}:{row.d}"] if row.kind == 30023 else ["e", row.id]


def without_codes(group: Group | EndedGroup) -> object:
    """Stores have no tables of these: a piece that withdraws one need not write its group."""
    if isinstance(group, EndedGroup):
        return group
    return replace(group, invites=KeyMap(), codes=KeyMap())


async def state_after(
    kind: int, h: str | None, names: Sequence[int], origin: Origin, bound: int
) -> object:
    store = ReferenceStore()
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(BOUND, bound)
        async with Home(store, OPEN) as home:
            rows = await rich(home)
            tags = [name_of(row, kind) for row in map(rows.__getitem__, names)]
            if kind == 62:
                deletion = home.request(alice)
            else:
                deletion = home.made(alice, kind, *(tags if kind != 9008 else ()), h=h)
            answers = await home.take(deletion, origin=origin)
            log = await home.store.since(0, 1000)
            signed = kinds.GROUP_STATE
            sizes = await store.sizes(SizedBy.GROUP, 100)
            erasure = await store.erasure(deletion.id)
            return (
                answers,
                [
                    (row.event.id, row.group, row.quiet)
                    for row in log
                    if row.event.kind not in signed
                ],
                # Pins may be signed for before the rest.
                sorted((row.event.kind, row.event.tags) for row in log if row.event.kind in signed),
                sizes,
                home.groups,
                {id_: without_codes(group) for id_, group in store.groups.items()},
                {(each.target, each.by, each.until, each.why) for each in store._tombstones},
                None if erasure is None else (sorted(erasure.ids), erasure.numbers),
            )


@given(
    kind=st.sampled_from([5, 5, 9005, 62, 9008]),
    h=st.sampled_from([None, "tea", "den"]),
    names=st.lists(st.integers(0, 14), min_size=2, unique=True),
    origin=st.sampled_from([Origin.WIRE, *Origin]),
    bound=st.integers(1, 3000),
)
@settings(max_examples=examples(100))
def test_pieces_of_any_size_leave_what_one_transaction_leaves(
    kind: int, h: str | None, names: list[int], origin: Origin, bound: int
) -> None:
    h = "tea" if kind in kinds.MODERATION and h is None else h
    run(_compare(kind, h, names, origin, bound))


async def _compare(kind: int, h: str | None, names: list[int], origin: Origin, bound: int) -> None:
    in_pieces = await state_after(kind, h, names, origin, bound)
    assert in_pieces == await state_after(kind, h, names, origin, 10**9)
