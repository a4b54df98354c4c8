"""relay/client/history.py: old versions, from a relay that may give anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson
import pytest
from aiohttp import web

from relay.client import Client, Timeouts, history
from relay.client.errors import MAX_SAID
from relay.client.history import NoHistory, history_of
from relay.client.receipts import NoReceipt, receipt_of
from relay.client.signed_get import reason_in
from relay.nostr.event import Address
from tests.cast import alice, bob
from tests.harness.web_server import answering

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

    async with answering(answer) as at:
        yield f"ws://{at}"


@pytest.fixture
async def dripping() -> AsyncIterator[str]:
    """The URL of a relay that begins to answer a signed request, and never ends."""
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if not request.query:
            return web.json_response({"memory": {"history": True}, "self": bob.pubkey})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"[")
        await over.wait()
        return response

    async with answering(answer) as at:
        yield f"ws://{at}"
        over.set()


async def test_an_answer_without_end_is_not_waited_for(
    dripping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_DEADLINE_S", 0.01)
    async with Client(dripping, alice, timeouts=Timeouts(), start_offline=True) as relay:
        with pytest.raises(NoHistory, match=r"not give all versions within 0\.01 s"):
            await history_of(relay, Address(alice.pubkey, 30078, "note"), alice)
        with pytest.raises(NoReceipt, match=r"no answer within 0\.01 s"):
            await receipt_of(relay, "a" * 64, alice, deadline_s=0.01)


def test_of_why_there_is_no_answer_little_is_kept() -> None:
    reason = orjson.dumps({"error": "no" * 1_000_000})
    assert len(reason_in(400, reason)) == MAX_SAID
    assert reason_in(400, b'{"error": "\x1b[2J"}') == "HTTP status 400"


async def test_versions_without_end_are_not_held(
    repeating: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_MAX_HELD", 30_000)
    async with Client(repeating, alice, timeouts=Timeouts(), start_offline=True) as relay:
        with pytest.raises(NoHistory, match="more than 30000 bytes of versions"):
            await history_of(relay, Address(alice.pubkey, 30078, "note"), alice)
