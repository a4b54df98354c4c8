"""SQL is a text as any other, wherever a text goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.access.management import ListChange, ListName
from relay.groups.group import EndedGroup
from relay.lifecycle.rows import Slot, Tombstone
from tests.cast import alice, bob
from tests.contract.writing import (
    add_tombstone,
    asked,
    change,
    in_order,
    look_up,
    read,
    set_groups,
    unsigned,
    write,
)

if TYPE_CHECKING:
    from relay.storage import Store


@pytest.mark.parametrize(
    "text",
    [
        "'; DROP TABLE events; --",
        "' OR '1'='1",
        "\\'; DELETE FROM events; --",
        '"; COMMIT; BEGIN; --',
        "$$; ROLLBACK; $$",
        "$1, ?, :id, %s, {0}",
        "{a,b}, ARRAY['c'], NULL",
        "/* tea",
    ],
)
async def test_sql_is_a_text(store: Store, text: str) -> None:
    other = unsigned(bob, content="tea")
    tags = [["d", text], ["h", text], ["t", text], ["hk", text], [text, text]]
    event = unsigned(alice, 30_078, tags, text)
    await write(store, other)
    await write(store, event, group=text)
    await set_groups(store, **{text: EndedGroup(frozenset({bob.pubkey}))})
    stone = Tombstone(f"a:30023:{bob.pubkey}:{text}", bob.pubkey, 1, text)
    await add_tombstone(store, stone)
    banned = ListChange(ListName.BLOCKED_ADDRESSES, text, text)
    await change(store, lambda plan: plan.list_changes.append(banned))

    for conditions in ({"tag_d": [text]}, {"tag_t": [text]}, {"tag_hk": [text]}):
        assert await read(store, asked(**conditions)) == [event.raw]
    slot = Slot(alice.pubkey, 30_078, text)
    found = await look_up(
        store,
        slots=[slot],
        tombstones=[stone.target],
        prefixes=[(text, event.id[:8]), (text, text)],
        groups_with_content=[text],
    )
    assert found.slots[slot].event == event
    assert found.tombstones == {stone.target: [stone]}
    [row] = found.id_prefixes.pop((text, event.id[:8]))
    assert (row.event, found.id_prefixes) == (event, {})
    assert found.groups_with_content == {text}
    assert list(await store.ended_groups()) == [text]
    assert dict((await store.management()).of(banned.list_name)) == {text: text}
    assert await read(store) == in_order(other, event)
