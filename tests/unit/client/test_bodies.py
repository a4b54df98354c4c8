"""Answers over HTTP are read within bounds, whatever they are sent as."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from relay.cli import console
from relay.client import Client, NotARelay
from relay.client.connection import body_of, http_session
from relay.client.settings import ClientFile, ClientSettings
from relay.errors import UserError
from tests.cast import owner
from tests.unit.client.conftest import TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXPANDED = 20_000_000


@pytest.fixture
async def bomb() -> AsyncIterator[str]:
    """The URL of a relay that answers with few bytes, which become many."""
    packed = gzip.compress(b'{"path": "' + b"x" * EXPANDED + b'"}')
    assert len(packed) < EXPANDED / 500

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"ws://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_compressed_body_is_expanded_to_a_limit(bomb: str) -> None:
    async with http_session() as session:
        async with session.get("http" + bomb[2:]) as response:
            assert await body_of(response, EXPANDED - 1) is None
        async with session.get("http" + bomb[2:]) as response:
            assert len(await body_of(response, EXPANDED + 100) or b"") > EXPANDED


async def test_a_document_or_link_that_is_too_long_is_none(bomb: str) -> None:
    async with Client(bomb, timeouts=TIMEOUTS, start_offline=True) as relay:
        with pytest.raises(NotARelay):
            await relay.information()
    settings = ClientSettings(bomb, owner, Path(), None, ClientFile())
    with pytest.raises(UserError, match="has no console"):
        await console._link(settings)
