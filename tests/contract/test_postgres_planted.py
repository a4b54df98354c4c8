"""Rows of others that have the tag asked for, and that nobody gets, are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import orjson
import pytest

from relay.access.read_rules import Match, Target
from relay.facts import Who
from relay.nostr.kinds import KindSet
from relay.storage import PageQuery
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.crowd import CAROL, keys, rule, seen_by
from tests.contract.writing import TERMS, asked, in_order, read, unsigned, write

if TYPE_CHECKING:
    from relay.storage.postgres.sql.parameters import Query
    from tests.harness.postgres import PostgresServer

pytestmark = pytest.mark.process
PLANTED = 2_000


async def test_rows_with_the_tag_of_a_target_are_not_read(postgres: PostgresServer) -> None:
    """Of a target with `d_prefix`, as in the packaged rules."""
    target = Target(frozenset({78}), "x", "entry:")
    by_entry = rule(Match(KindSet.of(30_078)), Who.AUTHOR, Who.TARGET, target=target)
    visibility = seen_by(keys(CAROL), by_entry)
    vouches = [unsigned(cast.alice, 30_078, [["d", f"{at}"], ["x", "aa"]]) for at in range(20)]
    entry = unsigned(cast.alice, 78, [["d", "entry:aa"], ["x", "aa"]], at=1)
    # Any key may give the `d` as a further one to a row of the target's kind.
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    for start in range(0, PLANTED, 1000):
        some = [
            unsigned(cast.bob, 78, [["d", f"{at}"], ["d", "entry:aa"], ["x", "aa"]], "", 2000)
            for at in range(start, start + 1000)
        ]
        await write(store, *some)
    await write(store, entry, *vouches)
    filter_ = asked(kinds=[30_078])
    assert await read(store, filter_, visibility) == in_order(*vouches)
    query = PageQuery(filter_, visibility, 50, await store.head(), 0, 50)
    taken = await pages_read(url, store._compiler.page(query, ("raw",)))
    await store.close()
    assert taken < PLANTED
    await postgres.empty(url)


async def pages_read(url: str, query: Query) -> int:
    db = await asyncpg.connect(url)
    await db.execute("ANALYZE")
    plan = await db.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query.sql}", *query.values)
    await db.close()
    top = orjson.loads(plan[0][0])[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
