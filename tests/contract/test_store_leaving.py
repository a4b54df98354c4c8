"""Rows of a key that vanishes and of a group that ends may leave in pieces, on every store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.access.quotas import MAX_RECIPIENTS, SizedBy
from relay.errors import TooMuchToRead
from relay.groups.group import EndedGroup
from relay.lifecycle.rows import (
    LONG_EXPIRED,
    MOST_DELETED,
    UNPINNED_AT_ONCE,
    Leaving,
    OwnRow,
    PinnedRows,
    Slot,
    Tombstone,
    WritePlan,
)
from relay.lifecycle.versions import History
from relay.nostr.erasure import Erasure
from tests import cast
from tests.contract.crowd import ALICE, BOB, CAROL
from tests.contract.writing import (
    EVERYTHING,
    MAX,
    NOTHING_WANTED,
    Batch,
    asked,
    change,
    in_order,
    look_up,
    raws,
    read,
    stored,
    unsigned,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.lifecycle.rows import Found, Stored
    from relay.nostr.event import Event
    from relay.storage import Store

HERE = [["h", "tea"]]
TO_ALICE = [["p", ALICE]]


async def leaving(
    store: Store,
    pubkey: str | None = None,
    group: str | None = None,
    pinned: frozenset[str | Slot] = frozenset(),
    most: int = 1,
    until: int = 1000,
) -> tuple[list[int], list[str | Slot]]:
    """What the store finds: seqs, and what is to be unpinned."""
    seen: list[Found] = []

    def decide(found: Found) -> WritePlan:
        seen.append(found)
        return WritePlan()

    asked = Leaving(pubkey, until, group, pinned, most)
    await store.append(replace(NOTHING_WANTED, leaving=asked), decide)
    return seen[-1].leaving, seen[-1].pinned


async def leave(store: Store, seqs: list[int], erasure: Erasure | None = None) -> None:
    def plan(out: WritePlan) -> None:
        request = "ab" * 32 if erasure is None else erasure.request
        out.leaving[request] = seqs
        if erasure is not None:
            out.erasures[request] = erasure

    await change(store, plan)


async def all_but_one(
    store: Store, pubkey: str | None, group: str | None
) -> tuple[set[str], set[str]]:
    """What leaves, one row at a time, and what is left then."""
    before = {row.event.id for row in await store.since(0, MAX)}
    while seqs := (await leaving(store, pubkey, group))[0]:
        assert len(seqs) == 1
        await leave(store, seqs)
    left = {row.event.id for row in await store.since(0, MAX)}
    return before - left, left


def ids(events: list[Event]) -> set[str]:
    return {event.id for event in events}


async def test_what_goes_with_a_key_may_leave_before_it(store: Store) -> None:
    """Its events, wraps and notices sent to it; what came later does not, nor records from which
    groups have their state."""
    goes = [
        unsigned(cast.alice),
        unsigned(cast.alice, 9, HERE),
        unsigned(cast.alice, 30023, [["d", "x"]]),
        unsigned(cast.bob, 1059, TO_ALICE),
        unsigned(cast.carol, 44100, [*TO_ALICE, *HERE]),
        unsigned(cast.alice, 1059, TO_ALICE),
        unsigned(cast.alice, 9021, HERE),
        unsigned(cast.alice, 9022, HERE),
    ]
    stays = [
        unsigned(cast.alice, at=1001),
        unsigned(cast.bob, 1, TO_ALICE),
        unsigned(cast.bob, 1059, [["p", BOB]]),
        unsigned(cast.bob, 1059, TO_ALICE, at=1001),
        unsigned(cast.alice, 9000, [*HERE, ["p", BOB]]),
        unsigned(cast.alice, 9020, HERE),
        unsigned(cast.alice, 39000, [["d", "tea"]]),
    ]
    for event in (*goes, *stays):
        await stored(store, event)
    gone, left = await all_but_one(store, ALICE, None)
    assert gone < ids(goes)
    assert len(gone) == len(goes) - 1
    assert left > ids(stays)


async def test_records_leave_with_their_author_when_they_have_expired_at_once(store: Store) -> None:
    """No group has its state from them any more."""
    events = [unsigned(cast.alice, 9000, HERE, each) for each in "xyz"]
    records = [await stored(store, event) for event in events]
    await change(store, lambda plan: plan.expired.update([row.seq for row in records]))
    kept = await stored(store, unsigned(cast.alice, 9002, HERE))
    gone, left = await all_but_one(store, ALICE, None)
    assert gone < ids(events)
    assert len(gone) == 2
    assert kept.event.id in left


async def test_join_requests_that_leave_are_told_with_their_group(store: Store) -> None:
    requests = [unsigned(cast.alice, 9021, [["h", group]]) for group in ("tea", "den", "far")]
    rows = [await stored(store, event) for event in requests]
    most = sum(len(event.raw) for event in requests) - 1
    asked = Leaving(ALICE, 1000, None, frozenset({requests[0].id}), most)
    found = await look_up(store, leaving=asked)
    wanted = {row.seq: (row.group, row.event.id) for row in rows}
    assert {(group, *named) for group, named in found.withdrawn.items()} == {
        wanted[seq] for seq in found.leaving
    }
    assert rows[0].seq not in found.leaving, "it is pinned"


async def test_what_goes_with_a_group_may_leave_before_it(store: Store) -> None:
    goes = [unsigned(who, 9, HERE, f"{n}") for n in range(4) for who in (cast.alice, cast.bob)]
    stays = [
        unsigned(cast.alice),
        unsigned(cast.alice, 9, [["h", "den"]]),
        unsigned(cast.alice, 9007, HERE),
        unsigned(cast.alice, 9021, HERE),
        unsigned(cast.alice, 39002, [["d", "tea"]]),
    ]
    for event in (*goes, *stays):
        await stored(store, event)
    gone, left = await all_but_one(store, None, "tea")
    assert gone < ids(goes)
    assert len(gone) == len(goes) - 1
    assert left > ids(stays)


async def test_what_leaves_with_a_group_that_it_does_not_name_is_kept_out(store: Store) -> None:
    chat, reaction = unsigned(cast.alice, 9, HERE), unsigned(cast.bob, 7)
    rows = [await stored(store, each, group="tea") for each in (chat, reaction)]

    def plan(out: WritePlan) -> None:
        out.leaving["ab" * 32] = [row.seq for row in rows]
        out.ending["ab" * 32] = "tea"

    await change(store, plan)
    found = await look_up(store, tombstones=[f"e:{each.id}" for each in (chat, reaction)])
    assert found.tombstones == {
        f"e:{reaction.id}": [Tombstone(f"e:{reaction.id}", "", None, "9008")]
    }


async def test_what_leaves_with_a_group_may_be_in_it_without_its_name(store: Store) -> None:
    """Comments and reactions, by authors who also wrote into other groups and with its name."""
    goes = [unsigned(who, 1111, [], f"{n}") for n in range(3) for who in (cast.alice, cast.bob)]
    goes += [unsigned(cast.alice, 1111, HERE), unsigned(cast.carol, 7)]
    stays = [unsigned(cast.alice, 1111, [], "den"), unsigned(cast.carol, 7, [], "none")]
    for event in goes:
        await stored(store, event, group="tea")
    await stored(store, stays[0], group="den")
    await stored(store, stays[1])
    gone, left = await all_but_one(store, None, "tea")
    assert gone < ids(goes)
    assert len(gone) == len(goes) - 1
    assert left > ids(stays)


async def test_old_versions_of_rows_without_the_name_of_their_group_leave_too(
    store: Store,
) -> None:
    """They count as events of the group."""
    history = History(9)
    records = [unsigned(cast.alice, 30023, [["d", "x"], *HERE], f"{n}", n) for n in range(3)]
    for event in records:
        batch = Batch(event, now=1000, history=history)
        await store.append(batch.wanted, batch.decide)
    unnamed = unsigned(cast.alice, 30023, [["d", "y"]])
    await stored(store, unnamed, group="tea")
    gone, left = await all_but_one(store, None, "tea")
    assert len(gone) == 1
    assert gone | left == {records[-1].id, unnamed.id}


async def test_pinned_rows_that_do_not_fit_are_named(store: Store) -> None:
    note, record = unsigned(cast.alice, 9, HERE), unsigned(cast.alice, 30023, [["d", "x"], *HERE])
    others = [unsigned(cast.alice, 9, HERE, f"{n}") for n in range(3)]
    rows = [await stored(store, each) for each in (note, record, *others)]
    slot = Slot(ALICE, 30023, "x")
    pinned: frozenset[str | Slot] = frozenset({note.id, record.id, slot})
    free = {row.seq for row in rows[2:]}
    names: dict[int, set[str | Slot]] = {
        rows[0].seq: {note.id},
        rows[1].seq: {record.id, slot},
    }
    size = sum(len(row.event.raw) for row in rows)
    for pubkey, group in ((ALICE, None), (None, "tea")):
        assert await leaving(store, pubkey, group, pinned, size) == ([], []), "all fit"
        seqs, first = await leaving(store, pubkey, group, pinned, size - 1)
        unpinned = [names[seq] for seq in names if names[seq] & set(first)]
        assert set(seqs) <= free
        assert set(first) == set[str | Slot]().union(*unpinned)
        assert len(seqs) + len(unpinned) == 4, "as many as fit"
    for row in rows[2:]:
        await leave(store, [row.seq])
    for pubkey, group in ((ALICE, None), (None, "tea")):
        seqs, first = await leaving(store, pubkey, group, pinned)
        assert not seqs
        assert set(first) in names.values()
        (seq,), _ = await leaving(store, pubkey, group, pinned - set(first))
        assert names[seq] == set(first), "it leaves when it is unpinned"


async def test_few_pinned_rows_are_named_at_once(store: Store) -> None:
    notes = [unsigned(cast.alice, 9, HERE, f"{n}") for n in range(UNPINNED_AT_ONCE + 2)]
    for note in notes:
        await stored(store, note)
    pinned: frozenset[str | Slot] = frozenset(ids(notes))
    most = sum(len(note.raw) for note in notes) - 1
    for pubkey, group in ((ALICE, None), (None, "tea")):
        seqs, first = await leaving(store, pubkey, group, pinned, most)
        assert not seqs
        assert len(set(first)) == UNPINNED_AT_ONCE


async def test_old_versions_leave_with_their_row_and_are_noted(store: Store) -> None:
    history = History(9)
    records = [unsigned(cast.alice, 30023, [["d", "x"]], f"{n}", n) for n in range(3)]
    for event in records:
        batch = Batch(event, now=1000, history=history)
        await store.append(batch.wanted, batch.decide)
    other = await stored(store, unsigned(cast.bob))
    (row,) = [row for row in await store.since(0, MAX) if row.seq != other.seq]
    erasure = Erasure("cd" * 32, ALICE, 62, 1000)
    await leave(store, [row.seq], erasure)
    found = await store.erasure(erasure.request)
    assert found is not None
    assert {event_id for event_id, _ in found.ids} == ids(records)
    assert await store.old_versions(0, 9) == []
    assert [line.of for line in await store.sizes(SizedBy.AUTHOR, 9)] == [BOB]


async def test_old_versions_count_as_bytes_of_their_row(store: Store) -> None:
    """They are deleted with it."""
    history = History(9)
    records = [unsigned(cast.alice, 30023, [["d", "x"], *HERE], f"{n}" * 900, n) for n in range(3)]
    for event in records:
        batch = Batch(event, now=1000, history=history)
        await store.append(batch.wanted, batch.decide)
    note = unsigned(cast.alice, 9, HERE)
    await stored(store, note)
    size = sum(len(event.raw) for event in (*records, note))
    for pubkey, group in ((ALICE, None), (None, "tea")):
        assert len((await leaving(store, pubkey, group, most=size - 1))[0]) == 1
        assert await leaving(store, pubkey, group, most=size) == ([], []), "all fit"
    own_note, own_record = OwnRow(note.id, ALICE), OwnRow(records[2].id, ALICE)
    of_slot = frozenset({Slot(ALICE, 30023, "x")})
    for wanted in (
        replace(NOTHING_WANTED, own_rows=frozenset({own_note, own_record})),
        replace(NOTHING_WANTED, own_rows=frozenset({own_note}), own_slots=of_slot),
    ):
        with pytest.raises(TooMuchToRead):
            await store.append(replace(wanted, most_own=size - 1), lambda _: WritePlan())
        await store.append(replace(wanted, most_own=size), lambda _: WritePlan())
    (row,) = [row for row in await store.since(0, MAX) if row.slot is not None]
    with_note = [row.seq for row in await store.since(0, MAX)]
    assert list(await store.stored(with_note[::-1], size)) == [*await store.since(0, MAX)][::-1]
    assert len(await store.stored(with_note, size - 1)) == 1
    await change(store, lambda plan: plan.expired.add(row.seq))
    (expired,) = await store.expired(1000, 9, {BOB})
    assert await store.expired(1000, 9, {BOB, ALICE}) == []
    assert expired.size == size - len(note.raw)


@pytest.mark.parametrize("by_admin", [False, True])
async def test_old_versions_that_a_deletion_names_count(store: Store, *, by_admin: bool) -> None:
    """They are no rows; those of others, and of other groups, stay."""
    for who, tags in ((cast.alice, HERE), (cast.bob, [["h", "den"]])):
        for n in range(3):
            event = unsigned(who, 30023, [["d", "x"], *tags], f"{n}" * 900, n)
            batch = Batch(event, now=1000, history=History(9))
            await store.append(batch.wanted, batch.decide)
    old = [line.row.event for line in await store.old_versions(0, 9)]
    by = (None, "tea") if by_admin else (ALICE, None)
    wanted = replace(NOTHING_WANTED, own_rows=frozenset([OwnRow(each.id, *by) for each in old]))
    named = {each.id for each in old if each.pubkey == ALICE}
    size = sum(len(each.raw) for each in old if each.id in named)
    with pytest.raises(TooMuchToRead) as raised:
        await store.append(replace(wanted, most_own=size - 1), lambda _: WritePlan())
    assert raised.value.shares.keys() == named
    found: list[set[str]] = []

    def noted(answer: Found) -> WritePlan:
        found.append(answer.old_versions)
        return WritePlan()

    await store.append(replace(wanted, most_own=size), noted)
    assert found == [named]


@pytest.mark.parametrize(("pubkey", "group"), [(ALICE, None), (None, "tea")])
async def test_old_versions_of_a_row_that_stays_leave_by_themselves(
    store: Store, pubkey: str | None, group: str | None
) -> None:
    """The row is newer than the request, and of no group."""
    of_tea = [unsigned(cast.alice, 30023, [["d", "x"], *HERE], f"{n}" * 900, n) for n in range(5)]
    newest = unsigned(cast.alice, 30023, [["d", "x"]], at=1001)
    for event in (*of_tea, newest):
        batch = Batch(event, now=1000, history=History(9))
        await store.append(batch.wanted, batch.decide)
    pins = frozenset[str | Slot]({Slot(ALICE, 30023, "x")})
    size, request = len(of_tea[0].raw), "ab" * 32
    for left in (3, 1):
        seqs, pinned = await leaving(store, pubkey, group, pins, 2 * size)
        assert (len(seqs), pinned) == (2, [])
        await leave(store, seqs, Erasure(request, ALICE, 62, 0))
        assert len(await store.old_versions(0, 9)) == left
    assert await leaving(store, pubkey, group, pins, 2 * size) == ([], []), "all fit"
    noted = await store.erasure(request)
    assert noted is not None
    assert len(noted.ids) == 4
    assert await read(store) == raws(newest)
    assert sum(line.size.bytes for line in await store.sizes(SizedBy.AUTHOR, 9)) == sum(
        len(event.raw) for event in (newest, of_tea[0])
    )


async def test_what_is_to_be_deleted_leads_to_further_slots_and_other_rows_do_not(
    store: Store,
) -> None:
    """More slots than UNPINNED_AT_ONCE raise TooMuchToRead with `most_own`."""
    own = [
        await stored(store, unsigned(cast.alice, 1, [["expiration", f"{5_000_000_000 + n}"]]))
        for n in range(2)
    ]
    own.append(await stored(store, unsigned(cast.alice, 30023, [["d", "own"]])))
    other = await stored(store, unsigned(cast.bob, 1))
    listed = await stored(store, unsigned(cast.carol, 30078, [["d", "list"]]))
    asked: list[set[str]] = []
    number = UNPINNED_AT_ONCE + 1

    def slots_by(rows: Iterable[Stored]) -> frozenset[Slot]:
        asked.append({row.event.id for row in rows})
        names = ["list", *map(str, range(number - 1))]
        return frozenset([Slot(CAROL, 30078, name) for name in names])

    wanted = replace(
        NOTHING_WANTED,
        ids=frozenset({other.event.id}),
        own_rows=frozenset([OwnRow(row.event.id, ALICE) for row in (*own[:2], other)]),
        own_slots=frozenset({Slot(ALICE, 30023, "own")}),
        slots_by=slots_by,
    )
    found: list[Found] = []

    def decide(answer: Found) -> WritePlan:
        found.append(answer)
        return WritePlan()

    await store.append(wanted, decide)
    assert asked == [{row.event.id for row in own}]
    assert found[0].slots == {Slot(CAROL, 30078, "list"): listed, own[2].slot: own[2]}
    with pytest.raises(TooMuchToRead) as refused:
        await store.append(replace(wanted, most_own=MOST_DELETED), decide)
    assert refused.value.shares[own[0].event.id] > 1
    number -= 1
    await store.append(replace(wanted, most_own=MOST_DELETED), decide)


async def test_what_the_groups_of_a_banned_key_pin_is_found(store: Store) -> None:
    note = await stored(store, unsigned(cast.bob, 9, HERE))
    others = await stored(store, unsigned(cast.carol, 9, [["h", "den"]]))
    await stored(store, unsigned(cast.alice, 7), group="tea")
    listed = await stored(store, unsigned(cast.carol, 30078, [["d", "list"]]))

    def pinned_in(group: str) -> PinnedRows:
        row = {"tea": note, "den": others}[group]
        return PinnedRows(frozenset({row.event.id}), frozenset({Slot(CAROL, 30078, "list")}))

    keys = frozenset({ALICE})
    wanted = replace(NOTHING_WANTED, deleted_keys=keys, pinned_in=pinned_in)
    found: list[Found] = []

    def decide(answer: Found) -> WritePlan:
        found.append(answer)
        return WritePlan()

    await store.append(wanted, decide)
    assert found[0].present.keys() == {note.event.id}
    assert [*found[0].slots.values()] == [listed]


async def test_keys_and_groups_of_much_are_too_much_for_one_transaction(store: Store) -> None:
    """The records of a group are left to a sweep, and do not count. A gift wrap for more recipients
    than quotas count does."""
    to_many = [["p", cast.person(f"k{number}").pubkey] for number in range(MAX_RECIPIENTS)]
    rows = [
        unsigned(cast.alice, 9, HERE, "x" * 900),
        unsigned(cast.bob, 1059, TO_ALICE),
        unsigned(cast.bob, 1059, [*TO_ALICE, *to_many]),
        unsigned(cast.carol, 44100, [*TO_ALICE, ["p", BOB]]),
        unsigned(cast.alice, 9000, [*HERE, ["p", BOB]], "x" * 9000),
    ]
    others = [unsigned(cast.carol, 44101, [["p", BOB]]), unsigned(cast.bob, 9000, TO_ALICE)]
    for event in (*rows, *others):
        await stored(store, event)
    of_key, of_group = sum(len(event.raw) for event in rows), len(rows[0].raw)
    for wanted, size in (
        (replace(NOTHING_WANTED, vanishing_keys={ALICE: 1000}), of_key),
        (replace(NOTHING_WANTED, ending_groups=frozenset({"tea"})), of_group),
    ):
        with pytest.raises(TooMuchToRead):
            await store.append(replace(wanted, most_own=size - 1), lambda _: WritePlan())
        for most in (size, None):
            await store.append(replace(wanted, most_own=most), lambda _: WritePlan())


# records of a group that has ended ----------------------------------------------------------------


async def end(store: Store, group: str) -> None:
    def plan(out: WritePlan) -> None:
        out.groups[group] = EndedGroup()
        out.deleted_groups.add(group)

    await change(store, plan)


async def test_records_too_large_for_one_transaction_are_left_to_a_sweep(store: Store) -> None:
    """2 MB of 9000s with 5,000 tags each were one transaction of four seconds."""
    created, chat = unsigned(cast.alice, 9007, HERE), unsigned(cast.alice, 9, HERE)
    put, later = (unsigned(cast.alice, 9000, HERE, each * (MOST_DELETED // 2)) for each in "xy")
    of_another = unsigned(cast.alice, 9000, [["h", "den"]], "x" * MOST_DELETED)
    for event in (created, put, chat, later, of_another):
        await stored(store, event)
    await end(store, "tea")
    for filter_, left in (
        (asked(authors=[ALICE]), [created, of_another]),
        (asked(tag_h=["tea"]), [created]),
        (asked(kinds=[9000]), [of_another]),
        (asked(ids=[put.id, created.id]), [created]),
    ):
        assert await read(store, filter_, now=1000) == in_order(*left)
        assert await store.count([filter_], EVERYTHING, now=1000) == len(left)
    assert {row.id for row in await store.expired(1000, MAX)} == ids([put, later])
    assert ids([row.event for row in await store.since(0, MAX)]) == ids(
        [created, put, later, of_another]
    )
    records = (await look_up(store, recorded=["tea"])).group_records
    assert [row.event.id for row in records] == [created.id]


async def test_records_that_expire_at_once_build_no_group_any_more(store: Store) -> None:
    created, put = unsigned(cast.bob, 9007, HERE), unsigned(cast.alice, 9000, HERE)
    rows = [await stored(store, event) for event in (created, put)]
    await change(store, lambda plan: plan.expired.add(rows[1].seq))
    assert await read(store, now=1000) == raws(created)
    assert [row.expires_at for row in await store.since(0, MAX)] == [None, LONG_EXPIRED]
    found = await look_up(store, recorded=["tea"])
    assert [row.event.id for row in found.group_records] == [created.id]
    assert not (await look_up(store, vanishing=[ALICE])).group_records
    await leave(store, [rows[1].seq], Erasure("cd" * 32, ALICE, 62, 1000))
    erasure = await store.erasure("cd" * 32)
    assert erasure is not None
    assert erasure.ids == [(put.id, 9000)]


async def test_records_that_fit_into_one_transaction_leave_with_their_group(store: Store) -> None:
    created = unsigned(cast.alice, 9007, HERE)
    puts = [unsigned(cast.alice, 9000, HERE, each * (MOST_DELETED // 4)) for each in "xyz"]
    for event in (created, *puts):
        await stored(store, event)
    await end(store, "tea")
    assert [row.event.id for row in await store.since(0, MAX)] == [created.id]
    assert await store.expired(1000, MAX) == []
