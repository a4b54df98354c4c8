"""relay/client/history.py: old versions, from a relay that may give anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from aiohttp import web

from relay.client import Client, Timeouts, history
from relay.client.history import NoHistory, history_of
from relay.nostr.event import Address
from tests.cast import alice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

VERSION = alice.sign(30078, [["d", "note"]], "x" * 1000, 1_700_000_000)


@pytest.fixture
async def repeating() -> AsyncIterator[str]:
    """The URL of a relay that gives one version, and says each time that there are more."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "history" in request.query:
            page = {"versions": [orjson.loads(VERSION.raw)], "next": "more"}
            return web.Response(body=orjson.dumps(page))
        return web.json_response({"memory": {"history": True}})

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"ws://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_versions_without_end_are_not_held(
    repeating: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_MAX_HELD", 30_000)
    async with Client(repeating, alice, timeouts=Timeouts(), start_offline=True) as relay:
        with pytest.raises(NoHistory, match="more than 30000 bytes of versions"):
            await history_of(relay, Address(alice.pubkey, 30078, "note"), alice)
