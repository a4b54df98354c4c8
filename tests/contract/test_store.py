"""The promises of `relay.storage` about writing and durability, quoted, on every store."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.access.read_rules import Match
from relay.errors import StoreFault, WriteOutcome
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import EndedGroup, Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import (
    MAX_WITH_PREFIX,
    MOST_TOMBSTONES,
    MOST_WITH_PREFIX,
    Found,
    Keep,
    OwnRow,
    Slot,
    Stored,
    Tombstone,
    WritePlan,
)
from relay.nostr.kinds import ALL_KINDS, NO_KINDS, KindSet
from relay.storage import PARSED_BYTES, PageQuery
from tests import cast
from tests.contract.crowd import ALICE, BOB, CAROL, ORDERED, a_wide_crowd, keys, rule, seen_by
from tests.contract.writing import (
    EVERYTHING,
    MAX,
    NOTHING_WANTED,
    Batch,
    add_tombstone,
    asked,
    change,
    in_order,
    kept_as,
    look_up,
    raws,
    read,
    set_groups,
    stored,
    unsigned,
    with_id,
    write,
)

if TYPE_CHECKING:
    from relay.storage import Store
    from tests.contract.conftest import Reopenable

# append: what `decide` is told ------------------------------------------------------------------


async def test_lookups_in_an_empty_store_find_nothing(store: Store) -> None:
    """Look up, let `decide` plan."""
    found = await look_up(
        store,
        ids=["0" * 64],
        slots=[Slot(ALICE, 0, "")],
        tombstones=["e:" + "0" * 64],
        prefixes=[("tea", "00000000")],
        groups_with_content=["tea"],
    )
    assert found == Found(0, looked_up={Slot(ALICE, 0, "")})


async def test_found_has_the_wanted_rows_whole(store: Store) -> None:
    """Look up, let `decide` plan."""
    plain = await stored(store, unsigned(cast.alice, content="plain"))
    in_group = await stored(store, unsigned(cast.bob, 9, [["h", "tea"]], at=7), quiet=True)
    ending = await stored(store, unsigned(cast.bob, 1, [["expiration", "5000000000"]]))
    other = await stored(store, unsigned(cast.carol))
    found = await look_up(store, ids=[plain.event.id, in_group.event.id, ending.event.id, "f" * 64])
    assert found.rows == {row.event.id: row for row in (plain, in_group, ending)}
    assert found.last_seq == other.seq
    assert found.rows[in_group.event.id].group == "tea"
    assert found.rows[in_group.event.id].quiet is True
    assert found.rows[ending.event.id].expires_at == 5_000_000_000


async def test_found_has_the_holders_of_wanted_slots(store: Store) -> None:
    """Look up, let `decide` plan."""
    profile = await stored(store, unsigned(cast.alice, 0))
    record = await stored(store, unsigned(cast.alice, 30078, [["d", "x"]]))
    ranked = await stored(store, unsigned(cast.alice, 30093, [["d", "x"], ["ts", "77"]]))
    await stored(store, unsigned(cast.bob, 30078, [["d", "x"]]))
    wanted = [
        Slot(ALICE, 0, ""),
        Slot(ALICE, 30078, "x"),
        Slot(ALICE, 30093, "x"),
        Slot(ALICE, 30078, ""),
        Slot(CAROL, 30078, "x"),
        Slot(ALICE, 1, ""),
    ]
    found = await look_up(store, slots=wanted)
    assert found.slots == {row.slot: row for row in (profile, record, ranked)}
    assert found.slots[Slot(ALICE, 30093, "x")].version == 77


async def test_a_row_found_by_id_and_by_slot_is_one(store: Store) -> None:
    """Both are compared by identity."""
    row = await stored(store, unsigned(cast.alice, 30078, [["d", "x"]]))
    found = await look_up(store, ids=[row.event.id], slots=[row.slot])
    assert found.rows[row.event.id] is found.slots[Slot(ALICE, 30078, "x")]


async def test_found_says_of_rows_that_are_not_read_where_they_are_and_how_long(
    store: Store,
) -> None:
    """A group may pin 64 events of 440 kB: each message into it read them all, 0.7 s."""
    text = "L" * 100_000
    note = await stored(store, unsigned(cast.alice, 1, content=text))
    ending = await stored(
        store, unsigned(cast.bob, 9, [["h", "tea"], ["expiration", "5000000000"]])
    )
    record = await stored(store, unsigned(cast.alice, 30078, [["d", "x\0ü"], ["h", "ï"]], text))
    profile = await stored(store, unsigned(cast.alice, 0, [["d", "x"]], text))
    slots = {each.slot for each in (record, profile) if each.slot is not None}
    near = {Slot(ALICE, 30078, "x"), Slot(CAROL, 30078, "x\0ü"), Slot(ALICE, 0, "x")}
    wanted: set[str | Slot] = {
        note.event.id,
        ending.event.id,
        record.event.id,
        *slots,
        *near,
        "f" * 64,
    }
    found = await look_up(store, present=wanted, most=1)
    assert found.present == {
        note.event.id: (None, None, ALICE, 1, note.event.created_at, frozenset()),
        ending.event.id: ("tea", 5_000_000_000, BOB, 9, ending.event.created_at, frozenset()),
        record.event.id: ("ï", None, ALICE, 30078, record.event.created_at, frozenset()),
        Slot(ALICE, 30078, "x\0ü"): ("ï", None, ALICE, 30078, record.event.created_at, frozenset()),
        Slot(ALICE, 0, ""): (None, None, ALICE, 0, profile.event.created_at, frozenset()),
    }
    assert (found.rows, found.slots) == ({}, {})


@pytest.mark.parametrize("d", ["", "a:b:c", "x\0y", "'\";--", "ünï🙂", "L" * 100_000, "%_*"])
async def test_a_slot_is_found_by_its_whole_d(store: Store, d: str) -> None:
    """Look up, let `decide` plan."""
    row = await stored(store, unsigned(cast.alice, 30078, [["d", d]]))
    near = [d + "x", d[:-1] if d else "y", d.upper() + " "]
    found = await look_up(store, slots=[Slot(ALICE, 30078, value) for value in (d, *near)])
    assert found.slots == {row.slot: row}


async def test_found_has_the_wanted_tombstones(store: Store) -> None:
    """Look up, let `decide` plan."""
    by_author = Tombstone("e:" + "1" * 64, ALICE, None, "kind 5")
    by_other = Tombstone("e:" + "1" * 64, BOB, None, "kind 5")
    by_relay = Tombstone("e:" + "2" * 64, "", None, "9005")
    address = Tombstone(f"a:30078:{ALICE}:x:y", ALICE, MAX, "kind 5")
    key = Tombstone(f"p:{ALICE}", ALICE, 0, "vanish")
    await add_tombstone(store, by_author, by_other, by_relay, address, key)
    found = await look_up(store, tombstones=[by_author.target, address.target, "e:" + "3" * 64])
    assert {target: set(stones) for target, stones in found.tombstones.items()} == {
        by_author.target: {by_author, by_other},
        address.target: {address},
    }


async def test_of_many_tombstones_of_an_id_only_those_that_matter_are_read(store: Store) -> None:
    """Anybody may delete an id, as far as they can: with as many keys as they like."""
    target, other = "e:" + "1" * 64, f"p:{ALICE}"
    keys = [f"{number:064x}" for number in range(1, 1 + MOST_TOMBSTONES)]
    stones = [Tombstone(target, key, None, "kind 5") for key in (*keys, ALICE, "", "h:tea")]
    vanished = Tombstone(other, "", 5, "kind 62")
    await add_tombstone(store, *stones, vanished)
    matter = [(target, ALICE), (target, ""), (target, "h:den")]
    found = await look_up(store, tombstones=[target, other], refusals=matter)
    assert {target: set(stones) for target, stones in found.tombstones.items()} == {
        target: {stone for stone in stones if stone.by in {ALICE, ""}},
        other: {vanished},
    }


@pytest.mark.parametrize("times", [(5, 9), (9, 5)])
async def test_of_two_tombstones_by_one_key_the_later_one_is_kept(
    store: Store, times: tuple[int, int]
) -> None:
    """A deletion that outlives what it deleted, and holds against what comes later."""
    target = f"a:30078:{ALICE}:x"
    for until in times:
        await add_tombstone(store, Tombstone(target, ALICE, until, "kind 5"))
    found = await look_up(store, tombstones=[target])
    assert max(stone.until or 0 for stone in found.tombstones[target]) == 9


async def test_found_says_which_prefixes_are_of_rows_of_the_group(store: Store) -> None:
    """(group, hex prefix of an id) that `previous` tags name (N29-21)."""
    event = unsigned(cast.alice, 9, [["h", "tea"]])
    await stored(store, event)
    elsewhere = unsigned(cast.alice, 9, [["h", "den"]])
    await stored(store, elsewhere)
    nowhere = unsigned(cast.alice)
    await stored(store, nowhere)
    there = [("tea", event.id[:size]) for size in (8, 9, 15, 16, 17, 40, 63, 64)]
    wrong = [
        ("tea", elsewhere.id[:8]),
        ("den", event.id[:8]),
        ("tea", nowhere.id[:8]),
        ("", nowhere.id[:8]),
        ("tea", event.id[:20] + _other_digit(event.id[20])),
        ("tea", event.id[:7] + _other_digit(event.id[7])),
        ("tea", event.id[:63] + _other_digit(event.id[63])),
    ]
    found = await look_up(store, prefixes=[*there, *wrong])
    rows = {key: [row.event for row in rows] for key, rows in found.id_prefixes.items()}
    assert rows == {key: [event] for key in there}


@pytest.mark.parametrize(
    ("size", "whole_kinds"), [(MOST_WITH_PREFIX, ALL_KINDS), (1, KindSet.of(8, 10)), (1, NO_KINDS)]
)
async def test_of_rows_with_a_prefix_that_are_not_read_found_has_kind_and_author(
    store: Store, size: int, whole_kinds: KindSet
) -> None:
    """A message with 64 `previous` reads little."""
    tags = [["h", "tea"], ["expiration", "5000000000"]]
    event = unsigned(cast.alice, 9, tags, "x" * size)
    await stored(store, event)
    found = await look_up(store, prefixes=[("tea", event.id[:8])], whole_kinds=whole_kinds)
    [row] = found.id_prefixes["tea", event.id[:8]]
    assert (row.event.id, row.event.content, row.event.kind, row.event.pubkey) == (
        "",
        "",
        9,
        cast.alice.pubkey,
    )
    assert (row.group, row.expires_at, row.quiet) == ("tea", 5_000_000_000, False)


@pytest.mark.parametrize("whole_kinds", [ALL_KINDS, NO_KINDS])
async def test_of_a_quiet_row_with_a_prefix_found_tells_that_it_is_quiet(
    store: Store, whole_kinds: KindSet
) -> None:
    event = unsigned(cast.alice, 5, [["h", "tea"]])
    await stored(store, event, quiet=True)
    found = await look_up(store, prefixes=[("tea", event.id[:8])], whole_kinds=whole_kinds)
    [row] = found.id_prefixes["tea", event.id[:8]]
    assert (row.event.kind, row.quiet) == (5, True)


@pytest.mark.parametrize("number", [MAX_WITH_PREFIX, MAX_WITH_PREFIX + 1])
async def test_of_a_prefix_that_many_rows_share_no_row_is_read(store: Store, number: int) -> None:
    """An id with eight chosen digits is made in seconds, and each message may name 64 such
    prefixes in a group of its own. Without a group, too, the rows are read."""
    message = unsigned(cast.alice, 9, [["h", "tea"]])
    prefix = message.id[:8]
    others = [unsigned(cast.bob, content=str(place)) for place in range(1, number)]
    rows = [with_id(each, prefix + each.id[8:]) for each in others]
    await write(store, message, *rows)
    asked_for = [(group, prefix) for group in ("tea", "den")]
    found = await look_up(store, prefixes=[*asked_for, ("tea", message.id[:9])])
    is_crowded = number > MAX_WITH_PREFIX
    assert found.crowded_prefixes == ({prefix} if is_crowded else set())
    read_for = {key: [row.event for row in rows] for key, rows in found.id_prefixes.items()}
    named = [message.id[:9]] if is_crowded else [prefix, message.id[:9]]
    assert read_for == {("tea", each): [message] for each in named}


async def test_a_row_with_many_prefixes_is_read_once(store: Store) -> None:
    event = unsigned(cast.alice, 9, [["h", "tea"]], "x" * 1000)
    await stored(store, event)
    prefixes = [("tea", event.id[:size]) for size in range(8, 65)]
    found = await look_up(store, prefixes=prefixes, most=1600)
    rows = [row for rows in found.id_prefixes.values() for row in rows]
    assert len(rows) == len(prefixes)
    assert {id(row) for row in rows} == {id(rows[0])}


async def test_found_has_the_deleters_own_rows_only(store: Store) -> None:
    """One kind 5 or 9005 may name thousands of rows of others: these are not read."""
    mine = unsigned(cast.alice, 1)
    others = unsigned(cast.bob, 1)
    here = unsigned(cast.bob, 9, [["h", "tea"]])
    elsewhere = unsigned(cast.bob, 9, [["h", "den"]])
    to_me = unsigned(cast.carol, 1059, [["p", ALICE]])
    to_others = unsigned(cast.carol, 1059, [["p", BOB]])
    rows = (mine, others, here, elsewhere, to_me, to_others)
    for event in rows:
        await stored(store, event)
    asked = {OwnRow(event.id, ALICE) for event in rows}
    found = await look_up(store, own_rows=asked)
    assert found.rows.keys() == {mine.id, to_me.id}
    found = await look_up(store, own_rows={OwnRow(event.id, None, "tea") for event in rows})
    assert found.rows.keys() == {here.id}
    found = await look_up(store, own_rows={*asked, OwnRow(here.id, None, "tea")})
    assert found.rows.keys() == {mine.id, to_me.id, here.id}
    found = await look_up(store, own_rows={*asked, OwnRow(elsewhere.id)})
    assert found.rows.keys() == {mine.id, to_me.id, elsewhere.id}, "an owner's ban"


def _other_digit(digit: str) -> str:
    return "1" if digit == "0" else "0"


async def test_found_says_which_groups_hold_content(store: Store) -> None:
    """Groups that hold more than their own records (Z-03)."""
    await write(
        store,
        unsigned(cast.owner, 9007, [["h", "bare"]]),
        unsigned(cast.owner, 9022, [["h", "bare"]]),
        unsigned(cast.owner, 39000, [["d", "bare"]]),
        unsigned(cast.owner, 39002, [["d", "bare"]]),
        unsigned(cast.owner, 9007, [["h", "tea"]]),
        unsigned(cast.alice, 9, [["h", "tea"]]),
        unsigned(cast.alice, 30078, [["d", "bare"]]),
    )
    await stored(store, unsigned(cast.alice, 1111), group="comments")  # it has no `h`
    found = await look_up(store, groups_with_content=["bare", "tea", "never", "comments"])
    assert found.groups_with_content == {"tea", "comments"}


async def test_found_says_how_many_rows_expire_within_a_window(store: Store) -> None:
    expiring = [
        unsigned(cast.alice, content=f"{number}", tags=[["expiration", str(at)]])
        for number, at in enumerate((5_999, 6_000, 6_000, 6_059, 6_060, 600_000))
    ]
    await write(store, *expiring, unsigned(cast.alice))
    found = await look_up(store, expiry_windows=[99, 100, 102])
    assert found.expiring == {99: 1, 100: 3, 102: 0}
    assert (await look_up(store)).expiring == {}
    await change(store, lambda plan: plan.removes.update((1, 2)))
    assert (await look_up(store, expiry_windows=[99, 100])).expiring == {99: 0, 100: 2}


async def test_of_rows_that_expire_together_so_many_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("storage.sqlite.lookups", "storage.postgres.lookups"):
        monkeypatch.setattr(f"relay.{module}.MAX_EXPIRING", 2)
    monkeypatch.setattr("tests.harness.reference_store.MAX_EXPIRING", 2)
    tags = [["expiration", "6000"]]
    await write(store, *(unsigned(cast.alice, content=f"{n}", tags=tags) for n in range(3)))
    assert (await look_up(store, expiry_windows=[100])).expiring == {100: 2}


async def test_removed_rows_are_not_found(store: Store) -> None:
    """Look up, let `decide` plan."""
    row = await stored(store, unsigned(cast.alice, 30078, [["d", "x"], ["h", "tea"]]))
    await change(store, lambda plan: plan.removes.add(row.seq))
    found = await look_up(
        store,
        ids=[row.event.id],
        slots=[row.slot],
        prefixes=[("tea", row.event.id[:8])],
        groups_with_content=["tea"],
    )
    assert row.slot is not None
    assert found == Found(row.seq, looked_up={row.slot})


async def test_thousands_of_ids_are_looked_up_at_once(store: Store) -> None:
    """A batch may name 5,000 targets in each of its events."""
    row = await stored(store, unsigned(cast.alice, 30078, [["d", "x"]]))
    ids = [f"{number:064x}" for number in range(20_000)]
    found = await look_up(
        store,
        ids=[*ids, row.event.id],
        slots=[row.slot, *(Slot(BOB, 30078, value) for value in ids)],
        tombstones=[f"e:{value}" for value in ids],
    )
    assert list(found.rows) == [row.event.id]
    assert list(found.slots) == [row.slot]


# append: one transaction ------------------------------------------------------------------------


async def test_a_plan_is_applied_whole(store: Store) -> None:
    """Look up, let `decide` plan, apply the plan, in one transaction."""
    old = await stored(store, unsigned(cast.alice, 30078, [["d", "x"]], at=1))
    gone = await stored(store, unsigned(cast.alice, content="gone"))
    batch = Batch(
        unsigned(cast.alice, 5, [["e", gone.event.id]]),
        new := unsigned(cast.alice, 30078, [["d", "x"]], at=2),
        note := unsigned(cast.bob),
    )
    head = await store.append(batch.wanted, batch.decide)
    assert head == await store.head() == 5
    assert await read(store, asked(kinds=[1, 30078])) == in_order(new, note)
    found = await look_up(
        store,
        ids=[old.event.id, gone.event.id, new.id],
        slots=[old.slot],
        tombstones=["e:" + gone.event.id],
    )
    assert list(found.rows) == [new.id]
    assert found.slots[Slot(ALICE, 30078, "x")].event == new
    assert [stone.by for stone in found.tombstones["e:" + gone.event.id]] == [ALICE]


async def test_a_later_event_of_a_batch_sees_what_the_earlier_did(store: Store) -> None:
    """`Found` is the world as the events before in the batch leave it."""
    first = unsigned(cast.alice, 30078, [["d", "x"]], at=1)
    second = unsigned(cast.alice, 30078, [["d", "x"]], at=2)
    doomed = unsigned(cast.alice, content="doomed")
    deletion = unsigned(cast.alice, 5, [["e", doomed.id]])
    results = await write(store, first, second, first, doomed, deletion, doomed, deletion)
    assert [result for result in results if isinstance(result, WriteOutcome)] == [
        WriteOutcome.SUPERSEDED,
        WriteOutcome.DELETED,
        WriteOutcome.DUPLICATE,
    ]
    assert await read(store) == in_order(second, deletion)
    assert [row.seq for row in await store.since(0, 10)] == [2, 4]


async def test_a_decide_that_fails_changes_nothing(store: Store) -> None:
    """If it raises, nothing changes and the error is raised here."""
    event = unsigned(cast.alice, 30078, [["d", "x"], ["h", "tea"]])
    row = await stored(store, event)
    stone = Tombstone(f"p:{BOB}", BOB, 3, "vanish")
    await add_tombstone(store, stone)
    wanted = {
        "ids": [event.id],
        "slots": [row.slot],
        "tombstones": [stone.target],
        "prefixes": [("tea", event.id[:8])],
        "groups_with_content": ["tea"],
    }
    before = await look_up(store, **wanted)  # type: ignore[arg-type]

    batch = Batch(
        unsigned(cast.alice, 30078, [["d", "x"]], at=5000),
        unsigned(cast.alice, 5, [["e", event.id]]),
    )

    def decide(found: Found) -> WritePlan:
        plan = batch.decide(found)
        assert len(plan.adds) == 2
        found.tombstones.clear()
        found.id_prefixes.clear()
        found.groups_with_content.clear()
        raise KeyError("a rule failed")

    with pytest.raises(KeyError, match="a rule failed"):
        await store.append(batch.wanted, decide)
    assert await look_up(store, **wanted) == before  # type: ignore[arg-type]
    assert await store.head() == row.seq
    assert await read(store) == raws(event)
    assert list(await store.since(0, 10)) == [row]


async def test_changing_what_was_found_changes_nothing_stored(store: Store) -> None:
    """A store looks facts up and applies plans; only the plan counts."""
    event = unsigned(cast.alice)
    await stored(store, event)
    stone = Tombstone(f"p:{BOB}", BOB, 3, "vanish")
    await add_tombstone(store, stone)

    def decide(found: Found) -> WritePlan:
        found.rows.clear()
        found.tombstones[stone.target].clear()
        return WritePlan()

    batch = Batch(event)
    wanted = replace(batch.wanted, tombstones=frozenset({stone.target}))
    assert await store.append(wanted, decide) == 1
    assert await read(store) == raws(event)
    assert (await look_up(store, tombstones=[stone.target])).tombstones == {stone.target: [stone]}


async def test_a_tombstone_of_an_address_is_found_whatever_its_d(store: Store) -> None:
    """With a NUL in it, what had been deleted was stored again."""
    for d in ("a", "a\0b", "a\0", "\0", "\0b", "[", '"', ""):
        article = unsigned(cast.alice, 30023, [["d", d]], at=1)
        deletion = unsigned(cast.alice, 5, [["a", f"30023:{ALICE}:{d}"]], at=2)
        await write(store, article)
        await write(store, deletion)
        assert await write(store, article) == [WriteOutcome.DELETED], d
    longer = unsigned(cast.alice, 30023, [["d", "a\0c"]], at=1)
    await stored(store, longer)


async def test_decide_runs_once(store: Store) -> None:
    """`decide` may run on another thread, once."""
    calls = []

    def decide(found: Found) -> WritePlan:
        calls.append(found)
        return WritePlan()

    await store.append(NOTHING_WANTED, decide)
    assert len(calls) == 1


async def test_an_empty_plan_leaves_the_head(store: Store) -> None:
    """Gives the new head."""
    assert await store.append(NOTHING_WANTED, lambda _found: WritePlan()) == 0
    row = await stored(store, unsigned(cast.alice))
    assert await store.append(NOTHING_WANTED, lambda _found: WritePlan()) == row.seq


async def test_appends_run_one_after_the_other(store: Store) -> None:
    """Appends run one after the other."""
    batches = [Batch(unsigned(cast.alice, content=str(number))) for number in range(20)]
    heads = await asyncio.gather(*(store.append(b.wanted, b.decide) for b in batches))
    assert sorted(heads) == list(range(1, 21))
    for batch, head in zip(batches, heads, strict=True):
        assert isinstance(batch.results[0], Stored)
        assert batch.results[0].seq == head


async def test_reads_beside_a_write_see_it_whole_or_not_at_all(store: Store) -> None:
    """One transaction."""
    old = [unsigned(cast.alice, 30078, [["d", str(number)]], at=1) for number in range(50)]
    new = [unsigned(cast.alice, 30078, [["d", str(number)]], at=2) for number in range(50)]
    await write(store, *old)

    async def look() -> list[bytes]:
        return await read(store, asked(kinds=[30078]))

    seen, _ = await asyncio.gather(asyncio.gather(*(look() for _ in range(5))), write(store, *new))
    for answer in [*seen, await look()]:
        assert answer in (in_order(*old), in_order(*new))
    assert await look() == in_order(*new)


async def test_the_rows_of_a_group_are_deleted_with_it(store: Store) -> None:
    """All rows but the records of its creation and its end (N29-124)."""
    made = unsigned(cast.owner, 9007, [["h", "tea"]])
    put = unsigned(cast.owner, 9000, [["h", "tea"], ["p", ALICE]])
    chat = unsigned(cast.alice, 9, [["h", "tea"]])
    shown = unsigned(cast.owner, 39000, [["d", "tea"]])
    record = unsigned(cast.alice, 30078, [["d", "tea"]])
    other = unsigned(cast.alice, 9, [["h", "den"]])
    quoting = unsigned(cast.alice, 1, [["d", "tea"]])
    await write(store, made, put, chat, shown, record, other, quoting)
    # A deletion without `h` that took a row of the group is noted with it.
    deletion = unsigned(cast.alice, 5, [["k", "9"]])
    await stored(store, deletion, group="tea")
    # So is a reaction to a row of the group; its author's others are not.
    reaction = unsigned(cast.bob, 7, [["e", chat.id]])
    await stored(store, reaction, group="tea")
    elsewhere = unsigned(cast.bob, 7, [["e", other.id]])
    await write(store, elsewhere)
    end = unsigned(cast.owner, 9008, [["h", "tea"]])
    last_words = unsigned(cast.alice, 9, [["h", "tea"]], "last words")
    batch = Batch(last_words, end)

    def decide(found: Found) -> WritePlan:
        plan = batch.decide(found)
        plan.deleted_groups.add("tea")
        plan.groups["tea"] = EndedGroup()
        return plan

    await store.append(batch.wanted, decide)
    assert await read(store) == in_order(made, record, other, quoting, elsewhere, end)
    assert (await look_up(store, groups_with_content=["tea"])).groups_with_content == set()
    gone = (put, chat, shown, deletion, reaction, last_words)
    found = await look_up(store, tombstones=[f"e:{event.id}" for event in gone])
    kept_out = {f"e:{event.id}" for event in (deletion, reaction)}
    assert found.tombstones.keys() == kept_out, "those that do not name their group"


async def test_a_slot_is_free_when_its_row_is_deleted(store: Store) -> None:
    """What a plan removes makes room for what it adds."""
    await stored(store, unsigned(cast.alice, 30095, [["d", "x"], ["h", "tea"]], at=9))
    await change(store, lambda plan: plan.deleted_groups.add("tea"))
    later = await stored(store, unsigned(cast.alice, 30095, [["d", "x"]], at=10))
    assert await read(store) == raws(later.event)


@pytest.mark.parametrize("way", ["leaves", "ends", "banned"])
async def test_versions_before_one_that_went_with_its_group_or_author_are_kept_out(
    store: Store, way: str
) -> None:
    """What is of no group itself would be stored, and public. A record by `ts` goes by that."""
    records = [(0, [["d", "of no slot"]]), (30023, [["d", "a\0:b"]]), (30023, [])]
    by_ts = [(30093, [["d", "x"], ["ts", "50"]])]
    rows = []
    for kind, tags in (*records, *by_ts):
        newest = unsigned(cast.alice, kind, [*tags, ["h", "tea"]], at=9)
        rows.append(await stored(store, newest))

    def plan(out: WritePlan) -> None:
        match way:
            case "leaves":
                out.leaving["ab" * 32] = [row.seq for row in rows]
                out.ending["ab" * 32] = "tea"
            case "ends":
                out.deleted_groups.add("tea")
            case _:
                out.deleted_authors[ALICE] = rows[-1].seq

    await change(store, plan)
    for kind, tags in records:
        older = unsigned(cast.alice, kind, tags, at=8)
        assert await write(store, older) == [WriteOutcome.DELETED]
        await stored(store, unsigned(cast.alice, kind, tags, at=10))
    older, newer = [
        unsigned(cast.alice, 30093, [["d", "x"], ["ts", ts]], at=at)
        for ts, at in (("49", 99), ("51", 1))
    ]
    assert await write(store, older) == [WriteOutcome.DELETED]
    await stored(store, newer)


# since and head ---------------------------------------------------------------------------------


async def test_since_gives_rows_in_the_order_of_commits(store: Store) -> None:
    """Rows with a greater seq that are still stored, ascending, at most `limit`."""
    rows = await write(store, *a_wide_crowd(), now=0)
    everything = [row for row in rows if isinstance(row, Stored)]
    alive = [row for row in everything if row.event.raw in await read(store)]
    assert list(await store.since(0, 10_000)) == alive
    assert list(await store.since(0, 7)) == alive[:7]
    assert list(await store.since(0, 0)) == []
    seventh = alive[6].seq
    assert list(await store.since(seventh, 10_000)) == alive[7:]
    assert list(await store.since(await store.head(), 10)) == []
    assert list(await store.since(MAX, 10)) == []


async def test_since_gives_few_large_rows_at_a_time(store: Store) -> None:
    """Fewer when they are large: none are left only when none are given."""
    large = [unsigned(cast.alice, 1, [], f"{number}".rjust(500_000)) for number in range(12)]
    await write(store, *large, unsigned(cast.alice, 7), now=0)
    pages = []
    seq = 0
    while page := await store.since(seq, 1000):
        pages.append(page)
        seq = page[-1].seq
    assert [row.event.kind for page in pages for row in page] == [1] * 12 + [7]
    assert max(map(len, pages)) < 10


async def test_rows_to_sweep_are_given_few_at_a_time_when_they_are_large(store: Store) -> None:
    """As many as have so many bytes, or the first."""
    large = [unsigned(cast.alice, 1, [], f"{number}".rjust(60_000)) for number in range(5)]
    await write(store, *large, now=0)
    seqs = [row.seq for row in (*await store.since(0, 3), *await store.since(3, 3))]
    assert [row.seq for row in await store.stored([999, *reversed(seqs)])] == [5, 4]
    assert [row.seq for row in await store.stored([999, *reversed(seqs)], 9)] == [5]
    assert [row.seq for row in await store.stored([2, 1])] == [2, 1]


async def test_seqs_of_kinds_leave_the_others_out(store: Store) -> None:
    await write(store, *a_wide_crowd(), now=0)
    alive = await store.since(0, 10_000)
    found = sorted({row.event.kind for row in alive})
    for wanted in (set(found[:2]), set(found[1:]), {found[-1], 65_000}, set[int]()):
        seqs = [row.seq for row in alive if row.event.kind in wanted]
        assert list(await store.seqs_of_kinds(wanted, 0, MAX, 10_000)) == seqs
        assert list(await store.seqs_of_kinds(wanted, 0, MAX, 2)) == seqs[:2]
        for place, seq in enumerate(seqs[:3], 1):
            assert list(await store.seqs_of_kinds(wanted, seq, MAX, 10_000)) == seqs[place:]
            assert list(await store.seqs_of_kinds(wanted, 0, seq, 10_000)) == seqs[:place]


async def test_since_steps_over_gaps(store: Store) -> None:
    """Rows that are still stored, ascending."""
    rows = [await stored(store, unsigned(cast.alice, at=at)) for at in range(10)]
    gone = {rows[0].seq, rows[4].seq, rows[5].seq, rows[9].seq}
    await change(store, lambda plan: plan.removes.update(gone))
    left = [row for row in rows if row.seq not in gone]
    assert list(await store.since(0, 100)) == left
    assert list(await store.since(rows[3].seq, 2)) == [rows[6], rows[7]]
    assert list(await store.since(rows[4].seq, 2)) == [rows[6], rows[7]]


async def test_the_head_never_decreases(store: Store) -> None:
    """seq of the newest row ever committed; 0 in an empty store. Never decreases."""
    assert await store.head() == 0
    first = await stored(store, unsigned(cast.alice))
    second = await stored(store, unsigned(cast.bob))
    assert (first.seq, second.seq) == (1, 2)
    await change(store, lambda plan: plan.removes.update({first.seq, second.seq}))
    assert await store.head() == 2
    third = await stored(store, unsigned(cast.carol))
    assert third.seq == await store.head() == 3


async def test_the_store_takes_writes(store: Store) -> None:
    """Whether a write would succeed now."""
    assert await store.is_writable() is True


async def test_a_disk_with_space_is_for_everybody(store: Store) -> None:
    """Whether the rest of the disk is for owners."""
    assert store.is_nearly_full() is False


# the end of the process -------------------------------------------------------------------------


async def test_all_is_there_after_a_restart(reopenable: Reopenable) -> None:
    """Durable events."""
    await _survives(reopenable, reopenable.restart)


async def test_all_is_there_after_a_crash(reopenable: Reopenable) -> None:
    """Gives the new head after the commit is durable."""
    await _survives(reopenable, reopenable.crash)


async def _survives(reopenable: Reopenable, again: object) -> None:
    store = await reopenable.open()
    tea = Group("tea", flags=frozenset({Flag.PRIVATE}), members=OrderedMap({ALICE: ()}))
    doomed, deletion, last = (
        unsigned(cast.bob, content="doomed"),
        unsigned(cast.bob, 5, [["k", "1"]]),
        unsigned(cast.dave, content="last"),
    )
    chat = unsigned(cast.bob, 9, [["h", "tea"]])
    await write(store, *a_wide_crowd(), chat, doomed, deletion)
    await set_groups(store, tea=tea)
    await add_tombstone(store, Tombstone("e:" + doomed.id, BOB, None, "kind 5"))
    newest = await stored(store, last)
    gone = (await look_up(store, ids=[doomed.id])).rows[doomed.id].seq
    await change(store, lambda plan: plan.removes.update({gone, newest.seq}))
    rows = list(await store.since(0, 10_000))
    filters = [asked(**conditions) for name, conditions in ORDERED.items()]
    answers = [await read(store, filter_) for filter_ in filters]

    store = await again()  # type: ignore[operator]
    assert await store.head() == newest.seq
    assert list(await store.since(0, 10_000)) == rows
    assert [await read(store, filter_) for filter_ in filters] == answers
    assert await write(store, doomed) == [WriteOutcome.DELETED]
    readable = rule(Match(KindSet.of(9), h=True), Who.GROUP)
    groups = Groups().with_group(tea)
    one = asked(kinds=[9], tag_h=["tea"])
    assert await read(store, one, seen_by(keys(ALICE), readable, groups=groups)) == raws(chat)
    assert await read(store, one, seen_by(keys(BOB), readable, groups=groups)) == []
    assert (await stored(store, unsigned(cast.dave, content="new"))).seq == newest.seq + 1


async def test_a_closed_store_raises(store: Store) -> None:
    """Finish what was begun; after this every call raises StoreFault."""
    await stored(store, unsigned(cast.alice))
    await store.close()
    query = PageQuery(asked(), EVERYTHING, 1, upto=1, now=0, size=1)
    batch = Batch(unsigned(cast.bob))
    for call in (
        lambda: store.append(batch.wanted, batch.decide),
        lambda: store.page(query),
        lambda: store.places(query),
        lambda: store.count([asked()], EVERYTHING, now=0),
        lambda: store.since(0, 1),
        store.head,
        store.is_writable,
    ):
        with pytest.raises(StoreFault):
            await call()
    with pytest.raises(StoreFault):
        store.page_now(query)
    assert batch.found is None


async def test_close_finishes_what_was_begun(reopenable: Reopenable) -> None:
    """Finish what was begun."""
    store = await reopenable.open()
    batch = Batch(event := unsigned(cast.alice))
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(store.append(batch.wanted, batch.decide))
        await asyncio.sleep(0)
        again = tasks.create_task(reopenable.restart())
    assert writing.result() == 1
    assert await read(again.result()) == raws(event)


def test_the_kinds_of_these_tests_compete_in_every_way() -> None:
    kinds_used = (1, 0, 30093, 30095)
    assert {kept_as(unsigned(cast.alice, kind)) for kind in kinds_used} == set(Keep)


async def test_what_is_kept_of_refused_events_is_bounded_in_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4,000 events of 5,000 tags, all refused, took 2 GB."""
    monkeypatch.setattr("relay.storage.rows._MAX_PREPARED", 1_000_000)
    many = [["t", f"{number}"] for number in range(1_000)]
    events = [unsigned(cast.alice, tags=many, at=at) for at in range(150)]
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for event in events:
        store.prepare([event])
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held < 2_000_000
    (written,) = await write(store, events[-1])
    assert isinstance(written, Stored)


async def test_rows_are_checked_in_pieces_of_bounded_size(store: Store) -> None:
    """100 rows with 5,000 tags each were checked at once: 0.5 s, and 300 MB."""
    many = [["t", f"{number}"] for number in range(3_000)]
    large = [cast.alice.sign(1, many, f"{number}", 1) for number in range(9)]
    assert len(large[0].raw) * 3 < PARSED_BYTES < len(large[0].raw) * 4
    small = [cast.alice.sign(1, [], f"{number}", 1) for number in range(9)]
    seqs = [(await stored(store, event)).seq for event in (*large, *small)]
    after, checked = 0, list[int]()
    while not checked or after:
        after, faults = await store.check(after, 5)
        assert not faults
        checked.append(after)
    assert checked == [seqs[3], seqs[7], seqs[12], seqs[17], 0]
