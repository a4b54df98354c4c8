"""What requests deleted is known for 90 days: for receipts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.lifecycle.rows import ERASURE_DAYS, DeletedBy, Forgotten, Slot, Vanish, WritePlan
from relay.lifecycle.versions import History
from relay.nostr.erasure import MAX_IDS, Erasure
from tests import cast
from tests.contract.writing import NOTHING_WANTED, Batch, change, unsigned, write
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from relay.lifecycle.rows import Found
    from relay.storage import Store
    from tests.contract.conftest import Reopenable

REQUEST = "ab" * 32


def erasure(request: str = REQUEST, at: int = 1000, *rows: tuple[str, int]) -> Erasure:
    made = Erasure(request, cast.alice.pubkey, 5, at)
    for row in rows:
        made.add(*row)
    return made


async def noted(store: Store, each: Erasure) -> None:
    """With the first row removed."""

    def remove(plan: WritePlan) -> None:
        plan.removes.add(1)
        plan.erasures[each.request] = each

    await change(store, remove)


async def test_an_erasure_is_known_after_a_restart(reopenable: Reopenable) -> None:
    store = await reopenable.open()
    made = erasure(REQUEST, 1000, ("1" * 64, 9), ("2" * 64, 9), ("3" * 64, 1))
    await write(store, unsigned(cast.bob))
    await noted(store, made)
    assert await store.erasure(REQUEST) == made
    store = await reopenable.restart()
    assert await store.erasure(REQUEST) == made
    assert await store.erasure("0" * 64) is None


async def test_what_a_request_deletes_later_is_added(store: Store) -> None:
    """A deletion of much goes in pieces, and may break off between two of them."""
    many = [(f"{number:064x}", 9) for number in range(MAX_IDS)]
    await write(store, unsigned(cast.bob))
    for at, rows in ((1000, [("a" * 64, 1), ("b" * 64, 9)]), (1001, [("c" * 64, 1)]), (1002, many)):
        await noted(store, erasure(REQUEST, at, *rows))
    found = await store.erasure(REQUEST)
    assert found is not None
    assert found.numbers == {1: 2, 9: MAX_IDS + 1}
    assert found.ids == [("a" * 64, 1), ("b" * 64, 9), ("c" * 64, 1), *many[: MAX_IDS - 3]]
    assert found.at == 1002


async def test_a_batch_is_told_which_requests_deleted_something(store: Store) -> None:
    await write(store, unsigned(cast.bob))
    await noted(store, erasure(REQUEST, 1000, ("a" * 64, 1)))
    seen: list[set[str]] = []

    def decide(found: Found) -> WritePlan:
        seen.append(found.begun)
        return WritePlan()

    asked = frozenset({REQUEST, "0" * 64})
    await store.append(replace(NOTHING_WANTED, requests=asked), decide)
    assert seen == [{REQUEST}]


async def test_an_old_erasure_is_dropped_with_the_next(reopenable: Reopenable) -> None:
    store = await reopenable.open()
    later = 1000 + ERASURE_DAYS * 86_400
    for request, at in ((REQUEST, 1000), ("1" * 64, later), ("2" * 64, later + 1)):
        assert (await store.erasure(REQUEST) is None) is (at == 1000)
        await noted(store, erasure(request, at, ("3" * 64, 1)))
    assert await store.erasure(REQUEST) is None
    assert await store.erasure("1" * 64) is not None


async def test_a_vanish_names_what_the_store_deletes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.storage.rows.MOST_DELETED", 1 << 20)
    events = [unsigned(cast.alice, content=f"{n}", at=n) for n in range(MAX_IDS + 5)]
    await write(store, *events)
    gone = Vanish(cast.alice.pubkey, 9999, REQUEST)
    made = Erasure(REQUEST, cast.alice.pubkey, 62, 1000)

    def vanish(plan: WritePlan) -> None:
        plan.vanishes.append(gone)
        plan.erasures[REQUEST] = made

    await change(store, vanish)
    found = await store.erasure(REQUEST)
    assert found is not None
    assert found.numbers == {1: MAX_IDS + 5}
    assert len(found.ids) == MAX_IDS
    assert [event_id for event_id, _ in found.ids] == [event.id for event in events[:MAX_IDS]]


async def test_an_erasure_names_old_versions_first_and_all_as_they_came(store: Store) -> None:
    """Whatever store and index find them, a receipt reads the same."""
    versions = [unsigned(cast.alice, 30023, [["d", d]], at=at) for at in (3, 4, 5) for d in "ba"]
    notes = [unsigned(cast.alice, content=f"{n}", at=100 - n) for n in range(3)]
    written = Batch(*versions, *notes, history=History(5))
    await store.append(written.wanted, written.decide)

    def vanish(plan: WritePlan) -> None:
        plan.vanishes.append(Vanish(cast.alice.pubkey, 9999, REQUEST))
        plan.erasures[REQUEST] = Erasure(REQUEST, cast.alice.pubkey, 62, 1000)

    await change(store, vanish)
    found = await store.erasure(REQUEST)
    assert found is not None
    assert found.ids == [(event.id, event.kind) for event in (*versions, *notes)]
    assert list(found.numbers.items()) == [(30023, 6), (1, 3)]


@pytest.mark.parametrize(("by", "listed"), [(cast.alice.pubkey, 2), ("", 0)])
async def test_only_to_their_author_is_told_which_old_versions_are_erased(
    store: Store, by: str, listed: int
) -> None:
    """An admin may be allowed to read the newest version alone."""
    versions = [unsigned(cast.alice, 30023, [["d", "a"]], at=at) for at in (3, 4, 5)]
    written = Batch(*versions, history=History(5))
    await store.append(written.wanted, written.decide)
    slot = Slot(cast.alice.pubkey, 30023, "a")
    cause = DeletedBy(REQUEST, by, "9005")

    def delete(plan: WritePlan) -> None:
        plan.forgotten.append(Forgotten(store.committed(), slot, cause=cause))
        plan.erasures[REQUEST] = made = erasure()
        made.add("1" * 64, 30023)

    await change(store, delete)
    assert len(await store.old_versions(0, 9)) == 0
    found = await store.erasure(REQUEST)
    assert found is not None
    assert found.numbers == {30023: 1 + listed}


async def test_it_is_erased_when_nothing_is_left_to_do(store: Store) -> None:
    await write(store, unsigned(cast.bob))
    made = erasure(REQUEST, 1000, ("1" * 64, 9))
    await noted(store, made)
    async with until("the row is erased") as tries:
        async for _ in tries:
            await store.tidy_index()
            if store.is_erased(REQUEST):
                return
