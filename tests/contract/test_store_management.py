"""Lists set by NIP-86 calls are stored, and a ban can delete rows (N86-11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.access.management import ListChange, ListName
from relay.errors import StoreFault, WriteOutcome
from relay.lifecycle.deletion import delete_banned_author, event_target
from relay.lifecycle.rows import WritePlan
from tests.cast import alice, bob
from tests.contract.writing import (
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
    write,
)

if TYPE_CHECKING:
    from relay.access.management import Management
    from relay.lifecycle.rows import Found
    from relay.nostr.keys import SecretKey
    from relay.storage import Store
    from tests.contract.conftest import Reopenable


async def set_to(store: Store, *changes: ListChange) -> None:
    await change(store, lambda plan: plan.list_changes.extend(changes))


async def ban(store: Store, who: SecretKey) -> None:
    """As a ban does where the policies say that rows are deleted."""

    def decide(found: Found) -> WritePlan:
        plan = WritePlan()
        delete_banned_author(who.pubkey, found, plan)
        return plan

    await store.append(NOTHING_WANTED, decide)


def shown(management: Management) -> dict[str, dict[str, str]]:
    return {
        register.value: dict(management.of(register))
        for register in ListName
        if management.of(register)
    }


async def test_nothing_is_set_in_a_fresh_store(store: Store) -> None:
    assert shown(await store.management()) == {}


@pytest.mark.proves("N86-11", "N86-14", "N86-23", "N86-25", "N86-26", "N86-27")
async def test_what_was_set_is_there_after_a_restart_and_after_a_crash(
    reopenable: Reopenable,
) -> None:
    store = await reopenable.open()
    odd = 'a "reason"\nin Ünïcode \U0001f375'
    await set_to(
        store,
        ListChange(ListName.BANNED_KEYS, alice.pubkey, odd),
        ListChange(ListName.ALLOWED_KEYS, alice.pubkey, ""),
        ListChange(ListName.BANNED_EVENTS, "e" * 64, "an advert"),
        ListChange(ListName.REFUSED_KINDS, "7", ""),
    )
    await set_to(store, ListChange(ListName.TEXTS, "name", "Tea"))
    await set_to(store, ListChange(ListName.BLOCKED_ADDRESSES, "203.0.113.0/24", "a crawler"))
    kept = {
        "banned keys": {alice.pubkey: odd},
        "allowed keys": {alice.pubkey: ""},
        "banned events": {"e" * 64: "an advert"},
        "refused kinds": {"7": ""},
        "texts": {"name": "Tea"},
        "blocked addresses": {"203.0.113.0/24": "a crawler"},
    }
    assert shown(await store.management()) == kept
    assert shown(await (await reopenable.crash()).management()) == kept
    assert shown(await (await reopenable.restart()).management()) == kept


async def test_the_last_change_of_an_item_counts(reopenable: Reopenable) -> None:
    store = await reopenable.open()
    await set_to(
        store,
        ListChange(ListName.BANNED_KEYS, alice.pubkey, "one"),
        ListChange(ListName.BANNED_KEYS, bob.pubkey, "one"),
        ListChange(ListName.BANNED_KEYS, alice.pubkey, None),
        ListChange(ListName.BANNED_KEYS, alice.pubkey, "two"),
    )
    await set_to(store, ListChange(ListName.BANNED_KEYS, bob.pubkey, None))
    await set_to(store, ListChange(ListName.BANNED_KEYS, bob.pubkey, None))
    left = {"banned keys": {alice.pubkey: "two"}}
    assert shown(await store.management()) == left
    assert shown(await (await reopenable.restart()).management()) == left


async def test_a_failed_decision_changes_no_list(store: Store) -> None:
    plan = WritePlan(list_changes=[ListChange(ListName.BANNED_KEYS, alice.pubkey, "")])

    def decide(_found: Found) -> WritePlan:
        plan.adds["x"] = None  # type: ignore[assignment]  # a row that no store can write
        return plan

    with pytest.raises(Exception, match="NoneType"):
        await store.append(NOTHING_WANTED, decide)
    assert shown(await store.management()) == {}


@pytest.mark.proves("N86-11")
async def test_rows_of_a_banned_key_are_deleted_for_good(reopenable: Reopenable) -> None:
    store = await reopenable.open()
    note = unsigned(alice, 1, [["t", "tea"]])
    profile = unsigned(alice, 0)
    others = unsigned(bob, 1, [["t", "tea"]])
    await write(store, note, profile, others)
    await ban(store, alice)
    for _ in range(2):
        assert await read(store) == raws(others)
        assert await read(store, asked(tag_t=["tea"])) == raws(others)
        assert await store.head() == 3
        assert await write(store, note, profile) == [WriteOutcome.DELETED] * 2
        found = await look_up(store, tombstones=[event_target(note.id)])
        assert [stone.why for stone in found.tombstones[event_target(note.id)]] == ["ban"]
        store = await reopenable.crash()
    newer = unsigned(alice, 0, at=2000)
    await stored(store, newer)
    assert await read(store) == in_order(others, newer)


@pytest.mark.proves("N86-11")
async def test_group_records_of_a_banned_key_stay(store: Store) -> None:
    kinds = (9000, 9007, 9020, 9021, 9022)
    records = [unsigned(alice, kind, [["h", "den"]]) for kind in kinds]
    chat = unsigned(alice, 9, [["h", "den"]])
    await write(store, *records, chat)
    await ban(store, alice)
    assert await read(store) == in_order(*records)


async def test_earlier_rows_of_the_same_batch_are_deleted_too(store: Store) -> None:
    before, after = unsigned(alice, content="before"), unsigned(alice, content="after")
    record = unsigned(alice, 9000, [["h", "den"]])
    first, second = Batch(before, record), Batch(after)
    second.plan = first.plan

    def decide(found: Found) -> WritePlan:
        first.decide(found)
        delete_banned_author(alice.pubkey, found, first.plan)
        return second.decide(found)

    await store.append(first.wanted, decide)
    assert await read(store) == in_order(record, after)


async def test_a_closed_store_gives_no_lists(reopenable: Reopenable) -> None:
    store = await reopenable.open()
    await store.close()
    with pytest.raises(StoreFault):
        await store.management()
