"""Rows of a kind that shares its class with what is asked for, under the same tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.lifecycle.rows import Vanish
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.crowd import ALICE, BOB
from tests.contract.writing import (
    EVERYTHING,
    TERMS,
    asked,
    change,
    in_order,
    look_up,
    read,
    unsigned,
    write,
)
from tests.harness.known_hashes import of_class_of, put_empty_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_in_file", [True, False], ids=["tags in the table", "tags in memory"])
@pytest.mark.parametrize("kind", [1059, 44_100, 44_101])
async def test_a_request_to_vanish_deletes_no_row_of_another_kind(
    tmp_path: Path, kind: int, *, is_in_file: bool
) -> None:
    path = tmp_path / "rookery.db"
    put_empty_store(path)
    store = await SqliteStore.open(path, TERMS)
    other = of_class_of(("p", ALICE), kind, range(1000, 9000))
    to_alice = unsigned(cast.bob, kind, [["p", ALICE]])
    kept = unsigned(cast.bob, other, [["p", ALICE]])
    await write(store, to_alice, kept)
    if is_in_file:
        await store.close()
        store = await SqliteStore.open(path, TERMS)
    assert await read(store, asked(tag_p=[ALICE], kinds=[kind])) == in_order(to_alice)
    assert await read(store, asked(tag_p=[ALICE], kinds=[other, 7])) == in_order(kept)
    assert await store.count([asked(tag_p=[ALICE], kinds=[kind])], EVERYTHING, now=0) == 1
    await change(store, lambda plan: plan.vanishes.append(Vanish(ALICE, 1000)))
    assert await read(store) == in_order(kept)
    await store.close()


@pytest.mark.parametrize("kind", [1059, 9000, 44_100, 44_101])
async def test_a_key_that_only_rows_of_another_kind_name_is_not_stored(
    tmp_path: Path, kind: int
) -> None:
    path = tmp_path / "rookery.db"
    put_empty_store(path)
    store = await SqliteStore.open(path, TERMS)
    other = of_class_of(("p", ALICE), kind, range(1000, 9000))
    await write(store, unsigned(cast.bob, other, [["p", ALICE]]))
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    assert (await look_up(store, vanishing=[ALICE, BOB])).stored_keys == {BOB}
    await store.close()
