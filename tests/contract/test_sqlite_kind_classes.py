"""Rows of kinds that share a class in the table of tags, or that once did."""

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

if TYPE_CHECKING:
    from pathlib import Path


IN_FILE = pytest.mark.parametrize(
    "is_in_file", [True, False], ids=["tags in the table", "tags in memory"]
)
OTHER, ALIKE = 5000, 5032
"""Not known."""


@IN_FILE
async def test_kinds_that_share_a_class_are_told_apart(tmp_path: Path, *, is_in_file: bool) -> None:
    path = tmp_path / "rookery.db"
    store = await SqliteStore.open(path, TERMS)
    events = [
        unsigned(cast.bob, kind, [["p", ALICE], ["t", "tea"]], at=at)
        for at in (1, 2)
        for kind in (OTHER, ALIKE, 1, 1059)
    ]
    await write(store, *events)
    if is_in_file:
        await store.close()
        store = await SqliteStore.open(path, TERMS)
    for kinds in ([OTHER], [ALIKE], [OTHER, ALIKE], [OTHER, 1], [1, 1059, ALIKE], [1059]):
        for tags in ({"tag_p": [ALICE]}, {"tag_p": [ALICE], "tag_t": ["tea"]}):
            filter_ = asked(kinds=kinds, **tags)
            wanted = in_order(*[event for event in events if filter_.matches(event)])
            assert await read(store, filter_) == wanted
            assert await store.count([filter_], EVERYTHING, now=0) == len(wanted)
    await store.close()


@IN_FILE
@pytest.mark.parametrize("kind", [1059, 44_100, 44_101])
async def test_a_request_to_vanish_deletes_no_row_of_another_kind(
    tmp_path: Path, kind: int, *, is_in_file: bool
) -> None:
    path = tmp_path / "rookery.db"
    store = await SqliteStore.open(path, TERMS)
    to_alice = unsigned(cast.bob, kind, [["p", ALICE]])
    kept = unsigned(cast.bob, OTHER, [["p", ALICE]])
    await write(store, to_alice, kept)
    if is_in_file:
        await store.close()
        store = await SqliteStore.open(path, TERMS)
    assert await read(store, asked(tag_p=[ALICE], kinds=[kind])) == in_order(to_alice)
    assert await read(store, asked(tag_p=[ALICE], kinds=[OTHER, 7])) == in_order(kept)
    assert await store.count([asked(tag_p=[ALICE], kinds=[kind])], EVERYTHING, now=0) == 1
    await change(store, lambda plan: plan.vanishes.append(Vanish(ALICE, 1000)))
    assert await read(store) == in_order(kept)
    await store.close()


async def test_a_key_that_only_rows_of_another_kind_name_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "rookery.db"
    store = await SqliteStore.open(path, TERMS)
    await write(store, unsigned(cast.bob, OTHER, [["p", ALICE]]))
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    assert (await look_up(store, vanishing=[ALICE, BOB])).stored_keys == {BOB}
    await store.close()
