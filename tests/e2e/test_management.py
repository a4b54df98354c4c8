"""NIP-86 from outside: signed as docs/operations.md says, on a relay that is killed in between."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession

from tests import cast
from tests.harness.patience import PROGRAM_S
from tests.harness.relay_program import Rookery, connected

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey

GUIDE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
(SIGN,) = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
(CURL,) = re.findall(r"^body='(.*)'$", GUIDE, re.MULTILINE)
CALL = {"Content-Type": "application/nostr+json+rpc"}


async def signature(url: str, body: str, who: SecretKey) -> str:
    """What the script of the guide prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SIGN,
        url,
        body,
        env={**os.environ, "ROOKERY_KEY": who.nsec},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), PROGRAM_S)
    assert process.returncode == 0
    return out.decode().strip()


async def posted(url: str, body: str, authorization: str) -> tuple[int, dict[str, Any]]:
    headers = {**CALL, "Authorization": authorization}
    async with ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
        return answer.status, json.loads(await answer.read())


async def called(url: str, method: str, *params: object) -> Any:
    at, body = url.replace("ws:", "http:"), json.dumps({"method": method, "params": params})
    tags = [["u", at], ["method", "POST"], ["payload", sha256(body.encode()).hexdigest()]]
    event = cast.owner.sign(27235, tags, "", int(time.time()))
    status, said = await posted(at, body, f"Nostr {b64encode(event.raw).decode()}")
    assert status == 200, said
    return said["result"]


async def information(url: str) -> dict[str, Any]:
    at, headers = url.replace("ws:", "http:"), {"Accept": "application/nostr+json"}
    async with ClientSession() as http, http.get(at, headers=headers) as answer:
        document: dict[str, Any] = json.loads(await answer.read())
        return document


async def writes(url: str, who: SecretKey, kind: int = 1) -> str:
    """The first word of what an author is told; "" when the event is taken."""
    async with connected(url) as wire:
        event = who.sign(kind, [], f"{kind} {time.monotonic_ns()}", int(time.time()))
        _, text = await wire.publish(event)
        return text.partition(":")[0]


@pytest.mark.slow
@pytest.mark.proves("N86-01", "N86-02", "N86-11", "N86-14", "N86-25", "N98-01")
async def test_what_calls_have_set_outlives_a_kill(tmp_path: Path) -> None:
    async with Rookery(tmp_path / "data") as rookery:
        owner, robot = cast.owner.pubkey, cast.robot.pubkey
        await rookery.init("--owner", owner, "--agent", robot)
        await rookery.start()
        note = cast.robot.sign(1, [], "before the ban", int(time.time()))
        async with connected(rookery.url) as wire:
            assert await wire.publish(note) == (True, "")
        assert await writes(rookery.url, cast.alice) == "restricted"
        at = rookery.url.replace("ws:", "http:") + "/"
        body = CURL.replace("<64 hex>", robot)
        as_the_guide_says = await signature(at, body, cast.owner)
        assert await posted(at, body, as_the_guide_says) == (200, {"result": True})
        for call in (
            ("allowpubkey", cast.alice.pubkey),
            ("disallowkind", 30023),
            ("changerelayname", "Tea"),
        ):
            assert await called(rookery.url, *call) is True
        await rookery.stop(signal.SIGKILL)
        await rookery.start()
        assert await called(rookery.url, "listbannedpubkeys") == [
            {"pubkey": robot, "reason": "spam"}
        ]
        assert (await information(rookery.url))["name"] == "Tea"
        assert await writes(rookery.url, cast.robot) == "blocked"
        assert await writes(rookery.url, cast.alice) == ""
        assert await writes(rookery.url, cast.alice, 30023) == "blocked"
        async with connected(rookery.url) as wire:
            assert await wire.query({"ids": [note.id]}) == []
        assert await called(rookery.url, "unbanpubkey", robot) is True
        async with connected(rookery.url) as wire:
            assert [event["id"] for event in await wire.query({"ids": [note.id]})] == [note.id]
        assert await rookery.stop() == 0
        assert any("banpubkey" in line and owner in line for line in rookery.lines)
