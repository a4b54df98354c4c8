"""Groups in SqliteStore: a change writes what differs, also the first one after a start."""

from __future__ import annotations

from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.groups.group import Group
from relay.groups.key_map import OrderedMap
from relay.storage.sqlite.store import SqliteStore
from relay.write.replay import rebuilt_groups
from tests import cast
from tests.contract.writing import TERMS, set_groups, unsigned, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PEOPLE = {f"{number:064x}": () for number in range(1, 501)}
FIRST, SECOND, *_ = PEOPLE


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(folder / "rookery.db", TERMS)
    try:
        yield store
    finally:
        await store.close()


def rows(store: SqliteStore) -> dict[str, int]:
    """pubkey → whether the key has a role with rights."""
    with closing(store._writer._db.execute("SELECT hex(pubkey), admin FROM members")) as found:
        return {pubkey.lower(): admin for pubkey, admin in found}


@pytest.mark.parametrize(
    "members",
    [
        {**PEOPLE, "f" * 64: ()},
        {key: () for key in PEOPLE if key != FIRST},
        {**PEOPLE, FIRST: (), SECOND: ("moderator",)},
    ],
    ids=["one more", "one less", "other roles"],
)
async def test_the_first_change_after_a_start_writes_what_differs(
    tmp_path: Path, members: dict[str, tuple[str, ...]]
) -> None:
    """In 24 groups of 10,000 members it kept all writers waiting for 1.7 s."""
    tea = Group("tea", members=OrderedMap({**PEOPLE, FIRST: ("admin",)}))
    after = replace(tea, members=OrderedMap(members))

    async with opened(tmp_path) as store:
        await set_groups(store, tea=tea)
    async with opened(tmp_path) as store:
        before = store._writer._db.total_changes
        await set_groups(store, tea=after)
        assert store._writer._db.total_changes - before < 10
        assert rows(store) == {key: after.is_moderated_by(key) for key in members}


async def test_a_replay_of_twice_as_many_records_reads_twice_as_much(tmp_path: Path) -> None:
    """It was quadratic: 204,000 records made each start 200 s."""
    put = [["h", "tea"], ["p", cast.bob.pubkey]]
    records = [unsigned(cast.alice, 9000, put, f"{number}") for number in range(1600)]
    done = 0

    def step() -> int:
        nonlocal done
        done += 1
        return 0

    async with opened(tmp_path) as store:
        await store._relay_conn._db.set_progress_handler(step, 1)
        await write(store, *records[:800])
        await rebuilt_groups(store, cast.owner.pubkey)
        once, done = done, 0
        await write(store, *records[800:])
        groups = await rebuilt_groups(store, cast.owner.pubkey)
        assert groups.by_id["tea"].members.keys() == {cast.bob.pubkey}
        assert 0 < done < 2.2 * once
