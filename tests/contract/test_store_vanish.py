"""The promises of `relay.storage` about keys that vanish, quoted, on every store. NIP-62."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.errors import TooMuchToRead, WriteOutcome
from relay.groups.group import EndedGroup
from relay.lifecycle.deletion import CLOCK_SKEW_S, key_target
from relay.lifecycle.rows import (
    MOST_DELETED,
    Leaving,
    Slot,
    Stored,
    Tombstone,
    Vanish,
    WritePlan,
)
from relay.nostr.event import MAX_CREATED_AT, event_from_raw, signed
from relay.storage import PageQuery
from relay.storage.sqlite import writer as module
from tests import cast
from tests.contract.crowd import ALICE, BOB, CAROL, a_wide_crowd, filters_for
from tests.contract.writing import (
    EVERYTHING,
    MAX,
    add_tombstone,
    asked,
    change,
    in_order,
    look_up,
    raws,
    read,
    set_groups,
    stored,
    unsigned,
    write,
)
from tests.effort import examples, tries
from tests.harness.reference_store import ReferenceStore
from tests.property import world

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from relay.lifecycle.rows import Found
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey
    from relay.storage import Store
    from tests.contract.conftest import Reopenable

STORED, DELETED, DUPLICATE = WriteOutcome.STORED, WriteOutcome.DELETED, WriteOutcome.DUPLICATE


def request_of(who: SecretKey, until: int, content: str = "") -> Event:
    return unsigned(who, 62, [["relay", "ALL_RELAYS"]], content, until)


async def found_anywhere(store: Store, filter_: Filter) -> set[str]:
    """Ids that any way of asking finds."""
    query = PageQuery(filter_, EVERYTHING, 10_000, MAX, now=0, size=10_000)
    page = await store.page(query)
    now = store.page_now(query)
    places, _ = await store.places(query)
    seen = [list(page.raws), [] if now is None else list(now.raws), [raw for _, raw in places]]
    ids = {event_from_raw(raw).id for raws_ in seen for raw in raws_}
    assert await store.count([filter_], EVERYTHING, now=0) == len(ids)
    return ids


# what goes ----------------------------------------------------------------------------------------


@pytest.mark.proves("N62-01", "N62-04")
@pytest.mark.parametrize("until", [3, MAX, -1][: tries(3, 3, 2)])
async def test_nothing_of_the_key_is_found_by_any_filter(
    reopenable: Reopenable, until: int
) -> None:
    """All rows of the key are deleted (N62-01, N62-04), also after a restart."""
    store = await reopenable.open()
    crowd = a_wide_crowd()
    await write(store, *crowd)
    rows = list(await store.since(0, MAX))
    gone = Vanish(BOB, until)
    before = [await found_anywhere(store, filter_) for _, filter_ in filters_for(crowd)]
    await change(store, lambda plan: plan.vanishes.append(gone))
    left = [row for row in rows if not gone.covers(row.event)]
    assert left
    assert (len(left) < len(rows)) is (until >= 0)
    kept = {row.event.id for row in left}
    for _ in range(2):
        assert list(await store.since(0, MAX)) == left
        after = [await found_anywhere(store, filter_) for _, filter_ in filters_for(crowd)]
        assert after == [ids & kept for ids in before]
        store = await reopenable.restart()


async def test_rows_that_the_same_plan_adds_are_deleted_too(store: Store) -> None:
    """A vanishing key also loses rows that the same plan adds."""
    early, note, record, other = (
        unsigned(cast.alice, content="early"),
        unsigned(cast.alice),
        unsigned(cast.bob),
        unsigned(cast.alice, 30078, [["d", "x"]]),
    )
    await stored(store, early)

    def plan(out: WritePlan) -> None:
        for seq, event in enumerate([note, record, other], start=2):
            out.adds[event.id] = Stored(seq, event)
        out.vanishes.append(Vanish(ALICE, 1000))

    await change(store, plan)
    assert await read(store) == raws(record)
    found = await look_up(store, ids=[note.id, other.id], slots=[Slot(ALICE, 30078, "x")])
    assert (found.rows, found.slots) == ({}, {})


async def test_rows_that_the_same_plan_adds_after_the_request_stay(store: Store) -> None:
    early, late = (
        unsigned(cast.owner, 44100, [["p", ALICE]], content) for content in ("before", "after")
    )

    def plan(out: WritePlan) -> None:
        for seq, event in enumerate([early, late], start=1):
            out.adds[event.id] = Stored(seq, event)
        out.vanishes.append(Vanish(ALICE, 1000, upto=1))

    await change(store, plan)
    assert await read(store) == raws(late)


@pytest.mark.proves("N62-05", "N59-09")
async def test_gift_wraps_are_deleted_by_recipient(store: Store) -> None:
    """The wraps that were sent to it (N62-05), no other event that names it."""
    to_alice = [
        unsigned(cast.dave, 1059, [["p", ALICE]]),
        unsigned(cast.bob, 1059, [["p", BOB], ["p", ALICE, "wss://x"]], at=1),
    ]
    others = [
        unsigned(cast.dave, 1059, [["p", ALICE]], at=1001),
        unsigned(cast.dave, 1059, [["p", BOB], ["e", ALICE]]),
        unsigned(cast.dave, 1, [["p", ALICE]]),
        unsigned(cast.dave, 9000, [["h", "tea"], ["p", ALICE]]),
    ]
    await write(store, *to_alice, *others)
    await change(store, lambda plan: plan.vanishes.append(Vanish(ALICE, 1000)))
    assert await read(store) == in_order(*others)


async def test_found_says_for_which_of_the_keys_a_row_is_that_is_not_read(store: Store) -> None:
    """A group may pin wraps of 440 kB: which of them go with a key is asked of their tags."""
    text = "L" * 100_000
    hers = await stored(store, unsigned(cast.carol, 1059, [["p", BOB], ["p", ALICE]], text))
    his = await stored(store, unsigned(cast.alice, 1059, [["p", BOB]], text))
    note = await stored(store, unsigned(cast.carol, 1, [["p", ALICE]], text))
    named: set[str | Slot] = {hers.event.id, his.event.id, note.event.id}
    found = await look_up(store, vanishing=[ALICE, CAROL], present=named)
    assert {row: about.sent_to for row, about in found.present.items()} == {
        hers.event.id: {ALICE},
        his.event.id: set(),
        note.event.id: set(),
    }
    assert found.rows == {}
    gone = [Vanish(ALICE, MAX).covers_present(about) for about in found.present.values()]
    assert gone.count(True) == 2


async def test_rows_of_a_key_with_the_same_first_bytes_stay(store: Store) -> None:
    """Index keys are the first 8 bytes; the full values are compared."""
    other = ALICE[:16] + BOB[16:]
    event = signed(other, 1000, 1, [], "", lambda _: "0" * 128)
    await write(store, unsigned(cast.alice), event)
    await change(store, lambda plan: plan.vanishes.append(Vanish(ALICE, 1000)))
    assert await read(store) == await read(store, asked(authors=[other])) == raws(event)


async def test_a_slot_is_free_again_when_its_holder_vanished(store: Store) -> None:
    """Also for events after the request in its batch."""
    for start in (0, 10):
        await stored(store, unsigned(cast.alice, 30095, [["d", "x"]], at=start + 1))
        await write(store, request_of(cast.alice, start + 1))
        other = await stored(store, unsigned(cast.alice, 30095, [["d", "x"]], at=start + 2))
        assert await read(store) == raws(other.event)
        later = unsigned(cast.alice, 30095, [["d", "x"]], at=start + 4)
        answers = await write(store, request_of(cast.alice, start + 3), later)
        assert isinstance(answers[1], Stored)
        assert await read(store) == raws(later)
        await write(store, request_of(cast.alice, start + 4))


async def test_the_head_stays_when_the_newest_rows_vanish(reopenable: Reopenable) -> None:
    """seq of the newest row ever committed. Never decreases."""
    store = await reopenable.open()
    for _ in range(3):
        await write(store, unsigned(cast.bob), *(unsigned(cast.alice, at=at) for at in range(4)))
    await write(store, request_of(cast.alice, 3))
    assert await store.head() == 5
    store = await reopenable.restart()
    assert await store.head() == 5
    assert (await stored(store, unsigned(cast.carol))).seq == 6


async def test_all_rows_of_a_key_are_deleted_in_chunks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of the key."""
    monkeypatch.setattr(module, "_DELETE_CHUNK", 7)
    tags = [["t", "x"], ["p", BOB]]
    await write(store, *(unsigned(cast.alice, 1, tags, at=at) for at in range(50)))
    last = await stored(store, unsigned(cast.alice, 1, tags, at=50))
    await write(store, request_of(cast.alice, 49))
    assert await read(store) == await read(store, asked(tag_t=["x"])) == raws(last.event)


