"""A relay whose primary dies, and whose replica is promoted without its last events."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from tests import cast
from tests.contract.test_postgres_commits import own_server
from tests.contract.test_postgres_promotion import cut_off, either, has_come, replica_of
from tests.harness.relay_program import Rookery, connected, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.postgres import PostgresServer

__all__ = ["own_server"]

pytestmark = pytest.mark.slow


def note(text: str) -> Event:
    return cast.alice.sign(1, [], text, int(time.time()))


async def test_it_starts_again_by_itself_and_has_what_the_database_has(
    tmp_path: Path, own_server: PostgresServer
) -> None:
    url = await own_server.new_schema()
    kept, lost, new = note("kept"), note("lost"), note("new")
    rookery = Rookery(tmp_path / "data")
    async with replica_of(own_server) as replica, rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--preset", "open")
        rookery.set_up("storage", f'url = "{either(url, own_server.host, replica.host)}"')
        await rookery.start()
        async with connected(rookery.url) as wire:
            assert await wire.publish(kept) == (True, "")
            head = f"SELECT seq FROM {own_server.schema_of(url)}.head"
            await has_come(replica, url, await own_server.value(head))
            await cut_off(replica)
            assert await wire.publish(lost) == (True, "")
        own_server.crash()
        await replica.promote()
        await eventually("it has started again", lambda: rookery.starts == 2)
        async with connected(rookery.url, open_timeout=None) as wire:
            assert await wire.publish(new) == (True, "")
            found = await wire.query_ids([each.id for each in (kept, lost, new)])
            assert found == {kept.id, new.id}
        assert await asyncio.wait_for(rookery.stop(), 60) == 0
