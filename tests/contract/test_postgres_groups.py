"""Groups in PostgresStore: a change writes what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from relay.groups.group import EndedGroup, Group
from relay.groups.key_map import OrderedMap
from relay.storage.postgres.store import PostgresStore
from tests.contract.writing import TERMS, change, set_groups

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relay.lifecycle.rows import WritePlan
    from tests.harness.postgres import PostgresServer

pytestmark = pytest.mark.process
PEOPLE = {f"{number:064x}": () for number in range(1, 501)}
FIRST, SECOND, *_ = PEOPLE


async def from_what_is_there(store: PostgresStore, _: Group, after: Group) -> None:
    await set_groups(store, tea=after)


async def from_known_members(store: PostgresStore, before: Group, after: Group) -> None:
    def plan_change(plan: WritePlan) -> None:
        plan.groups["tea"] = after
        plan.members_before["tea"] = before.members

    await change(store, plan_change)


@pytest.mark.parametrize("change_members", [from_what_is_there, from_known_members])
async def test_a_change_of_a_group_leaves_its_other_members_as_they_are(
    postgres: PostgresServer,
    change_members: Callable[[PostgresStore, Group, Group], Awaitable[None]],
) -> None:
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    db = await asyncpg.connect(url)

    async def rows() -> dict[str, tuple[bool, int]]:
        """pubkey → whether the key has a role with rights, and the transaction that wrote it."""
        found = await db.fetch("SELECT encode(pubkey, 'hex'), admin, xmin::text FROM members")
        return {pubkey: (admin, int(by)) for pubkey, admin, by in found}

    try:
        tea = Group("tea", members=OrderedMap({**PEOPLE, FIRST: ("admin",)}))
        await set_groups(store, tea=tea)
        before = await rows()
        members = {**PEOPLE, SECOND: ("moderator",), "f" * 64: ()}
        del members[f"{500:064x}"]
        after = Group("tea", members=OrderedMap(members))
        await change_members(store, tea, after)
        now = await rows()
        admins = {key: is_admin for key, (is_admin, _) in now.items()}
        assert admins == {key: after.is_moderated_by(key) for key in members}
        assert {key for key in now if now[key] != before.get(key)} == {FIRST, SECOND, "f" * 64}
        await from_known_members(store, after, after)
        assert await rows() == now
        await set_groups(store, tea=EndedGroup())
        assert await rows() == {}
    finally:
        await db.close()
        await store.close()
        await postgres.empty(url)
