"""What vanishes from SqliteStore, or ends there, costs as much as it has rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.groups.group import EndedGroup
from relay.nostr import kinds
from relay.storage.sqlite.checkpoints import Checkpoints
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.writing import TERMS, asked, change, raws, read, unsigned, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.lifecycle.rows import WritePlan

MANY = 2000


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    """The tags of its rows are in memory only: no upkeep writes them to the table."""
    monkeypatch.setattr(Checkpoints, "_start", lambda _: None)
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS)
    tags = [["t", str(number)] for number in range(MANY)]
    await write(store, unsigned(cast.bob, tags=tags))
    yield store
    await store.close()


def changes(store: SqliteStore) -> int:
    return store._writer._db.total_changes


async def test_a_key_that_vanishes_has_no_tags_of_others_written(store: SqliteStore) -> None:
    """One note and its request a second let each commit write 32,768 rows of the index."""
    own = unsigned(cast.alice, tags=[["t", "tea"]])
    wrap = unsigned(cast.carol, kind=kinds.GIFT_WRAP, tags=[["p", cast.alice.pubkey]])
    await write(store, own, wrap)
    before = changes(store)
    await write(store, unsigned(cast.alice, kind=kinds.VANISH, at=2000))
    assert changes(store) - before < 50
    assert raws(own)[0] not in await read(store)
    assert not await read(store, asked(kinds=[kinds.GIFT_WRAP]))
    assert len(await read(store)) == 1


async def test_a_group_that_ends_has_no_tags_of_others_written(store: SqliteStore) -> None:
    await write(store, unsigned(cast.alice, kind=9, tags=[["h", "tea"]]))

    def ends(plan: WritePlan) -> None:
        plan.groups["tea"] = EndedGroup(is_public=True)
        plan.deleted_groups.add("tea")

    before = changes(store)
    await change(store, ends)
    assert changes(store) - before < 50
    assert not await read(store, asked(kinds=[9]))


async def test_what_vanishes_with_the_batch_that_brought_it_leaves_no_tags(
    store: SqliteStore,
) -> None:
    wrap = unsigned(cast.carol, kind=kinds.GIFT_WRAP, tags=[["p", cast.alice.pubkey]])
    await write(store, unsigned(cast.alice))
    await write(store, wrap, unsigned(cast.alice, kind=kinds.VANISH, at=2000))
    hash_ = store._hashes.tag("p", cast.alice.pubkey)
    assert not await read(store, asked(kinds=[kinds.GIFT_WRAP]))
    assert store._writer.buffered_seqs([hash_]) == []
