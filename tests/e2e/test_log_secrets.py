"""What a client types is in no line of the log, no refusal and no metric."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import aiohttp
import pytest

from tests.cast import alice, owner, stranger
from tests.harness.relay_program import Rookery, connected, outputs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.relay_program import Wire

pytestmark = pytest.mark.slow

SECRET: Final = "hunter2-of-a-client"
KEY: Final = stranger.nsec


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as relay:
        await relay.init("--owner", owner.pubkey, "--preset", "open")
        settings = relay.folder / "rookery.toml"
        text = settings.read_text()
        assert '# level = "info"' in text
        settings.write_text(text.replace('# level = "info"', 'level = "debug"'))
        await relay.start()
        yield relay


async def types_it_everywhere(wire: Wire, now: int) -> None:
    for secret in (SECRET, KEY):
        for kind in (1, 9, 5, 1984, 9007, 9009, 9021, 28934, 30023, 30078, 39000, 0, 22242):
            tags = [[name, secret] for name in ("t", "d", "code", "claim", "e", "p", "k", secret)]
            for tagged in (tags, [["h", "tea"], *tags], tags[:1], []):
                await wire.send_event(alice.sign(kind, tagged, secret, now))
                await wire.send_event(alice.sign(kind, tagged, secret, now + 10**8))
        await wire.send_event(alice.sign(22242, [["challenge", secret]], secret, now), "AUTH")
        wanted = {"#t": [secret], "#d": [secret], "search": secret, "limit": 5}
        await wire.send("REQ", secret, wanted)
        await wire.send("REQ", secret, {"ids": [secret]})
        await wire.send("REQ", secret, {secret: [secret]})
        await wire.send("COUNT", secret, wanted, {"kinds": [1]})
        await wire.send("NEG-OPEN", secret, {"kinds": [1]}, secret)
        await wire.send("NEG-OPEN", secret, {"kinds": [1]}, "61" + "00" * 4)
        await wire.send("EVENT", {"id": secret, "sig": secret, "content": secret})
        await wire.send(secret, secret)
    await wire.query({"kinds": [1]})


async def calls_with_it(rookery: Rookery) -> None:
    url = rookery.url.replace("ws", "http", 1)
    headers = {
        "Authorization": f"Nostr {SECRET}",
        "User-Agent": SECRET,
        "Content-Type": "application/nostr+json+rpc",
    }
    body = {"method": SECRET, "params": [SECRET]}
    async with aiohttp.ClientSession(headers=headers) as session:
        for path in (
            "/",
            f"/?receipt={SECRET}",
            f"/{SECRET}",
            f"/.well-known/nostr.json?name={SECRET}",
        ):
            async with session.get(url + path) as response:
                await response.read()
        async with session.post(url, json=body) as response:
            await response.read()


async def test_what_is_typed_is_in_no_line_no_refusal_and_no_metric(rookery: Rookery) -> None:
    async with connected(rookery.url) as wire:
        await types_it_everywhere(wire, int(time.time()))
    await calls_with_it(rookery)
    url = rookery.url.replace("ws", "http", 1) + "/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        metrics = await response.text()
    _, log, _ = await outputs("log", "--data", str(rookery.folder), "-n", "10000", "--json")
    _, status, _ = await outputs("status", "--data", str(rookery.folder), "--json")
    assert await rookery.stop() == 0
    assert log.count(b'"refusal"') > 100
    files = [rookery.folder / name for name in ("rookery.log", "refusals.json")]
    said = {
        "metrics": metrics,
        "log": log.decode(),
        "status": status.decode(),
        "stderr": "\n".join(rookery.lines),
        **{file.name: file.read_text() for file in files},
    }
    assert "connection closed" in said["stderr"]
    for name, text in said.items():
        for secret in (SECRET, KEY, KEY[5:40]):
            assert secret not in text, (name, text[max(0, text.index(secret) - 300) :][:400])
