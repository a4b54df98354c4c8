"""The promises of `items` and `authors`, on every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.access.read_rules import Match
from relay.facts import Who
from relay.lifecycle.rows import ExpiredRow
from relay.nostr.event import event_from_raw
from relay.nostr.kinds import KindSet
from tests import cast
from tests.contract.crowd import (
    ALICE,
    a_wide_crowd,
    filters_for,
    keys,
    on_module_loop,
    rule,
    seen_by,
)
from tests.contract.writing import (
    EVERYTHING,
    MAX,
    asked,
    change,
    look_up,
    read,
    unsigned,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.storage import EventReader, Store


async def items(
    store: EventReader,
    filter_: Filter,
    visibility: Visibility = EVERYTHING,
    *,
    limit: int | None = None,
    upto: int = MAX,
    now: int = 0,
    at_most: int = 10_000,
) -> list[tuple[int, str]] | None:
    found = await store.items(filter_, visibility, limit=limit, upto=upto, now=now, at_most=at_most)
    if found is None:
        return None
    return [(found.bound_at(n).timestamp, found.id(n).hex()) for n in range(len(found))]


def ascending(raws: Sequence[bytes]) -> list[tuple[int, str]]:
    """As N77-20 has it: by timestamp, then by id."""
    return sorted((event.created_at, event.id) for event in map(event_from_raw, raws))


@on_module_loop
@pytest.mark.proves("N77-07", "N77-20")
async def test_a_set_is_what_the_pages_give_in_ascending_order(crowded: EventReader) -> None:
    """created_at and id of every row that `page` would give."""
    for name, filter_ in filters_for(a_wide_crowd()):
        assert await items(crowded, filter_) == ascending(await read(crowded, filter_)), name
        for limit in (0, 1, 3, 50):
            newest = await read(crowded, filter_, limit=limit)
            assert await items(crowded, filter_, limit=limit) == ascending(newest), name


async def test_a_set_is_never_larger_than_asked(store: Store) -> None:
    """None when there are more than `at_most`."""
    await write(store, *[unsigned(cast.alice, at=at) for at in range(5)])
    for filter_ in (asked(), asked(authors=[ALICE]), asked(kinds=[1]), asked(since=0)):
        assert await items(store, filter_, at_most=4) is None
        assert len(await items(store, filter_, at_most=5) or ()) == 5
        assert len(await items(store, filter_, limit=4, at_most=4) or ()) == 4


@on_module_loop
async def test_the_authors_are_those_of_the_rows_that_count(crowded: EventReader) -> None:
    """Distinct public keys of the rows that `count` counts; None when there are more."""
    for name, filter_ in filters_for(a_wide_crowd()):
        events = [event_from_raw(raw) for raw in await read(crowded, filter_)]
        expected = sorted({bytes.fromhex(event.pubkey) for event in events})
        found = await crowded.authors(filter_, EVERYTHING, now=0, at_most=len(expected))
        assert sorted(found or ()) == expected, name
        if expected:
            fewer = len(expected) - 1
            assert await crowded.authors(filter_, EVERYTHING, now=0, at_most=fewer) is None, name


async def test_authors_of_unreadable_rows_are_left_out(store: Store) -> None:
    await write(store, unsigned(cast.bob, 1059, [["p", ALICE]]), unsigned(cast.carol))
    wraps = rule(Match(kinds=KindSet.of(1059)), Who.RECIPIENT)
    told = await store.authors(asked(), seen_by(keys(), wraps), now=0, at_most=9)
    assert told == [bytes.fromhex(cast.carol.pubkey)]


@pytest.mark.proves("N77-07", "N40-02")
async def test_items_are_only_of_readable_rows(store: Store) -> None:
    """Every row that `page` would give: no hidden, expired or later ones."""
    wrap = unsigned(cast.bob, 1059, [["p", ALICE]], at=3)
    fading = unsigned(cast.bob, 1, [["expiration", "100"]], at=2)
    await write(store, unsigned(cast.bob, at=1), fading, wrap)
    head = await store.head()
    await write(store, unsigned(cast.bob, at=4))
    wraps = rule(Match(kinds=KindSet.of(1059)), Who.RECIPIENT)
    for viewer, knows in ((keys(), False), (keys(ALICE), True)):
        visibility = seen_by(viewer, wraps)
        assert ((3, wrap.id) in (await items(store, asked(), visibility) or ())) is knows
        for upto in (MAX, head):
            for now in (99, 100):
                page = await read(store, asked(), visibility, upto=upto, now=now)
                given = await items(store, asked(), visibility, upto=upto, now=now)
                assert given == ascending(page)


async def test_items_tell_the_groups_of_their_rows(store: Store) -> None:
    await write(store, unsigned(cast.bob, at=1))
    await write(store, unsigned(cast.bob, 7, at=2), group="d\u00e9n")  # a reaction has no `h`
    await write(store, unsigned(cast.bob, 9, [["h", "tea"]], at=3), group="tea")
    for filter_, groups in (
        (asked(), {"d\u00e9n", "tea"}),
        (asked(kinds=[1, 7]), {"d\u00e9n"}),
        (asked(kinds=[9]), {"tea"}),
        (asked(kinds=[1]), set()),
        (asked(kinds=[4]), set()),
    ):
        for limit in (None, 9):
            found = await store.items(filter_, EVERYTHING, limit=limit, upto=MAX, now=0, at_most=9)
            assert found is not None
            assert {
                each for each in ("d\u00e9n", "tea", "other") if found.may_be_of([each])
            } == groups


@pytest.mark.proves("N40-04")
async def test_what_has_expired_is_found_until_it_is_removed(store: Store) -> None:
    """At most `limit` rows that are stored though they have expired."""
    named = [["d", "a\0:ä"]]
    fading = [
        unsigned(cast.alice, kind, [["expiration", str(at)], *named], at=at)
        for kind, at in ((1, 5), (30023, 6), (10002, 6), (1, 7))
    ]
    await write(store, unsigned(cast.bob, at=1), *fading)
    assert await store.expired(4, 10) == []
    addresses = [None, f"30023:{ALICE}:a\0:ä", f"10002:{ALICE}:"]
    gone = [
        ExpiredRow(event.id, len(event.raw), address)
        for event, address in zip(fading, addresses, strict=False)
    ]
    assert set(await store.expired(6, 10)) == {*gone}
    assert len(await store.expired(7, 2)) == 2
    first = (await look_up(store, ids=[fading[0].id])).rows[fading[0].id]
    await change(store, lambda plan: plan.removes.add(first.seq))
    assert set(await store.expired(6, 10)) == {*gone[1:]}