@pytest.mark.parametrize("kind", [1, 1059])
async def test_more_than_one_transaction_may_delete_is_refused_whatever_was_looked_up(
    store: Store, kind: int
) -> None:
    """Only pieces delete so much; what is left then is one larger row, or less."""
    by = cast.alice if kind == 1 else cast.bob
    sizes = [MOST_DELETED // 2, MOST_DELETED // 2, MOST_DELETED]
    rows = [unsigned(by, kind, [["p", ALICE]], "x" * size, at) for at, size in enumerate(sizes)]
    await write(store, *rows)

    async def vanish_until(at: int) -> None:
        await change(store, lambda plan: plan.vanishes.append(Vanish(ALICE, at)))

    for at in (1, MAX):
        with pytest.raises(TooMuchToRead):
            await vanish_until(at)
        assert await read(store) == in_order(*rows)
    for at in (0, 1, 2):
        await vanish_until(at)
        assert await read(store) == in_order(*rows[at + 1 :])


async def test_a_vanish_that_fails_changes_nothing(store: Store) -> None:
    """If it raises, nothing changes."""
    note = unsigned(cast.alice)
    await stored(store, note)

    def plan(out: WritePlan) -> None:
        out.vanishes.append(Vanish(ALICE, 1000))
        raise LookupError

    with pytest.raises(LookupError):
        await change(store, plan)
    assert await read(store) == raws(note)


# what stays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["restart", "crash"])
async def test_the_request_survives_a_restart(reopenable: Reopenable, again: str) -> None:
    """A key that vanished: its signed kind 62, kept and never served (N62-08)."""
    store = await reopenable.open()
    note = unsigned(cast.alice)
    request = request_of(cast.alice, 1000, "ü🙂" * 1000)
    assert (await write(store, note, request))[1:] == [STORED]
    head = await store.head()
    store = await getattr(reopenable, again)()
    target = key_target(ALICE)
    found = await look_up(store, tombstones=[target])
    assert found.tombstones == {target: [Tombstone(target, ALICE, 1000, "kind 62", request.raw)]}
    assert await read(store) == []
    assert await read(store, asked(ids=[request.id])) == []
    assert list(await store.since(0, MAX)) == []
    assert await store.count([asked()], EVERYTHING, now=0) == 0
    assert await write(store, note, request) == [DELETED, DUPLICATE]
    assert await store.head() == head


@pytest.mark.parametrize("order", [(5, 9), (9, 5), (9, 9)])
async def test_of_several_requests_the_latest_is_kept(store: Store, order: tuple[int, int]) -> None:
    """The later of two is kept (N62-10), of two as late the first."""
    requests = [request_of(cast.alice, until, str(n)) for n, until in enumerate(order)]
    for request in requests:
        target = key_target(ALICE)
        await add_tombstone(
            store, Tombstone(target, ALICE, request.created_at, "kind 62", request.raw)
        )
    latest = requests[1] if order == (5, 9) else requests[0]
    assert await write(store, latest) == [DUPLICATE]
    assert await write(store, *[other for other in requests if other != latest]) == [STORED]
    answers = await write(store, unsigned(cast.alice, at=9), unsigned(cast.alice, at=10))
    assert answers[0] is DELETED
    assert isinstance(answers[1], Stored)


# what is told of groups ---------------------------------------------------------------------------


async def test_found_has_the_records_of_groups_that_the_key_moderated(store: Store) -> None:
    """The records of every group where they wrote one of 9000–9020, in order of seq."""
    tea = [
        unsigned(cast.owner, 9007, [["h", "tea"]], at=7),
        unsigned(cast.alice, 9002, [["h", "tea"]], at=3),
        unsigned(cast.owner, 39000, [["d", "tea"]], at=9),
        unsigned(cast.bob, 9021, [["h", "tea"]], at=1),
        unsigned(cast.bob, 9022, [["h", "tea"]], at=2),
        unsigned(cast.owner, 39005, [["d", "tea"]], at=9),
    ]
    den = [
        unsigned(cast.owner, 9007, [["h", "den"]]),
        unsigned(cast.bob, 9020, [["h", "den"]]),
        unsigned(cast.alice, 9021, [["h", "den"]]),
    ]
    others = [
        unsigned(cast.alice, 9, [["h", "tea"]]),
        unsigned(cast.alice, 30078, [["d", "tea"], ["h", "tea"]]),
        unsigned(cast.alice, 9023, [["h", "den"]]),
        unsigned(cast.alice, 39006, [["d", "den"]]),
        unsigned(cast.alice, 9000),
        unsigned(cast.alice, 39000, [["d", ""]]),
    ]
    far = unsigned(cast.carol, 9007, [["h", "far"]])
    mixed = [*others[:3], *tea[:2], *den[:1], *others[3:], *den[1:], far, *tea[2:]]
    rows = await write(store, *mixed)
    records = [row for row in rows if isinstance(row, Stored) and row.event not in others]
    assert len(rows) == len(records) + len(others)

    def of(*groups: str) -> list[Stored]:
        return [row for row in records if row.group in groups]

    async def told(vanishing: list[str], recorded: list[str]) -> list[Stored]:
        return (await look_up(store, vanishing=vanishing, recorded=recorded)).group_records

    assert await told([], []) == []
    assert await told([ALICE], []) == of("tea")
    assert await told([BOB], []) == of("den")
    assert await told([ALICE], ["den", "never"]) == of("tea", "den")
    assert await told([ALICE, BOB, CAROL], []) == of("tea", "den", "far")


def founded(number: int) -> list[Event]:
    """9007s by Alice, each of another group."""
    return [unsigned(cast.alice, 9007, [["h", f"g{place}"]]) for place in range(number)]


async def test_too_many_moderated_groups_are_too_much(store: Store) -> None:
    """More than `Lookups.most_moderated` groups raise TooMuchToRead, also those of several keys."""
    await write(store, *founded(3), unsigned(cast.bob, 9002, [["h", "g0"]]))
    for keys in ([ALICE], [ALICE, BOB]):
        found = await look_up(store, vanishing=keys, most_moderated=3)
        assert {row.group for row in found.group_records} == {"g0", "g1", "g2"}
    await write(store, unsigned(cast.bob, 9002, [["h", "tea"]]))
    with pytest.raises(TooMuchToRead):
        await look_up(store, vanishing=[ALICE, BOB], most_moderated=3)
    assert len((await look_up(store, vanishing=[ALICE, BOB])).group_records) == 5


def records_of(size: int) -> list[Event]:
    """Of g0, as many bytes, by two keys and not only by Alice."""
    kinds = [(cast.alice, 9007, "h"), (cast.bob, 9021, "h"), (cast.owner, 39000, "d")]
    made = [unsigned(who, kind, [[name, "g0"]]) for who, kind, name in kinds]
    size -= sum(len(event.raw) for event in made)
    return [*made, unsigned(cast.bob, 9022, [["h", "g0"]], "x" * (size - 250))]


async def test_too_many_bytes_of_records_are_too_much(store: Store) -> None:
    """More than `Lookups.most_records`, by whomever they are; other events do not count."""
    records = records_of(2000)
    size = sum(len(event.raw) for event in records)
    await write(store, *records, unsigned(cast.bob, 9, [["h", "g0"]], "x" * 3000))
    for keys, groups in (([ALICE], []), ([], ["g0"])):
        found = await look_up(store, vanishing=keys, recorded=groups, most_records=size)
        assert len(found.group_records) == 4
        with pytest.raises(TooMuchToRead):
            await look_up(store, vanishing=keys, recorded=groups, most_records=size - 1)


async def test_records_are_found_of_as_many_groups_as_fit(store: Store) -> None:
    """Of none, if the first has too many."""
    first, second = founded(2)
    await write(store, first, second)

    async def told(most: int | None) -> Found:
        leaving = Leaving(ALICE, 1000, None, frozenset(), 10_000, 2, most)
        return await look_up(store, leaving=leaving)

    size = len(first.raw)
    assert size == len(second.raw)
    numbers = {most: len((await told(most)).group_records) for most in (None, 2 * size, size)}
    assert numbers == {None: 2, 2 * size: 2, size: 1}
    assert not (await told(size)).too_many_records
    none = await told(size - 1)
    assert (none.group_records, none.put_later, none.too_many_records) == ([], {}, True)


async def test_found_has_the_records_of_some_groups_after_all_rows_that_leave(store: Store) -> None:
    """Of so many groups as `Leaving.groups`. With the groups that it was put into long after its
    request."""
    later = 1001 + CLOCK_SKEW_S
    notes = [unsigned(cast.alice, content=f"{number}") for number in range(2)]
    names = unsigned(cast.owner, 9000, [["h", "g0"], ["p", ALICE]], at=later)
    too_late = unsigned(cast.alice, 9002, [["h", "late"]], at=1001)
    await write(store, *founded(3), *notes, names, too_late)

    async def told(groups: int, most: int = 10_000) -> Found:
        leaving = Leaving(ALICE, 1000, None, frozenset(), most, groups)
        return await look_up(store, leaving=leaving)

    found = await told(2)
    assert len({row.group for row in found.group_records}) == 2
    assert found.put_later == {ALICE: {"g0"}}
    assert {row.group for row in found.group_records} <= {"g0", "g1", "g2"}
    assert {row.group for row in (await told(3)).group_records} == {"g0", "g1", "g2"}
    early = await told(2, most=1)
    assert (len(early.leaving), early.group_records) == (1, [])


async def test_what_a_key_moderates_after_its_request_is_not_looked_up(store: Store) -> None:
    """Else a request that deletes nothing reads the records of a large group, as often as sent."""
    await write(store, unsigned(cast.alice, 9002, [["h", "tea"]], at=1001))
    assert (await look_up(store, vanishing=[ALICE])).group_records == []
    assert len((await look_up(store, vanishing=[ALICE], vanishing_at=1001)).group_records) == 1


async def test_found_has_the_groups_that_a_key_was_put_into_long_after_its_request(
    store: Store,
) -> None:
    """No 9000 is read for it: many and large ones may name a key."""
    later = 1001 + CLOCK_SKEW_S
    await write(
        store,
        unsigned(cast.owner, 9000, [["h", "tea"], ["p", BOB], ["p", ALICE, "admin"]], at=later),
        unsigned(cast.carol, 9000, [["h", "den"], ["p", ALICE]], at=later - 1),
        unsigned(cast.owner, 9000, [["h", "far"], ["p", BOB]], at=later),
        unsigned(cast.owner, 9001, [["h", "den"], ["p", ALICE]], at=later),
        unsigned(cast.owner, 9, [["h", "den"], ["p", ALICE]], at=later),
    )
    found = await look_up(store, vanishing=[ALICE, CAROL])
    assert found.put_later == {ALICE: {"tea"}, CAROL: set()}
    assert found.rows == {}
    found = await look_up(store, vanishing=[ALICE], vanishing_at=MAX_CREATED_AT)
    assert found.put_later == {ALICE: set()}


async def test_of_very_many_later_records_nobody_learns_the_groups(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.storage.rows.MOST_PUT_LATER", 2)
    puts = [unsigned(cast.owner, 9000, [["h", f"g{n}"], ["p", ALICE]], at=9000) for n in range(3)]
    await write(store, *puts[:2])
    found = await look_up(store, vanishing=[ALICE])
    assert found.put_later == {ALICE: {"g0", "g1"}}
    await write(store, puts[2])
    found = await look_up(store, vanishing=[ALICE])
    assert found.put_later == {ALICE: None}


async def test_who_vanishes_is_no_former_member_of_groups_that_ended(store: Store) -> None:
    """Only the rows of that key are written, however many other members the groups had."""
    both, others = frozenset({ALICE, BOB}), frozenset({BOB})
    await set_groups(store, tea=EndedGroup(both), den=EndedGroup(both), far=EndedGroup(others))
    expected = {"tea": both, "den": both, "far": others}
    for group_id in ("tea", "den"):  # in pieces
        await change(store, partial(_leave_ended, group_id))
        ended = await store.ended_groups()
        expected[group_id] = others
        assert {each: group.members for each, group in ended.items()} == expected


def _leave_ended(group_id: str, plan: WritePlan) -> None:
    plan.left_ended[ALICE] = frozenset({group_id})


async def test_nothing_is_looked_up_for_a_request_that_was_carried_out(store: Store) -> None:
    await write(store, unsigned(cast.alice, 1, at=10))
    await write(store, unsigned(cast.alice, 62, at=20))
    await write(
        store,
        unsigned(cast.alice, 9002, [["h", "tea"]], at=21),
        unsigned(cast.alice, 1, at=25),
    )
    targets = [key_target(ALICE)]
    for at, is_new in ((15, False), (20, False), (21, True)):
        found = await look_up(store, tombstones=targets, vanishing=[ALICE], vanishing_at=at)
        assert found.stored_keys == ({ALICE} if is_new else frozenset())
        assert len(found.group_records) == is_new
        assert found.put_later == ({ALICE: set()} if is_new else {})


# the law ------------------------------------------------------------------------------------------


async def _goes(store: Store, drafts: list[world.Draft], filter_: Filter, cut: int) -> None:
    events: list[Event] = []
    for draft in drafts:
        events.append(draft.event(events))
    gone = {}
    for number, who in enumerate(world.ACTORS[:2]):
        request = request_of(who, events[number].created_at)
        gone[request.id] = Vanish(request.pubkey, request.created_at)
        events.insert(cut + number, request)
    await write(store, *events)
    rows = await store.since(0, 1000)
    for vanish in gone.values():
        assert not [row for row in rows if vanish.covers(row.event)]
    assert await found_anywhere(store, asked()) == {row.event.id for row in rows}
    assert await found_anywhere(store, filter_) == {
        row.event.id for row in rows if filter_.matches(row.event)
    }
    again = await write(store, *[event for event in events if event.id not in gone])
    for event, answer in zip([e for e in events if e.id not in gone], again, strict=True):
        if any(vanish.covers(event) for vanish in gone.values()):
            assert answer is DELETED or answer is WriteOutcome.EXPIRED
    assert set(await write(store, *[e for e in events if e.id in gone])) == {DUPLICATE}


@pytest.mark.proves("N62-04")
@pytest.mark.parametrize("kind", ["reference", "sqlite"])
def test_after_a_vanish_nothing_of_the_key_is_found_in_any_way(kind: str) -> None:
    """Nothing of the key that is dated up to it, by any filter, COUNT or `since`."""

    @settings(max_examples=examples(60 if kind == "reference" else 25))
    @given(st.lists(world.drafts, min_size=2, max_size=12), world.filters(), st.integers(0, 12))
    def law(drafts: list[world.Draft], filter_: Filter, cut: int) -> None:
        world.run(_on(kind, lambda store: _goes(store, drafts, filter_, cut)))

    law()


async def _on(kind: str, work: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    if kind == "reference":
        await work(ReferenceStore())
        return
    async with world.sqlite_store() as store:
        await work(store)


async def test_a_key_that_is_only_named_has_nothing_stored(store: Store) -> None:
    """What is kept of its request is little, however lately the row that names it was stored."""
    await write(store, unsigned(cast.bob, 1, [["p", cast.alice.pubkey]]))
    found = await look_up(store, vanishing=[cast.alice.pubkey, cast.bob.pubkey])
    assert found.stored_keys == {cast.bob.pubkey}
