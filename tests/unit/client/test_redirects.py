"""A client follows no redirect: what is signed for one URL goes to no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from relay.client.client import Client
from relay.client.connection import http_session
from relay.client.errors import Unreachable
from tests.cast import owner
from tests.harness.web_server import answering
from tests.unit.client.conftest import TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Redirecting:
    """Any request is sent on to `/there`; counts who came."""

    def __init__(self) -> None:
        self.arrived = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/there":
            self.arrived += 1
            return web.json_response({"name": "another"})
        raise web.HTTPTemporaryRedirect("/there")


@pytest.fixture
async def elsewhere() -> AsyncIterator[Redirecting]:
    here = Redirecting()
    async with answering(here.answer) as at:
        here.url = f"ws://{at}"
        yield here


async def test_a_handshake_follows_no_redirect(elsewhere: Redirecting) -> None:
    with pytest.raises(Unreachable, match="redirect"):
        async with Client(elsewhere.url, owner, timeouts=TIMEOUTS):
            pass
    assert elsewhere.arrived == 0


async def test_a_document_or_a_call_follows_no_redirect(elsewhere: Redirecting) -> None:
    url = elsewhere.url.replace("ws", "http", 1)
    async with http_session() as session:
        for method in ("GET", "POST"):
            with pytest.raises(Exception, match="redirect"):
                await session.request(method, url, data=b"x" if method == "POST" else None)
    assert elsewhere.arrived == 0
