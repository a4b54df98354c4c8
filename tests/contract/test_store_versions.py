"""Old versions: kept beside the rows, found by nothing but `versions`, and deleted with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from policies.retention import MAX_OLD_DAYS
from relay.access.quotas import Account, Size, SizedBy
from relay.errors import WriteOutcome
from relay.groups.group import EndedGroup
from relay.lifecycle.deletion import event_target
from relay.lifecycle.rows import Slot, Stored
from relay.lifecycle.versions import DAY_S, History
from relay.nostr import kinds
from tests.cast import alice, bob
from tests.contract.writing import Batch, asked, change, look_up, raws, read, unsigned, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store
    from tests.contract.conftest import Reopenable

KEPT = History(3)
NOTES = Slot(alice.pubkey, 30023, "notes")


def version(number: int, *tags: Sequence[str], who: SecretKey = alice) -> Event:
    return unsigned(who, 30023, [["d", "notes"], *tags], f"version {number}", at=number)


def deletion(*tags: Sequence[str], at: int, who: SecretKey = alice) -> Event:
    return unsigned(who, kinds.DELETION, tags, at=at)


async def given(store: Store, *, before: int | None = None, limit: int = 100) -> list[bytes]:
    rows = await store.versions(NOTES, before=before, limit=limit, now=0)
    return [row.event.raw for row in rows]


async def four(store: Store, *tags: Sequence[str]) -> list[Event]:
    """Newest first."""
    events = [version(number, *tags) for number in (1, 2, 3, 4)]
    for event in events:
        await write(store, event, history=KEPT)
    return events[::-1]


async def test_what_is_replaced_is_kept_newest_first(store: Store) -> None:
    assert await given(store) == []
    events = await four(store)
    assert await given(store) == raws(*events)
    assert await given(store, limit=2) == raws(*events[:2])
    old = await store.old_version(NOTES, events[2].id)
    assert old is not None
    assert old.event.raw == events[2].raw
    assert await given(store, before=old.seq) == raws(events[0], events[3])
    assert await store.old_version(NOTES, events[0].id) is None
    assert await store.old_version(NOTES._replace(d="other"), events[2].id) is None


async def test_a_large_row_of_a_slot_hides_no_old_ones(store: Store) -> None:
    events = [unsigned(alice, 30023, [["d", "notes"]], "x" * 400_000, n) for n in (1, 2, 3)]
    for event in events:
        await write(store, event, history=KEPT)
    found: list[Stored] = []
    before = None
    while len(rows := await store.versions(NOTES, before=before, limit=9, now=0)) > 1:
        found += rows[1:]
        before = rows[-1].seq
    assert [row.event.created_at for row in found] == [2, 1]


async def test_a_group_with_nothing_but_old_versions_holds_no_content(store: Store) -> None:
    events = await four(store, ["h", "tea"])
    newest = (await look_up(store, ids=[events[0].id])).rows[events[0].id]
    assert (await look_up(store, groups_with_content=["tea"])).groups_with_content == {"tea"}
    await change(store, lambda plan: plan.removes.add(newest.seq))
    assert (await look_up(store, groups_with_content=["tea"])).groups_with_content == set()


async def test_a_first_version_that_has_expired_gives_its_slot_to_another(store: Store) -> None:
    named = ["d", "clear"]
    first = unsigned(alice, kinds.TOOL_HISTORY, [named, ["expiration", "100"]], at=9)
    other = unsigned(alice, kinds.TOOL_HISTORY, [named], at=5)
    slot = Slot(alice.pubkey, kinds.TOOL_HISTORY, "clear")
    await write(store, first, now=99)
    (row,) = await write(store, other, now=100, history=KEPT)
    found = await look_up(store, ids=[first.id, other.id], slots=[slot])
    assert found.rows == {other.id: row}
    assert found.slots == {slot: row}
    assert await store.versions(slot, before=None, limit=100, now=100) == [row]
    assert await store.expired(100, 10) == []


async def test_of_one_batch_too(store: Store) -> None:
    events = [version(number) for number in (1, 2, 3)]
    await write(store, *events, history=KEPT)
    assert await given(store) == raws(*events[::-1])
    assert await read(store) == raws(events[2])


async def test_without_a_rule_nothing_is_kept(store: Store) -> None:
    await write(store, version(1))
    await write(store, version(2))
    assert await given(store) == raws(version(2))


async def test_the_oldest_above_the_number_are_deleted_at_once(store: Store) -> None:
    events = [version(number) for number in range(1, 7)]
    await write(store, *events[:3], history=History(2))
    for event in events[3:]:
        await write(store, event, history=History(2))
    assert await given(store) == raws(*events[:2:-1])


@pytest.mark.proves("G-13", "N01-46")
async def test_nothing_else_finds_them(store: Store) -> None:
    events = await four(store, ["t", "tea"])
    current = raws(events[0])
    for filter_ in (
        asked(),
        asked(ids=[event.id for event in events]),
        asked(authors=[alice.pubkey]),
        asked(kinds=[30023]),
        asked(tag_t=["tea"]),
        asked(until=3),
    ):
        expected = current if filter_.until is None else []
        assert await read(store, filter_) == expected
    assert [row.event.raw for row in await store.since(0, 100)] == current
    ids = [event.id for event in events]
    found = await look_up(store, ids=ids, slots=[NOTES])
    assert {row.event.raw for row in (*found.rows.values(), *found.slots.values())} == {*current}


async def test_they_stay_after_a_restart_and_a_crash(reopenable: Reopenable) -> None:
    events = await four(await reopenable.open())
    assert await given(await reopenable.crash()) == raws(*events)
    assert await given(await reopenable.restart()) == raws(*events)


async def test_they_count_as_stored(store: Store) -> None:
    events = await four(store)
    size = Size(4, sum(len(event.raw) for event in events))
    assert [line.size for line in await store.sizes(SizedBy.AUTHOR, 10)] == [size]
    account = Account(pubkey=alice.pubkey)
    found = await look_up(store, usage=[account])
    assert found.usage.size_of(account) == size
    batch = Batch(version(5), history=KEPT)
    await store.append(batch.wanted, batch.decide)
    assert [line.size.events for line in await store.sizes(SizedBy.KIND, 10)] == [4]


async def test_one_that_is_sent_again_is_superseded(store: Store) -> None:
    await four(store)
    assert await write(store, version(2), history=KEPT) == [WriteOutcome.SUPERSEDED]


@pytest.mark.parametrize(
    ("tags", "at", "left"),
    [
        ([["e", version(4).id]], 5, []),
        ([["a", f"30023:{alice.pubkey}:notes"]], 5, []),
        ([["a", f"30023:{alice.pubkey}:notes"]], 2, [4, 3]),
        ([["e", version(2).id]], 5, [4, 3, 1]),
        ([["e", version(2).id], ["h", "tea"]], 5, [4, 3, 1]),
    ],
    ids=["the current one", "the address", "the address up to a time", "an old one", "with h"],
)
async def test_a_deletion_takes_them(
    store: Store, tags: list[list[str]], at: int, left: list[int]
) -> None:
    events = await four(store)
    request = deletion(*tags, at=at)
    await write(store, request)
    assert await given(store) == raws(*(version(number) for number in left))
    erasure = await store.erasure(request.id)
    assert erasure is not None
    gone = {event.id for event in events} - {version(number).id for number in left}
    assert {id_ for id_, _ in erasure.ids} == gone
    # None of them can be sent again.
    sent = [event for event in events if event.id in gone]
    assert set(await write(store, *sent)) == {WriteOutcome.DELETED}
    sizes = await store.sizes(SizedBy.KIND, 10)
    assert sum(line.size.events for line in sizes) == len(left) + 1


async def test_a_deletion_of_another_author_takes_nothing(store: Store) -> None:
    events = await four(store)
    tags = [["e", events[1].id], ["a", f"30023:{alice.pubkey}:notes"]]
    await write(store, deletion(*tags, at=9, who=bob))
    assert await given(store) == raws(*events)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_new_version_after_a_deletion_has_none(
    store: Store,
    at_once: bool,  # noqa: FBT001
) -> None:
    await four(store)
    later = [deletion(["e", version(4).id], at=5), version(6), version(7)]
    if at_once:
        await write(store, *later, history=KEPT)
    else:
        for event in later:
            await write(store, event, history=KEPT)
    assert await given(store) == raws(version(7), version(6))


async def test_a_version_that_comes_and_is_deleted_at_once_leaves_none(store: Store) -> None:
    await write(store, version(1), history=KEPT)
    await write(store, version(2), deletion(["e", version(2).id], at=3), history=KEPT)
    assert await given(store) == []
    await write(store, version(9))
    assert await given(store) == raws(version(9))


async def test_a_key_that_vanishes_takes_its_own(store: Store) -> None:
    await four(store)
    request = unsigned(alice, kinds.VANISH, at=3)
    await write(store, request)
    assert await given(store) == raws(version(4))
    await write(store, unsigned(alice, kinds.VANISH, at=8))
    await write(store, version(9))
    assert await given(store) == raws(version(9))


async def test_a_banned_key_loses_its_own(store: Store) -> None:
    events = await four(store)
    head = await store.head()
    await change(store, lambda plan: plan.deleted_authors.update({alice.pubkey: head}))
    found = await look_up(store, tombstones=[event_target(event.id) for event in events])
    assert found.tombstones.keys() == {event_target(event.id) for event in events}
    await write(store, version(9))
    assert await given(store) == raws(version(9))


async def test_a_group_that_ends_takes_those_that_were_in_it(store: Store) -> None:
    await write(store, version(1), history=KEPT)
    await write(store, version(2, ["h", "tea"]), history=KEPT)
    await write(store, version(3), history=KEPT)

    def end(plan: object) -> None:
        plan.groups["tea"] = EndedGroup(frozenset(), is_public=True)  # type: ignore[attr-defined]
        plan.deleted_groups.add("tea")  # type: ignore[attr-defined]

    await change(store, end)
    assert await given(store) == raws(version(3), version(1))


async def test_a_group_that_ends_takes_all_of_a_record_in_it(store: Store) -> None:
    await write(store, version(1), history=KEPT)
    await write(store, version(2, ["h", "tea"]), history=KEPT)
    await change(store, lambda plan: plan.deleted_groups.add("tea"))
    await write(store, version(3))
    assert await given(store) == raws(version(3))
    assert [line.size.events for line in await store.sizes(SizedBy.KIND, 10)] == [1]


async def test_one_of_a_record_that_has_expired_is_not_given(store: Store) -> None:
    old, current = version(1, ["expiration", "500"]), version(2, ["expiration", "900"])
    for event in (old, current):
        await write(store, event, history=KEPT)

    async def at(now: int) -> list[bytes]:
        rows = await store.versions(NOTES, before=None, limit=9, now=now)
        return [row.event.raw for row in rows]

    assert await at(400) == raws(current, old)
    assert await at(500) == raws(current)
    assert await at(900) == []


async def test_a_sweep_finds_them_by_their_time(store: Store) -> None:
    kept = History(9, days=2)
    for number, now in ((1, 100), (2, 200), (3, 300)):
        await write(store, version(number), now=now, history=kept)
    await write(store, version(4, ["expiration", "400"]), now=350, history=kept)
    await write(store, version(5), now=360, history=kept)
    deadlines = {1: 200 + 2 * DAY_S, 2: 300 + 2 * DAY_S, 3: 350 + 2 * DAY_S, 4: 400}
    old = await store.old_versions(0, 9)
    assert {each.row.event.created_at: each.drop_at for each in old} == deadlines
    assert [(each.row.event.created_at, each.at, each.newer) for each in old] == [
        (1, 200, 3),
        (2, 300, 2),
        (3, 350, 1),
        (4, 360, 0),
    ]
    assert [each.row.seq for each in await store.old_versions(old[1].row.seq, 1)] == [
        old[2].row.seq
    ]
    assert await store.overdue_versions(399, 9) == []
    due = await store.overdue_versions(300 + 2 * DAY_S, 9)
    assert [each.row.event.created_at for each in due] == [4, 1, 2]

    def sweep(plan: object) -> None:
        plan.dropped_versions.update(each.row.seq for each in due)  # type: ignore[attr-defined]
        plan.version_deadlines[old[2].row.seq] = 7  # type: ignore[attr-defined]

    await change(store, sweep)
    assert await given(store) == raws(version(5), version(3))
    assert [each.drop_at for each in await store.old_versions(0, 9)] == [7]
    assert [line.size.events for line in await store.sizes(SizedBy.KIND, 10)] == [2]


async def test_the_most_days_of_a_policy_can_be_stored(store: Store) -> None:
    await write(store, version(1), now=100, history=History(9, MAX_OLD_DAYS))
    await write(store, version(2), now=4_000_000_000, history=History(9, MAX_OLD_DAYS))
    (old,) = await store.old_versions(0, 9)
    assert old.drop_at == 4_000_000_000 + MAX_OLD_DAYS * DAY_S
    assert await store.overdue_versions(old.drop_at - 1, 9) == []
    assert len(await store.overdue_versions(old.drop_at, 9)) == 1


async def test_state_of_groups_is_never_kept(store: Store) -> None:
    slot = Slot(alice.pubkey, kinds.GROUP_METADATA, "tea")
    for at in (1, 2):
        await write(
            store, unsigned(alice, kinds.GROUP_METADATA, [["d", "tea"]], at=at), history=KEPT
        )
    assert len(await store.versions(slot, before=None, limit=9, now=0)) == 1
