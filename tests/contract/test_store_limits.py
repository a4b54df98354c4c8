"""Lookups of too much: the fault names what is too large, on every store."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest

from relay.errors import TooMuchToRead
from relay.lifecycle.rows import Lookups, OwnRow, Slot, WritePlan, all_rows_of
from relay.nostr.kinds import ALL_KINDS
from tests import cast
from tests.contract.crowd import ALICE, BOB
from tests.contract.writing import NOTHING_WANTED, stored, unsigned

if TYPE_CHECKING:
    from relay.lifecycle.rows import Limited
    from relay.storage import Store

NOTE = unsigned(cast.alice, 9, [["h", "tea"]], "x" * 900)
ARTICLE = unsigned(cast.alice, 30023, [["d", "x"]], "y" * 900)
FOUNDED = unsigned(cast.alice, 9007, [["h", "tea"]])
SLOT = Slot(ALICE, 30023, "x")
BEGINNING = ("tea", NOTE.id[:8])
LIMITED: list[tuple[str, str, object, Limited]] = [
    ("most", "ids", NOTE.id, NOTE.id),
    ("most", "slots", SLOT, SLOT),
    ("most", "id_prefixes", BEGINNING, BEGINNING),
    ("most_own", "own_rows", OwnRow(NOTE.id, ALICE), NOTE.id),
    ("most_own", "own_slots", SLOT, SLOT),
    ("most_own", "ending_groups", "tea", all_rows_of("tea")),
    ("most_own", "vanishing_keys", ALICE, ALICE),
    ("most_moderated", "vanishing_keys", ALICE, ALICE),
    ("most_records", "vanishing_keys", ALICE, ALICE),
]
"""Limit, look-up, what is too large there, and its name."""
UNLIMITED = {
    # No event is read.
    *(
        "tombstones",
        "present",
        "deleted_keys",
        "requests",
        "usage",
        "dependencies",
        "groups_with_content",
        "counted_groups",
        "expiry_windows",
    ),
    # They take the place of `tombstones` that are too many.
    "refusals",
    # Bounded by numbers of rows.
    *("named", "named_near", "referrers"),
    # A bound of its own, above which less is found.
    "leaving",
    # Limited by number, see `test_store_leaving`: the rows that lead to too many are named.
    "slots_by",
    # Limited by `most_records`, which names the keys that vanish.
    "record_groups",
    # They say how much, and how.
    *("most", "most_own", "most_moderated", "most_records", "longest_s"),
    *("whole_kinds", "referring_kinds", "pinned_in", "names_in", "usage_by"),
}


def test_each_lookup_has_a_limit_or_is_known_to_need_none() -> None:
    limited = {name for _, name, *_ in LIMITED}
    assert {each.name for each in fields(Lookups)} == limited | UNLIMITED


@pytest.mark.parametrize(("limit", "name", "large", "named"), LIMITED)
async def test_what_is_too_large_is_named(
    store: Store, limit: str, name: str, large: Any, named: Limited
) -> None:
    """Else nobody is served apart, and half of the clients wait, again and again."""
    for event in (NOTE, ARTICLE, FOUNDED):
        await stored(store, event)
    wanted = replace(
        NOTHING_WANTED,
        ids=frozenset({"1" * 64}),
        own_rows=frozenset({OwnRow("2" * 64, BOB)}),
        whole_kinds=ALL_KINDS,
    )
    asked: Any = {large: 1000} if name == "vanishing_keys" else getattr(wanted, name) | {large}
    changed: dict[str, Any] = {name: asked, limit: 0}
    wanted = replace(wanted, **changed)
    with pytest.raises(TooMuchToRead) as fault:
        await store.append(wanted, lambda _: WritePlan())
    shares = {each: share for each, share in fault.value.shares.items() if share}
    assert shares.keys() == {named}
    assert shares[named] >= 1
    assert named in wanted.limited
