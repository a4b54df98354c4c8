"""`nak`, the command line client in Go, where it is on PATH: it lists a group and reads in it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import pytest

from tests import cast
from tests.harness.patience import PROGRAM_S
from tests.harness.relay_program import Rookery

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.keys import SecretKey

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nak") is None, reason="nak is not on PATH"),
]


async def nak(home: Path, who: SecretKey, *args: str) -> list[dict[str, Any]]:
    """The events that it prints; `home`: of a user without settings."""
    process = await asyncio.create_subprocess_exec(
        "nak",
        *args,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "HOME": str(home), "NOSTR_SECRET_KEY": who.hex},
    )
    out, err = await asyncio.wait_for(process.communicate(), PROGRAM_S)
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]


async def test_nak_lists_a_group_writes_and_reads_in_it(tmp_path: Path) -> None:
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--preset", "open")
        await rookery.start()
        url = rookery.url

        async def sends(who: SecretKey, kind: int, *tags: str, content: str = "") -> None:
            flags = [part for tag in ("h=tea", *tags) for part in ("-t", tag)]
            await nak(tmp_path, who, "event", "-k", str(kind), *flags, "-c", content, url)

        async def asks(who: SecretKey, *args: str) -> list[dict[str, Any]]:
            return await nak(tmp_path, who, "req", *args, url)

        await sends(cast.alice, 9007)
        await sends(cast.alice, 9002, "name=Tea", "private", "restricted")
        (listed,) = await asks(cast.robot, "-k", "39000")
        assert ["d", "tea"] in listed["tags"]
        assert ["name", "Tea"] in listed["tags"]
        assert ["private"] in listed["tags"]
        await sends(cast.alice, 9000, f"p={cast.robot.pubkey}")
        await sends(cast.robot, 9, content="hello")

        messages = ("-k", "9", "-t", "h=tea")
        assert await asks(cast.robot, *messages) == []
        (heard,) = await asks(cast.robot, *messages, "--auth")
        assert (heard["pubkey"], heard["content"]) == (cast.robot.pubkey, "hello")
        assert await asks(cast.stranger, *messages, "--auth") == []
        (members,) = await asks(cast.robot, "-k", "39002", "-t", "d=tea", "--auth")
        listed_keys = {tag[1] for tag in members["tags"] if tag[0] == "p"}
        assert listed_keys == {cast.alice.pubkey, cast.robot.pubkey}
