"""Rows of no group that refer to an event, step by step, and how they are put into a group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from relay.access.quotas import SizedBy
from relay.lifecycle.rows import Found, WritePlan
from tests import cast
from tests.contract.writing import NOTHING_WANTED, change, stored, unsigned, write

if TYPE_CHECKING:
    from relay.lifecycle.rows import Reference
    from relay.storage import Store

A, B = "a" * 64, "b" * 64
ADDRESS = f"30023:{B}:x"


async def referring(store: Store, *references: Reference) -> Found:
    answers: list[Found] = []

    def decide(found: Found) -> WritePlan:
        answers.append(found)
        return WritePlan()

    wanted = replace(
        NOTHING_WANTED, referrers=frozenset(references), referring_kinds=frozenset({7, 1111})
    )
    await store.append(wanted, decide)
    return answers[0]


async def test_rows_of_no_group_that_refer_to_an_event_are_found(store: Store) -> None:
    """By each of the four tags, of the asked kinds, and what refers to them in turn."""
    by_id = unsigned(cast.alice, 7, [["e", A]])
    by_root = unsigned(cast.alice, 1111, [["E", A], ["A", ADDRESS]])
    by_address = unsigned(cast.bob, 7, [["p", A], ["a", ADDRESS]])
    in_turn = unsigned(cast.bob, 7, [["e", by_root.id]])
    await write(store, by_id, by_root, by_address, in_turn)
    await write(store, unsigned(cast.alice, 1, [["e", A]]), unsigned(cast.alice, 7, [["q", A]]))
    await stored(store, unsigned(cast.carol, 7, [["e", A]]), group="tea")
    found = await referring(store, ("e", A), ("a", ADDRESS), ("e", B))
    assert found.referrers["e", A] == {by_id.id, by_root.id}
    assert found.referrers["a", ADDRESS] == {by_root.id, by_address.id}
    assert found.referrers["e", by_root.id] == {in_turn.id}
    assert not found.referrers["e", B]
    assert found.rows.keys() == {event.id for event in (by_id, by_root, by_address, in_turn)}


async def test_a_row_is_moved_into_a_group(store: Store) -> None:
    """It keeps its place in the log; the totals follow, and it goes with its group."""
    reaction, other = unsigned(cast.alice, 7, [["e", A]]), unsigned(cast.alice, 7, [["e", B]])
    await write(store, reaction, other)
    before = await store.since(0, 9)
    await change(store, lambda plan: plan.moves.update({before[0].seq: "tea"}))
    after = await store.since(0, 9)
    assert [(row.seq, row.event.id) for row in after] == [(r.seq, r.event.id) for r in before]
    assert [row.group for row in after] == ["tea", None]
    sizes = {line.of: line.size.events for line in await store.sizes(SizedBy.GROUP, 9)}
    assert sizes == {"tea": 1, None: 1}
    assert not (await referring(store, ("e", A))).referrers["e", A]
    await change(store, lambda plan: plan.deleted_groups.add("tea"))
    assert [row.event.id for row in await store.since(0, 9)] == [other.id]
