"""Two relays on one PostgreSQL database whose policies are pushed there."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from relay.config import load_config
from relay.storage.postgres.policies import opened_policies
from tests import cast
from tests.harness.postgres import postgres
from tests.harness.relay_program import Rookery, command, connected, outputs, two_relays, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]

pytestmark = pytest.mark.slow

NOBODY = '[[rule]]\nname = "no notes"\nmatch = { kinds = [1] }\nwrite = ["nobody"]\n'
OF_LATER = '[[rule]]\nname = "new"\nmatch = { moon = "full" }\nwrite = ["nobody"]\n'


async def push(relay: Rookery, **files: str) -> None:
    """Its folder of policies with these files beside those of `init`."""
    for name, text in files.items():
        (relay.folder / "policies" / f"{name}.toml").write_text(text)
    code, said = await command("policy", "push", "--data", str(relay.folder), "--by", "anna")
    assert code == 0, said


@asynccontextmanager
async def not_started(
    folder: Path, server: PostgresServer
) -> AsyncIterator[tuple[Rookery, Rookery]]:
    """With tables and no policies in their database."""
    database = await server.new_schema()
    async with two_relays(folder, database, 'policies = "database"') as (one, other):
        with pytest.raises(AssertionError) as refused:
            await one.start()
        assert "none were pushed there yet: `rookery policy push" in str(refused.value)
        yield one, other


async def in_force(version: int, *relays: Rookery) -> None:
    for relay in relays:
        async with until(f"version {version} is in force") as tries:
            async for _ in tries:
                if await relay.metric("policy_version") == version:
                    break


async def takes_notes(relay: Rookery) -> bool:
    note = cast.alice.sign(1, [["-n", str(time.monotonic_ns())]], "tea", int(time.time()))
    async with connected(relay.url) as wire:
        return (await wire.publish(note))[0]


async def problems(relay: Rookery) -> str:
    address = relay.url.replace("ws", "http", 1) + "/readyz"
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return await answer.text()


async def test_all_relays_take_what_is_pushed_and_go_back(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with not_started(tmp_path, postgres) as (one, other):
        await push(one)
        await one.start()
        await other.start()
        await in_force(1, one, other)
        assert [await takes_notes(each) for each in (one, other)] == [True, True]
        await push(one, **{"50-own": NOBODY})
        await in_force(2, one, other)
        assert [await takes_notes(each) for each in (one, other)] == [False, False]
        # Files of a relay's folder are a draft: what the database has is shown and checked.
        code, out, _ = await outputs("policy", "show", "--mine", "--data", str(other.folder))
        assert (code, b"no notes" in out) == (0, True)
        code, _ = await command(
            "policy", "push", "--data", str(other.folder), "--version", "1", "--by", "ben"
        )
        assert code == 0
        await in_force(3, one, other)
        assert [await takes_notes(each) for each in (one, other)] == [True, True]
        await other.stop()
        await other.start()
        await in_force(3, other)


async def test_a_version_of_a_later_program_leaves_the_one_in_force(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with not_started(tmp_path, postgres) as (one, _):
        await push(one, **{"50-own": NOBODY})
        await one.start()
        url = str(load_config(one.folder / "rookery.toml").storage.url)
        later = {"50-own.toml": OF_LATER.encode()}
        async with opened_policies(url, None) as versions:
            await versions.push(later, over=1, at=0, by="carol", message="")
        async with until("it is said that it cannot be taken") as tries:
            async for _ in tries:
                text = await problems(one)
                if "policies" in text:
                    break
        assert 'policy-versions/2/50-own.toml:3: unknown key "moon"' in text
        assert await one.metric("policy_version") == 1
        assert await one.metric("policies_current") == 0
        assert not await takes_notes(one)
        assert any("policies not reloaded: " in line and "moon" in line for line in one.lines)
        code, said = await command("doctor", "--data", str(one.folder))
        assert (code, 'unknown key "moon"' in said) == (1, True)
        code, said = await command("serve", "--check", "--data", str(one.folder))
        assert (code, 'version 2/50-own.toml:3: unknown key "moon"' in said) == (1, True)
        code, _ = await command(
            "policy", "push", "--data", str(one.folder), "--version", "1", "--by", "anna"
        )
        await in_force(3, one)
        assert "policies" not in await problems(one)
        assert await one.metric("policies_current") == 1
        assert [path.name for path in (one.folder / "policy-versions").iterdir()] == ["3"]
