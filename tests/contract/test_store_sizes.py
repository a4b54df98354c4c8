"""Totals by author, kind and group, updated in the transaction that changes them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.access.quotas import Account, Size, Sized, SizedBy
from relay.groups.group import Group
from relay.lifecycle.deletion import delete_banned_author, event_target
from relay.lifecycle.rows import Lookups, Tombstone, WritePlan
from relay.nostr.kinds import KindSet
from tests import cast
from tests.contract.writing import (
    NOTHING_WANTED,
    Batch,
    change,
    look_up,
    set_groups,
    stored,
    unsigned,
    write,
)

if TYPE_CHECKING:
    from relay.lifecycle.rows import Found
    from relay.nostr.event import Event
    from relay.storage import Store
    from tests.contract.conftest import Reopenable

ALICE, BOB = cast.alice.pubkey, cast.bob.pubkey
NOTE = unsigned(cast.alice, 1, [], "a note")
CHAT = unsigned(cast.alice, 9, [["h", "den"]], "a chat")
OTHER = unsigned(cast.bob, 9, [["h", "den"]], "another")


_FOR_ALICE, _FOR_BOB = ["p", ALICE], ["p", BOB]
WRAPS = [
    unsigned(cast.stranger, 1059, tags, text)
    for tags, text in (
        ([_FOR_ALICE], "one"),
        ([_FOR_ALICE, ["p", ALICE], ["p"]], "two"),
        ([_FOR_BOB], "three"),
        ([_FOR_ALICE, _FOR_BOB], "for both"),
        ([_FOR_ALICE, *(["p", f"{n:064x}"] for n in range(16))], "for more than count"),
    )
]


def size(*events: Event) -> Size:
    return Size(len(events), sum(len(event.raw) for event in events))


async def held(store: Store, account: Account) -> Size:
    return (await look_up(store, usage=[account])).usage.size_of(account)


async def test_an_account_holds_the_rows_of_its_author_kinds_and_groups(store: Store) -> None:
    await write(store, NOTE, CHAT, OTHER)
    assert await held(store, Account(ALICE)) == size(NOTE, CHAT)
    assert await held(store, Account(ALICE, KindSet.of((9, 40)))) == size(CHAT)
    assert await held(store, Account(ALICE, None, h=False)) == size(NOTE)
    assert await held(store, Account(ALICE, None, h=True)) == size(CHAT)
    assert await held(store, Account(None, None, frozenset({"den"}))) == size(CHAT, OTHER)
    assert await held(store, Account(BOB, None, frozenset({"attic"}))) == Size()


async def test_accounts_may_depend_on_the_rows_that_are_found(store: Store) -> None:
    await write(store, NOTE, CHAT, OTHER)
    wanted = Lookups(
        frozenset({CHAT.id}),
        frozenset(),
        frozenset(),
        usage_by=lambda found: [Account(None, h=frozenset({found.rows[CHAT.id].group or ""}))],
    )
    sizes = []

    def decide(found: Found) -> WritePlan:
        sizes.append(found.usage.size_of(Account(None, h=frozenset({"den"}))))
        return WritePlan()

    await store.append(wanted, decide)
    assert sizes == [size(CHAT, OTHER)]


async def test_gift_wraps_are_added_up_for_each_recipient(store: Store) -> None:
    one, two, for_bob, for_both, _ = WRAPS
    await write(store, NOTE, *WRAPS)
    for_alice = Account(None, recipient=ALICE)
    assert await held(store, for_alice) == size(one, two, for_both)
    assert await held(store, Account(None, recipient=BOB)) == size(for_bob, for_both)
    more = unsigned(cast.stranger, 1059, [_FOR_ALICE], "more")
    batch = Batch(more, unsigned(cast.alice, 5, [["e", one.id]]))
    sizes = []

    def decide(found: Found) -> WritePlan:
        plan = batch.decide(found)
        sizes.append(found.usage.size_of(for_alice))
        return plan

    await store.append(replace(batch.wanted, usage=frozenset({for_alice})), decide)
    assert sizes == [size(two, for_both, more)]
    assert await held(store, for_alice) == sizes[0]
    await write(store, unsigned(cast.alice, 62, [["relay", "ALL_RELAYS"]], at=5000))
    assert await held(store, for_alice) == Size()


async def test_many_accounts_are_looked_up_together(store: Store) -> None:
    await write(store, NOTE, *WRAPS)
    accounts = [Account(None, recipient=key) for key in (ALICE, BOB, "f" * 64)]
    accounts.append(Account(ALICE, KindSet.of(1)))
    sizes: list[Size] = []

    def decide(found: Found) -> WritePlan:
        sizes.extend(map(found.usage.size_of, accounts))
        return WritePlan()

    await store.append(replace(NOTHING_WANTED, usage=frozenset(accounts)), decide)
    assert sizes == [await held(store, account) for account in accounts]
    assert sizes[2:] == [Size(), size(NOTE)]


async def test_totals_are_current_within_a_batch(store: Store) -> None:
    await write(store, NOTE)
    batch = Batch(CHAT, unsigned(cast.alice, 5, [["e", NOTE.id]]))
    account = Account(ALICE, KindSet.of(1, 9))
    sizes = []

    def decide(found: Found) -> WritePlan:
        plan = batch.decide(found)
        sizes.append(found.usage.size_of(account))
        return plan

    await store.append(replace(batch.wanted, usage=frozenset({account})), decide)
    assert sizes == [size(CHAT)]
    assert await held(store, account) == size(CHAT)


async def test_a_replaced_version_does_not_count(store: Store) -> None:
    first, second = (unsigned(cast.alice, 0, [], text, at) for text, at in [("a", 1), ("bcd", 2)])
    await write(store, first)
    await write(store, second)
    assert await held(store, Account(ALICE)) == size(second)


async def test_what_is_deleted_no_longer_counts(store: Store) -> None:
    row = await stored(store, NOTE)
    await change(store, lambda plan: plan.removes.add(row.seq))
    assert await held(store, Account(ALICE)) == Size()
    assert await store.sizes(SizedBy.KIND, 10) == []


async def test_rows_deleted_with_a_group_a_key_or_a_ban_no_longer_count(store: Store) -> None:
    await set_groups(store, den=Group("den"))
    await write(store, NOTE, CHAT, OTHER)
    await change(store, lambda plan: plan.deleted_groups.add("den"))
    assert await store.sizes(SizedBy.KIND, 10) == [Sized(1, size(NOTE))]
    await write(store, OTHER)

    def ban(found: Found) -> WritePlan:
        plan = WritePlan()
        delete_banned_author(BOB, found, plan)
        return plan

    await store.append(Batch().wanted, ban)
    assert await held(store, Account(BOB)) == Size()
    await write(store, unsigned(cast.alice, 62, [["relay", "ALL_RELAYS"]], at=5000))
    assert await store.sizes(SizedBy.AUTHOR, 10) == []


async def test_a_failed_change_leaves_the_totals(store: Store) -> None:
    batch = Batch(NOTE)

    def decide(found: Found) -> WritePlan:
        batch.decide(found)
        raise LookupError

    with pytest.raises(LookupError):
        await store.append(batch.wanted, decide)
    assert await held(store, Account(ALICE)) == Size()


async def test_sizes_are_ordered_by_bytes(store: Store) -> None:
    big = unsigned(cast.bob, 30_023, [["d", "x"]], "x" * 500)
    await write(store, NOTE, CHAT, OTHER, big)
    assert await store.sizes(SizedBy.KIND, 2) == [
        Sized(30_023, size(big)),
        Sized(9, size(CHAT, OTHER)),
    ]
    assert await store.sizes(SizedBy.AUTHOR, 10) == [
        Sized(BOB, size(big, OTHER)),
        Sized(ALICE, size(NOTE, CHAT)),
    ]
    assert await store.sizes(SizedBy.GROUP, 10) == [
        Sized(None, size(big, NOTE)),
        Sized("den", size(CHAT, OTHER)),
    ]


async def test_sizes_survive_a_crash(reopenable: Reopenable) -> None:
    store = await reopenable.open()
    row = await stored(store, NOTE)
    await write(store, CHAT)
    stone = Tombstone(event_target(NOTE.id), "", None, "sweep")

    def plan(out: WritePlan) -> None:
        out.removes.add(row.seq)
        out.tombstones.append(stone)

    await change(store, plan)
    store = await reopenable.crash()
    assert await store.sizes(SizedBy.KIND, 10) == [Sized(9, size(CHAT))]
